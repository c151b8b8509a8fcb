//! The software device's own way of measuring: sizes in lists, memcpy beside bandwidths, messages of the transport.
//! The client leads (`client`), the server follows (`server`), in rounds agreed on over TCP (`exchange`).

mod bandwidth;
mod client;
mod exchange;
mod latency;
mod limits;
mod memcpy;
mod onesided;
mod pingpong;
mod postpoll;
mod report;
mod server;
mod session;
mod stats;
mod tagged;
mod watch;

pub use client::run as measure;
pub use exchange::{INTRODUCTION, PATIENCE, broken};
pub use server::serve;
