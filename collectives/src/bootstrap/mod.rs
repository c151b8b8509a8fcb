//! How ranks find each other, and hear of each other's end: a store at rank 0, to which all stay connected.
//! Ranks of one process share an alarm instead.

mod alarm;
mod client;
mod environment;
mod message;
mod place;
mod server;

pub(crate) use alarm::{Alarm, Watch};
pub use environment::Environment;
pub(crate) use message::Whereabouts;
pub(crate) use place::whereabouts;
