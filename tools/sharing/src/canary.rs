//! Mistakes made on purpose, which the report must find. Each worker commits them beside its operation. One is none:
//! [`PlantedSharing::Apart`], words on lines of their own, which the report must not find. No locks.

use sync::CachePadded;
use sync::atomic::{AtomicU64, Ordering};

/// Two workers' words, side by side.
static NEIGHBOURS: CachePadded<[AtomicU64; 2]> =
    CachePadded::new([AtomicU64::new(0), AtomicU64::new(0)]);
/// Two workers' words, apart.
static APART: [CachePadded<AtomicU64>; 2] = [
    CachePadded::new(AtomicU64::new(0)),
    CachePadded::new(AtomicU64::new(0)),
];

/// What a worker does beside its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedSharing {
    /// Counts in a word that the other worker counts in, too.
    SharedCounter,
    /// Counts in a word of its own, on the other worker's cache line.
    FalseSharing,
    /// Clones and drops a pointer that the other worker clones, too.
    SharedReference,
    /// Counts in a word on a line of its own.
    Apart,
}

impl PlantedSharing {
    /// All of them.
    pub const ALL: [PlantedSharing; 4] = [
        PlantedSharing::SharedCounter,
        PlantedSharing::FalseSharing,
        PlantedSharing::SharedReference,
        PlantedSharing::Apart,
    ];

    /// Whether the report must find it.
    #[must_use]
    pub fn shares(self) -> bool {
        self != PlantedSharing::Apart
    }

    /// Does it once, as worker 0 or 1.
    #[inline(never)]
    pub fn sing(self, worker: usize) {
        match self {
            PlantedSharing::SharedCounter => {
                // Relaxed: only its line matters; pairs with nothing.
                NEIGHBOURS[0].fetch_add(1, Ordering::Relaxed);
            }
            PlantedSharing::FalseSharing => {
                // Relaxed: only its line matters; pairs with nothing.
                NEIGHBOURS[worker & 1].store(1, Ordering::Relaxed);
            }
            PlantedSharing::SharedReference => {
                static SHARED: sync::LazyLock<sync::Arc<u64>> =
                    sync::LazyLock::new(|| sync::Arc::new(7));
                drop(std::hint::black_box(sync::Arc::clone(&SHARED)));
            }
            PlantedSharing::Apart => {
                // Relaxed: only its line matters; pairs with nothing.
                APART[worker & 1].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
