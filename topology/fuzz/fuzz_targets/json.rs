//! JSON: any text is a machine or an error, and comes back the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_topology_fuzz::json(input));
