//! Communicators, on real data: threads of this process, and processes of their own.

mod bootstrap;
mod choice;
mod correctness;
mod ends;
mod environment;
#[path = "../group/mod.rs"]
mod group;
mod launchers;
#[path = "../meeting/mod.rs"]
mod meeting;
mod mismatch;
mod neighbors;
mod operations;
mod own_plans;
mod pending;
mod port;
mod processes;
#[path = "../random/mod.rs"]
mod random;
mod shrink;
mod split;
mod support;
mod types;
