//! A whole run: introduction, queue pairs, the test's own order of runs, syncs and reports, and what is printed.

use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use qpair::verbs::{Context, LinkLayer};

use super::bench::{Bench, Plan, Unconnected, is_one_host, soft_address};
use super::engine::{Introduction, Role};
use super::error::ExchangeError;
use super::flow;
use super::limits::Needs;
use super::link::Link;
use super::pingpong;
use super::port::{Port, check_families};
use super::settings::Settings;
use super::stats::{Figures, bandwidth, in_unit};
use super::table::{Connection, Form, Table};
use super::terms::Goal;
use super::wire::{BandwidthReport, Key};
use crate::perf::args::PerfArgs;
use crate::perf::counters::Counting;
use crate::perf::device::{SOFT, check_message};
use crate::perf::error::PerfError;
use crate::perf::test::{Kind, Test};

/// What can be found out and made before there is another side.
#[derive(Debug)]
pub struct Ready {
    settings: Settings,
    context: Context,
    port: Port,
    form: Form,
    counting: Counting,
}

/// One side of a run.
struct Session<'a> {
    link: Link,
    bench: Bench,
    settings: &'a Settings,
    role: Role,
    table: Table,
    sizes: Vec<usize>,
    /// How long the other side may take where it alone has to do; without end if that is not known.
    alone: Option<Duration>,
}

impl Ready {
    /// Opens the device and looks whether the options go with it.
    ///
    /// # Errors
    /// [`PerfError`] for what this side alone can know to be wrong.
    pub fn new(args: &PerfArgs, device: &str) -> Result<Self, PerfError> {
        let mut settings = Settings::new(args)?;
        let context = Context::open(device)?;
        settings.fit(context.attributes().max_qp_wr, context.attributes().max_cqe);
        let port = Port::choose(&context, &args.perftest)?;
        settings.sizes(port.mtu)?;
        check_message(&context, settings.longest(port.mtu))?;
        let form = match (args.announce, args.json) {
            (true, _) => Form::Silent,
            (false, true) => Form::Objects,
            (false, false) => Form::Table,
        };
        Ok(Ready { settings, context, port, form, counting: Counting::new(args) })
    }

    /// Runs with the other side of `stream`.
    ///
    /// # Errors
    /// [`PerfError`] if either side fails, or both do not fit together.
    pub fn run(self, stream: TcpStream, role: Role, patience: Duration) -> Result<(), PerfError> {
        let context = self.context.clone();
        self.counting.during(&context, || self.measure(stream, role, patience))
    }

    fn measure(mut self, stream: TcpStream, role: Role, patience: Duration) -> Result<(), PerfError> {
        let gid = self.port.gid(local(&stream)?);
        let soft = if self.context.name() == SOFT {
            let ours = soft_address(&self.context, gid.map(|(index, _)| index))?;
            self.port.mtu = self.port.mtu.min(ours.mtu);
            ours.soft
        } else {
            None
        };
        let cycle_buffer = u32::try_from(rustix::param::page_size()).unwrap_or(DEFAULT_PAGE);
        let introduction = Introduction {
            terms: self.settings.terms(soft),
            cycle_buffer,
            cache_line: CACHE_LINE,
            mtu: self.port.mtu.bytes(),
        };
        let mut link = Link::new(stream, role, introduction, patience)?;
        let introduced = link.introduce()?;
        let terms = introduced.terms.as_ref();
        let own = Needs::new(&self.settings, cycle_buffer, true);
        if let (Role::Server, Some(terms)) = (role, terms) {
            self.settings.adopt(terms)?;
        }
        let settings = &self.settings;
        Needs::new(settings, introduced.cycle_buffer, flow::sends(settings, role)).check(own)?;
        let mtu = self.port.path_mtu(introduced.mtu);
        let sizes = settings.sizes(mtu)?;
        let plan = Plan {
            port: self.port.number,
            lid: self.port.lid,
            gid,
            mtu,
            longest: sizes.iter().copied().max().unwrap_or(1),
            cycle_buffer: introduced.cycle_buffer,
            // On another host the network leads there, from the GID that is told.
            soft: terms
                .and_then(|terms| terms.soft)
                .filter(|theirs| soft.is_some_and(|ours| is_one_host(&ours, theirs))),
        };
        if plan.soft.is_none() && self.context.name() == SOFT {
            // Not through shared memory: RoCEv2 over UDP.
            self.port.link_layer = LinkLayer::Ethernet;
        }
        let unconnected = Unconnected::new(&self.context, settings, plan)?;
        let ours = unconnected.keys();
        let theirs = link.addresses(ours.clone())?;
        check_keys(settings, &ours, &theirs)?;
        let (inline, outs) = (unconnected.inline(), unconnected.outs());
        let bench = unconnected.connect(&theirs)?;
        link.connected()?;
        let table = Table::new(settings, self.form);
        let connection = Connection {
            port: &self.port,
            mtu: mtu.bytes(),
            gid_index: gid.map(|(index, _)| index),
            inline,
            outs,
            sends: flow::sends(settings, role),
            receives: flow::receives(settings, role),
            ours: &ours,
            theirs: &theirs,
        };
        table.header(settings, &connection)?;
        let alone = alone(settings.goal, terms.is_some(), patience);
        let mut session = Session { link, bench, settings, role, table, sizes, alone };
        session.measure().map_err(|error| match session.bench.explain_failure(error) {
            PerfError::Perftest(error) => error.over(settings.service).into(),
            error => error,
        })
    }
}

