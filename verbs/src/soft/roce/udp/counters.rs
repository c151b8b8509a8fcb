//! What became of datagrams that did not simply come or go.

use std::io;

use qpair_roce::Departure;

/// What became of datagrams that did not simply come or go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkCounters {
    /// Packets handed to the process that they are for.
    pub(crate) forwarded: u64,
    /// Packets for a slot that nobody has, or whose owner had no room.
    pub(crate) dropped_forwards: u64,
    /// Packets that another process handed here.
    pub(crate) taken_over: u64,
    /// Messages of other processes that are none, or come from another user.
    pub(crate) bad_messages: u64,
    /// Datagrams that were cut off, or that the system did not say enough about.
    pub(crate) unclear: u64,
    /// Packets too short to say whom they are for.
    pub(crate) short: u64,
    /// Sends that the system refused, or had no room for, by [`Loss`].
    pub(crate) lost: [u64; Loss::COUNT],
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// No way to the peer.
    Unreachable,
    /// Longer than the path takes.
    TooLong,
    /// Rules of the system forbid it.
    Forbidden,
    /// No memory, or the device's queue is full.
    NoBuffers,
    /// The own address is not of this machine any more, or the route is from no socket here.
    NoAddress,
    /// Several packets at once are not taken.
    Segments,
    /// A socket had no room for too long.
    HeldUp,
    /// Something else.
    Other,
}

impl NetworkCounters {
    /// Counts a departure that is lost.
    pub(super) fn lose(&mut self, loss: Loss, departure: &Departure, error: &io::Error) {
        let count = &mut self.lost[loss as usize];
        if *count == 0 {
            let addresses = departure.route.addresses;
            tracing::warn!(?addresses, %error, kind = ?loss, "packets are lost; told once for each kind");
        }
        *count += 1;
    }

    /// All of them, by name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let NetworkCounters { forwarded, dropped_forwards, taken_over, bad_messages, unclear, short, lost } = *self;
        let own = [
            ("forwarded_pkts", forwarded),
            ("dropped_forwards", dropped_forwards),
            ("taken_over_pkts", taken_over),
            ("bad_forwards", bad_messages),
            ("unclear_datagrams", unclear),
            ("short_datagrams", short),
        ];
        own.into_iter().chain(Loss::NAMES.into_iter().zip(lost))
    }
}

impl Loss {
    /// Names of counters, in the order of the reasons.
    const NAMES: [&'static str; Loss::COUNT] = [
        "send_unreachable",
        "send_too_long",
        "send_forbidden",
        "send_no_buffers",
        "send_no_address",
        "send_segments_refused",
        "send_held_up",
        "send_failed",
    ];

    pub(crate) const COUNT: usize = Loss::Other as usize + 1;

    /// Of an error of a send.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ECONNREFUSED | libc::ENETDOWN) => Loss::Unreachable,
            Some(libc::EMSGSIZE) => Loss::TooLong,
            Some(libc::EPERM | libc::EACCES) => Loss::Forbidden,
            Some(libc::ENOBUFS | libc::ENOMEM) => Loss::NoBuffers,
            Some(libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENODEV | libc::ENXIO) => Loss::NoAddress,
            _ => Loss::Other,
        }
    }
}
