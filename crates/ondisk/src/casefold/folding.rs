//! Folding with Unicode's tables. Pure functions, defined for all bytes.

use caseless::Caseless as _;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use super::assigned;

/// The most bytes of a folded form; a name whose form would be longer has none.
const FOLDED_MAX: usize = 4095;

/// The folded form of a name that is not all ASCII.
pub(super) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.first().copied().is_some_and(is_continuation) {
        return None;
    }
    let mut folding = Folding::default();
    for chunk in name.utf8_chunks() {
        chunk.valid().chars().for_each(|it| folding.take(it));
        if !chunk.invalid().iter().copied().all(is_continuation) {
            return None;
        }
        chunk
            .invalid()
            .iter()
            .for_each(|it| folding.take_stray(*it));
    }
    folding.end_run();
    Some(folding.done).filter(|folded| folded.len() <= FOLDED_MAX)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// A name on its way to its folded form.
#[derive(Default)]
struct Folding {
    done: Vec<u8>,
    /// Combining marks with their classes, and stray bytes (class 0) between them, not yet in order.
    run: Vec<(u8, Encoded)>,
}

/// A character or a stray byte, as its bytes.
#[derive(Clone, Copy)]
struct Encoded {
    bytes: [u8; 4],
    len: usize,
}

impl Folding {
    fn take(&mut self, character: char) {
        if is_ignored(character) {
            // It adds nothing to the form, but marks before it and marks after it are sorted separately.
            self.end_run();
        } else if is_assigned(character) {
            core::iter::once(character)
                .default_case_fold()
                .for_each(|folded| decompose_canonical(folded, |part| self.append(part)));
        } else {
            self.end_run();
            self.append_starter(character);
        }
    }

    fn append(&mut self, part: char) {
        match canonical_combining_class(part) {
            0 => {
                self.end_run();
                self.append_starter(part);
            }
            class => {
                let mut bytes = [0; 4];
                let len = part.encode_utf8(&mut bytes).len();
                self.run.push((class, Encoded { bytes, len }));
            }
        }
    }

    fn append_starter(&mut self, part: char) {
        let mut bytes = [0; 4];
        self.done
            .extend_from_slice(part.encode_utf8(&mut bytes).as_bytes());
    }

    /// Takes a continuation byte that continues nothing. The kernel's cursor puts it out each time it passes: in a run
    /// of marks, once to find their classes and once for each class.
    fn take_stray(&mut self, byte: u8) {
        if self.run.is_empty() {
            self.done.push(byte);
        } else {
            let bytes = [byte, 0, 0, 0];
            self.run.push((0, Encoded { bytes, len: 1 }));
        }
    }

    /// Ends a run of marks: sorts them by their classes.
    fn end_run(&mut self) {
        let mut class = Some(0);
        while let Some(now) = class.filter(|_| !self.run.is_empty()) {
            for (of, it) in &self.run {
                if *of == 0 || *of == now {
                    self.done.extend_from_slice(&it.bytes[..it.len]);
                }
            }
            let classes = self.run.iter().map(|(class, _)| *class);
            class = classes.filter(|class| *class > now).min();
        }
        self.run.clear();
    }
}

/// Whether Unicode 12.1 had assigned this code point, noncharacters and private use included.
fn is_assigned(character: char) -> bool {
    let code = u32::from(character);
    let begun = assigned::BOUNDARIES.partition_point(|boundary| *boundary <= code);
    begun % 2 == 1
}

/// Whether Unicode 12.1 ignores a character by default (Default_Ignorable_Code_Point). Unassigned code points that it
/// reserves for this count as well.
fn is_ignored(character: char) -> bool {
    matches!(
        u32::from(character),
        0xAD | 0x34F
            | 0x61C
            | 0x115F..=0x1160
            | 0x17B4..=0x17B5
            | 0x180B..=0x180E
            | 0x200B..=0x200F
            | 0x202A..=0x202E
            | 0x2060..=0x206F
            | 0x3164
            | 0xFE00..=0xFE0F
            | 0xFEFF
            | 0xFFA0
            | 0xFFF0..=0xFFF8
            | 0x1_BCA0..=0x1_BCA3
            | 0x1_D173..=0x1_D17A
            | 0xE_0000..=0xE_0FFF
    )
}
