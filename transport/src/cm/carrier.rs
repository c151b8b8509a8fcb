//! What carries a stream: a TCP connection, or a pair of queue pairs.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;

use mio::event::Source;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::keepalive::Keepalive;
use super::rdma::Pipe;

/// Bytes to one peer and back, without blocking.
#[derive(Debug)]
pub(super) enum Carrier {
    Tcp(TcpStream),
    Rdma(Box<Pipe>),
}

impl Carrier {
    /// Lets events of `token` tell when there may be more to read or to write.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Carrier::Tcp(socket) => socket.register(registry, token, Interest::READABLE | Interest::WRITABLE),
            Carrier::Rdma(pipe) => SourceFd(&pipe.as_raw_fd()).register(registry, token, Interest::READABLE),
        }
    }

    /// The descriptor is to be closed right after, which deregisters it as well.
    pub(super) fn deregister(&mut self, registry: &Registry) {
        let _ = match self {
            Carrier::Tcp(socket) => socket.deregister(registry),
            Carrier::Rdma(pipe) => SourceFd(&pipe.as_raw_fd()).deregister(registry),
        };
    }

    /// Has the system find out when the other host is gone. A queue pair does by itself, when it sends.
    pub(super) fn watch(&self, keepalive: &Keepalive) -> io::Result<()> {
        match self {
            Carrier::Tcp(socket) => keepalive.watch(socket),
            Carrier::Rdma(_) => Ok(()),
        }
    }

    /// Only latency is at stake: without it, a handshake's last message may wait for an acknowledgement.
    pub(super) fn hurry(&self) {
        if let Carrier::Tcp(socket) = self {
            let _ = socket.set_nodelay(true);
        }
    }

    /// Says that nothing more is written, and reads what has come, though it is of no use: with something unread the system
    /// would cut a TCP connection off, and drop what it has not sent yet.
    pub(super) fn leave(&mut self) {
        let Carrier::Tcp(socket) = self else { return };
        let _ = socket.shutdown(Shutdown::Write);
        let mut part = [0; 1024];
        for _ in 0..PARTING_READS {
            if !matches!(socket.read(&mut part), Ok(count) if count > 0) {
                return;
            }
        }
    }
}

impl Read for Carrier {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(socket) => socket.read(into),
            Carrier::Rdma(pipe) => pipe.read(into),
        }
    }
}

impl Write for Carrier {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Carrier::Tcp(socket) => socket.write(data),
            Carrier::Rdma(pipe) => pipe.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads before a connection is closed: more than any peer that obeys has to say.
const PARTING_READS: u32 = 8;
