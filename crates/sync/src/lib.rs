//! Locks with ranks, threads and clocks for lanefs.
