//! The plain form (`dir_ireserve=off`): the first free number of the chosen group, else of the next group that has one.
//! No lock of its own; each take changes the group's bits and counts, and the sum.

use super::orlov::{self, Choice};
use super::{InodeRequest, LOOKS, Place, Source, Taken};
use crate::core::Error;

/// The plain form, which has no state.
pub(super) struct FirstFree;

impl Source for FirstFree {
    fn take(&self, place: Place<'_>, wanted: &InodeRequest<'_>) -> Result<Option<Taken>, Error> {
        let choice = orlov::choose(place, wanted);
        let taken = take_one(place, &choice)?;
        Ok(taken.map(|taken| orlov::note(place, wanted, taken)))
    }
}

/// Takes the lowest available number of the chosen group, or of one after it.
pub(super) fn take_one(place: Place<'_>, choice: &Choice) -> Result<Option<Taken>, Error> {
    let inodes = &place.groups.inodes;
    if !inodes.share_one() {
        return Ok(None);
    }
    // A thread that has a share of the sum finds a number after some searches.
    let found = (0..LOOKS)
        .find_map(|_| look(place, choice).transpose())
        .transpose();
    if !matches!(found, Ok(Some(_))) {
        inodes.give_back_share(1);
    }
    found
}

/// Searches all groups once.
fn look(place: Place<'_>, choice: &Choice) -> Result<Option<Taken>, Error> {
    for group in choice.groups(place) {
        let Some(bits) = place.ready(group, 1)? else {
            continue;
        };
        let (chunk, looked) = bits.take_lowest(1);
        place.count_words(looked);
        if let Some(chunk) = chunk {
            return Ok(Some(Taken::new(group, chunk.first())));
        }
    }
    Ok(None)
}
