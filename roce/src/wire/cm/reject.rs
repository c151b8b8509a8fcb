//! REJ: refuses a connection. IBA 12.6.7.

use std::fmt;

use super::bits::{Reader, Writer};
use super::ids::{Pair, Refused};

/// Refuses a connection (REJ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Numbers of the connection.
    pub ids: Pair,
    /// The message that is refused.
    pub refused: Refused,
    /// Why.
    pub reason: Reason,
    /// Bytes of `info` that say more, 7 bits.
    pub info_len: u8,
    /// More of the reason: a value that would have been taken, for some.
    pub info: [u8; Reject::INFO],
    /// What the application says.
    pub private: [u8; Reject::PRIVATE],
}

/// Why a connection is refused: a code of IBA 12.6.7.2, table 113. Codes that this crate does not know are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Reason {
            $($(#[$doc])* pub const $name: Reason = Reason($code);)*

            /// The reason in words, or `None` for a code that this crate does not know.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// It has no queue pair left.
    NO_QP = 1, "no queue pair available";
    /// It has no resources left.
    NO_RESOURCES = 3, "no resources available";
    /// It waited too long.
    TIMEOUT = 4, "timeout";
    /// It does not do what was asked.
    UNSUPPORTED = 5, "unsupported request";
    /// It knows no such number of a connection.
    INVALID_COMMUNICATION_ID = 6, "invalid communication ID";
    /// It knows no such service.
    INVALID_SERVICE_ID = 8, "invalid service ID";
    /// It does not do that service of transport.
    INVALID_TRANSPORT = 9, "invalid transport service type";
    /// The connection exists, or ends.
    STALE_CONNECTION = 10, "stale connection";
    /// The path leads elsewhere.
    INVALID_GID = 12, "primary port GID rejected";
    /// The MTU is more than it takes.
    INVALID_MTU = 26, "invalid path MTU";
    /// The application refused.
    CONSUMER = 28, "rejected by the application";
    /// Both asked each other at once, and the other's request stands.
    DUPLICATE_ID = 30, "duplicate local communication ID";
}

impl Reject {
    /// Bytes that say more of the reason.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE: usize = 148;

    pub(super) fn read(from: &mut Reader<'_>) -> Self {
        let (ids, refused) = (Pair::read(from), Refused::from_code(from.take(2) as u8));
        from.skip(6);
        let info_len = from.take(7) as u8;
        from.skip(1);
        let reason = Reason(from.take(16) as u16);
        Reject { ids, refused, reason, info_len, info: from.array(), private: from.array() }
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        self.ids.write(to);
        to.put(2, self.refused.code()).skip(6).put(7, self.info_len).skip(1).put(16, self.reason.0);
        to.array(&self.info).array(&self.private);
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reason({self})")
    }
}
