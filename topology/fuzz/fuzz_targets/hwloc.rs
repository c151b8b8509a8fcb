//! XML of hwloc: any text is a machine or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_topology_fuzz::hwloc(input));
