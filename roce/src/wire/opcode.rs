//! Operation codes: the first byte of every packet, which says what it does and which headers follow.

use std::fmt;

/// An operation code. Codes that this crate does not know are kept; those of reliable connections mean what is
/// [not supported](Action::Unsupported). IBA 9.2.1, table 38; A17.9.3 for congestion
/// notification.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Service of the queue pairs that it goes between.
    pub service: Service,
    /// What the packet does.
    pub action: Action,
    /// Its place in its message.
    pub position: Position,
    /// What a message brings beside its bytes.
    pub with: With,
}

/// The service of a packet's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Of none: congestion notification.
    Any,
}

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// Asks for an RDMA READ.
    ReadRequest,
    /// Part of the answer to it.
    ReadResponse,
    /// Acknowledges, or says why not.
    Acknowledge,
    /// Acknowledges an atomic, with the value that was there.
    AtomicAcknowledge,
    /// Asks for a compare-and-swap.
    CompareSwap,
    /// Asks for a fetch-and-add.
    FetchAdd,
    /// Asks for something that nothing here does, on a reliable connection: FLUSH (0x1c) and ATOMIC WRITE (0x1d) of IBA annex A19, and
    /// what has no meaning yet. The peer is to be told (IBA 9.9.2, table 59), and not to ask again.
    Unsupported,
    /// Tells the sender of marked packets to slow down.
    CongestionNotification,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Between.
    Middle,
    /// The last of several.
    Last,
    /// All of it.
    Only,
}

/// What a message brings beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    Nothing,
    /// Immediate data.
    Immediate,
    /// A key to invalidate.
    Invalidate,
}

impl Position {
    /// True if a message begins with the packet.
    pub const fn is_first(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// True if a message ends with the packet.
    pub const fn is_last(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// The place of a packet that begins or ends its message, or both, or neither.
    pub const fn new(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $service:ident $action:ident $position:ident $with:ident;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($code);)*

            /// All codes that are known.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// The name of the code, or `None` for one that this crate does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        const MEANINGS: [Option<Meaning>; 256] = {
            let mut table = [None; 256];
            let mut code = 0;
            while code < RELIABLE_CODES {
                table[code] = Some(UNSUPPORTED);
                code += 1;
            }
            $(table[$code] = Some(Meaning {
                service: Service::$service,
                action: Action::$action,
                position: Position::$position,
                with: With::$with,
            });)*
            table
        };
    };
}

opcodes! {
    /// First packet of a SEND on a reliable connection.
    RC_SEND_FIRST = 0x00: Rc Send First Nothing;
    /// Middle packet of a SEND.
    RC_SEND_MIDDLE = 0x01: Rc Send Middle Nothing;
    /// Last packet of a SEND.
    RC_SEND_LAST = 0x02: Rc Send Last Nothing;
    /// Last packet of a SEND with immediate data.
    RC_SEND_LAST_IMM = 0x03: Rc Send Last Immediate;
    /// A SEND of one packet.
    RC_SEND_ONLY = 0x04: Rc Send Only Nothing;
    /// A SEND of one packet with immediate data.
    RC_SEND_ONLY_IMM = 0x05: Rc Send Only Immediate;
    /// First packet of an RDMA WRITE.
    RC_WRITE_FIRST = 0x06: Rc Write First Nothing;
    /// Middle packet of an RDMA WRITE.
    RC_WRITE_MIDDLE = 0x07: Rc Write Middle Nothing;
    /// Last packet of an RDMA WRITE.
    RC_WRITE_LAST = 0x08: Rc Write Last Nothing;
    /// Last packet of an RDMA WRITE with immediate data.
    RC_WRITE_LAST_IMM = 0x09: Rc Write Last Immediate;
    /// An RDMA WRITE of one packet.
    RC_WRITE_ONLY = 0x0a: Rc Write Only Nothing;
    /// An RDMA WRITE of one packet with immediate data.
    RC_WRITE_ONLY_IMM = 0x0b: Rc Write Only Immediate;
    /// Asks for an RDMA READ.
    RC_READ_REQUEST = 0x0c: Rc ReadRequest Only Nothing;
    /// First packet of the answer to an RDMA READ.
    RC_READ_RESPONSE_FIRST = 0x0d: Rc ReadResponse First Nothing;
    /// Middle packet of the answer.
    RC_READ_RESPONSE_MIDDLE = 0x0e: Rc ReadResponse Middle Nothing;
    /// Last packet of the answer.
    RC_READ_RESPONSE_LAST = 0x0f: Rc ReadResponse Last Nothing;
    /// An answer of one packet.
    RC_READ_RESPONSE_ONLY = 0x10: Rc ReadResponse Only Nothing;
    /// Acknowledges requests, or says why one was not done.
    RC_ACKNOWLEDGE = 0x11: Rc Acknowledge Only Nothing;
    /// Acknowledges an atomic, with the value that was there.
    RC_ATOMIC_ACKNOWLEDGE = 0x12: Rc AtomicAcknowledge Only Nothing;
    /// Asks for a compare-and-swap.
    RC_COMPARE_SWAP = 0x13: Rc CompareSwap Only Nothing;
    /// Asks for a fetch-and-add.
    RC_FETCH_ADD = 0x14: Rc FetchAdd Only Nothing;
    /// Last packet of a SEND that invalidates a key.
    RC_SEND_LAST_INV = 0x16: Rc Send Last Invalidate;
    /// A SEND of one packet that invalidates a key.
    RC_SEND_ONLY_INV = 0x17: Rc Send Only Invalidate;
    /// First packet of a SEND on an unreliable connection.
    UC_SEND_FIRST = 0x20: Uc Send First Nothing;
    /// Middle packet of a SEND.
    UC_SEND_MIDDLE = 0x21: Uc Send Middle Nothing;
    /// Last packet of a SEND.
    UC_SEND_LAST = 0x22: Uc Send Last Nothing;
    /// Last packet of a SEND with immediate data.
    UC_SEND_LAST_IMM = 0x23: Uc Send Last Immediate;
    /// A SEND of one packet.
    UC_SEND_ONLY = 0x24: Uc Send Only Nothing;
    /// A SEND of one packet with immediate data.
    UC_SEND_ONLY_IMM = 0x25: Uc Send Only Immediate;
    /// First packet of an RDMA WRITE.
    UC_WRITE_FIRST = 0x26: Uc Write First Nothing;
    /// Middle packet of an RDMA WRITE.
    UC_WRITE_MIDDLE = 0x27: Uc Write Middle Nothing;
    /// Last packet of an RDMA WRITE.
    UC_WRITE_LAST = 0x28: Uc Write Last Nothing;
    /// Last packet of an RDMA WRITE with immediate data.
    UC_WRITE_LAST_IMM = 0x29: Uc Write Last Immediate;
    /// An RDMA WRITE of one packet.
    UC_WRITE_ONLY = 0x2a: Uc Write Only Nothing;
    /// An RDMA WRITE of one packet with immediate data.
    UC_WRITE_ONLY_IMM = 0x2b: Uc Write Only Immediate;
    /// A datagram.
    UD_SEND_ONLY = 0x64: Ud Send Only Nothing;
    /// A datagram with immediate data.
    UD_SEND_ONLY_IMM = 0x65: Ud Send Only Immediate;
    /// Congestion notification packet (CNP).
    CNP = 0x81: Any CongestionNotification Only Nothing;
}

