//! Those who send datagrams to a queue pair: each comes whole, under the header of its packet, any number of times.

use qpair_roce::{Extra, Grh, Incoming, Qpn};

use crate::soak::noise::noise;

/// A datagram that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    pub len: u32,
    pub immediate: Option<u32>,
    pub solicited: bool,
    pub source: Qpn,
}

/// What was sent, by number.
#[derive(Debug, Default)]
pub struct Datagrams {
    sent: Vec<Datagram>,
}

impl Datagrams {
    /// Someone sends a datagram; its number.
    pub fn ask(&mut self, datagram: Datagram) -> u32 {
        self.sent.push(datagram);
        self.sent.len() as u32 - 1
    }

    pub fn received(&mut self, message: Incoming, buffer: &[u8]) {
        let (grh, payload) = buffer[..message.len as usize].split_at(Grh::LEN);
        assert!(grh[0] == 0x60 || (grh[..20] == [0; 20] && grh[20] == 0x45), "{grh:?}");
        let Some(number) = payload.first_chunk() else { return };
        let number = u32::from_le_bytes(*number);
        let sent = self.sent[number as usize];
        let extra = sent.immediate.map_or(Extra::Nothing, Extra::Immediate);
        let len = Grh::LEN as u32 + sent.len;
        let whole = Incoming { len, extra, is_write: false, solicited: sent.solicited, source: Some(sent.source) };
        assert_eq!(message, whole);
        assert!(payload[4..] == *contents(number, 4, payload.len() - 4), "other bytes than those of {sent:?}");
    }
}

/// What a datagram has behind its number.
pub fn contents(number: u32, offset: u32, len: usize) -> &'static [u8] {
    noise(number as u16, offset, len)
}
