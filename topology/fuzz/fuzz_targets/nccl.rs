//! Topology files of NCCL: any text is a machine or an error, and comes back from what is written.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| qpair_topology_fuzz::nccl(input));