/// The codes of reliable connections are those below this one. IBA 9.2.1, table 37.
const RELIABLE_CODES: usize = 0x20;
const UNSUPPORTED: Meaning =
    Meaning { service: Service::Rc, action: Action::Unsupported, position: Position::Only, with: With::Nothing };

impl Opcode {
    /// What the code means; `None` for one that this crate does not know, of no reliable connection.
    #[inline]
    pub const fn meaning(self) -> Option<Meaning> {
        MEANINGS[self.0 as usize]
    }

    /// The code for a packet of a SEND or WRITE; `None` where there is no such packet: nothing but the end of a message
    /// has immediate data, WRITEs and unreliable service invalidate nothing, and datagrams are SENDs of one packet.
    #[inline]
    pub const fn of_message(service: Service, action: Action, position: Position, with: With) -> Option<Opcode> {
        let base = match service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
            Service::Any => return None,
        };
        let first = match action {
            Action::Send => 0,
            Action::Write => 6,
            _ => return None,
        };
        let place = match (position, with) {
            (Position::First, With::Nothing) => first,
            (Position::Middle, With::Nothing) => first + 1,
            (Position::Last, With::Nothing) => first + 2,
            (Position::Last, With::Immediate) => first + 3,
            (Position::Only, With::Nothing) => first + 4,
            (Position::Only, With::Immediate) => first + 5,
            (Position::Last, With::Invalidate) => first + 0x16,
            (Position::Only, With::Invalidate) => first + 0x17,
            (Position::First | Position::Middle, With::Immediate | With::Invalidate) => return None,
        };
        let code = Opcode(base + place);
        // What the sums above make of pairs that do not exist has another meaning, or none.
        match code.meaning() {
            Some(meaning)
                if meaning.service as u8 == service as u8
                    && meaning.action as u8 == action as u8
                    && meaning.with as u8 == with as u8 =>
            {
                Some(code)
            }
            _ => None,
        }
    }

    /// The code of a packet of the answer to a READ.
    #[inline]
    pub const fn of_read_response(position: Position) -> Opcode {
        match position {
            Position::First => Opcode::RC_READ_RESPONSE_FIRST,
            Position::Middle => Opcode::RC_READ_RESPONSE_MIDDLE,
            Position::Last => Opcode::RC_READ_RESPONSE_LAST,
            Position::Only => Opcode::RC_READ_RESPONSE_ONLY,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_code_that_means_them_and_no_other() {
        let services = [Service::Rc, Service::Uc, Service::Ud, Service::Any];
        let positions = [Position::First, Position::Middle, Position::Last, Position::Only];
        let mut made = Vec::new();
        for service in services {
            for action in [Action::Send, Action::Write, Action::ReadRequest, Action::Acknowledge] {
                for position in positions {
                    for with in [With::Nothing, With::Immediate, With::Invalidate] {
                        let Some(code) = Opcode::of_message(service, action, position, with) else { continue };
                        assert_eq!(code.meaning(), Some(Meaning { service, action, position, with }));
                        made.push(code);
                    }
                }
            }
        }
        let is_message = |code: &&Opcode| matches!(code.meaning().unwrap().action, Action::Send | Action::Write);
        assert_eq!(made.len(), Opcode::ALL.iter().filter(is_message).count());
        for position in positions {
            assert_eq!(Opcode::of_read_response(position).meaning().unwrap().position, position);
        }
    }

    #[test]
    fn an_unknown_code_is_kept_and_printed() {
        assert_eq!(Opcode(0xff).meaning(), None);
        assert_eq!(Opcode(0xff).to_string(), "opcode 0xff");
        assert_eq!(format!("{:?}", Opcode::RC_SEND_ONLY), "Opcode(RC_SEND_ONLY)");
    }
}
