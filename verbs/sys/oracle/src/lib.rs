//! Compares the declarations of `qpair-verbs-sys` with those that `rdma-sys` generates from the system's headers when it
//! is built. The comparison is in `tests/layout/`.
//!
//! It is right only where the headers are of the version that the declarations were generated from (rdma-core 44.0) or
//! have the same layout; a later one may have grown a structure at its end.
