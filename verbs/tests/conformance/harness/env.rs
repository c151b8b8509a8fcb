//! Where the sides of a case live, and pairs of connected queue pairs.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use qpair_verbs::{Context, QpType};

use super::exposed::on_gpu;
use super::leeway::{device, far_device, is_rxe};
use super::machine::Machine;
use super::{Peer, Promise, QpId, QpSpec, Side};

/// Where the two sides of a case live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Both in this process, on one opened device.
    OneContext,
    /// Both in this process, each with the device opened for itself.
    TwoContexts,
    /// The far side in a process of its own.
    TwoProcesses,
}

/// What a case runs in: a device, and a placement.
pub struct Env {
    device: String,
    placement: Placement,
    ctx: Context,
}

/// Two sides with one queue pair each, connected.
pub struct Pair {
    pub near: Side,
    pub far: Side,
}

/// Runs a case on the device that `QPAIR_TEST_DEVICE` names (default `soft0`), with far sides in processes on that of
/// `QPAIR_TEST_FAR_DEVICE` (default: the same).
pub fn run(placement: Placement, case: fn(&Env)) {
    let ctx = Context::open(device()).expect("opening the device");
    let _watch = watch();
    case(&Env { device: device().to_owned(), placement, ctx });
}

/// Ends the test process if the returned value lives longer than any case may take: a hang is a failure too.
fn watch() -> Sender<()> {
    let (alive, over) = channel();
    let case = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::spawn(move || {
        if over.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "{case} hangs");
            std::process::abort();
        }
    });
    alive
}

/// Several times what the slowest case takes under a sanitizer.
const HANG: Duration = Duration::from_secs(180);

impl Env {
    pub fn ctx(&self) -> &Context {
        &self.ctx
    }

    pub fn device(&self) -> &str {
        &self.device
    }

    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The side that the case drives from here.
    pub fn near(&self) -> Side {
        Side::Here(Box::new(Machine::on(self.ctx.clone())))
    }

    /// The other side. Each call makes another.
    pub fn far(&self) -> Side {
        match self.placement {
            Placement::OneContext => self.near(),
            Placement::TwoContexts => Side::open(&self.device),
            Placement::TwoProcesses => Side::There(Peer::start(far_device())),
        }
    }

    pub fn rc(&self) -> Pair {
        self.pair(&QpSpec::rc(), &QpSpec::rc())
    }

    pub fn uc(&self) -> Pair {
        self.pair(&QpSpec::new(QpType::Uc), &QpSpec::new(QpType::Uc))
    }

    pub fn pair(&self, near_spec: &QpSpec, far_spec: &QpSpec) -> Pair {
        let (mut near, mut far) = (self.near(), self.far());
        connect_pair(&mut near, near_spec, &mut far, far_spec);
        Pair { near, far }
    }

    /// True if the device gives the promise; otherwise says that the case is skipped.
    pub fn promises(&self, promise: Promise) -> bool {
        self.able(promise.reason(), promise.is_given())
    }

    /// True if the far side is a process of this host, which can be stopped and looked at; otherwise says that the case is
    /// skipped.
    pub fn far_is_near(&self) -> bool {
        self.able("reaching into a process of another host", !Peer::is_remote())
    }

    /// True if the device is no rdma_rxe, which has the hole that `what` names; otherwise says that the case is skipped.
    pub fn sounder_than_rxe(&self, what: &str) -> bool {
        self.able(&format!("{what} (rdma_rxe, seen in Linux 6.12)"), !is_rxe(self.ctx.attributes().vendor_id))
    }

    /// True if the memory of the cases is the processor's; otherwise says that the case is skipped.
    pub fn on_host(&self, what: &str) -> bool {
        self.able(&format!("{what} with memory of a GPU"), !on_gpu())
    }

    /// True if the device can do it; otherwise says, past the test harness's capture, that the case is skipped.
    pub fn able(&self, what: &str, able: bool) -> bool {
        if !able {
            let case = std::thread::current().name().unwrap_or("?").to_owned();
            let _ = writeln!(std::io::stderr(), "skipped: {case}: {} can not do {what}", self.device);
        }
        able
    }
}

/// Makes a queue pair on each side and connects them.
#[track_caller]
pub fn connect_pair(near: &mut Side, near_spec: &QpSpec, far: &mut Side, far_spec: &QpSpec) -> (QpId, QpId) {
    let (a, b) = (near.new_qp(near_spec), far.new_qp(far_spec));
    near.connect(a.qp, b.address);
    far.connect(b.qp, a.address);
    (a.qp, b.qp)
}
