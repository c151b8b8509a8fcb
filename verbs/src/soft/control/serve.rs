//! The passive side: answers greetings and questions of peers. Nothing in a message is trusted before it is checked.

use std::io;
use std::os::fd::AsFd;

use super::link::Link;
use super::message::{Message, Refusal};
use super::remote_access;
use super::socket::{Packet, Socket};
use crate::soft::home::Home;
use crate::soft::layout::LAYOUT_VERSION;

/// Answers the first message of a new connection; the link, if it was a greeting that can be accepted.
pub(crate) fn greet(home: &Home, socket: Socket) -> Option<Link> {
    let packet = match socket.recv() {
        Ok(Some(packet)) => packet,
        Ok(None) => return None,
        Err(error) => {
            tracing::debug!(%error, "a connection sent no greeting");
            return None;
        }
    };
    let Message::Hello { version, node: peer, registered, .. } = packet.message else {
        return refuse(&socket, Refusal::Malformed);
    };
    let (ours, theirs) = (rustix::process::geteuid().as_raw(), socket.peer_user().ok()?);
    if ours != theirs {
        return refuse(&socket, Refusal::User { ours, theirs });
    }
    if version != LAYOUT_VERSION {
        return refuse(&socket, Refusal::Version { ours: LAYOUT_VERSION });
    }
    if let Err(error) = socket.send(&Message::hello(home.id()), &home.mappings()) {
        tracing::debug!(%error, "a peer left while greeting");
        return None;
    }
    match Link::remote(peer, socket, packet.fds, registered) {
        Ok(link) => Some(link),
        Err(error) => {
            tracing::warn!(%error, %peer, "a peer's greeting was not valid");
            None
        }
    }
}

fn refuse(socket: &Socket, refusal: Refusal) -> Option<Link> {
    tracing::warn!(?refusal, "a connection was refused");
    let _ = socket.send(&Message::Refused(refusal), &[]);
    None
}

/// Handles all that waits on a link; false once it is over.
pub(crate) fn drain(home: &Home, link: &Link) -> bool {
    loop {
        match link.socket().map(Socket::recv) {
            Some(Ok(Some(packet))) => handle(home, link, packet),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, peer = %link.peer(), "a peer sent what is no message; the link ends");
                return false;
            }
            Some(Ok(None) | Err(_)) | None => return false,
        }
    }
}

fn handle(home: &Home, link: &Link, packet: Packet) {
    let Packet { message, mut fds } = packet;
    match message {
        Message::Query { request, qpn } => {
            let found = home.member(qpn);
            let info = found.as_ref().map(|qp| qp.info());
            let answer = Message::Info { request, info };
            match &found {
                Some(qp) => link.send(&answer, &[qp.bell().as_fd()]),
                None => link.send(&answer, &[]),
            }
        }
        Message::Info { request, info } => link.answered(request, info.map(|info| (info, fds.pop()))),
        Message::MapArena { arena } => match home.arenas().get(arena) {
            Some(found) => {
                let answer = Message::Arena { arena, len: found.len() as u64 };
                link.send(&answer, &[found.segment().fd()]);
            }
            None => link.send(&Message::Arena { arena, len: 0 }, &[]),
        },
        Message::Arena { arena, len } => link.install_arena(arena, len, fds.pop()),
        Message::ArenaGone { arena } => link.forget_arena(arena, || home.quiesce_initiators()),
        Message::Fault { qpn, from_qpn, kind } => {
            if let Some(member) = home.member(qpn) {
                member.fault(link.peer(), from_qpn, kind);
            }
        }
        Message::Bounce { request, op } => {
            let result = home.as_engine(|| remote_access::serve(home, link, op));
            link.send(&Message::Bounced { request, result }, &[]);
        }
        Message::Bounced { request, result } => link.bounced(request, result),
        Message::Hello { .. } | Message::Refused(_) => {
            tracing::warn!(peer = %link.peer(), "a greeting out of order is ignored");
        }
    }
}
