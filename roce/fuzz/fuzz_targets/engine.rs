//! Engines: a script posts, sends, loses, changes and forges packets; each request completes once.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_roce_fuzz::engine(input));
