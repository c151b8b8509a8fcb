//! Who is told what a device reports: objects as the hub knows them, whatever they are made of.

use std::fmt::Debug;

use crate::types::{Qpn, Rkey};

/// A queue pair that events may be about.
pub(super) trait QpListener: Debug + Send + Sync {
    /// Number.
    fn qpn(&self) -> Qpn;

    /// The device moved it to the error state.
    fn fail(&self);

    /// The device does nothing more with receives of a shared queue for it.
    fn reach_last_receive(&self);
}

/// A completion queue that events may be about.
pub(super) trait CqListener: Debug + Send + Sync {
    /// It, and all who complete there, can not be used any more.
    fn fail(&self, why: CqFailure);
}

/// A memory window whose key may end.
pub(super) trait WindowListener: Debug + Send + Sync {
    /// The key was invalidated.
    fn unbound(&self, rkey: Rkey);
}

/// Why a completion queue can not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CqFailure {
    /// The device lost completions.
    Overrun = 1,
    /// The device is gone.
    DeviceGone,
}
