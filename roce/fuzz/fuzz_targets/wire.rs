//! Wire formats: any bytes are a packet or an error, and what was read is written and read as the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_roce_fuzz::wire(input));
