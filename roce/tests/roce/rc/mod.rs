//! Reliable connections.

mod acknowledgments;
mod faults;
mod goodput;
mod hostile;
mod lone;
mod pair;
mod refused;
mod traffic;
