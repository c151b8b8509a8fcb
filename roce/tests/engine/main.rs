//! Two ends of each service, over a network that loses, delays, repeats and damages packets, in virtual time.

mod network;
#[path = "../wire/pcap.rs"]
mod pcap;
mod port;
mod rc;
mod side;
mod unreliable;
