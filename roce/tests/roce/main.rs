//! The crate from outside, in virtual time: wire formats, ends of each service over a network that loses, delays, repeats and
//! damages packets, ports, congestion control, and the connection manager.

mod cm;
mod congestion;
mod fuzz;
mod network;
mod pcap;
mod port;
mod rc;
mod replay;
mod side;
mod soak;
mod unreliable;
mod wire;
