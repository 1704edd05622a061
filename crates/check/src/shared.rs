//! What several inodes may refer to: attribute blocks, and inodes that hold attributes' values.

use std::collections::HashMap;

use sync::{Mutex, Rank};

use crate::policies::Policies;

const SHARDS: usize = 64;

/// References found to each number, in shards.
pub struct Counts {
    /// Number to references. [job]
    shards: Box<[Mutex<HashMap<u64, u64>>]>,
}

impl Counts {
    fn new() -> Counts {
        Counts {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Rank::Job, HashMap::new()))
                .collect(),
        }
    }

    /// Counts a reference; true for the first one.
    pub fn add(&self, number: u64) -> bool {
        // The remainder is below the number of shards.
        let mut shard = self.shards[(number % SHARDS as u64) as usize].lock();
        let count = shard.entry(number).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// All numbers with their references, in order.
    pub fn all(&self) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(number, count)| (*number, *count)));
        }
        all.sort_unstable();
        all
    }

    /// References to one number.
    pub fn of(&self, number: u64) -> u64 {
        let shard = self.shards[(number % SHARDS as u64) as usize].lock();
        shard.get(&number).copied().unwrap_or(0)
    }
}

/// All tables.
pub struct Shared {
    /// Policies of encrypted inodes.
    pub policies: Policies,
    /// Inodes that use each attribute block.
    pub xattr_blocks: Counts,
    /// Attributes whose value is in each inode.
    pub values: Counts,
}

impl Shared {
    pub fn new() -> Shared {
        Shared {
            policies: Policies::new(),
            xattr_blocks: Counts::new(),
            values: Counts::new(),
        }
    }
}
