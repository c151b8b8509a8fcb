//! Congestion control: each part alone.

mod notify;
mod pacing;
mod reaction;
