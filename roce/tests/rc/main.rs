//! Two ends of a reliable connection, over a network that loses, delays, repeats and damages packets, in virtual time.

mod faults;
mod goodput;
mod lone;
mod network;
mod pair;
mod refused;
mod side;
mod traffic;
