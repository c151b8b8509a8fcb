//! Packets that nobody sent.

use qpair_roce::wire::{Aeth, AtomicEth, Bth, Deth, Extension, Headers, Opcode, Reth, Syndrome, cm};
use qpair_roce::{Msn, Psn, Qpn, Rkey};

use super::device::{BASE, KEY};
use super::end::QKEY;
use super::op::Forged;

impl Forged {
    /// The packet for queue pair `to`, but for its CRC. `near` is what its number is counted from.
    pub fn make(&self, to: Qpn, near: Psn) -> Vec<u8> {
        let opcode = Opcode::ALL[usize::from(self.opcode) % Opcode::ALL.len()];
        let psn = self.psn.to(near);
        let bth = Bth { ack_request: self.ack_request, ..Bth::new(opcode, to, psn) };
        let is_management = to == MANAGEMENT && !self.wrong_key;
        let headers = Headers { bth, extension: self.extension(opcode, is_management) };
        let mut bytes = Vec::new();
        let payload = if is_management { &[0; cm::LEN] } else { self.payload.bytes() };
        headers.emit_packet(payload, &mut bytes).expect("headers that go together");
        bytes
    }

    fn extension(&self, opcode: Opcode, is_management: bool) -> Extension {
        let va = BASE + u64::from(self.at);
        let rkey = if self.wrong_key { Rkey(5) } else { KEY };
        let reth = Reth { va, rkey, len: self.len.get() };
        let aeth = Aeth { syndrome: Syndrome::from_code(self.code), msn: Msn::new(self.msn.into()) };
        let deth = match (is_management, self.wrong_key) {
            (true, _) => Deth { qkey: cm::QKEY, source: MANAGEMENT },
            (_, wrong) => Deth { qkey: if wrong { 5 } else { QKEY }, source: Qpn(self.msn.into()) },
        };
        let all = [
            Extension::None,
            Extension::Immediate(self.len.get()),
            Extension::Invalidate(rkey),
            Extension::Remote(reth),
            Extension::RemoteImmediate(reth, 1),
            Extension::Acknowledge(aeth),
            Extension::AtomicAcknowledge(aeth, va),
            Extension::Atomic(AtomicEth { va, rkey, swap_or_add: va, compare: 0 }),
            Extension::Datagram(deth),
            Extension::DatagramImmediate(deth, 1),
            Extension::Congestion,
        ];
        all.into_iter().find(|extension| extension.goes_with(opcode)).expect("each operation has one")
    }
}

const MANAGEMENT: Qpn = Qpn(1);
