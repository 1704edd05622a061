//! Whether a replay finds room for the names that are logged.
//!
//! A new name may use the space of an earlier one whose removal no fast commit records. The replay begins with the leaf
//! as the last full commit left it, finds no room there, and e2fsck gives up. Nor does the replay add names in the
//! order in which they were made. So new names are counted for each leaf, logged or not. The number that fits the gaps
//! of the last full commit, if each name is as long as the longest, fits in any order: if one name does not fit, each
//! gap has less left than the longest needs, and so has its full number of names. A name that is only removed leaves
//! more room.

use ondisk::dirent::{self, DirForm};

/// Names that a change puts into the one block that it changes; it may put none, or give one to another inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The block of an indexed directory; 0 for all blocks of another one, where a replay takes the first that fits.
    pub(crate) leaf: u32,
    pub(crate) form: DirForm,
    pub(crate) names: usize,
    /// Bytes of the longest one's record.
    pub(crate) longest: usize,
}

/// A leaf of a directory that changed in an epoch.
#[derive(Debug)]
pub(super) struct Leaf {
    /// Bytes that were free one behind the other before the first change.
    gaps: Vec<usize>,
    names: usize,
    longest: usize,
}

impl Leaf {
    /// A block of entries before its first change.
    pub(super) fn of(block: &[u8], form: DirForm) -> Leaf {
        // A broken record was found before the change was made; here it counts as no room.
        let entries = dirent::entries(block, form).map_while(Result::ok);
        let gaps = entries.map(|entry| {
            if entry.is_used() {
                entry.len.saturating_sub(form.record_len(entry.name))
            } else {
                entry.len
            }
        });
        Leaf {
            gaps: gaps.filter(|gap| *gap > 0).collect(),
            names: 0,
            longest: 0,
        }
    }

    /// Counts the names that are placed; returns whether everything counted so far is certain to fit.
    pub(super) fn place(&mut self, placed: &Placed) -> bool {
        self.names += placed.names;
        self.longest = self.longest.max(placed.longest);
        if self.names == 0 {
            return true;
        }
        let longest = self.longest.max(1);
        self.names <= self.gaps.iter().map(|gap| gap / longest).sum()
    }
}

#[cfg(test)]
mod tests {
    use model::Random;
    use ondisk::dirent::DirBlockWriter;
    use ondisk::{BlockSize, FileType, Ino};

    use super::*;

    fn form() -> DirForm {
        DirForm {
            block_size: BlockSize::from_bytes(1024).unwrap(),
            checksum: true,
            filetype: true,
            hashes: false,
            max_ino: Ino(1000),
        }
    }

    /// Puts a name where it first fits, as a replay does.
    fn put(block: &mut [u8], name: &[u8]) -> bool {
        let room = dirent::room(block, form(), name).unwrap();
        room.is_some_and(|room| {
            let file_type = Some(FileType::Regular);
            dirent::insert(block, form(), room, Ino(12), name, file_type);
            true
        })
    }

    fn take(block: &mut [u8], name: &[u8]) {
        let mut entries = dirent::entries(block, form()).map(Result::unwrap);
        let place = entries.find(|entry| entry.is_used() && entry.name == name);
        let offset = place.unwrap().offset;
        dirent::remove(block, form(), offset).unwrap();
    }

    #[test]
    fn what_is_said_to_fit_does_in_any_order() {
        let (mut said, mut most) = (0, 0);
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut name = |number: usize| {
                let len = 4 + random.below(if seed % 2 == 0 { 8 } else { 90 }) as usize;
                format!("{number:0>len$}").into_bytes()
            };
            let mut block = vec![0; 1024];
            DirBlockWriter::new(&mut block, form()).finish();
            let old: Vec<_> = (0..200).map(&mut name).collect();
            let old: Vec<_> = old
                .into_iter()
                .filter(|name| put(&mut block, name))
                .collect();
            let new: Vec<_> = (1000..1060).map(&mut name).collect();
            let mut left: Vec<&Vec<u8>> = Vec::new();
            for name in &old {
                if random.one_in(3) {
                    take(&mut block, name)
                } else {
                    left.push(name)
                }
            }
            let mut leaf = Leaf::of(&block, form());
            let fits = |name: &&Vec<u8>| {
                let longest = form().record_len(name);
                let (form, names) = (form(), 1);
                leaf.place(&Placed {
                    leaf: 0,
                    form,
                    names,
                    longest,
                })
            };
            let mut fitting: Vec<&Vec<u8>> = new.iter().take_while(fits).collect();
            said += fitting.len();
            most = most.max(fitting.len());
            // Names that the log takes meanwhile make only more room.
            while let Some(name) = fitting.pop() {
                if random.one_in(2) && !fitting.is_empty() {
                    let other = random.below(fitting.len() as u64) as usize;
                    fitting.swap(0, other);
                }
                assert!(put(&mut block, name), "seed {seed}");
                if random.one_in(4) {
                    match left.pop() {
                        Some(old) => take(&mut block, old),
                        None => take(&mut block, name),
                    }
                }
            }
        }
        assert!(said > 2000 && most > 10, "{said}, {most}");
    }
}
