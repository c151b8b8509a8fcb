//! The messages of perftest's exchange: plain values, and the bytes that stand for them. All have a fixed length.

use super::error::ExchangeError;
use super::names::OLDEST;

/// The first message of each side: the version of the exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Version, as `6.06`.
    pub version: f64,
    /// True if the other side is a qpair, which tells its [`Terms`](super::terms::Terms) next.
    pub qpair: bool,
}

/// Where one queue pair can be reached, and the memory that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// READs and atomics that this side takes at once; 1 where the test has none.
    pub out_reads: u16,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number that this side sends, 24 bits.
    pub psn: u32,
    /// Key of the memory.
    pub rkey: u32,
    /// Address of the memory.
    pub addr: u64,
    /// Global identifier, if the side uses one.
    pub gid: Option<[u8; 16]>,
}

/// The results of one side's bandwidth, in its own unit (MiB/s or Gb/s), which the exchange does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BandwidthReport {
    /// Bytes of each message.
    pub size: u64,
    /// Messages.
    pub iterations: u64,
    /// Best bandwidth over any part of the run; 0 if it was not looked for.
    pub peak: f64,
    /// Bandwidth of the whole run.
    pub average: f64,
    /// Million messages per second.
    pub rate: f64,
}

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 16;
/// Bytes of a number in the introduction, in network order.
pub const NUMBER_BYTES: usize = 4;
/// Bytes of an MTU: a digit that counts from 1 (256 bytes), and a zero.
pub const MTU_BYTES: usize = 2;
/// Bytes of a [`Key`] without a GID.
pub const KEY_BYTES: usize = 59;
/// Bytes of a [`Key`] with a GID.
pub const KEY_GID_BYTES: usize = 108;
/// Numbers of a [`BandwidthReport`], each a message of 8 bytes.
pub const REPORT_NUMBERS: usize = 5;
/// The last message of tests that say farewell.
pub const DONE: &[u8; 5] = b"done\0";

/// The version that this side speaks: that of perftest 4.5.
const VERSION: &[u8] = b"6.06";
/// What a qpair writes behind its version, where perftest has zeros that it does not look at. The digit counts versions
/// of the terms.
const MARK: &[u8] = b"qpair1";
const MARK_AT: usize = 8;

impl Hello {
    /// What this side says.
    pub fn emit() -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..VERSION.len()].copy_from_slice(VERSION);
        bytes[MARK_AT..MARK_AT + MARK.len()].copy_from_slice(MARK);
        bytes
    }

    /// What the other side said.
    ///
    /// # Errors
    /// [`ExchangeError::NotPerftest`] if it is no version, [`ExchangeError::Version`] if it is too old.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, ExchangeError> {
        let (text, rest) = until_zero(bytes);
        let wrong = || ExchangeError::NotPerftest { got: printable(bytes) };
        let digits_and_dots = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        if !digits_and_dots || !text.contains(&b'.') || rest.is_empty() {
            return Err(wrong());
        }
        let version: f64 = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
        if version < OLDEST {
            return Err(ExchangeError::Version { theirs: printable(text) });
        }
        Ok(Hello { version, qpair: text.len() < MARK_AT && rest.ends_with(&mark_and_zeros()) })
    }
}

impl Key {
    /// The message.
    pub fn emit(&self) -> Vec<u8> {
        let Key { lid, out_reads, qpn, psn, rkey, addr, .. } = self;
        let mut text = format!("{lid:04x}:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:");
        if let Some(gid) = self.gid {
            gid.iter().for_each(|byte| text.push_str(&format!("{byte:02x}:")));
        }
        // The number of a shared receive queue that receives for other connections; there is none.
        text.push_str(if self.gid.is_some() { "00000000:\0" } else { "00000000\0" });
        text.into_bytes()
    }

