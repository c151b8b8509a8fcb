//! The client's side: asks a server to prepare, measures size after size, prints.

use std::net::TcpStream;

use super::args::PerfArgs;
use super::bandwidth::{self, VerbsStream};
use super::error::PerfError;
use super::exchange::{Exchange, Request};
use super::latency;
use super::onesided::{FetchAdd, Read};
use super::pingpong::{SendPingPong, WritePingPong};
use super::postpoll;
use super::report::Report;
use super::session::{Session, Unconnected};
use super::tagged;
use super::test::{Effort, Test};

/// Measures against the server at `host`. `cpus` is what the header says of client and server.
///
/// # Errors
/// [`PerfError`] if there is no server, or either side fails.
pub fn run(args: &PerfArgs, host: &str, port: u16, cpus: Option<(usize, usize)>) -> Result<(), PerfError> {
    // Options are checked before anybody is bothered.
    let (parameters, sizes, effort) = (args.parameters()?, args.sizes()?, args.effort()?);
    let stream = TcpStream::connect((host, port)).map_err(|source| PerfError::NoServer {
        host: host.to_owned(),
        port,
        test: args.test,
        source,
    })?;
    let mut exchange = Exchange::open(stream)?;
    if args.test.is_tagged() {
        tagged::run(args, parameters, &mut exchange, &sizes, effort, cpus)?;
    } else {
        let session = Unconnected::new(&args.device, &parameters)?;
        let theirs = exchange.prepare(&Request::Prepare(parameters, session.side()))?;
        let mut session = session.connect(&theirs)?;
        let why = session.qp.explain();
        tracing::info!("{why}");
        let how = format!("device {}, RC queue pairs, {}", args.device, wire(&why));
        let report = Report::begin(args, &how, cpus)?;
        measure(args, &mut exchange, &mut session, &sizes, effort, &report)
            .map_err(|error| session.explain_failure(error))?;
    }
    exchange.send(&Request::Finish)
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
            Test::WriteBw | Test::ReadBw | Test::SendBw => {
                let mut stream = VerbsStream::new(session, args.test);
                report.bandwidth(&bandwidth::measure(exchange, &mut stream, size, effort)?)?;
            }
            Test::TagLat | Test::TagBw => {
                return Err(PerfError::Options(format!("{} does not go over a bare queue pair", args.test)));
            }
        }
    }
    Ok(())
}
