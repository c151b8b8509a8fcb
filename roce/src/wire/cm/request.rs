//! REQ: asks for a connection. IBA 12.6.5.

use super::bits::{Reader, Writer};
use super::path::Path;
use crate::types::{Psn, Qpn};

/// Asks for a connection (REQ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's number for the connection.
    pub local_id: u32,
    /// What is asked for.
    pub service_id: u64,
    /// GUID of the sender's device.
    pub ca_guid: u64,
    /// Q_Key of the sender's queue pair; 0 but for datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender answers at once.
    pub responder_resources: u8,
    /// Those that it may have under way.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer, 4.096 us x 2^n, 5 bits.
    pub remote_response_timeout: u8,
    /// Service of the connection.
    pub transport: Transport,
    /// The sender uses the credits of acknowledgments.
    pub flow_control: bool,
    /// The sequence number that the receiver sends from.
    pub starting_psn: Psn,
    /// How long the sender may take to answer, 4.096 us x 2^n, 5 bits.
    pub local_response_timeout: u8,
    /// Retries of the receiver's requests, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, 128 bytes x 2^n, 4 bits.
    pub mtu: u8,
    /// RNR retries of the receiver's requests, 3 bits; 7: without end.
    pub rnr_retry_count: u8,
    /// Times that this message is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair takes receives from a shared queue.
    pub shared_receives: bool,
    /// The path.
    pub primary: Path,
    /// Another one to go to, all zero where there is none.
    pub alternate: Path,
    /// What the application says.
    pub private: [u8; Request::PRIVATE],
}

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// A code that this crate does not know, of 2 bits and of 3 more.
    Other(u8, u8),
}

impl Transport {
    const fn new(code: u8, extended: u8) -> Self {
        match (code, extended) {
            (0, 0) => Transport::Rc,
            (1, 0) => Transport::Uc,
            (code, extended) => Transport::Other(code, extended),
        }
    }

    const fn codes(self) -> (u8, u8) {
        match self {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Other(code, extended) => (code, extended),
        }
    }
}

impl Request {
    /// Bytes of private data.
    pub const PRIVATE: usize = 92;

    pub(super) fn read(from: &mut Reader<'_>) -> Self {
        let local_id = from.take(32) as u32;
        from.skip(32);
        let (service_id, ca_guid) = (from.take(64), from.take(64));
        from.skip(32);
        let qkey = from.take(32) as u32;
        let (qpn, responder_resources) = (Qpn(from.take(24) as u32), from.byte());
        from.skip(24);
        let initiator_depth = from.byte();
        from.skip(24);
        let (remote_response_timeout, service) = (from.take(5) as u8, from.take(2) as u8);
        let flow_control = from.flag();
        let starting_psn = Psn::new(from.take(24) as u32);
        let (local_response_timeout, retry_count) = (from.take(5) as u8, from.take(3) as u8);
        let (pkey, mtu) = (from.take(16) as u16, from.take(4) as u8);
        from.skip(1);
        let (rnr_retry_count, max_cm_retries) = (from.take(3) as u8, from.take(4) as u8);
        let shared_receives = from.flag();
        let transport = Transport::new(service, from.take(3) as u8);
        Request {
            local_id,
            service_id,
            ca_guid,
            qkey,
            qpn,
            responder_resources,
            initiator_depth,
            remote_response_timeout,
            transport,
            flow_control,
            starting_psn,
            local_response_timeout,
            retry_count,
            pkey,
            mtu,
            rnr_retry_count,
            max_cm_retries,
            shared_receives,
            primary: Path::read(from),
            alternate: Path::read(from),
            private: from.array(),
        }
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        let (service, extended) = self.transport.codes();
        to.put(32, self.local_id).skip(32).put(64, self.service_id).put(64, self.ca_guid).skip(32).put(32, self.qkey);
        to.put(24, self.qpn.0).put(8, self.responder_resources).skip(24).put(8, self.initiator_depth);
        to.skip(24).put(5, self.remote_response_timeout).put(2, service).flag(self.flow_control);
        to.put(24, self.starting_psn.get()).put(5, self.local_response_timeout).put(3, self.retry_count);
        to.put(16, self.pkey).put(4, self.mtu).skip(1).put(3, self.rnr_retry_count);
        to.put(4, self.max_cm_retries).flag(self.shared_receives).put(3, extended);
        self.primary.write(to);
        self.alternate.write(to);
        to.array(&self.private);
    }
}