    /// The key in `bytes`; one with a GID is longer.
    ///
    /// # Errors
    /// [`ExchangeError::Garbled`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ExchangeError> {
        let wrong = || ExchangeError::Garbled { what: "address of a queue pair", got: printable(bytes) };
        let mut fields = Fields(bytes);
        let mut number = |digits| fields.number(digits).ok_or_else(wrong);
        let mut key = Key {
            lid: number(4)? as u16,
            out_reads: number(4)? as u16,
            qpn: number(6)? as u32,
            psn: number(6)? as u32,
            rkey: number(8)? as u32,
            addr: number(16)?,
            gid: None,
        };
        if bytes.len() == KEY_GID_BYTES {
            let mut gid = [0; 16];
            for byte in &mut gid {
                *byte = number(2)? as u8;
            }
            key.gid = Some(gid);
        }
        match (fields.number_or_end(8).ok_or_else(wrong)?, fields.0) {
            (_, [] | [0]) => Ok(key),
            _ => Err(wrong()),
        }
    }
}

impl BandwidthReport {
    /// The numbers in the order of the exchange.
    pub fn emit(&self) -> [[u8; 8]; REPORT_NUMBERS] {
        let Self { size, iterations, peak, average, rate } = *self;
        [size.to_be_bytes(), iterations.to_be_bytes(), peak.to_be_bytes(), average.to_be_bytes(), rate.to_be_bytes()]
    }

    /// The report of these numbers. A side that measured nothing sends any.
    pub fn parse(numbers: &[[u8; 8]; REPORT_NUMBERS]) -> Self {
        BandwidthReport {
            size: u64::from_be_bytes(numbers[0]),
            iterations: u64::from_be_bytes(numbers[1]),
            peak: f64::from_be_bytes(numbers[2]),
            average: f64::from_be_bytes(numbers[3]),
            rate: f64::from_be_bytes(numbers[4]),
        }
    }
}

/// The MTU of `bytes` bytes as a message.
pub fn emit_mtu(bytes: u32) -> [u8; MTU_BYTES] {
    [b'0' + (bytes.max(256) / 256).ilog2() as u8 + 1, 0]
}

/// The MTU in bytes.
///
/// # Errors
/// [`ExchangeError::Garbled`] if it is none of 256 to 4096.
pub fn parse_mtu(bytes: [u8; MTU_BYTES]) -> Result<u32, ExchangeError> {
    match bytes {
        [digit @ b'1'..=b'5', 0] => Ok(256 << (digit - b'1')),
        _ => Err(ExchangeError::Garbled { what: "MTU", got: printable(&bytes) }),
    }
}

/// Bytes as text for a message, without what would disturb a terminal.
pub fn printable(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].escape_ascii().to_string()
}

/// Hexadecimal numbers, each with a colon behind it.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&mut self, digits: usize) -> Option<u64> {
        let value = self.digits(digits)?;
        self.0 = self.0.strip_prefix(b":")?;
        Some(value)
    }

    /// The last number, which has a colon behind it only after a GID.
    fn number_or_end(&mut self, digits: usize) -> Option<u64> {
        let value = self.digits(digits)?;
        self.0 = self.0.strip_prefix(b":").unwrap_or(self.0);
        Some(value)
    }

    fn digits(&mut self, digits: usize) -> Option<u64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        if !number.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        self.0 = rest;
        u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()
    }
}

fn until_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()))
}

