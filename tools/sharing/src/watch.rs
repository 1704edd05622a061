//! What two threads touch while they are watched: every read, write and atomic operation of code that was compiled to
//! call [`runtime`], by cache line. Each thread records in tables of its own; nothing is locked, nothing survives.

pub mod heap;
pub mod record;
pub mod report;
pub mod runtime;
pub mod symbols;
