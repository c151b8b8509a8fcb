//! Congestion control: each part alone, and then senders that share a link in virtual time, how soon and how evenly
//! they do so, and how long its queue gets.

mod bottleneck;
mod notify;
mod pacing;
mod reaction;
mod scenario;
mod sharing;
mod world;