fn mark_and_zeros() -> [u8; HELLO_BYTES - MARK_AT] {
    let mut bytes = [0; HELLO_BYTES - MARK_AT];
    bytes[..MARK.len()].copy_from_slice(MARK);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What perftest 4.5 sent between two queue pairs of one Soft-RoCE device.
    const RECORDED: &[u8; KEY_GID_BYTES] = b"0000:0080:000028:14eeaf:0000150b:0000558a17f24000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:0b:00000000:\0";

    fn recorded() -> Key {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 11]);
        Key { lid: 0, out_reads: 128, qpn: 0x28, psn: 0x14_eeaf, rkey: 0x150b, addr: 0x558a_17f2_4000, gid: Some(gid) }
    }

    #[test]
    fn a_recorded_key_is_read_and_written_byte_by_byte() {
        assert_eq!(Key::parse(RECORDED), Ok(recorded()));
        assert_eq!(recorded().emit(), RECORDED);
    }

    #[test]
    fn a_key_without_gid_is_shorter() {
        let key = Key { gid: None, lid: 0x11, ..recorded() };
        assert_eq!(key.emit(), b"0011:0080:000028:14eeaf:0000150b:0000558a17f24000:00000000\0");
        assert_eq!(key.emit().len(), KEY_BYTES);
        assert_eq!(Key::parse(&key.emit()), Ok(key));
    }

    #[test]
    fn no_changed_key_is_misread_as_another_length_or_panics() {
        for at in 0..KEY_GID_BYTES {
            for byte in [0, b':', b'g', 0xff, b'-'] {
                let mut bytes = *RECORDED;
                if bytes[at] == byte {
                    continue;
                }
                bytes[at] = byte;
                let parsed = Key::parse(&bytes);
                assert!(matches!(parsed, Err(ExchangeError::Garbled { .. })), "{at} {byte}: {parsed:?}");
            }
        }
        for len in 0..KEY_GID_BYTES {
            assert!(Key::parse(&RECORDED[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_version_is_read_and_old_ones_are_refused() {
        let hello = |text: &[u8]| {
            let mut bytes = [0; HELLO_BYTES];
            bytes[..text.len().min(HELLO_BYTES)].copy_from_slice(&text[..text.len().min(HELLO_BYTES)]);
            Hello::parse(&bytes)
        };
        assert_eq!(hello(b"6.06"), Ok(Hello { version: 6.06, qpair: false }));
        assert_eq!(hello(b"5.70"), Ok(Hello { version: 5.70, qpair: false }));
        assert_eq!(hello(b"5.69"), Err(ExchangeError::Version { theirs: "5.69".to_owned() }));
        for text in [&b"GET / HTTP/1.1\r\n"[..], b"", b"inf", b"6.06x", b"-7", b"6..6", b"6", b"6.0000000000000000"] {
            assert!(matches!(hello(text), Err(ExchangeError::NotPerftest { .. })), "{text:?}");
        }
    }

    #[test]
    fn a_qpair_knows_another_and_perftest_sees_the_version_alone() {
        let bytes = Hello::emit();
        assert_eq!(&bytes[..5], b"6.06\0");
        assert_eq!(Hello::parse(&bytes), Ok(Hello { version: 6.06, qpair: true }));
        let mut other = bytes;
        other[13] = b'2';
        assert_eq!(Hello::parse(&other), Ok(Hello { version: 6.06, qpair: false }));
    }

    #[test]
    fn mtus_are_digits() {
        for (bytes, message) in [(256, b"1\0"), (512, b"2\0"), (1024, b"3\0"), (2048, b"4\0"), (4096, b"5\0")] {
            assert_eq!(&emit_mtu(bytes), message);
            assert_eq!(parse_mtu(*message), Ok(bytes));
        }
        for message in [*b"0\0", *b"6\0", *b"33", [0, 0], [0xff, 0]] {
            assert!(matches!(parse_mtu(message), Err(ExchangeError::Garbled { .. })), "{message:?}");
        }
    }

    #[test]
    fn a_recorded_report_has_its_numbers() {
        let numbers = [
            *b"\x00\x00\x00\x00\x00\x01\x00\x00",
            *b"\x00\x00\x00\x00\x00\x00\x00d",
            *b"@<\xc2\xa8Gz\x86b",
            *b"@<R\x18\xd7W\x06\xd6",
            *b"?=\xb2G\x1a\x96U\xb7",
        ];
        let report = BandwidthReport::parse(&numbers);
        assert_eq!((report.size, report.iterations), (65536, 100));
        assert_eq!(format!("{:.2} {:.2} {:.6}", report.peak, report.average, report.rate), "28.76 28.32 0.000453");
        assert_eq!(report.emit(), numbers);
    }
}
