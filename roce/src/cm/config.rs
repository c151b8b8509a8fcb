//! What connections are asked for and accepted with.

use core::net::IpAddr;

use super::time::Timeout;
use crate::types::{Mtu, Qpn};
use crate::wire::DEFAULT_PKEY;
use crate::wire::cm::{Reply, Request, Transport};

/// What a manager is made with. It serves one address; a host with several has a manager for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// The address that it sends from.
    pub address: IpAddr,
    /// GUID of the device, EUI-64. Peers tell requests of this end by it, so no two devices have the same.
    pub ca_guid: u64,
    /// What all its communication IDs end with.
    pub id_tail: IdTail,
    /// Longest payload of a packet that goes from its address. A request for more is rejected, and told this.
    pub largest_mtu: Mtu,
    /// Requests of peers at most that are not accepted, or whose acceptance is not confirmed; more are dropped.
    pub pending: usize,
    /// Connections at most, those that linger in timewait among them.
    pub connections: usize,
    /// Datagrams at most that wait to be sent, and events at most with which requests are still taken.
    pub backlog: usize,
}

/// What the communication IDs of a manager end with. Managers that share the queue pair 1 of a host have different ones: a
/// message names its receiver's ID, which tells whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdTail {
    /// Lowest bits that are given, 16 at most.
    pub bits: u32,
    /// Those bits.
    pub value: u32,
}

/// A queue pair, as one end tells it to the other. Its first packet sequence number is not here: the manager draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Its number.
    pub qpn: Qpn,
    /// READs and atomics that it has under way at most (initiator depth).
    pub max_reads: u8,
    /// Those of the peer that it answers at once (responder resources).
    pub reads_answered: u8,
    /// Times that the *peer* sends again where this end had no receive, 0 to 7; 7: without end.
    pub peer_rnr_retry: u8,
    /// It uses the credits of acknowledgments.
    pub flow_control: bool,
    /// It takes receives from a shared queue.
    pub shared_receives: bool,
}

/// A connection that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Who is asked.
    pub to: IpAddr,
    /// What is asked for.
    pub service_id: u64,
    /// Service of the connection.
    pub transport: Transport,
    /// The queue pair of this end.
    pub offered: Offered,
    /// Path MTU.
    pub mtu: Mtu,
    /// Partition key.
    pub pkey: u16,
    /// Times that either end sends a packet again without an answer, 0 to 7.
    pub retry_count: u8,
    /// How long an acknowledgment may take; code 0 is without end. A closed connection lingers as long in timewait, 1 ms at
    /// least and 69 s at most; where it is without end, 0.54 s.
    pub ack_timeout: Timeout,
    /// How long the peer may take to answer a message, the way included. This end waits 1 ms at least and 69 s at most.
    pub peer_answers_within: Timeout,
    /// How long this end may take to answer one of the peer.
    pub answers_within: Timeout,
    /// Times that a message is sent again without an answer, by either end, 0 to 15.
    pub max_cm_retries: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Flow label of the path, 20 bits.
    pub flow_label: u32,
    /// What the application says.
    pub private: [u8; Request::PRIVATE],
}

/// A request that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The queue pair of this end. READs beyond what the peer asked for are not told to it.
    pub offered: Offered,
    /// How long this end's device may take to acknowledge; the peer adds it to the way.
    pub ack_delay: Timeout,
    /// What the application says.
    pub private: [u8; Reply::PRIVATE],
}

impl CmConfig {
    /// A manager for an address of a device, with room for what a host has.
    pub const fn new(address: IpAddr, ca_guid: u64) -> Self {
        let (id_tail, largest_mtu) = (IdTail { bits: 0, value: 0 }, Mtu::B4096);
        CmConfig {
            address,
            ca_guid,
            id_tail,
            largest_mtu,
            pending: PENDING,
            connections: CONNECTIONS,
            backlog: PENDING,
        }
    }
}

impl IdTail {
    /// An ID with this tail, from any number; never 0.
    pub(super) const fn id(self, number: u32) -> u32 {
        let step = self.step();
        let id = (number & !(step - 1)) | (self.value & (step - 1));
        if id == 0 { step } else { id }
    }

    /// The next ID with this tail.
    pub(super) const fn next(self, id: u32) -> u32 {
        self.id(id.wrapping_add(self.step()))
    }

    const fn step(self) -> u32 {
        1 << if self.bits < MOST_BITS { self.bits } else { MOST_BITS }
    }
}

impl Offered {
    /// A queue pair with the values that verbs applications are used to: 16 READs, 7 RNR retries.
    pub const fn new(qpn: Qpn) -> Self {
        Offered {
            qpn,
            max_reads: 16,
            reads_answered: 16,
            peer_rnr_retry: 7,
            flow_control: true,
            shared_receives: false,
        }
    }
}

impl Connect {
    /// A reliable connection with the times and retries of Linux' rdma_cm.
    pub const fn new(to: IpAddr, service_id: u64, offered: Offered) -> Self {
        Connect {
            to,
            service_id,
            transport: Transport::Rc,
            offered,
            mtu: Mtu::B1024,
            pkey: DEFAULT_PKEY,
            retry_count: 7,
            ack_timeout: ACK_TIMEOUT,
            peer_answers_within: ANSWERS_WITHIN,
            answers_within: ANSWERS_WITHIN,
            max_cm_retries: MAX_CM_RETRIES,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            flow_label: 0,
            private: [0; Request::PRIVATE],
        }
    }
}

impl Accept {
    /// Accepts for a queue pair.
    pub const fn new(offered: Offered) -> Self {
        Accept { offered, ack_delay: Timeout::from_code(0), private: [0; Reply::PRIVATE] }
    }
}

/// Enough IDs are left for all connections.
const MOST_BITS: u32 = 16;
/// As the longest backlog that Linux gives a listener of rdma_cm (`max_backlog` in drivers/infiniband/core/ucma.c).
const PENDING: usize = 1024;
/// One to each of 64 processes on each of 1024 hosts; some 50 MB if all are there.
const CONNECTIONS: usize = 1 << 16;
/// 0.54 s, 4.3 s, 15 retries: one more than `CMA_IBOE_PACKET_LIFETIME`, `CMA_CM_RESPONSE_TIMEOUT` and
/// `CMA_MAX_CM_RETRIES` in drivers/infiniband/core/cma.c of Linux 6.12.
pub(super) const ACK_TIMEOUT: Timeout = Timeout::from_code(17);
const ANSWERS_WITHIN: Timeout = Timeout::from_code(20);
const MAX_CM_RETRIES: u8 = 15;
/// As IP has it by default.
const HOP_LIMIT: u8 = 64;
