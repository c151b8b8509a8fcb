//! One side of a case, in words: each call is one command, carried out here or by a peer process.

use std::time::{Duration, Instant};

use qpair_verbs::{Access, QpAddress, QpState, Qpn, RemoteSlice};
use serde::de::DeserializeOwned;

use super::machine::Machine;
use super::{
    Abilities, BytesId, Command, Content, CqId, DomainId, Done, Event, Fill, HandleId, Made, Mem, Origin, Peer, Piece,
    QpId, QpSpec, Refused, RegionId, SrqId, WindowId, Work, at_once, digest,
};

/// How long what must happen may take: far more than it should, so that a loaded machine fails no case.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How long to look for what must not happen.
const QUIET: Duration = Duration::from_millis(30);

/// One side of a case. Calls without a queue or queue pair mean the first.
pub enum Side {
    Here(Box<Machine>),
    There(Peer),
}

/// An exposed region of a side.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub id: RegionId,
    /// All of it, for the other side.
    pub remote: RemoteSlice,
}

impl Region {
    /// Part of it, for the other side.
    pub fn part(&self, start: u64, end: u64) -> RemoteSlice {
        self.remote.slice(start..end)
    }
}

impl Side {
    /// A side in this process, with the device opened for itself.
    pub fn open(device: &str) -> Side {
        Side::Here(Box::new(Machine::open(device)))
    }

    #[track_caller]
    pub fn ask<T: DeserializeOwned>(&mut self, command: Command) -> T {
        let answer = self.try_ask(command.clone());
        answer.unwrap_or_else(|why| panic!("{command:?}: {why}"))
    }

    #[track_caller]
    fn try_ask<T: DeserializeOwned>(&mut self, command: Command) -> Result<T, String> {
        let answer = match self {
            Side::Here(machine) => machine.run(command),
            Side::There(peer) => peer.ask(&command),
        };
        answer.map(|value| serde_json::from_value(value).expect("the answer's type"))
    }

    /// The peer process, if this side is one.
    pub fn peer(&mut self) -> Option<&mut Peer> {
        match self {
            Side::Here(_) => None,
            Side::There(peer) => Some(peer),
        }
    }

    pub fn abilities(&mut self) -> Abilities {
        self.ask(Command::Abilities)
    }

    pub fn new_domain(&mut self) -> DomainId {
        self.ask(Command::NewDomain)
    }

    pub fn new_cq(&mut self, depth: u32) -> CqId {
        self.ask(Command::NewCq { depth, channel: false })
    }

    pub fn new_cq_with_channel(&mut self, depth: u32) -> CqId {
        self.ask(Command::NewCq { depth, channel: true })
    }

    #[track_caller]
    pub fn new_qp(&mut self, spec: &QpSpec) -> Made {
        self.ask(Command::NewQp(spec.clone()))
    }

    /// As [`new_qp`](Side::new_qp), where the device may refuse.
    pub fn try_new_qp(&mut self, spec: &QpSpec) -> Result<Made, String> {
        self.try_ask(Command::NewQp(spec.clone()))
    }

    #[track_caller]
    pub fn connect(&mut self, qp: QpId, address: QpAddress) {
        self.try_connect(qp, address).expect("connecting");
    }

    pub fn try_connect(&mut self, qp: QpId, address: QpAddress) -> Result<(), String> {
        self.ask(Command::Connect { qp, address })
    }

    pub fn drop_qp(&mut self, qp: QpId) {
        self.ask(Command::DropQp { qp })
    }

    pub fn fail_qp(&mut self, qp: QpId) {
        self.ask(Command::ToError { qp })
    }

    pub fn number(&mut self, qp: QpId) -> Qpn {
        self.ask(Command::Number { qp })
    }

    pub fn state(&mut self) -> QpState {
        QpState::from_code(self.ask(Command::State { qp: QpId(0), want: None, limit: 0 }))
    }

    /// Waits until the first queue pair is in the error state.
    #[track_caller]
    pub fn assert_failed(&mut self) {
        self.assert_qp_failed(QpId(0));
    }

    #[track_caller]
    pub fn assert_qp_failed(&mut self, qp: QpId) {
        let (want, limit) = (Some(QpState::Err.code()), LIMIT.as_millis() as u64);
        let code = self.ask(Command::State { qp, want, limit });
        assert_eq!(QpState::from_code(code), QpState::Err);
    }

    /// A region of zeroes.
    #[track_caller]
    pub fn expose(&mut self, len: usize, access: Access) -> Region {
        self.expose_piece(Piece { origin: Origin::Alloc, len, fill: Fill::Byte(0) }, access)
    }

    #[track_caller]
    pub fn expose_piece(&mut self, piece: Piece, access: Access) -> Region {
        self.expose_in(DomainId(0), piece, access)
    }

    #[track_caller]
    pub fn expose_in(&mut self, domain: DomainId, piece: Piece, access: Access) -> Region {
        let (id, remote) = self.ask(Command::Expose { domain, piece, access });
        Region { id, remote }
    }

    /// Shared bytes, and their name for peers.
    #[track_caller]
    pub fn expose_bytes(&mut self, len: usize, fill: Fill) -> (BytesId, RemoteSlice) {
        self.ask(Command::ExposeBytes { len, fill })
    }

