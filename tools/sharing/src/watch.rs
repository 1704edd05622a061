//! Records what two threads touch while they are watched: every read, write and atomic operation, by cache line, of
//! code that was compiled to call [`runtime`]. Each thread records in tables of its own. No locks; nothing survives.

pub mod heap;
pub mod record;
pub mod report;
pub mod runtime;
pub mod symbols;
