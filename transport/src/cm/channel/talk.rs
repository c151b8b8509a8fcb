//! Which message is due when: a table.

use super::Side;
use crate::cm::message::Kind;

/// How far a conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Talk {
    /// A caller's: its hello is due.
    Calling,
    /// A caller's: the answer is awaited.
    Called,
    /// A caller's: the answer is there, and that it is ready is due.
    Accepted,
    /// A listener's: the hello is awaited.
    Listening,
    /// A listener's: the answer is due.
    Asked,
    /// A listener's: that the caller is ready is awaited.
    Answered,
    /// Both sides are ready.
    Up,
    /// The peer tells of another queue pair; that it has connected it is awaited.
    Renewed,
    /// One said no, or farewell. Nothing more is due.
    Parted,
}

impl Talk {
    pub(super) fn first(side: Side) -> Self {
        match side {
            Side::Caller => Talk::Calling,
            Side::Listener => Talk::Listening,
        }
    }

    /// What follows when the peer says this; `None` if it is not due.
    pub(super) fn heard(self, kind: Kind) -> Option<Talk> {
        find(HEARD, self, kind)
    }

    /// What follows when this side says this; `None` if it is not due.
    pub(super) fn said(self, kind: Kind) -> Option<Talk> {
        find(SAID, self, kind)
    }
}

type Row = (Talk, Kind, Talk);

fn find(table: &[Row], talk: Talk, kind: Kind) -> Option<Talk> {
    table.iter().find(|row| (row.0, row.1) == (talk, kind)).map(|row| row.2)
}

const HEARD: &[Row] = &[
    (Talk::Called, Kind::Accept, Talk::Accepted),
    (Talk::Called, Kind::Reject, Talk::Parted),
    (Talk::Listening, Kind::Hello, Talk::Asked),
    (Talk::Answered, Kind::Ready, Talk::Up),
    (Talk::Up, Kind::Farewell, Talk::Parted),
    (Talk::Up, Kind::Renew, Talk::Renewed),
    // One on another rail, or since the one before could not be connected.
    (Talk::Renewed, Kind::Renew, Talk::Renewed),
    (Talk::Renewed, Kind::Ready, Talk::Up),
    (Talk::Renewed, Kind::Farewell, Talk::Parted),
    (Talk::Up, Kind::Rail, Talk::Up),
    (Talk::Renewed, Kind::Rail, Talk::Renewed),
];

const SAID: &[Row] = &[
    (Talk::Calling, Kind::Hello, Talk::Called),
    (Talk::Accepted, Kind::Ready, Talk::Up),
    (Talk::Asked, Kind::Accept, Talk::Answered),
    (Talk::Asked, Kind::Reject, Talk::Parted),
    // That the caller is ready showed in its first message over the queue pair.
    (Talk::Answered, Kind::Farewell, Talk::Parted),
    (Talk::Answered, Kind::Renew, Talk::Answered),
    (Talk::Up, Kind::Farewell, Talk::Parted),
    (Talk::Up, Kind::Renew, Talk::Up),
    (Talk::Up, Kind::Ready, Talk::Up),
    (Talk::Renewed, Kind::Renew, Talk::Renewed),
    (Talk::Renewed, Kind::Ready, Talk::Renewed),
    (Talk::Renewed, Kind::Farewell, Talk::Parted),
    (Talk::Answered, Kind::Rail, Talk::Answered),
    (Talk::Up, Kind::Rail, Talk::Up),
    (Talk::Renewed, Kind::Rail, Talk::Renewed),
];
