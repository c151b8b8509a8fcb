//! Reliable connections.

mod faults;
mod goodput;
mod lone;
mod pair;
mod refused;
mod traffic;
