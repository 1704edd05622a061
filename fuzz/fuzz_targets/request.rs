//! Fuzzes [`lanefs_corpus::targets::request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lanefs_fuzz::bounded(
    lanefs_corpus::targets::request,
    data
));
