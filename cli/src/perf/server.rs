//! The server's side: prepares what a client asks for, and does its part of each round.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::args::PerfArgs;
use super::bandwidth;
use super::error::PerfError;
use super::exchange::{self, Contact, Exchange, INTRODUCTION, PATIENCE, Reply, Request, Round};
use super::perftest::{Ready, Role, SOFT};
use super::pingpong;
use super::session::{Session, Unconnected};
use super::tagged;
use super::test::{Parameters, Test};
use crate::output::{PrintError, print};

/// Serves one client, or one after another without end.
///
/// # Errors
/// [`PerfError`] if the port is taken, or the only client fails.
pub fn run(args: &PerfArgs, device: &str) -> Result<(), PerfError> {
    if args.is_perftest(device) {
        // What can fail here alone does so before a client comes.
        Ready::new(args, device)?;
    }
    let (listener, address) = listen(args, device)?;
    let bound = listener.local_addr().map_err(|source| PerfError::Listen { address, source })?;
    announce(args, bound)?;
    loop {
        let (stream, client) = accept(&listener, args.forever)?;
        tracing::debug!(%client, "a client connected");
        let served = serve(args, device, stream);
        if !args.forever {
            return served;
        }
        if let Err(error) = served {
            eprintln!("client {client}: {error}");
        }
    }
}

/// Tells where this server is. Standard output may be a pipe to who started it.
fn announce(args: &PerfArgs, bound: SocketAddr) -> Result<(), PrintError> {
    if args.announce {
        return print(&bound.port().to_string());
    }
    print(&format!("serving at {bound}; on the client: qpair perf {} HOST -p {}", args.test, bound.port()))
}

/// Takes the next connection. One that is gone before it is taken is none; where no file descriptor is free, one may soon
/// be: that is waited for `without_end`, or a while.
fn accept(listener: &TcpListener, without_end: bool) -> Result<(TcpStream, SocketAddr), PerfError> {
    let mut tries = 0;
    loop {
        let error = match listener.accept() {
            Ok(accepted) => return Ok(accepted),
            Err(error) => error,
        };
        match (error.kind(), Errno::from_io_error(&error)) {
            (io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted, _) => {}
            (_, Some(Errno::MFILE | Errno::NFILE)) if without_end || tries < MAX_TRIES => {
                if tries.is_multiple_of(MAX_TRIES) {
                    eprintln!("a client waits: {error}; raise the limit (`ulimit -n`), or end what holds files open");
                }
                tries += 1;
                thread::sleep(TRY_AGAIN);
            }
            _ => return Err(PerfError::Exchange(error)),
        }
    }
}

/// Listens at the address asked for; else where only this machine's processes are, or everyone.
fn listen(args: &PerfArgs, device: &str) -> Result<(TcpListener, SocketAddr), PerfError> {
    let addresses = match args.bind {
        Some(address) => vec![address],
        None if device == SOFT => vec![Ipv4Addr::LOCALHOST.into()],
        // A machine without IPv6 has only the second.
        None => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
    };
    let mut failed = PerfError::PortTaken { port: args.port };
    for address in addresses.into_iter().map(|address| SocketAddr::new(address, args.port)) {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok((listener, address)),
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
                return Err(PerfError::PortTaken { port: args.port });
            }
            Err(source) => failed = PerfError::Listen { address, source },
        }
    }
    Err(failed)
}

/// True if the client speaks as perftest does: with a version in digits, and not with an object. What does neither is
/// told so in the way of the device.
fn is_perftest(device: &str, stream: &TcpStream) -> Result<bool, PerfError> {
    stream.set_read_timeout(Some(INTRODUCTION)).map_err(PerfError::Exchange)?;
    let mut first = [0];
    match stream.peek(&mut first) {
        Ok(0) => Err(PerfError::PeerClosed),
        Ok(_) => Ok(if device == SOFT { first[0].is_ascii_digit() } else { first != *b"{" }),
        Err(error) => Err(exchange::broken(error)),
    }
}

fn serve(args: &PerfArgs, device: &str, stream: TcpStream) -> Result<(), PerfError> {
    if !args.test.is_tagged() && is_perftest(device, &stream)? {
        return Ready::new(args, device)?.run(stream, Role::Server, PATIENCE);
    }
    let mut exchange = Exchange::open(stream, INTRODUCTION)?;
    let Request::Prepare(parameters, theirs) = exchange.receive()? else {
        return refuse(&mut exchange, PerfError::Garbled { why: "a round before its preparation".to_owned() });
    };
    if parameters.test.is_tagged() {
        let bind = args.bind.unwrap_or(Ipv4Addr::LOCALHOST.into());
        return match tagged::Server::new(device, bind, &parameters) {
            Ok(mut server) => {
                exchange.send(&Reply::Prepared(server.contact()))?;
                server.accept()?;
                rounds(&mut exchange, parameters.test, |exchange, round| {
                    server.answer(exchange, parameters.test, round)
                })
            }
            Err(error) => refuse(&mut exchange, error),
        };
    }
    match prepare(device, &parameters, &theirs) {
        Ok((mut session, ours)) => {
            exchange.send(&Reply::Prepared(ours))?;
            rounds(&mut exchange, parameters.test, |exchange, round| {
                answer(&mut session, exchange, parameters.test, round)
            })
        }
        Err(error) => refuse(&mut exchange, error),
    }
}

fn prepare(device: &str, parameters: &Parameters, theirs: &Contact) -> Result<(Session, Contact), PerfError> {
    let session = Unconnected::new(device, parameters)?;
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
    test: Test,
    mut answer: impl FnMut(&Exchange, Round) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    exchange.allow(Some(exchange.patience()));
    loop {
        match exchange.receive()? {
            Request::Finish => return Ok(()),
            Request::Round(round) => {
                exchange.send(&Reply::Started)?;
                match answer(exchange, round) {
                    Ok(()) => exchange.send(&Reply::Done)?,
                    Err(error) => return refuse(exchange, error),
                }
                // A client that needs no help in a round takes as long as it was told to.
                exchange.allow(if test.is_one_sided() { None } else { Some(exchange.patience()) });
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

/// Pauses for a minute in all.
const MAX_TRIES: u32 = 120;
const TRY_AGAIN: Duration = Duration::from_millis(500);
