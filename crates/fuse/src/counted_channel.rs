//! A channel to the kernel that counts what is answered over it.

use sync::Arc;

use crate::messages::{Messages, TimedRequest};
use crate::reply::Channel;

/// A channel whose answers are counted.
pub(crate) struct CountedChannel<C> {
    channel: Arc<C>,
    messages: Arc<Messages>,
}

impl<C> CountedChannel<C> {
    pub(crate) fn new(channel: Arc<C>, messages: Arc<Messages>) -> CountedChannel<C> {
        CountedChannel { channel, messages }
    }
}

impl<C: Channel> Channel for CountedChannel<C> {
    fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        self.channel.answer(unique, error, parts);
    }

    fn answered(&self, request: TimedRequest, bytes: u64) {
        self.messages.answered(request, bytes);
    }
}
