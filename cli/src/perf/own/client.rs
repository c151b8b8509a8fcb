//! The client's side: asks a server to prepare, measures size after size, prints.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use qpair::verbs::Context;

use super::bandwidth::{self, VerbsStream};
use super::exchange::{Exchange, PATIENCE, Request, Round};
use super::latency;
use super::memcpy::Memcpy;
use super::onesided::{FetchAdd, Read};
use super::pingpong::{SendPingPong, WritePingPong};
use super::postpoll;
use super::report::Report;
use super::session::{Session, Unconnected};
use super::tagged;
use crate::output::tell;
use crate::perf::args::PerfArgs;
use crate::perf::counters::Counting;
use crate::perf::device::check_message;
use crate::perf::error::PerfError;
use crate::perf::reach::reach;
use crate::perf::test::{Effort, Test};

/// Measures against the server at `host`. The header tells the `place`: what client and server run on.
///
/// # Errors
/// [`PerfError`] if there is no server, or either side fails.
pub fn run(args: &PerfArgs, device: &str, host: &str, port: u16, place: &str) -> Result<(), PerfError> {
    // What can fail here alone does so before anybody is bothered; a server does not wait long for an introduction.
    let (parameters, sizes, effort) = (args.parameters()?, args.sizes()?, args.effort()?);
    let (context, counting) = (Context::open(device)?, Counting::new(args));
    if args.test.is_tagged() {
        let worker = tagged::worker(&context)?;
        let mut exchange = open(args, device, host, port)?;
        return counting.during(&context, || {
            tagged::run(args, parameters, worker, &mut exchange, &sizes, effort, place)?;
            exchange.send(&Request::Finish)
        });
    }
    check_message(&context, parameters.max_size)?;
    let session = Unconnected::new(&context, &parameters, args.gpu.unwrap_or(0))?;
    let mut exchange = open(args, device, host, port)?;
    counting.during(&context, || {
        let theirs = exchange.prepare(&Request::Prepare(parameters, session.contact()))?;
        let mut session = session.connect(&theirs)?;
        let why = session.qp.explain();
        tracing::info!("{why}");
        let place_of_data = session
            .on_gpu
            .as_ref()
            .map(|on_gpu| format!(", data of both sides on GPUs, here {}", on_gpu.gpu.attributes().name));
        let how = format!("device {device}, RC queue pairs, {}{}", wire(&why), place_of_data.unwrap_or_default());
        let report = Report::begin(args, &how, place)?;
        measure(args, &mut exchange, &mut session, &sizes, effort, &report)
            .map_err(|error| session.explain_failure(error))?;
        exchange.send(&Request::Finish)
    })
}

/// Opens the exchange with the server, which may have another client at the moment.
fn open(args: &PerfArgs, device: &str, host: &str, port: u16) -> Result<Exchange, PerfError> {
    let stream = reach(args, device, host, port)?;
    let (opened, waiting) = channel::<()>();
    let server = format!("{host}:{port}");
    let told = move || {
        if waiting.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
            tell(&format!("waiting for {server}, which has taken the connection and says nothing so far"));
        }
    };
    // Without a thread it is waited for all the same.
    let _ = thread::Builder::new().spawn(told);
    let exchange = Exchange::open(stream, PATIENCE);
    drop(opened);
    exchange.map_err(|error| match error {
        PerfError::Silent => PerfError::NoAnswer { host: host.to_owned(), port, limit: PATIENCE },
        other => other,
    })
}

/// The wire's name: an explanation starts with it, and goes on with what the header has no room for.
fn wire(explanation: &str) -> &str {
    explanation.split(" to ").next().unwrap_or(explanation)
}

fn measure(
    args: &PerfArgs,
    exchange: &mut Exchange,
    session: &mut Session,
    sizes: &[usize],
    effort: Effort,
    report: &Report,
) -> Result<(), PerfError> {
    if args.post_poll {
        // From then on the server waits for as long as it takes.
        exchange.start(Round { size: 8, count: 0 })?;
        exchange.finish_round()?;
        for signal_every in [1, 64] {
            report.post_poll(&postpoll::measure(session, exchange, signal_every, effort)?)?;
        }
        return Ok(());
    }
    for &size in sizes {
        match args.test {
            Test::WriteLat => {
                let mut operation = WritePingPong::new(session, size)?;
                report.latency(&latency::measure(exchange, &mut operation, size, effort)?)?;
            }
            Test::SendLat => {
                let mut operation = SendPingPong::new(session, size)?;
                report.latency(&latency::measure(exchange, &mut operation, size, effort)?)?;
            }
            Test::ReadLat => {
                let mut operation = Read::new(session, size)?;
                report.latency(&latency::measure(exchange, &mut operation, size, effort)?)?;
            }
            Test::AtomicLat => {
                let mut operation = FetchAdd::new(session)?;
                report.latency(&latency::measure(exchange, &mut operation, size, effort)?)?;
            }
            Test::WriteBw | Test::ReadBw | Test::SendBw | Test::AtomicBw => {
                let memcpy = match &session.on_gpu {
                    Some(on_gpu) => Memcpy::on_gpu(on_gpu.gpu, size)?,
                    None => Memcpy::new(size)?,
                };
                let mut stream = VerbsStream::new(session, args.test);
                report.bandwidth(&bandwidth::measure(exchange, &mut stream, memcpy, size, effort)?)?;
            }
            Test::TagLat | Test::TagBw => {
                return Err(PerfError::Options(format!("{} does not go over a bare queue pair", args.test)));
            }
        }
    }
    Ok(())
}

/// After which a person wants to know what is waited for.
const SOON: Duration = Duration::from_secs(2);
