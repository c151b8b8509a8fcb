//! The passive side: answers greetings and questions of peers. Nothing in a message is trusted before it is checked.

use std::io;

use super::answers::{Answer, PassedRope};
use super::link::Link;
use super::message::{Message, Refusal};
use super::remote_access;
use super::socket::{Packet, Socket};
use crate::gpu::Imported;
use crate::soft::home::Home;
use crate::soft::layout::LAYOUT_VERSION;

/// Whether a new connection comes from a process that may speak to this device; tells it if not.
pub(super) fn admit(socket: &Socket) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    match socket.peer() {
        Ok(peer) if peer.user == ours => true,
        Ok(peer) => refuse::<()>(socket, Refusal::User { ours, theirs: peer.user }).is_some(),
        Err(error) => {
            tracing::warn!(%error, "a connection from an unknown user is dropped");
            false
        }
    }
}

/// A connection that was accepted.
pub(crate) struct Greeted {
    pub(crate) link: Link,
    /// True if its peer is known to be the device that it says. Else it is served as that: it may be, and this device's own
    /// queue pairs go by a link of their own.
    pub(crate) is_known: bool,
}

/// Answers the first message of a new connection; the link, if it was a greeting that can be accepted.
pub(crate) fn greet(home: &Home, socket: Socket) -> Option<Greeted> {
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
    if version != LAYOUT_VERSION {
        return refuse(&socket, Refusal::Version { ours: LAYOUT_VERSION });
    }
    if packet.truncated {
        return refuse(&socket, Refusal::Descriptors);
    }
    let speaks_for = socket.speaks_for(peer);
    if speaks_for == Some(false) {
        return refuse(&socket, Refusal::Malformed);
    }
    let link = match Link::remote(peer, socket, packet, registered) {
        Ok(link) => link,
        Err(error) => {
            tracing::warn!(%error, %peer, "a peer's greeting was not valid");
            return None;
        }
    };
    let answered = link.socket()?.send(&Message::hello(home.id()), &home.mappings());
    answered.inspect_err(|error| tracing::debug!(%error, %peer, "a greeting is not answered")).ok()?;
    Some(Greeted { link, is_known: speaks_for.is_some() })
}

fn refuse<T>(socket: &Socket, refusal: Refusal) -> Option<T> {
    tracing::warn!(?refusal, "a connection was refused");
    let _ = socket.send(&Message::Refused(refusal), &[]);
    None
}

/// What became of a link.
pub(crate) enum Drained {
    /// It goes on.
    Open,
    /// It goes on, and more waits: what is one link's turn is over.
    More,
    /// The peer makes no sense. It lives, and may be inside an access.
    Nonsense,
    /// The peer is gone, or has closed it.
    Over,
}

/// Handles what waits on a link, up to one turn of it: peers that send without end keep nobody else from being heard. Of a
/// spurned one nothing is read any more, so that it is stopped by its full socket; only its end is looked for. That of its
/// process counts as well as that of its socket, which processes that it started may have.
pub(crate) fn drain(home: &Home, link: &Link) -> Drained {
    use io::ErrorKind::{ConnectionReset, WouldBlock};
    let Some(socket) = link.socket() else { return Drained::Over };
    if link.is_spurned() {
        return if socket.is_hung_up() || link.has_peer_ended() { Drained::Over } else { Drained::Open };
    }
    // What it said last waits already.
    let has_ended = link.has_peer_ended();
    for _ in 0..TURN {
        match socket.recv() {
            Ok(Some(packet)) => handle(home, link, packet),
            Err(error) if error.kind() == WouldBlock && has_ended => return Drained::Over,
            Err(error) if error.kind() == WouldBlock => return Drained::Open,
            Err(error) if error.kind() != ConnectionReset => {
                tracing::warn!(%error, peer = %link.peer(), "a peer sent what is no message; it is heard no more");
                return Drained::Nonsense;
            }
            Ok(None) | Err(_) => return Drained::Over,
        }
    }
    Drained::More
}

/// Goes on with what peers told of and asked for while initiators were inside an access; true if something is left.
pub(crate) fn settle(home: &Home, link: &Link) -> bool {
    link.settle(|inside| home.have_left(inside))
}

