//! Connections of the software device: `qpair_roce`'s connection manager makes them.

mod connecting;
mod connection;
mod handle;
mod listener;
mod request;

pub(super) use connecting::{Connecting, connect};
pub(super) use connection::Connection;
pub(super) use listener::Listener;
pub(super) use request::Request;
