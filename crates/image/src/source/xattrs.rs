//! Sets of extended attributes, each kept once: a million files with one label cost one set.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::limits;

/// The number of a set of extended attributes; equal sets have equal numbers within one tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct XattrSet(pub(crate) u32);

impl XattrSet {
    /// No attributes.
    pub const EMPTY: Self = Self(0);
}

type Pair = (Box<[u8]>, Box<[u8]>);

/// A set of names and values being collected: at most one value a name, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattrs(Vec<Pair>);

impl Xattrs {
    /// Sets `name` to `value`, in place of what it was.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.0.binary_search_by(|pair| (*pair.0).cmp(name)) {
            Ok(at) => self.0[at].1 = value.into(),
            Err(at) => self.0.insert(at, (name.into(), value.into())),
        }
    }

    /// Takes `name` away.
    pub fn remove(&mut self, name: &[u8]) {
        self.0.retain(|pair| *pair.0 != *name);
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let at = self.0.binary_search_by(|pair| (*pair.0).cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// Number of attributes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all names and values.
    pub(crate) fn bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }
}

/// All sets of one tree.
pub(crate) struct XattrTable {
    sets: Vec<Xattrs>,
    index: HashTable<u32>,
    hasher: foldhash::fast::FixedState,
    bytes: usize,
}

impl Default for XattrTable {
    fn default() -> Self {
        Self {
            sets: vec![Xattrs::default()],
            index: HashTable::new(),
            hasher: foldhash::fast::FixedState::default(),
            bytes: 0,
        }
    }
}

impl XattrTable {
    /// The number of `set`, which is kept when it is new.
    ///
    /// # Errors
    /// Says which limit of [`limits`] is exceeded.
    pub(crate) fn intern(&mut self, set: Xattrs) -> Result<XattrSet, String> {
        if set.is_empty() {
            return Ok(XattrSet::EMPTY);
        }
        let hash = self.hasher.hash_one(&set.0);
        if let Some(found) = self.index.find(hash, |at| self.sets[*at as usize] == set) {
            return Ok(XattrSet(*found));
        }
        if set.len() > limits::XATTRS {
            return Err(format!("more than {} extended attributes", limits::XATTRS));
        }
        for (name, value) in &set.0 {
            if name.is_empty() || name.len() > limits::XATTR_NAME || name.contains(&0) {
                return Err(format!(
                    "the extended attribute `{}` has a name that no file can have",
                    name.escape_ascii()
                ));
            }
            if value.len() > limits::XATTR_VALUE {
                return Err(format!(
                    "the extended attribute `{}` has {} bytes, more than {}",
                    name.escape_ascii(),
                    value.len(),
                    limits::XATTR_VALUE
                ));
            }
        }
        self.bytes += set.bytes();
        if self.bytes > limits::XATTR_TOTAL {
            return Err(format!(
                "more than {} bytes of extended attributes",
                limits::XATTR_TOTAL
            ));
        }
        let number = self.sets.len() as u32;
        self.sets.push(set);
        let (sets, hasher) = (&self.sets, &self.hasher);
        self.index
            .insert_unique(hash, number, |at| hasher.hash_one(&sets[*at as usize].0));
        Ok(XattrSet(number))
    }

    pub(crate) fn get(&self, set: XattrSet) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.sets[set.0 as usize]
            .0
            .iter()
            .map(|(name, value)| (&**name, &**value))
    }

    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Keeps the sets of `order`, in that order. Nothing can be added afterwards.
    pub(crate) fn reorder(&mut self, order: &[XattrSet]) {
        self.index = HashTable::new();
        let mut sets = std::mem::take(&mut self.sets);
        let take = |set: &XattrSet| std::mem::take(&mut sets[set.0 as usize]);
        self.sets = order.iter().map(take).collect();
    }

    pub(crate) fn set(&self, set: XattrSet) -> &Xattrs {
        &self.sets[set.0 as usize]
    }
}
/// Which extended attributes ext4 stores by name.
pub(crate) fn is_stored(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    prefixes
        .iter()
        .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
        || name == ACL_ACCESS
        || name == ACL_DEFAULT
}

pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
