//! Linking two opened devices: the active side.

use std::io;
use std::time::Duration;

use super::link::Link;
use super::message::{Message, Refusal};
use super::socket::Socket;
use crate::address::NodeId;
use crate::error::ConnectError;
use crate::soft::home::Home;
use crate::soft::layout::LAYOUT_VERSION;

/// Links to the device `peer` of another process: checks its user, exchanges mappings.
pub(crate) fn establish(home: &Home, peer: NodeId) -> Result<Link, ConnectError> {
    let socket = Socket::connect(peer).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ConnectError::PeerGone { node: peer },
        _ => system("connect to the peer's device")(source),
    })?;
    let (ours, theirs) =
        (rustix::process::geteuid().as_raw(), socket.peer_user().map_err(system("identify the peer"))?);
    if ours != theirs {
        return Err(ConnectError::OtherUser { ours, theirs });
    }
    socket.set_deadline(DEADLINE).map_err(system("set a deadline"))?;
    socket.send(&Message::hello(home.id()), &home.mappings()).map_err(system("greet the peer's device"))?;
    let packet = match socket.recv() {
        Ok(Some(packet)) => packet,
        Ok(None) => return Err(ConnectError::PeerGone { node: peer }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(ConnectError::TimedOut { seconds: DEADLINE.as_secs() });
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            return Err(ConnectError::PeerGone { node: peer });
        }
        Err(error) => return Err(system("read the peer's greeting")(error)),
    };
    match packet.message {
        Message::Hello { node: named, .. } if named != peer => {
            Err(ConnectError::BadAnswer { why: "another device answered" })
        }
        Message::Hello { version, .. } if version != LAYOUT_VERSION => {
            Err(ConnectError::Version { ours: LAYOUT_VERSION, theirs: version })
        }
        Message::Hello { registered, .. } => {
            socket.set_nonblocking().map_err(system("set up the link"))?;
            Link::remote(peer, socket, packet.fds, registered)
        }
        Message::Refused(Refusal::User { ours, theirs }) => Err(ConnectError::OtherUser { ours: theirs, theirs: ours }),
        Message::Refused(Refusal::Version { ours }) => {
            Err(ConnectError::Version { ours: LAYOUT_VERSION, theirs: ours })
        }
        _ => Err(ConnectError::BadAnswer { why: "the greeting was not understood" }),
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> ConnectError {
    move |source| ConnectError::System { what, source }
}

/// How long the peer's control thread may take; it does nothing that blocks.
const DEADLINE: Duration = Duration::from_secs(5);
