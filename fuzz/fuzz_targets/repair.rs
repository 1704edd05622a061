//! Fuzzes [`lanefs_corpus::targets::repair`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lanefs_fuzz::bounded(
    lanefs_corpus::targets::repair,
    data
));
