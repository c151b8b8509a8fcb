//! Connections that Linux' own connection manager makes, by librdmacm.
//!
//! The library would make queue pairs by itself, on contexts of its own. Here they are a device's like all others: the manager
//! is told their numbers, and says what is to be set in each state.
//!
//! Devices of InfiniBand and RoCE alone: on iWARP the library tells whoever asks of no answer, but that all is established.

mod connecting;
mod course;
mod id;
mod inbox;
mod known;
mod listener;
mod manager;

pub(crate) use connecting::{Connecting, Connection, connect};
pub(crate) use listener::{Listener, Request};

pub(super) use manager::Manager;
