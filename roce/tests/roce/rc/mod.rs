//! Reliable connections.

mod acknowledgments;
mod credits;
mod faults;
mod goodput;
mod hostile;
mod lone;
mod losses;
mod overtaken;
mod pair;
mod reads;
mod refused;
mod traffic;
