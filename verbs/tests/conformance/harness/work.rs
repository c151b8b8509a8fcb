//! Work requests, completions and events as plain values, which also travel to a peer process.

use qpair_verbs::calc::{DataType, ReduceOp};
use qpair_verbs::{Access, Qpn, RemoteSlice, Rkey, WcOpcode, WcStatus};
use serde::{Deserialize, Serialize};

use super::{Content, HandleId, Mem, RegionId, WindowId};

/// A send request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    pub op: Op,
    pub mem: Mem,
    pub range: Option<(usize, usize)>,
    pub imm: Option<u32>,
    pub wr_id: u64,
    pub signaled: bool,
    pub solicited: bool,
    pub fenced: bool,
}

/// What a send request does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Op {
    Send { invalidate: Option<Rkey>, to: Option<HandleId> },
    Write(RemoteSlice),
    Read(RemoteSlice),
    ReadReduce(RemoteSlice, DataType, ReduceOp),
    CompareSwap { remote: RemoteSlice, compare: u64, swap: u64 },
    FetchAdd { remote: RemoteSlice, add: u64 },
    Bind { window: WindowId, region: RegionId, start: usize, end: usize, access: Access },
    Invalidate(Rkey),
}

/// A completion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub qpn: Qpn,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub invalidated: Option<Rkey>,
    pub src_qpn: Option<Qpn>,
    /// The memory that came back.
    pub memory: Content,
    /// Memory of unsignaled requests that came back with it, oldest first.
    pub retired: Vec<Content>,
}

/// A refused post.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The error's variant.
    pub kind: String,
    pub retryable: bool,
    /// Length of the memory that was handed back.
    pub memory_len: usize,
}

/// An asynchronous event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its variant.
    pub kind: String,
    /// Whose it is.
    pub qpn: Option<Qpn>,
}

impl Work {
    pub fn new(op: Op, mem: Mem) -> Work {
        Work { op, mem, range: None, imm: None, wr_id: 0, signaled: false, solicited: false, fenced: false }
    }

    pub fn send(mem: Mem) -> Work {
        Work::new(Op::Send { invalidate: None, to: None }, mem)
    }

    pub fn send_to(to: HandleId, mem: Mem) -> Work {
        Work::new(Op::Send { invalidate: None, to: Some(to) }, mem)
    }

    pub fn write(mem: Mem, remote: RemoteSlice) -> Work {
        Work::new(Op::Write(remote), mem)
    }

    /// A READ of as many bytes as `remote` has.
    pub fn read(remote: RemoteSlice) -> Work {
        Work::new(Op::Read(remote), Mem::blank(remote.len as usize))
    }

    pub fn compare_swap(remote: RemoteSlice, compare: u64, swap: u64) -> Work {
        Work::new(Op::CompareSwap { remote, compare, swap }, Mem::blank(8))
    }

    pub fn fetch_add(remote: RemoteSlice, add: u64) -> Work {
        Work::new(Op::FetchAdd { remote, add }, Mem::blank(8))
    }

    pub fn invalidate(rkey: Rkey) -> Work {
        Work::new(Op::Invalidate(rkey), Mem::None)
    }

    pub fn invalidating(mut self, rkey: Rkey) -> Work {
        if let Op::Send { invalidate, .. } = &mut self.op {
            *invalidate = Some(rkey);
        }
        self
    }

    pub fn id(self, wr_id: u64) -> Work {
        Work { wr_id, ..self }
    }

    pub fn imm(self, imm: u32) -> Work {
        Work { imm: Some(imm), ..self }
    }

    pub fn range(self, start: usize, end: usize) -> Work {
        Work { range: Some((start, end)), ..self }
    }

    pub fn signaled(self) -> Work {
        Work { signaled: true, ..self }
    }

    pub fn solicited(self) -> Work {
        Work { solicited: true, ..self }
    }

    pub fn fenced(self) -> Work {
        Work { fenced: true, ..self }
    }
}

impl Done {
    pub fn status(&self) -> WcStatus {
        WcStatus(self.status)
    }

    pub fn opcode(&self) -> WcOpcode {
        WcOpcode(self.opcode)
    }

    #[track_caller]
    pub fn assert_success(self, opcode: WcOpcode) -> Done {
        assert_eq!((self.status(), self.opcode()), (WcStatus::SUCCESS, opcode), "{self:?}");
        self
    }

    #[track_caller]
    pub fn assert_one_of(self, statuses: &[WcStatus]) -> Done {
        assert!(statuses.contains(&self.status()), "{}, not {statuses:?}: {self:?}", self.status());
        self
    }

    #[track_caller]
    pub fn assert_status(self, status: WcStatus) -> Done {
        assert_eq!(self.status(), status, "{self:?}");
        self
    }
}
