//! Queue pairs of libibverbs: made and connected by state transitions, posted to by one of two ways, closed by their
//! owner.

mod attributes;
mod close;
mod create;
mod diagnose;
mod ece;
mod managed;
mod modify;
mod post;
mod shared;
mod short;
mod submit;

pub(super) use attributes::Local;
pub(crate) use create::OwnedQp;
pub(super) use managed::{Agreed, Leash};
pub(super) use shared::QpShared;
