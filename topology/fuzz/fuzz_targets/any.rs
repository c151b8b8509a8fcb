//! The loader: any bytes are a machine in one of the formats, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_topology_fuzz::any(input));
