//! Tagged messages over the transport: ping-pong and stream.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use qpair::transport::{Config, EndpointId, Event, Listener, SendCopyError, Tag, Unmatched, Worker};
use qpair::verbs::{Access, Context, ExposedRegion};

use super::bandwidth::{self, Stream};
use super::exchange::{Contact, Exchange, Request, Round};
use super::latency::{self, Operation};
use super::memcpy::Memcpy;
use super::report::Report;
use super::watch::Watch;
use crate::perf::args::PerfArgs;
use crate::perf::error::PerfError;
use crate::perf::test::{Effort, Parameters, Test};

/// The server: a worker that listens, and its connection to the client.
#[derive(Debug)]
pub struct Server {
    worker: Option<Worker>,
    listener: Listener,
    link: Option<Link>,
    depth: u32,
}

/// A worker, its connection, and memory for messages of one size.
#[derive(Debug)]
struct Link {
    worker: Worker,
    ep: EndpointId,
    depth: usize,
    size: usize,
    short: [u8; EAGER],
    long: Option<Long>,
    /// Long messages that the other side has not read yet.
    sending: usize,
    /// Receives that are posted.
    posted: usize,
    received: u64,
    acknowledged: u64,
}

/// Where long messages come from and go to: one place each, as in other benchmarks; contents do not matter.
#[derive(Debug)]
struct Long {
    source: ExposedRegion,
    landing: ExposedRegion,
}

impl Server {
    /// Listens at a free port of `bind`.
    ///
    /// # Errors
    /// What the device or the system says.
    pub fn new(context: &Context, bind: IpAddr, parameters: &Parameters) -> Result<Self, PerfError> {
        let mut worker = worker(context)?;
        let listener = worker.listen(SocketAddr::new(bind, 0))?;
        Ok(Server { worker: Some(worker), listener, link: None, depth: parameters.depth })
    }

    /// Where the client connects to.
    pub fn contact(&self) -> Contact {
        Contact::Worker { port: self.listener.local_addr().port() }
    }

    /// Waits for the client's connection.
    ///
    /// # Errors
    /// [`PerfError::Closed`] if it does not come up, [`PerfError::NoConnection`] if nobody connects.
    pub fn accept(&mut self) -> Result<(), PerfError> {
        let mut worker = self.worker.take().ok_or(PerfError::NoConnection(CONNECT_TIME))?;
        let ep = connection(&mut worker)?;
        self.link = Some(Link::new(worker, ep, self.depth));
        Ok(())
    }

    /// Does the server's part of a round.
    ///
    /// # Errors
    /// What the transport says, or that the client is gone.
    pub fn answer(&mut self, exchange: &Exchange, test: Test, round: Round) -> Result<(), PerfError> {
        let link = self.link.as_mut().ok_or(PerfError::NoConnection(CONNECT_TIME))?;
        if test == Test::TagBw {
            return link.sink(exchange, round);
        }
        link.prepare(round.size)?;
        let mut watch = Watch::new(exchange);
        for _ in 0..round.count {
            link.post_receives(1)?;
            link.receive(&mut watch)?;
            link.send(&mut watch)?;
        }
        link.settle(&mut watch)
    }
}

/// Measures as the client, by `worker`.
///
/// # Errors
/// What the transport or the server says.
pub fn run(
    args: &PerfArgs,
    parameters: Parameters,
    mut worker: Worker,
    exchange: &mut Exchange,
    sizes: &[usize],
    effort: Effort,
    place: &str,
) -> Result<(), PerfError> {
    let depth = parameters.depth;
    let theirs = exchange.prepare(&Request::Prepare(parameters, Contact::Connecting))?;
    let Contact::Worker { port } = theirs else {
        return Err(PerfError::Garbled { why: format!("{theirs:?} is no worker") });
    };
    worker.connect(SocketAddr::new(exchange.peer()?, port))?;
    let ep = connection(&mut worker)?;
    if let Some(why) = worker.explain(ep) {
        tracing::info!("{why}");
    }
    let mut link = Link::new(worker, ep, depth);
    let how = format!(
        "transport over device {}: copied up to {EAGER} B, longer messages read by the receiver",
        args.device()
    );
    let report = Report::begin(args, &how, place)?;
    for &size in sizes {
        // First of all: what there is no memory for is refused here.
        link.prepare(size)?;
        if args.test == Test::TagBw {
            report.bandwidth(&bandwidth::measure(exchange, &mut link, Memcpy::new(size)?, size, effort)?)?;
        } else {
            report.latency(&latency::measure(exchange, &mut link, size, effort)?)?;
        }
    }
    Ok(())
}

impl Link {
    fn new(worker: Worker, ep: EndpointId, depth: u32) -> Self {
        Link {
            worker,
            ep,
            depth: depth as usize,
            size: 0,
            short: [0; EAGER],
            long: None,
            sending: 0,
            posted: 0,
            received: 0,
            acknowledged: 0,
        }
    }

