//! The connection manager: against what Linux said, message by message, and two of them over a bad network in virtual time.

mod agree;
mod bounds;
mod capture;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../engine/network.rs"]
mod network;
mod pair;
#[path = "../wire/pcap.rs"]
mod pcap;
mod states;
mod timewait;
