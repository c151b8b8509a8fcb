//! What a side can be told to do. Each answer is a JSON value, of the type that the comment names.

use qpair_verbs::{Access, Mtu, QpAddress, QpType};
use serde::{Deserialize, Serialize};

use super::{Fill, Mem, Piece, Work, is_soft};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name(pub usize);
    )*};
}

handles! {
    /// A protection domain of a side; 0 is there from the start.
    DomainId;
    /// A completion queue of a side; 0 is there from the start.
    CqId;
    /// A queue pair of a side; the first one made is 0.
    QpId;
    /// An exposed region of a side.
    RegionId;
    /// Shared bytes of a side that its peer may read.
    BytesId;
    /// A memory window of a side.
    WindowId;
    /// A shared receive queue of a side.
    SrqId;
    /// An address handle of a side.
    HandleId;
}

/// A queue pair by description; `None` is the builder's default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpSpec {
    pub qp_type: QpType,
    pub domain: DomainId,
    pub cq: CqId,
    pub recv_cq: Option<CqId>,
    pub srq: Option<SrqId>,
    pub send_depth: Option<u32>,
    pub recv_depth: Option<u32>,
    pub access: Option<Access>,
    pub rnr_retry: Option<u8>,
    /// How long the peer may take to answer each of the attempts.
    pub patience_ms: Option<u64>,
    /// Attempts after the first, where that is given.
    pub retries: u8,
    pub min_rnr_timer_us: Option<u64>,
    pub qkey: Option<u32>,
    pub mtu: Option<Mtu>,
}

impl QpSpec {
    pub fn new(qp_type: QpType) -> QpSpec {
        QpSpec {
            qp_type,
            domain: DomainId(0),
            cq: CqId(0),
            recv_cq: None,
            srq: None,
            send_depth: None,
            recv_depth: None,
            access: None,
            rnr_retry: None,
            patience_ms: None,
            retries: 0,
            min_rnr_timer_us: None,
            qkey: None,
            mtu: None,
        }
    }

    pub fn rc() -> QpSpec {
        QpSpec::new(QpType::Rc)
    }

    /// Soon sure that a peer which does not answer is gone: on devices that are told of it in no other way.
    pub fn impatient(self) -> QpSpec {
        if is_soft() { self } else { QpSpec { patience_ms: Some(250), retries: 2, ..self } }
    }
}

/// A queue pair that was made.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Made {
    pub qp: QpId,
    pub address: QpAddress,
}

/// What the device can do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Abilities {
    pub max_sge: u32,
    pub max_inline: u32,
    pub atomics_with_cpu: bool,
    pub read_reduce: bool,
}

/// What a side can be told to do. Times are in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// `Abilities`
    Abilities,
    /// `()`: guards this process's memory against other processes without special rights.
    Guard,
    /// `()`: lets this process open no more than `spare` descriptors besides those it has; `None` takes that back.
    Descriptors { spare: Option<u64> },
    /// `DomainId`
    NewDomain,
    /// `CqId`. With a channel of its own if asked.
    NewCq { depth: u32, channel: bool },
    /// `Made`
    NewQp(QpSpec),
    /// `Result<(), String>`: the error's variant.
    Connect { qp: QpId, address: QpAddress },
    /// `Result<(), String>`
    ReadyToReceive { qp: QpId, address: QpAddress },
    /// `Result<(), String>`
    ReadyToSend { qp: QpId },
    /// `()`
    Activate { qp: QpId },
    /// `()`
    ToError { qp: QpId },
    /// `()`
    DropQp { qp: QpId },
    /// `u32`: code of the state. Waits until it is `want`, if given, no longer than `limit`.
    State { qp: QpId, want: Option<u32>, limit: u64 },
    /// `Qpn`
    Number { qp: QpId },
    /// `String`
    Explain { qp: QpId },
    /// `usize`: queue pairs that polls of the queue pass by.
    Resting { cq: CqId },
    /// `Vec<(String, u64)>`: what the port has counted, but for zeros.
    Counters,
    /// `(RegionId, RemoteSlice)`
    Expose { domain: DomainId, piece: Piece, access: Access },
    /// `Result<Content, String>`: what blocks it; the region is then kept. Fails if the memory changes within `watch`.
    Revoke { region: RegionId, watch: u64 },
    /// `(BytesId, RemoteSlice)`
    ExposeBytes { len: usize, fill: Fill },
    /// `Content`: of the bytes, which are given back.
    RevokeBytes { bytes: BytesId },
    /// `Content`
    Look { region: RegionId, start: usize, end: usize },
    /// `()`
    Fill { region: RegionId, start: usize, end: usize, fill: Fill },
    /// `u64`: the value before. Adds on the CPU, `count` times.
    HostAdd { region: RegionId, offset: usize, add: u64, count: u32 },
    /// `WindowId`
    NewWindow { domain: DomainId },
    /// `Option<RemoteSlice>`
    WindowRemote { window: WindowId },
    /// `()`
    DropWindow { window: WindowId },
    /// `SrqId`
    NewSrq { depth: u32 },
    /// `Result<(), Refused>`
    SrqPost { srq: SrqId, mem: Mem, wr_id: u64 },
    /// `()`
    SrqLimit { srq: SrqId, limit: u32 },
    /// `u32`
    SrqAvailable { srq: SrqId },
    /// Made by the last queue pair that was activated: `Result<HandleId, String>`
    NewHandle { address: QpAddress },
    /// `Result<(), Refused>`
    PostRecv { qp: QpId, mem: Mem, wr_id: u64 },
    /// `Result<(), Refused>`
    PostSend { qp: QpId, work: Work },
    /// `Option<Done>`: waits no longer than `limit`.
    Completion { cq: CqId, limit: u64 },
    /// `Option<Done>`: as `Completion`, of a receive; its message is read in place, and the receive posted again on `qp`.
    Repost { qp: QpId, cq: CqId, limit: u64 },
    /// `Vec<Done>`: takes `count` completions, without a pause.
    Drain { cq: CqId, count: usize },
    /// `u64`: sum of the values before. Adds `count` times over `qp`, one after the other.
    AddMany { qp: QpId, remote: qpair_verbs::RemoteSlice, count: u32 },
    /// `String`: the failure that ended it. Writes, and sends if asked, to the peer without end, polling in between.
    Stream { qp: QpId, remote: qpair_verbs::RemoteSlice, sends: bool },
    /// `()`, never: sends datagrams of `len` bytes without end.
    StreamTo { qp: QpId, to: HandleId, len: usize },
    /// `bool`: the event came within `limit`.
    AwaitEvent { event: super::Event, limit: u64 },
    /// `()`
    Arm { cq: CqId, solicited: bool },
    /// `bool`: the queue's channel turned readable within `limit`, as mio tells.
    AwaitChannel { cq: CqId, limit: u64 },
    /// `()`
    ClearChannel { cq: CqId },
}