/// The own address of a connection.
fn local(stream: &TcpStream) -> Result<IpAddr, PerfError> {
    stream.local_addr().map(|address| address.ip().to_canonical()).map_err(PerfError::Exchange)
}

impl Session<'_> {
    fn measure(&mut self) -> Result<(), PerfError> {
        match self.settings.test {
            Test::SendBw => self.send_bandwidth(),
            Test::WriteBw | Test::ReadBw | Test::AtomicBw if self.is_served() => self.serve_bandwidth(),
            Test::WriteBw | Test::ReadBw | Test::AtomicBw => self.bandwidth(),
            Test::WriteLat => self.write_latency(),
            Test::ReadLat | Test::AtomicLat => self.single_latency(),
            Test::SendLat => self.send_latency(),
            Test::TagLat | Test::TagBw => {
                Err(PerfError::Options(format!("{} does not go over a bare queue pair", self.settings.test)))
            }
        }
    }

    /// True if all is done by the other side.
    fn is_served(&self) -> bool {
        self.role == Role::Server && !self.settings.duplex
    }

    /// WRITEs, READs or atomics, by this side or both.
    fn bandwidth(&mut self) -> Result<(), PerfError> {
        let Settings { duplex, all, gbits, .. } = *self.settings;
        self.table.columns()?;
        let mut report = BandwidthReport::default();
        for size in self.sizes.clone() {
            if duplex {
                self.link.sync()?;
            }
            let streamed = flow::run(&mut self.bench, &self.link, self.settings, self.role, size)?;
            if duplex && all {
                self.link.sync()?;
            }
            report = bandwidth(&streamed, size, gbits);
            let theirs = if duplex { Some(self.swap(&report)?) } else { None };
            self.table.bandwidth(&report, theirs.as_ref(), 0)?;
        }
        if !duplex {
            self.link.sync()?;
            self.link.report(&report)?;
        }
        self.finish()
    }

    /// The server's part of what the client does alone: to wait, and to print what the client says.
    fn serve_bandwidth(&mut self) -> Result<(), PerfError> {
        self.table.columns()?;
        self.link.sync_within(self.alone)?;
        let theirs = self.swap(&BandwidthReport::default())?;
        self.table.bandwidth(&theirs, None, 0)?;
        self.finish()
    }

    fn send_bandwidth(&mut self) -> Result<(), PerfError> {
        let Settings { duplex, all, gbits, goal, .. } = *self.settings;
        self.table.columns()?;
        for size in self.sizes.clone() {
            if flow::receives(self.settings, self.role) {
                flow::prepare(&mut self.bench, self.settings)?;
            }
            self.link.sync()?;
            let streamed = flow::run(&mut self.bench, &self.link, self.settings, self.role, size)?;
            let report = bandwidth(&streamed, size, gbits);
            let both = duplex && matches!(goal, Goal::Iterations(_));
            let theirs = if both { Some(self.swap(&report)?) } else { None };
            self.table.bandwidth(&report, theirs.as_ref(), streamed.lost)?;
            if streamed.lost > 0 {
                tracing::warn!(lost = streamed.lost, "messages were lost; the service does not repeat them");
            }
            if all {
                self.link.sync()?;
            }
        }
        self.finish()
    }

    fn write_latency(&mut self) -> Result<(), PerfError> {
        self.table.columns()?;
        self.link.sync()?;
        for size in self.sizes.clone() {
            let timed = pingpong::writes(&mut self.bench, &self.link, self.settings, self.role, size)?;
            self.table.latency(size, &Figures::new(timed, 2.0))?;
        }
        // Who has the last message goes, and closes the connection.
        Ok(self.table.end()?)
    }

    fn single_latency(&mut self) -> Result<(), PerfError> {
        self.link.sync()?;
        if self.role == Role::Server {
            self.link.sync_within(self.alone)?;
            self.link.farewell();
            return Ok(());
        }
        self.table.columns()?;
        for size in self.sizes.clone() {
            let timed = pingpong::singles(&mut self.bench, &self.link, self.settings, size)?;
            self.table.latency(size, &Figures::new(timed, 1.0))?;
        }
        self.finish()
    }

    fn send_latency(&mut self) -> Result<(), PerfError> {
        self.table.columns()?;
        for size in self.sizes.clone() {
            flow::prepare(&mut self.bench, self.settings)?;
            self.link.sync()?;
            let timed = pingpong::sends(&mut self.bench, &self.link, self.settings, self.role, size)?;
            self.table.latency(size, &Figures::new(timed, 2.0))?;
        }
        self.finish()
    }

    /// Swaps reports; the other side's comes in this side's unit.
    fn swap(&mut self, ours: &BandwidthReport) -> Result<BandwidthReport, PerfError> {
        Ok(in_unit(&self.link.report(ours)?, self.settings.gbits))
    }

    fn finish(&mut self) -> Result<(), PerfError> {
        self.link.sync()?;
        self.table.end()?;
        self.link.farewell();
        Ok(())
    }
}

