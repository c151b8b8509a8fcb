//! The server's side: prepares what a client asks for, and does its part of each round.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::args::PerfArgs;
use super::bandwidth;
use super::error::PerfError;
use super::exchange::{Exchange, Reply, Request, Round, Side};
use super::pingpong;
use super::session::{Session, Unconnected};
use super::tagged;
use super::test::{Parameters, Test};

/// Serves one client, or one after another without end.
///
/// # Errors
/// [`PerfError`] if the port is taken, or the only client fails.
pub fn run(args: &PerfArgs) -> Result<(), PerfError> {
    let address = SocketAddr::new(args.bind, args.port);
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => PerfError::PortTaken { port: args.port },
        _ => PerfError::Listen { address, source },
    })?;
    let bound = listener.local_addr().map_err(|source| PerfError::Listen { address, source })?;
    announce(args, bound).map_err(PerfError::Print)?;
    loop {
        let (stream, client) = listener.accept().map_err(PerfError::Exchange)?;
        tracing::debug!(%client, "a client connected");
        let served = serve(args, stream);
        if !args.forever {
            return served;
        }
        if let Err(error) = served {
            eprintln!("client {client}: {error}");
        }
    }
}

/// Tells where this server is. Standard output may be a pipe to who started it.
fn announce(args: &PerfArgs, bound: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.announce {
        writeln!(out, "{}", bound.port())?;
    } else {
        writeln!(out, "serving at {bound}; on the client: qpair perf {} HOST -p {}", args.test, bound.port())?;
    }
    out.flush()
}

fn serve(args: &PerfArgs, stream: TcpStream) -> Result<(), PerfError> {
    let mut exchange = Exchange::open(stream)?;
    let Request::Prepare(parameters, theirs) = exchange.receive()? else {
        return refuse(&mut exchange, PerfError::Garbled { why: "a round before its preparation".to_owned() });
    };
    if parameters.test.is_tagged() {
        return match tagged::Server::new(&args.device, args.bind, &parameters) {
            Ok(mut server) => {
                exchange.send(&Reply::Prepared(server.side()))?;
                server.accept()?;
                rounds(&mut exchange, |exchange, round| server.answer(exchange, parameters.test, round))
            }
            Err(error) => refuse(&mut exchange, error),
        };
    }
    match prepare(args, &parameters, &theirs) {
        Ok((mut session, ours)) => {
            exchange.send(&Reply::Prepared(ours))?;
            rounds(&mut exchange, |exchange, round| answer(&mut session, exchange, parameters.test, round))
        }
        Err(error) => refuse(&mut exchange, error),
    }
}

fn prepare(args: &PerfArgs, parameters: &Parameters, theirs: &Side) -> Result<(Session, Side), PerfError> {
    let session = Unconnected::new(&args.device, parameters)?;
    let ours = session.side();
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
    mut answer: impl FnMut(&Exchange, Round) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    loop {
        match exchange.receive()? {
            Request::Finish => return Ok(()),
            Request::Round(round) => {
                exchange.send(&Reply::Started)?;
                match answer(exchange, round) {
                    Ok(()) => exchange.send(&Reply::Done)?,
                    Err(error) => return refuse(exchange, error),
                }
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
        // One-sided: the client does it all.
        Test::WriteBw | Test::ReadBw | Test::ReadLat | Test::AtomicLat => Ok(()),
        Test::TagLat | Test::TagBw => Err(PerfError::Garbled { why: "no queue pair carries tags".to_owned() }),
    };
    done.map_err(|error| session.explain_failure(error))
}