    /// What they are when no peer reads them any more.
    #[track_caller]
    pub fn revoke_bytes(&mut self, bytes: BytesId) -> Content {
        self.ask(Command::RevokeBytes { bytes })
    }

    pub fn revoke(&mut self, region: &Region) -> Result<Content, String> {
        self.revoke_and_watch(region, Duration::ZERO)
    }

    /// The same, and asserts that the memory does not change any more for a while.
    pub fn revoke_and_watch(&mut self, region: &Region, watch: Duration) -> Result<Content, String> {
        self.ask(Command::Revoke { region: region.id, watch: watch.as_millis() as u64 })
    }

    /// What the region holds now.
    pub fn look(&mut self, region: &Region) -> Content {
        self.look_at(region, 0, region.remote.len as usize)
    }

    /// Asserts that the region holds these bytes, or will soon where nothing has told that they arrived.
    #[track_caller]
    pub fn assert_becomes(&mut self, region: &Region, bytes: &[u8]) {
        let start = Instant::now();
        while self.look(region).digest != digest(bytes) && start.elapsed() < at_once() {
            std::thread::yield_now();
        }
        self.look(region).assert_is(bytes);
    }

    pub fn look_at(&mut self, region: &Region, start: usize, end: usize) -> Content {
        self.ask(Command::Look { region: region.id, start, end })
    }

    pub fn fill(&mut self, region: &Region, fill: Fill) {
        let end = region.remote.len as usize;
        self.ask(Command::Fill { region: region.id, start: 0, end, fill })
    }

    pub fn new_window(&mut self) -> WindowId {
        self.ask(Command::NewWindow { domain: DomainId(0) })
    }

    pub fn window_remote(&mut self, window: WindowId) -> Option<RemoteSlice> {
        self.ask(Command::WindowRemote { window })
    }

    pub fn new_srq(&mut self, depth: u32) -> SrqId {
        self.ask(Command::NewSrq { depth })
    }

    #[track_caller]
    pub fn srq_post(&mut self, srq: SrqId, mem: Mem, wr_id: u64) {
        self.ask::<Result<(), Refused>>(Command::SrqPost { srq, mem, wr_id }).expect("posting to the shared queue");
    }

    #[track_caller]
    pub fn new_handle(&mut self, address: QpAddress) -> HandleId {
        self.ask::<Result<HandleId, String>>(Command::NewHandle { address }).expect("making a handle")
    }

    #[track_caller]
    pub fn post(&mut self, work: Work) {
        self.post_on(QpId(0), work);
    }

    #[track_caller]
    pub fn post_on(&mut self, qp: QpId, work: Work) {
        self.try_post(qp, work).expect("posting");
    }

    #[track_caller]
    pub fn try_post(&mut self, qp: QpId, work: Work) -> Result<(), Refused> {
        self.ask(Command::PostSend { qp, work })
    }

    #[track_caller]
    pub fn recv(&mut self, mem: Mem, wr_id: u64) {
        self.recv_on(QpId(0), mem, wr_id);
    }

    #[track_caller]
    pub fn recv_on(&mut self, qp: QpId, mem: Mem, wr_id: u64) {
        self.try_recv(qp, mem, wr_id).expect("posting a receive");
    }

    #[track_caller]
    pub fn try_recv(&mut self, qp: QpId, mem: Mem, wr_id: u64) -> Result<(), Refused> {
        self.ask(Command::PostRecv { qp, mem, wr_id })
    }

    /// The next completion, whatever its status.
    #[track_caller]
    pub fn done(&mut self) -> Done {
        self.done_on(CqId(0))
    }

    #[track_caller]
    pub fn done_on(&mut self, cq: CqId) -> Done {
        match self.try_done(cq, LIMIT) {
            Some(done) => done,
            None => {
                panic!("nothing completed in time; counted: {:?}", self.ask::<Vec<(String, u64)>>(Command::Counters))
            }
        }
    }

    pub fn try_done(&mut self, cq: CqId, limit: Duration) -> Option<Done> {
        self.ask(Command::Completion { cq, limit: limit.as_millis() as u64 })
    }

    /// Asserts that nothing completes for a while.
    #[track_caller]
    pub fn assert_quiet(&mut self) {
        if let Some(done) = self.try_done(CqId(0), QUIET) {
            panic!("nothing should have completed: {done:?}");
        }
    }

    #[track_caller]
    pub fn assert_event(&mut self, kind: &str, qpn: Option<Qpn>) {
        assert!(self.event_within(kind, qpn, LIMIT), "no event {kind} of {qpn:?}");
    }

    pub fn event_within(&mut self, kind: &str, qpn: Option<Qpn>, limit: Duration) -> bool {
        let event = Event { kind: kind.to_owned(), qpn };
        self.ask(Command::AwaitEvent { event, limit: limit.as_millis() as u64 })
    }

    pub fn arm(&mut self, cq: CqId, solicited: bool) {
        self.ask(Command::Arm { cq, solicited })
    }

    /// Whether the channel of `cq` turns readable.
    pub fn woken(&mut self, cq: CqId) -> bool {
        self.ask(Command::AwaitChannel { cq, limit: LIMIT.as_millis() as u64 })
    }

    /// Whether the channel of `cq` stays as it is for a while.
    pub fn sleeps_on(&mut self, cq: CqId) -> bool {
        !self.ask::<bool>(Command::AwaitChannel { cq, limit: QUIET.as_millis() as u64 })
    }
}
