//! Encryption policies: each different one has a number, so that an inode's policy takes four bytes.

use std::collections::HashMap;

use sync::{Mutex, Rank};

/// What an inode's encryption context says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EncryptionContext {
    /// The inode has no context.
    #[default]
    Missing,
    /// It is not one.
    Corrupt,
    /// The number of its policy.
    Policy(u32),
}

/// The number of every policy whose version is not known: what it says can't be compared.
pub const UNKNOWN: u32 = 0;

/// Bytes of a context's key for one file, which is not part of the policy.
const NONCE: usize = 16;
/// Versions and the length of a context.
const VERSIONS: [(u8, usize); 2] = [(1, 12 + NONCE), (2, 24 + NONCE)];

/// The policies seen so far.
pub struct Policies {
    /// The policy's bytes to its number. [job]
    numbers: Mutex<HashMap<Box<[u8]>, u32>>,
}

impl Policies {
    /// None.
    pub fn new() -> Policies {
        Policies {
            numbers: Mutex::new(Rank::Job, HashMap::new()),
        }
    }

    /// Reads the context in an attribute's value.
    pub fn context(&self, value: &[u8]) -> EncryptionContext {
        let Some(version) = value.first().copied().filter(|version| *version != 0) else {
            return EncryptionContext::Corrupt;
        };
        let Some((_, len)) = VERSIONS.iter().find(|(known, _)| *known == version) else {
            return EncryptionContext::Policy(UNKNOWN);
        };
        if value.len() != *len {
            return EncryptionContext::Corrupt;
        }
        let policy = &value[..len - NONCE];
        let mut numbers = self.numbers.lock();
        // Policies are fewer than inodes, which have 32 bits.
        let next = numbers.len() as u32 + 1;
        let number = numbers.entry(policy.into()).or_insert(next);
        EncryptionContext::Policy(*number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_that_differ_in_the_nonce_alone_have_one_policy() {
        let policies = Policies::new();
        let mut first = [1_u8; 28];
        let one = policies.context(&first);
        assert_eq!(one, EncryptionContext::Policy(1));
        first[27] = 9;
        assert_eq!(policies.context(&first), one);
        first[5] = 9;
        assert_eq!(policies.context(&first), EncryptionContext::Policy(2));
        assert_eq!(policies.context(&first[1..]), EncryptionContext::Corrupt);
        assert_eq!(policies.context(&[2; 40]), EncryptionContext::Policy(3));
        assert_eq!(
            policies.context(&[3; 5]),
            EncryptionContext::Policy(UNKNOWN)
        );
        assert_eq!(policies.context(&[]), EncryptionContext::Corrupt);
    }
}
