//! Devices beside the worker's: messages that go over them, and what becomes of connections when one is gone.

use qpair_verbs::{CqError, Local, WcOpcode};

use crate::worker::Worker;
use crate::worker::arrival::At;
use crate::worker::endpoint::Stage;
use crate::worker::error::{CloseReason, Lost};
use crate::worker::poll::plain_event;

impl Worker {
    /// Takes what completed of messages over further devices, at most so much of each. True if nothing is left.
    pub(in crate::worker) fn poll_further_devices(&mut self, most: u32) -> bool {
        let mut is_empty = true;
        for device in 1..self.rails.devices() {
            is_empty &= self.poll_messages_of(device, most);
        }
        self.cut_short |= !is_empty;
        is_empty
    }

    fn poll_messages_of(&mut self, device: usize, most: u32) -> bool {
        for _ in 0..most {
            match self.rails.poll_messages(device) {
                Ok(Some((wc, Local::Slab(slab)))) if wc.opcode == WcOpcode::RECV && wc.status.is_success() => {
                    let at = At { device, qpn: wc.qpn };
                    let plain = self.received(at, wc.wr_id, wc.byte_len as usize, slab);
                    self.ready.extend(plain.map(|plain| plain_event(plain, |event| event)));
                }
                Ok(Some((wc, memory))) if wc.opcode == WcOpcode::RECV => self.receive_failed(device, &wc, memory),
                Ok(Some((wc, memory))) => self.completed(device, &wc, memory),
                Ok(None) => return true,
                Err(error) => {
                    self.lose_device(device, &error);
                    return true;
                }
            }
        }
        false
    }

    /// A device other than the worker's gives no completions any more: its rails are left out for good.
    #[cold]
    pub(in crate::worker) fn lose_device(&mut self, device: usize, error: &CqError) {
        tracing::warn!(device = self.rails.device_name(device), %error, "the rails of a device are left out");
        self.rails.lose_device(device);
        let gone: Vec<_> = (0..self.rails.count()).filter(|&rail| self.rails.is_gone(rail)).collect();
        for index in 0..self.endpoints.bound() {
            for &rail in &gone {
                self.lose_rail(index, rail, true);
            }
            self.leave_device(index, device);
        }
    }

    /// The messages of a connection go over a device that gives no completions any more, or were to.
    fn leave_device(&mut self, index: usize, device: usize) {
        let Some(endpoint) = self.endpoints.at(index).filter(|endpoint| endpoint.device == device) else { return };
        // What was copied is retained, and goes out again; its buffers do not come back.
        self.pool.lose_messages(std::mem::take(&mut endpoint.copied));
        let reason = CloseReason::PeerLost(Lost::QueuePair);
        match endpoint.stage {
            Stage::Recovering(_) => self.try_elsewhere(index, reason),
            _ => self.break_off(index, reason),
        }
    }
}
