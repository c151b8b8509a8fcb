//! The server's side: listens, and serves each client in the way that it speaks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::args::PerfArgs;
use super::device::SOFT;
use super::error::PerfError;
use super::own::{self, INTRODUCTION, PATIENCE};
use super::perftest::{Ready, Role};
use crate::output::{PrintError, print, tell};
use crate::text::serving;

/// Serves one client, or one after another without end.
///
/// # Errors
/// [`PerfError`] if the port is taken, or the only client fails.
pub fn run(args: &PerfArgs, device: &str) -> Result<(), PerfError> {
    if args.is_perftest(device) {
        // What can fail here alone does so before a client comes.
        Ready::new(args, device)?;
    }
    let parent = rustix::process::getppid();
    let (listener, address) = listen(args, device)?;
    let bound = listener.local_addr().map_err(|source| PerfError::Listen { address, source })?;
    announce(args, bound)?;
    loop {
        let (stream, client) = accept(&listener, args.forever)?;
        tracing::debug!(%client, "a client connected");
        let served = serve(args, device, stream);
        if !args.forever {
            return match served {
                // The client that started it is gone, and has told why, or could not.
                Err(PerfError::PeerClosed) if args.announce && is_orphan(parent) => Ok(()),
                served => served,
            };
        }
        if let Err(error) = served {
            tell(&format!("client {client}: {error}"));
        }
    }
}

/// True if the process that started this one has ended, or does so in a moment: its connections close before it is gone.
fn is_orphan(parent: Option<rustix::process::Pid>) -> bool {
    (0..20).any(|_| {
        let is_gone = rustix::process::getppid() != parent;
        if !is_gone {
            thread::sleep(Duration::from_millis(5));
        }
        is_gone
    })
}

/// Tells where this server is. Standard output may be a pipe to who started it.
fn announce(args: &PerfArgs, bound: SocketAddr) -> Result<(), PrintError> {
    if args.announce {
        return print(&bound.port().to_string());
    }
    let line = serving(bound, &format!("qpair perf {}", args.test), "-p");
    if args.json {
        // Standard output has objects alone.
        tell(&line);
        return Ok(());
    }
    print(&line)
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
                    let advice = "raise the limit (`ulimit -n`), or end what holds files open";
                    tell(&format!("a client waits: {error}; {advice}"));
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
        Err(error) => Err(own::broken(error)),
    }
}

fn serve(args: &PerfArgs, device: &str, stream: TcpStream) -> Result<(), PerfError> {
    if !args.test.is_tagged() && is_perftest(device, &stream)? {
        return Ready::new(args, device)?.run(stream, Role::Server, PATIENCE);
    }
    own::serve(args, device, stream)
}

/// Pauses for a minute in all.
const MAX_TRIES: u32 = 120;
const TRY_AGAIN: Duration = Duration::from_millis(500);
