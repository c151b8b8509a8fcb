//! Carrying out send requests: the initiator does the NIC's work for both sides.
//! Messages stand in `message` and `datagram`, WRITE, READ and atomics in `one_sided`, windows in `bind`.

mod bind;
mod bounce;
mod bounce_area;
mod datagram;
mod message;
mod one_sided;
mod request;
mod run;
mod sender;

pub(in crate::soft) use bounce_area::AREA;
pub(crate) use datagram::{UdTarget, taker};
pub(crate) use message::{NotPut, find, put_at, scatter};
pub(crate) use request::{Outcome, Own, Piece, Request, Wait};
pub(crate) use sender::{Sender, take};
