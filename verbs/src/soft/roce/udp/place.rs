//! A UDP port of a network namespace, and the abstract names around it.
//! Tests share ports of their own, so that they disturb no device.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::address::Name;

/// A port that processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) port: u16,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The right to look who has the sockets, and to make them.
    Gate,
    /// A slot that is claimed.
    Slot(u32),
    /// The one who takes messages for a socket's place.
    Serving(u32),
    /// The one who takes requests for connections to a port of the connection manager.
    Listening(u16),
    /// One who asks, by a number of its own.
    Asking(u64),
}

impl Place {
    /// That of RoCEv2; in processes of tests, which are to disturb no others, one of their own.
    pub(super) fn roce() -> Place {
        #[cfg(test)]
        if let Some(port) = std::env::var("QPAIR_TEST_UDP_PORT").ok().and_then(|port| port.parse().ok()) {
            return Place { port };
        }
        Place { port: qpair_roce::wire::PORT }
    }

    /// A name as messages are sent to it.
    pub(super) fn name(self, what: What) -> Name {
        Name::abstract_unix(&self.text(what))
    }

    /// A Unix datagram socket of that name; `None` if another has it. It tells who sends, and never blocks.
    pub(super) fn bind(self, what: What) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_passcred(&socket, true)?;
        match bind(&socket, &SocketAddrUnix::new_abstract_name(self.text(what).as_bytes())?) {
            Ok(()) => Ok(Some(socket)),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn text(self, what: What) -> String {
        let port = self.port;
        match what {
            What::Gate => format!("qpair-roce-{port}-gate"),
            What::Slot(slot) => format!("qpair-roce-{port}-slot-{slot}"),
            What::Serving(place) => format!("qpair-roce-{port}-serving-{place}"),
            What::Listening(port) => format!("qpair-roce-{place}-listening-{port}", place = self.port),
            What::Asking(number) => format!("qpair-roce-{port}-asking-{number:x}"),
        }
    }
}
