//! Communicators, on real data: threads of this process, and processes of their own.

mod bootstrap;
mod correctness;
mod ends;
mod environment;
mod mismatch;
mod pending;
mod processes;
mod support;
