//! How ranks find each other, and hear of each other's end: a store at rank 0, to which all stay connected. Once that is gone,
//! others stand in for it, for those that are left to find each other.
//! Ranks of one process share an alarm instead.

mod alarm;
mod client;
mod environment;
mod islands;
mod launchers;
mod line;
mod meeting;
mod message;
mod muster;
mod overrides;
mod place;
mod regroup;
mod seating;
mod server;
mod stand_in;
mod store;
mod visitor;
mod watch;
mod whereabouts;

#[cfg(test)]
mod tests;

pub(crate) use alarm::Alarm;
pub use environment::Environment;
pub(crate) use islands::OwnIsland;
pub use meeting::Meeting;
pub(crate) use message::{Listening, Member, Staging, Whereabouts};
pub(crate) use muster::Remnant;
pub(crate) use regroup::{Host, SPOT, Spot, regroup};
pub(crate) use watch::{Shared, Watch};
pub(crate) use whereabouts::whereabouts;
