//! Carries out commands on the verbs API. One per side; owns all that the side has made.

use std::fmt::Debug;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use qpair_verbs::{
    Access, AddressHandle, AsyncEvent, AsyncEvents, BytesRegion, CompletionChannel, CompletionQueue, ConnectError,
    Context, DatagramQueuePair, MemoryWindow, Prepared, ProtectionDomain, QpAddress, QpBuilder, QpState, QpType,
    QueuePair, ReadyToReceive, SharedReceiveQueue,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::Value;

use super::exposed::Exposed;
use super::{
    Abilities, BytesId, Command, Content, CqId, DomainId, Event, HandleId, Made, Piece, QpId, QpSpec, RegionId, SrqId,
    WindowId, digest,
};

/// A value of the type that the command names, or why there is none.
pub type Answer = Result<Value, String>;

/// Carries out commands.
pub struct Machine {
    pub(super) ctx: Context,
    pub(super) events: AsyncEvents,
    pub(super) domains: Vec<ProtectionDomain>,
    pub(super) cqs: Vec<Cq>,
    pub(super) qps: Vec<Qp>,
    pub(super) regions: Vec<Option<Exposed>>,
    bytes: Vec<Option<BytesRegion>>,
    pub(super) windows: Vec<Option<MemoryWindow>>,
    pub(super) srqs: Vec<SharedReceiveQueue>,
    pub(super) handles: Vec<AddressHandle>,
}

pub(super) struct Cq {
    pub(super) queue: CompletionQueue,
    channel: Option<(CompletionChannel, Poll)>,
}

pub(super) struct Qp {
    pub(super) domain: DomainId,
    pub(super) stage: Stage,
}

/// How far a queue pair is set up.
pub(super) enum Stage {
    Prepared(Prepared),
    Ready(ReadyToReceive),
    Connected(QueuePair),
    Datagram(DatagramQueuePair),
    Gone,
}

/// Completions that the first queue of a side holds.
const CQ_DEPTH: u32 = 512;

pub(super) fn answer<T: Serialize>(value: T) -> Answer {
    serde_json::to_value(value).map_err(text)
}

pub(super) fn text<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

/// The name of an error's variant.
pub(super) fn kind<E: Debug>(error: &E) -> String {
    let debug = format!("{error:?}");
    debug.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

impl Machine {
    pub fn open(device: &str) -> Machine {
        Machine::on(Context::open(device).expect("opening the device"))
    }

    pub fn on(ctx: Context) -> Machine {
        let events = ctx.events().expect("a reader of events");
        let pd = ctx.alloc_pd().expect("a protection domain");
        let queue = ctx.create_cq(CQ_DEPTH).expect("a completion queue");
        Machine {
            ctx,
            events,
            domains: vec![pd],
            cqs: vec![Cq { queue, channel: None }],
            qps: Vec::new(),
            regions: Vec::new(),
            bytes: Vec::new(),
            windows: Vec::new(),
            srqs: Vec::new(),
            handles: Vec::new(),
        }
    }

    pub fn run(&mut self, command: Command) -> Answer {
        match command {
            Command::Abilities => {
                let able = self.ctx.attributes();
                answer(Abilities {
                    max_sge: able.max_sge,
                    max_inline: able.max_inline,
                    atomics_with_cpu: able.atomics_with_cpu,
                    read_reduce: able.read_reduce,
                })
            }
            Command::Guard => {
                let guarded = rustix::process::DumpableBehavior::NotDumpable;
                answer(rustix::process::set_dumpable_behavior(guarded).map_err(text)?)
            }
            Command::Descriptors { spare } => answer(limit_descriptors(spare).map_err(text)?),
            Command::NewDomain => {
                self.domains.push(self.ctx.alloc_pd().map_err(text)?);
                answer(DomainId(self.domains.len() - 1))
            }
            Command::NewCq { depth, channel } => self.new_cq(depth, channel),
            Command::Resting { cq } => answer(self.cqs[cq.0].queue.resting()),
            Command::NewQp(_)
            | Command::Connect { .. }
            | Command::ReadyToReceive { .. }
            | Command::ReadyToSend { .. }
            | Command::Activate { .. }
            | Command::ToError { .. }
            | Command::DropQp { .. }
            | Command::State { .. }
            | Command::Number { .. }
            | Command::Counters
            | Command::Explain { .. } => self.run_set_up(command),
            Command::Expose { .. }
            | Command::ExposeBytes { .. }
            | Command::RevokeBytes { .. }
            | Command::Revoke { .. }
            | Command::Look { .. }
            | Command::Fill { .. }
            | Command::HostAdd { .. }
            | Command::NewWindow { .. }
            | Command::WindowRemote { .. }
            | Command::DropWindow { .. } => self.run_memory(command),
            Command::NewHandle { address } => {
                let by = self.qps.iter().rev().find_map(|qp| match &qp.stage {
                    Stage::Datagram(datagrams) => Some(datagrams),
                    _ => None,
                });
                let Some(by) = by else { return Err("no datagrams".to_owned()) };
                let handle = by.address_handle(&address);
                answer(handle.map_err(|error| kind(&error)).map(|handle| {
                    self.handles.push(handle);
                    HandleId(self.handles.len() - 1)
                }))
            }
            Command::NewSrq { .. }
            | Command::SrqPost { .. }
            | Command::SrqLimit { .. }
            | Command::SrqAvailable { .. }
            | Command::PostRecv { .. }
            | Command::PostSend { .. }
            | Command::Completion { .. }
            | Command::Repost { .. }
            | Command::Drain { .. }
            | Command::AddMany { .. }
            | Command::Stream { .. }
            | Command::StreamTo { .. } => self.run_posting(command),
            Command::AwaitEvent { .. }
            | Command::Arm { .. }
            | Command::AwaitChannel { .. }
            | Command::ClearChannel { .. } => self.run_waiting(command),
        }
    }

    fn run_waiting(&mut self, command: Command) -> Answer {
        match command {
            Command::AwaitEvent { event, limit } => answer(self.await_event(&event, limit).map_err(text)?),
            Command::Arm { cq, solicited } => {
                use qpair_verbs::Arm;
                self.cqs[cq.0].queue.arm(if solicited { Arm::Solicited } else { Arm::Any });
                answer(())
            }
            Command::AwaitChannel { cq, limit } => {
                let (_, poll) = self.cqs[cq.0].channel.as_mut().ok_or("no channel")?;
                let mut events = Events::with_capacity(4);
                poll.poll(&mut events, Some(Duration::from_millis(limit))).map_err(text)?;
                answer(!events.is_empty())
            }
            Command::ClearChannel { cq } => {
                let (channel, _) = self.cqs[cq.0].channel.as_ref().ok_or("no channel")?;
                channel.clear();
                answer(())
            }
            other => Err(format!("{other:?} does not concern events")),
        }
    }

    fn run_set_up(&mut self, command: Command) -> Answer {
        match command {
            Command::NewQp(spec) => self.new_qp(&spec),
            Command::Connect { qp, address } => answer(self.connect(qp, &address).map_err(|error| kind(&error))),
            Command::ReadyToReceive { qp, address } => {
                let ready = take_prepared(&mut self.qps[qp.0].stage).ready_to_receive(&address);
                let ready = ready.map(|ready| self.qps[qp.0].stage = Stage::Ready(ready));
                answer(ready.map_err(|error| kind(&error)))
            }
            Command::ReadyToSend { qp } => {
                let Stage::Ready(ready) = std::mem::replace(&mut self.qps[qp.0].stage, Stage::Gone) else {
                    return Err("not ready to receive".to_owned());
                };
                let connected = ready.ready_to_send().map(|it| self.qps[qp.0].stage = Stage::Connected(it));
                answer(connected.map_err(|error| kind(&error)))
            }
            Command::Activate { qp } => {
                let active = take_prepared(&mut self.qps[qp.0].stage).activate().map_err(text)?;
                self.qps[qp.0].stage = Stage::Datagram(active);
                answer(())
            }
            Command::ToError { qp } => self.fail_qp(qp),
            Command::DropQp { qp } => {
                self.qps[qp.0].stage = Stage::Gone;
                answer(())
            }
            Command::State { qp, want, limit } => self.state(qp, want, limit),
            Command::Number { qp } => match &self.qps[qp.0].stage {
                Stage::Prepared(qp) => answer(qp.number()),
                Stage::Connected(qp) => answer(qp.number()),
                Stage::Datagram(qp) => answer(qp.number()),
                Stage::Ready(_) | Stage::Gone => Err("it tells no number".to_owned()),
            },
            Command::Counters => {
                let counted = self.ctx.counters(1).into_iter().filter(|counter| counter.value > 0);
                answer(counted.map(|counter| (counter.name, counter.value)).collect::<Vec<_>>())
            }
            Command::Explain { qp } => match &self.qps[qp.0].stage {
                Stage::Connected(qp) => answer(qp.explain()),
                _ => Err("not connected".to_owned()),
            },
            other => Err(format!("{other:?} does not concern a queue pair's state")),
        }
    }

    fn run_memory(&mut self, command: Command) -> Answer {
        match command {
            Command::Expose { domain, piece, access } => self.expose(domain, piece, access),
            Command::Revoke { region, watch } => self.revoke(region, watch),
            Command::ExposeBytes { len, fill } => {
                let region = self.domains[0].expose_bytes(fill.bytes(len).into()).map_err(text)?;
                let remote = region.remote(0..len);
                self.bytes.push(Some(region));
                answer((BytesId(self.bytes.len() - 1), remote))
            }
            Command::RevokeBytes { bytes: BytesId(bytes) } => {
                let region = self.bytes[bytes].take().ok_or("the bytes were revoked")?;
                answer(Content::found("shared bytes".to_owned(), &region.revoke().map_err(text)?, &[]))
            }
            Command::Look { region, start, end } => {
                let mut bytes = vec![0; end - start];
                self.region(region)?.read(start, &mut bytes)?;
                answer(Content::found("part of an exposed region".to_owned(), &bytes, &[]))
            }
            Command::Fill { region, start, end, fill } => {
                self.region(region)?.write(start, &fill.bytes(end - start))?;
                answer(())
            }
            Command::HostAdd { region, offset, add, count } => {
                let region = self.region(region)?;
                let mut before = 0;
                for _ in 0..count {
                    before = region.fetch_add(offset, add)?;
                }
                answer(before)
            }
            Command::NewWindow { domain } => {
                self.windows.push(Some(self.domains[domain.0].create_window().map_err(text)?));
                answer(WindowId(self.windows.len() - 1))
            }
            Command::WindowRemote { window } => match &self.windows[window.0] {
                Some(window) => answer(window.remote()),
                None => Err("the window was dropped".to_owned()),
            },
            Command::DropWindow { window } => {
                self.windows[window.0] = None;
                answer(())
            }
            other => Err(format!("{other:?} does not concern memory")),
        }
    }

    fn new_cq(&mut self, depth: u32, channel: bool) -> Answer {
        let cq = if channel {
            let mut channel = self.ctx.create_channel().map_err(text)?;
            let poll = Poll::new().map_err(text)?;
            channel.register(poll.registry(), Token(0), Interest::READABLE).map_err(text)?;
            let queue = self.ctx.create_cq_on(depth, &channel).map_err(text)?;
            Cq { queue, channel: Some((channel, poll)) }
        } else {
            Cq { queue: self.ctx.create_cq(depth).map_err(text)?, channel: None }
        };
        self.cqs.push(cq);
        answer(CqId(self.cqs.len() - 1))
    }

    fn new_qp(&mut self, spec: &QpSpec) -> Answer {
        let (pd, cq) = (&self.domains[spec.domain.0], &self.cqs[spec.cq.0].queue);
        let mut builder: QpBuilder = match spec.qp_type {
            QpType::Rc => pd.rc(cq),
            QpType::Uc => pd.uc(cq),
            QpType::Ud => pd.ud(cq),
        };
        if let Some(cq) = spec.recv_cq {
            builder = builder.recv_cq(&self.cqs[cq.0].queue);
        }
        if let Some(SrqId(srq)) = spec.srq {
            builder = builder.srq(&self.srqs[srq]);
        }
        if let Some(depth) = spec.send_depth {
            builder = builder.send_depth(depth);
        }
        if let Some(depth) = spec.recv_depth {
            builder = builder.recv_depth(depth);
        }
        if let Some(access) = spec.access {
            builder = builder.access(access);
        }
        if let Some(count) = spec.rnr_retry {
            builder = builder.rnr_retry(count);
        }
        if let Some(millis) = spec.patience_ms {
            builder = builder.retry_count(spec.retries).ack_timeout(Duration::from_millis(millis));
        }
        if let Some(micros) = spec.min_rnr_timer_us {
            builder = builder.min_rnr_timer(Duration::from_micros(micros));
        }
        if let Some(mtu) = spec.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(qkey) = spec.qkey {
            builder = builder.qkey(qkey);
        }
        let prepared = builder.build().map_err(text)?;
        let address = prepared.address();
        self.qps.push(Qp { domain: spec.domain, stage: Stage::Prepared(prepared) });
        answer(Made { qp: QpId(self.qps.len() - 1), address })
    }

    fn connect(&mut self, qp: QpId, address: &QpAddress) -> Result<(), ConnectError> {
        let connected = take_prepared(&mut self.qps[qp.0].stage).connect(address)?;
        self.qps[qp.0].stage = Stage::Connected(connected);
        Ok(())
    }

    fn fail_qp(&mut self, qp: QpId) -> Answer {
        match &mut self.qps[qp.0].stage {
            Stage::Connected(qp) => answer(qp.to_error().map_err(text)?),
            Stage::Datagram(qp) => answer(qp.to_error().map_err(text)?),
            _ => Err("not connected".to_owned()),
        }
    }

    fn state(&self, qp: QpId, want: Option<u32>, limit: u64) -> Answer {
        let deadline = Instant::now() + Duration::from_millis(limit);
        loop {
            let code = match &self.qps[qp.0].stage {
                Stage::Connected(qp) => qp.state().code(),
                Stage::Datagram(qp) => qp.state().code(),
                Stage::Ready(_) => QpState::Rtr.code(),
                Stage::Prepared(_) => QpState::Init.code(),
                Stage::Gone => return Err("the queue pair is gone".to_owned()),
            };
            if want.is_none_or(|want| want == code) || Instant::now() >= deadline {
                return answer(code);
            }
            std::thread::yield_now();
        }
    }

    fn expose(&mut self, DomainId(domain): DomainId, piece: Piece, access: Access) -> Answer {
        let region = Exposed::new(piece, &self.domains[domain], access)?;
        let remote = region.remote(0..region.len());
        self.regions.push(Some(region));
        answer((RegionId(self.regions.len() - 1), remote))
    }

    fn revoke(&mut self, RegionId(region): RegionId, watch: u64) -> Answer {
        let taken = self.regions[region].take().ok_or("the region was revoked")?;
        answer(match taken.revoke() {
            Ok(revoked) => {
                let (before, end) = (digest(&revoked.bytes()), Instant::now() + Duration::from_millis(watch));
                while watch > 0 && Instant::now() < end {
                    if digest(&std::hint::black_box(&revoked).bytes()) != before {
                        return Err("memory changed after it was revoked".to_owned());
                    }
                }
                Ok(Content::found("a buffer".to_owned(), &revoked.bytes(), &[]))
            }
            Err((failed, why)) => {
                self.regions[region] = Some(failed);
                Err(format!("{why:?}"))
            }
        })
    }

    pub(super) fn region(&self, RegionId(region): RegionId) -> Result<&Exposed, String> {
        self.regions[region].as_ref().ok_or_else(|| "the region was revoked".to_owned())
    }

    fn await_event(&mut self, want: &Event, limit: u64) -> std::io::Result<bool> {
        let deadline = Instant::now() + Duration::from_millis(limit);
        let mut poll = Poll::new()?;
        self.events.register(poll.registry(), Token(0), Interest::READABLE)?;
        let mut woken = Events::with_capacity(4);
        let came = loop {
            match self.events.next_event() {
                Some(event) if plain(event) == *want => break true,
                Some(_) => {}
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break false;
                    }
                    poll.poll(&mut woken, Some(left))?;
                }
            }
        };
        self.events.deregister(poll.registry())?;
        Ok(came)
    }
}

fn take_prepared(stage: &mut Stage) -> Prepared {
    match std::mem::replace(stage, Stage::Gone) {
        Stage::Prepared(prepared) => prepared,
        _ => panic!("the queue pair is set up already"),
    }
}

fn limit_descriptors(spare: Option<u64>) -> std::io::Result<()> {
    let limits = getrlimit(Resource::Nofile);
    let current = match spare {
        // Descriptors are given out from the lowest free one on.
        Some(spare) => Some(rustix::io::dup(std::io::stderr())?.as_raw_fd() as u64 + spare),
        None => limits.maximum,
    };
    Ok(setrlimit(Resource::Nofile, Rlimit { current, ..limits })?)
}

fn plain(event: AsyncEvent) -> Event {
    use AsyncEvent::*;
    let qpn = match event {
        QpFatal(qpn) | QpRequestError(qpn) | QpAccessError(qpn) | LastWqeReached(qpn) | PeerLost(qpn) => Some(qpn),
        _ => None,
    };
    Event { kind: kind(&event), qpn }
}
