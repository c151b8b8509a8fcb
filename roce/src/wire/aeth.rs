//! The acknowledgment extended header (AETH): what a responder says of requests. IBA 9.7.5.

use std::time::Duration;

use crate::types::Msn;

/// The acknowledgment extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// Messages that the responder has finished.
    pub msn: Msn,
}

/// What a responder says. Codes that this crate does not know are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to the packet's sequence number is done.
    Ack(Credits),
    /// There was no receive: come again after that time.
    ReceiverNotReady(RnrTimer),
    /// It will not be done.
    Nak(Nak),
    /// A code that is reserved.
    Unknown(u8),
}

/// Messages for which the responder has receives, as it tells: a code of 5 bits. IBA 9.7.7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

/// How long a requester waits for a receive: a code of 5 bits. IBA 9.7.5.2.8, table 45.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// Why a responder will not do a request. IBA 9.7.5.2, table 46.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing: send again from the packet's sequence number.
    Sequence,
    /// The request is none that the responder takes: its operation, length, or place in a message.
    InvalidRequest,
    /// The key, the range, or the right was wrong.
    RemoteAccess,
    /// The responder could not finish.
    RemoteOperation,
    /// Reliable datagrams only, which RoCE has not.
    InvalidRdRequest,
    /// A code that is reserved.
    Unknown(u8),
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// From its bytes, all of which mean something.
    #[inline]
    pub const fn parse(bytes: [u8; Aeth::LEN]) -> Self {
        let [code, rest @ ..] = bytes;
        let [msn0, msn1, msn2] = rest;
        Aeth { syndrome: Syndrome::from_code(code), msn: Msn::new(u32::from_be_bytes([0, msn0, msn1, msn2])) }
    }

    /// Its bytes.
    #[inline]
    pub const fn emit(&self) -> [u8; Aeth::LEN] {
        let [_, msn0, msn1, msn2] = self.msn.get().to_be_bytes();
        [self.syndrome.code(), msn0, msn1, msn2]
    }
}

impl Syndrome {
    /// What a code means.
    pub const fn from_code(code: u8) -> Self {
        let value = code & VALUE;
        match code & !VALUE {
            ACK => Syndrome::Ack(Credits(value)),
            RNR => Syndrome::ReceiverNotReady(RnrTimer(value)),
            NAK => Syndrome::Nak(match value {
                0 => Nak::Sequence,
                1 => Nak::InvalidRequest,
                2 => Nak::RemoteAccess,
                3 => Nak::RemoteOperation,
                4 => Nak::InvalidRdRequest,
                other => Nak::Unknown(other),
            }),
            _ => Syndrome::Unknown(code),
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            Syndrome::Ack(Credits(value)) => ACK | value,
            Syndrome::ReceiverNotReady(RnrTimer(value)) => RNR | value,
            Syndrome::Nak(nak) => {
                NAK | match nak {
                    Nak::Sequence => 0,
                    Nak::InvalidRequest => 1,
                    Nak::RemoteAccess => 2,
                    Nak::RemoteOperation => 3,
                    Nak::InvalidRdRequest => 4,
                    Nak::Unknown(other) => other & VALUE,
                }
            }
            Syndrome::Unknown(code) => code,
        }
    }
}

impl Credits {
    /// The responder counts none: send what you like. What rdma_rxe always says, and what shared receive queues mean.
    pub const UNLIMITED: Credits = Credits(31);

    /// Credits for `count` messages, or the next fewer that there is a code for.
    pub const fn at_most(count: u32) -> Self {
        let mut code = 0;
        while (code as usize) + 1 < CREDITS.len() && CREDITS[code as usize + 1] <= count {
            code += 1;
        }
        Credits(code)
    }

    /// Messages that there are receives for; `None` if they are not counted.
    pub const fn count(self) -> Option<u32> {
        if self.0 == Credits::UNLIMITED.0 { None } else { Some(CREDITS[self.0 as usize]) }
    }
}

impl RnrTimer {
    /// The shortest time that is not shorter than `wait`; the longest there is, 655.36 ms, where all are.
    pub fn at_least(wait: Duration) -> Self {
        let mut best = 0u8;
        for code in 0..RNR_TIMES.len() as u8 {
            let (this, held) = (RnrTimer(code).wait(), RnrTimer(best).wait());
            let better = if held < wait { this > held } else { this >= wait && this < held };
            if better {
                best = code;
            }
        }
        RnrTimer(best)
    }

    /// From its code, of which the lowest 5 bits count.
    pub const fn from_code(code: u8) -> Self {
        RnrTimer(code & VALUE)
    }

    /// Its code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time to wait.
    pub const fn wait(self) -> Duration {
        Duration::from_micros(RNR_TIMES[self.0 as usize] as u64 * 10)
    }
}

const VALUE: u8 = 0x1f;
const ACK: u8 = 0x00;
const RNR: u8 = 0x20;
const NAK: u8 = 0x60;
/// Messages for each code of credits; IBA 9.7.7.2, table 50.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];
/// Tens of microseconds for each code of a timer; the code 0 stands for the longest.
const RNR_TIMES: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives() {
        for code in 0..=u8::MAX {
            assert_eq!(Syndrome::from_code(code).code(), code);
        }
    }

    #[test]
    fn times_are_those_of_the_table() {
        let wait = |code| RnrTimer::from_code(code).wait();
        assert_eq!(wait(0), Duration::from_micros(655_360));
        assert_eq!(wait(1), Duration::from_micros(10));
        assert_eq!(wait(12), Duration::from_micros(640));
        assert_eq!(wait(31), Duration::from_micros(491_520));
        for (asked, code) in [(0, 1), (10, 1), (11, 2), (600, 12), (491_520, 31), (491_521, 0), (2_000_000, 0)] {
            assert_eq!(RnrTimer::at_least(Duration::from_micros(asked)).code(), code, "{asked} us");
        }
    }

    #[test]
    fn credits_never_promise_more() {
        for count in 0..40_000 {
            let told = Credits::at_most(count).count().unwrap();
            assert!(told <= count && (count < 5 || told * 2 > count), "{count}: {told}");
        }
        assert_eq!(Credits::UNLIMITED.count(), None);
    }
}