    /// Gets ready for messages of `size` bytes.
    fn prepare(&mut self, size: usize) -> Result<(), PerfError> {
        if self.size == size {
            return Ok(());
        }
        self.size = size;
        self.long = None;
        if size > EAGER {
            let pd = self.worker.domain();
            let (source, landing) = (pd.expose(size, Access::REMOTE_READ)?, pd.expose(size, Access::NONE)?);
            self.long = Some(Long { source, landing });
        }
        Ok(())
    }

    /// Sends one message; waits for room first if there is none.
    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<(), PerfError> {
        if self.long.is_some() {
            return self.send_long(watch);
        }
        loop {
            match self.worker.send_copy(self.ep, DATA, &self.short[..self.size]) {
                Err(SendCopyError::WouldBlock) => self.step(watch)?,
                done => return Ok(done?),
            }
        }
    }

    fn send_long(&mut self, watch: &mut Watch) -> Result<(), PerfError> {
        while self.sending >= self.depth {
            self.step(watch)?;
        }
        let Some(long) = &self.long else { return Ok(()) };
        self.worker.send(self.ep, DATA, long.source.remote(0..self.size)).map_err(|refused| refused.error)?;
        self.sending += 1;
        Ok(())
    }

    /// Posts receives for long messages until `count` are posted; short ones need none.
    #[inline]
    fn post_receives(&mut self, count: usize) -> Result<(), PerfError> {
        let Some(long) = &self.long else { return Ok(()) };
        while self.posted < count {
            let landing = long.landing.local(0..self.size);
            self.worker.recv_into(self.ep, DATA, landing, None).map_err(|refused| refused.error)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Waits for one message.
    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<(), PerfError> {
        while self.received == 0 {
            self.step(watch)?;
        }
        self.received -= 1;
        Ok(())
    }

    /// Waits until the other side has read all long messages.
    fn settle(&mut self, watch: &mut Watch) -> Result<(), PerfError> {
        while self.sending > 0 {
            self.step(watch)?;
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, watch: &mut Watch) -> Result<(), PerfError> {
        match self.worker.poll()? {
            None => watch.idle(None),
            Some(event) => {
                watch.progress();
                self.take(event)
            }
        }
    }

    #[inline]
    fn take(&mut self, event: Event) -> Result<(), PerfError> {
        match event {
            Event::Received { tag: ACKNOWLEDGEMENT, .. } => self.acknowledged += 1,
            Event::Received { .. } => self.received += 1,
            Event::ReceivedInto { .. } => {
                self.received += 1;
                self.posted -= 1;
            }
            Event::Sent { .. } => self.sending -= 1,
            Event::Failed { error, .. } => return Err(error.into()),
            Event::Closed { reason, .. } => return Err(reason.into()),
            _ => {}
        }
        Ok(())
    }

    /// The server's part of a stream: takes all messages, then acknowledges.
    fn sink(&mut self, exchange: &Exchange, round: Round) -> Result<(), PerfError> {
        self.prepare(round.size)?;
        let mut watch = Watch::new(exchange);
        let depth = self.depth as u64;
        for taken in 0..round.count {
            self.post_receives((round.count - taken).min(depth) as usize)?;
            self.receive(&mut watch)?;
        }
        loop {
            match self.worker.send_copy(self.ep, ACKNOWLEDGEMENT, &[]) {
                Err(SendCopyError::WouldBlock) => self.step(&mut watch)?,
                done => return Ok(done?),
            }
        }
    }
}

impl Operation for Link {
    #[inline]
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        let mut watch = Watch::new(exchange);
        self.post_receives(1)?;
        self.send(&mut watch)?;
        self.receive(&mut watch)
    }

    fn ways(&self) -> f64 {
        2.0
    }
}

impl Stream for Link {
    fn run(&mut self, exchange: &Exchange, round: Round) -> Result<(), PerfError> {
        self.prepare(round.size)?;
        let mut watch = Watch::new(exchange);
        for _ in 0..round.count {
            self.send(&mut watch)?;
        }
        while self.acknowledged == 0 {
            self.step(&mut watch)?;
        }
        self.acknowledged -= 1;
        self.settle(&mut watch)
    }
}

/// A worker on a device, set up for both sides' messages.
///
/// # Errors
/// What the device says.
pub fn worker(context: &Context) -> Result<Worker, PerfError> {
    // Receives are posted for all long messages, so none shall go anywhere else.
    Ok(Worker::on(context.clone(), Config::default().eager_limit(EAGER).unmatched(Unmatched::HoldLong))?)
}

/// Waits for the first connection to come up.
fn connection(worker: &mut Worker) -> Result<EndpointId, PerfError> {
    loop {
        match worker.wait(Some(CONNECT_TIME))? {
            Some(Event::Connected { ep } | Event::Accepted { ep, .. }) => return Ok(ep),
            Some(Event::Closed { reason, .. }) => return Err(reason.into()),
            Some(_) => {}
            None => return Err(PerfError::NoConnection(CONNECT_TIME)),
        }
    }
}

/// Longest message that is copied: the transport's own default.
const EAGER: usize = 8192;
const CONNECT_TIME: Duration = Duration::from_secs(10);
const DATA: Tag = Tag(1);
const ACKNOWLEDGEMENT: Tag = Tag(2);
