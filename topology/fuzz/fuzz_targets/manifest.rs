//! Manifests: any text is a machine or an error, and a capture of it is the same machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_topology_fuzz::manifest(input));
