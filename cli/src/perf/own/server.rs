//! The server's side: prepares what a client asks for, and does its part of each round.

use std::net::TcpStream;

use qpair::verbs::Context;

use super::bandwidth;
use super::exchange::{Contact, Exchange, INTRODUCTION, Reply, Request, Round};
use super::limits::{Limits, check_round};
use super::pingpong;
use super::session::{Session, Unconnected};
use super::tagged;
use crate::perf::args::PerfArgs;
use crate::perf::counters::Counting;
use crate::perf::error::PerfError;
use crate::perf::test::{Parameters, Test};

/// Serves the client at the other end of `stream` to its end.
///
/// # Errors
/// [`PerfError`] if either side fails.
pub fn serve(args: &PerfArgs, device: &str, stream: TcpStream) -> Result<(), PerfError> {
    // Where the client reaches this side, whatever the server listens at.
    let reached = stream.local_addr().map_err(PerfError::Exchange)?.ip().to_canonical();
    let mut exchange = Exchange::open(stream, INTRODUCTION)?;
    let Request::Prepare(parameters, theirs) = exchange.receive()? else {
        return refuse(&mut exchange, PerfError::Garbled { why: "a round before its preparation".to_owned() });
    };
    if let Err(error) = Limits::new(args).check(&parameters) {
        return refuse(&mut exchange, error);
    }
    let context = match Context::open(device) {
        Ok(context) => context,
        Err(error) => return refuse(&mut exchange, error.into()),
    };
    let counting = Counting::new(args);
    if parameters.test.is_tagged() {
        return counting.during(&context, || match tagged::Server::new(&context, reached, &parameters) {
            Ok(mut server) => {
                exchange.send(&Reply::Prepared(server.contact()))?;
                server.accept()?;
                rounds(&mut exchange, &parameters, |exchange, round| server.answer(exchange, parameters.test, round))
            }
            Err(error) => refuse(&mut exchange, error),
        });
    }
    counting.during(&context, || match prepare(args, &context, &parameters, &theirs) {
        Ok((mut session, ours)) => {
            exchange.send(&Reply::Prepared(ours))?;
            rounds(&mut exchange, &parameters, |exchange, round| answer(&mut session, exchange, parameters.test, round))
        }
        Err(error) => refuse(&mut exchange, error),
    })
}

fn prepare(
    args: &PerfArgs,
    context: &Context,
    parameters: &Parameters,
    theirs: &Contact,
) -> Result<(Session, Contact), PerfError> {
    let session = Unconnected::new(context, parameters, args.gpu.unwrap_or(0))?;
    let ours = session.contact();
    Ok((session.connect(theirs)?, ours))
}

/// Tells the client why not, and this side too.
fn refuse(exchange: &mut Exchange, error: PerfError) -> Result<(), PerfError> {
    exchange.send(&Reply::Refused(error.to_string()))?;
    Err(error)
}

/// Does this side's part of each round, until the client has no more.
fn rounds(
    exchange: &mut Exchange,
    parameters: &Parameters,
    mut answer: impl FnMut(&Exchange, Round) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    exchange.allow(Some(exchange.patience()));
    loop {
        match exchange.receive()? {
            Request::Finish => return Ok(()),
            Request::Round(round) => {
                if let Err(error) = check_round(round, parameters) {
                    return refuse(exchange, error);
                }
                exchange.send(&Reply::Started)?;
                match answer(exchange, round) {
                    Ok(()) => exchange.send(&Reply::Done)?,
                    Err(error) => return refuse(exchange, error),
                }
                // A client that needs no help in a round takes as long as it was told to.
                exchange.allow(if parameters.test.is_one_sided() { None } else { Some(exchange.patience()) });
            }
            Request::Prepare(..) => {
                let why = "a second preparation".to_owned();
                return refuse(exchange, PerfError::Garbled { why });
            }
        }
    }
}

fn answer(session: &mut Session, exchange: &Exchange, test: Test, round: Round) -> Result<(), PerfError> {
    let done = match test {
        Test::WriteLat => pingpong::answer(session, exchange, round, true),
        Test::SendLat => pingpong::answer(session, exchange, round, false),
        Test::SendBw => bandwidth::sink(session, exchange, round),
        // The client does it all.
        Test::WriteBw | Test::ReadBw | Test::ReadLat | Test::AtomicLat | Test::AtomicBw => Ok(()),
        Test::TagLat | Test::TagBw => Err(PerfError::Garbled { why: "no queue pair carries tags".to_owned() }),
    };
    done.map_err(|error| session.explain_failure(error))
}
