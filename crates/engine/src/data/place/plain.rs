//! `prealloc=off`, the plain twin: each request out of the bitmaps as it is, behind what the file has; nothing is kept.
//! Takes a group's lock for each.

use super::{Place, Supply};
use crate::core::Error;
use crate::space::mballoc::TakenBlocks;

pub(super) struct Plain;

impl Supply for Plain {
    fn take<'a>(&self, place: &Place<'a, '_>) -> Result<TakenBlocks<'a>, Error> {
        let want = place.end - place.at;
        place.take_out(place.goal(), want, want)
    }
}