fn handle(home: &Home, link: &Link, mut packet: Packet) {
    match packet.message {
        Message::Query { request, qpn } => {
            let found = home.member(qpn);
            let info = found.as_ref().map(|qp| {
                qp.note_asker(link);
                qp.info()
            });
            let answer = Message::Info { request, info };
            link.send_with(&answer, found.as_ref().map(|qp| qp.rope().descriptor()));
        }
        Message::Info { request, info } => {
            let rope = match packet.fds.pop() {
                Some(fd) => PassedRope::Here(fd),
                None if packet.truncated => PassedRope::NoRoom,
                None => PassedRope::Missing,
            };
            link.answered(request, Answer::Info(info.map(|info| (info, rope))));
        }
        Message::MapArena { arena } => {
            if let Some(found) = home.arenas().get(arena) {
                link.lend(&found);
            } else if !home.arenas().get_gpu(arena).is_some_and(|found| link.lend_gpu(arena, &found)) {
                link.send(&Message::Arena { arena, len: 0 });
            }
        }
        Message::GpuArena { arena, len, gpu } => {
            link.install_gpu_arena(arena, len, |len| Some(Imported::open(gpu, packet.fds.pop()?, len)));
        }
        Message::GpuHandle { arena, len, gpu, handle, offset } => {
            link.install_gpu_arena(arena, len, |len| Some(Imported::open_handle(gpu, handle, offset, len)));
        }
        Message::Arena { arena, len } => link.install_arena(arena, len, &mut packet),
        Message::ArenaGone { arena } => link.forget_arena(arena, || home.sight_initiators()),
        Message::Quiesce { turn } => link.asked_for_quiet(turn, home.sight_initiators()),
        Message::Quiet { turn } => link.note_quiet(turn),
        Message::Fault { qpn, from_qpn, kind } => {
            if let Some(member) = home.member(qpn) {
                member.fault(link.peer(), from_qpn, kind);
            }
        }
        Message::Bounce { request, op } => {
            let result = home.as_engine(|| if home.lies() { Ok(0) } else { remote_access::serve(home, link, op) });
            link.send(&Message::Bounced { request, result });
        }
        Message::Bounced { request, result } => link.answered(request, Answer::Bounced(result)),
        Message::Hello { .. } | Message::Refused(_) => {
            tracing::warn!(peer = %link.peer(), "a greeting out of order is ignored");
        }
    }
}

/// Messages of one link that are handled before others are looked at: some milliseconds where each is a copy.
const TURN: usize = 64;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::companion::Companion;
    use crate::error::ConnectError;
    use crate::soft::control::socket::{listen, pair};
    use crate::soft::ends::wait_until;
    use crate::{Context, NodeId};

    /// What another process does: it listens as the device of that number, until nobody waits for it.
    #[test]
    #[ignore = "needs another test to start it, as its other process"]
    fn process() {
        let Ok(node) = std::env::var(NODE_VARIABLE) else { return };
        let _door = listen(NodeId(node.parse::<u128>().unwrap().to_be_bytes())).unwrap();
        println!("\n!listening");
        let _ = io::Read::read(&mut io::stdin(), &mut [0]);
    }

    #[test]
    fn nobody_greets_as_the_device_of_another_process() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let greeted = || {
            let (ours, theirs) = pair();
            theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
            let greeted = greet(&home, ours);
            let answer = theirs.recv().unwrap().expect("it is answered").message;
            assert_eq!(greeted.is_none(), matches!(answer, Message::Refused(Refusal::Malformed)));
            greeted.map(|greeted| greeted.is_known)
        };
        assert_eq!(greeted(), None, "there is no such device");
        let door = listen(peer.id()).unwrap();
        assert_eq!(greeted(), Some(true));
        drop(door);
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.env(NODE_VARIABLE, u128::from_be_bytes(peer.id().0).to_string());
        let other = Companion::start(command, "soft::control::serve::tests::process");
        assert_eq!(other.line(), "listening");
        assert_eq!(greeted(), None, "it is another's");
    }

    #[test]
    fn what_could_have_its_ringer_wait_is_no_bell() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(1).unwrap());
        let qp = pd.rc(&cq).build().unwrap();
        let info = pd.node().home().member(qp.number().0).map(|qp| qp.info());
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let (ours, theirs) = pair();
        let _door = listen(peer.id()).unwrap();
        theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
        let link = greet(&home, ours).expect("it is a greeting").link;
        theirs.recv().expect("it is answered");
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let bell = crate::soft::Bell::new().unwrap();
        for (fd, is_bell) in [(counter.as_fd(), false), (bell.rope().descriptor().as_fd(), true)] {
            std::thread::scope(|scope| {
                let query = scope.spawn(|| link.query(qp.number().0));
                let Message::Query { request, .. } = next(&theirs) else { panic!("nothing else is asked") };
                theirs.send(&Message::Info { request, info }, &[fd]).unwrap();
                assert!(matches!(drain(&home, &link), Drained::Open));
                match query.join().unwrap() {
                    Ok(_) => assert!(is_bell),
                    Err(error) => assert!(!is_bell && matches!(error, ConnectError::BadAnswer { .. }), "{error}"),
                }
            });
        }
    }

    fn next(socket: &Socket) -> Message {
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(60) {
            match socket.recv() {
                Ok(packet) => return packet.expect("it is open").message,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        panic!("nothing comes");
    }

    #[test]
    fn a_link_has_its_turn_and_a_spurned_one_is_read_no_more() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let (ours, theirs) = pair();
        let _door = listen(peer.id()).unwrap();
        theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
        let link = greet(&home, ours).expect("it is a greeting").link;
        let flood = || (0..=TURN).for_each(|_| theirs.send(&Message::Quiet { turn: 1 }, &[]).unwrap());
        flood();
        assert!(matches!(drain(&home, &link), Drained::More));
        assert!(matches!(drain(&home, &link), Drained::Open));
        flood();
        link.spurn();
        assert!(matches!(drain(&home, &link), Drained::Open));
        drop(theirs);
        // A process that another test begins has it too for a moment.
        wait_until("it is over", || matches!(drain(&home, &link), Drained::Over));
    }

    const NODE_VARIABLE: &str = "QPAIR_TEST_NODE";
}