/// How long the other side may take for a run of its own, if this side knows what it runs and that it has an end in time.
fn alone(goal: Goal, is_told: bool, patience: Duration) -> Option<Duration> {
    match goal {
        Goal::Seconds { duration, .. } if is_told => Duration::try_from_secs_f64(duration).ok()?.checked_add(patience),
        Goal::Seconds { .. } | Goal::Iterations(_) => None,
    }
}

/// That both sides run what goes together, as far as their addresses tell.
fn check_keys(settings: &Settings, ours: &[Key], theirs: &[Key]) -> Result<(), PerfError> {
    let reads = matches!(settings.test.kind(), Kind::Read | Kind::Atomic);
    for (our, their) in ours.iter().zip(theirs) {
        if let (Some(our), Some(their)) = (our.gid, their.gid) {
            check_families(our, their)?;
        }
        if !reads && their.out_reads > 1 {
            let theirs = "a test of READs or atomics".to_owned();
            return Err(ExchangeError::Differs { theirs, ours: settings.test.to_string() }.into());
        }
    }
    Ok(())
}

/// What perftest takes where the system does not tell; it moves memory within it.
const CACHE_LINE: u32 = 64;
const DEFAULT_PAGE: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_measures_by_time_is_waited_for_as_long() {
        let patience = Duration::from_secs(60);
        let seconds = Goal::Seconds { duration: 2.5, margin: 0.0 };
        assert_eq!(alone(seconds, true, patience), Some(Duration::from_millis(62_500)));
        assert_eq!(alone(seconds, false, patience), None, "perftest was told its own duration");
        assert_eq!(alone(Goal::Iterations(5), true, patience), None);
    }
}
