//! Linking two opened devices: the active side.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Link, system};
use super::message::{Message, Refusal};
use super::outbox::Waits;
use super::socket::Socket;
use crate::address::NodeId;
use crate::error::ConnectError;
use crate::soft::home::Home;
use crate::soft::layout::LAYOUT_VERSION;

/// Links to the device `peer` of another process: checks its user, exchanges mappings.
pub(crate) fn establish(home: &Home, peer: NodeId) -> Result<Link, ConnectError> {
    let timed_out = || ConnectError::TimedOut { seconds: DEADLINE.as_secs() };
    let socket = Socket::connect(peer, DEADLINE).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ConnectError::PeerGone { node: peer },
        io::ErrorKind::WouldBlock => timed_out(),
        _ => system("connect to the peer's device")(source),
    })?;
    let (ours, theirs) =
        (rustix::process::geteuid().as_raw(), socket.peer().map_err(system("identify the peer"))?.user);
    if ours != theirs {
        return Err(ConnectError::OtherUser { ours, theirs });
    }
    let greeted = greet(&socket, home);
    let mut answer = socket.recv();
    if matches!(&answer, Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
        // Refused at the door, before the greeting was read: the reason comes behind the reset.
        answer = socket.recv();
    }
    let packet = match (answer, greeted) {
        (Ok(Some(packet)), _) => packet,
        (Ok(None), _) => return Err(ConnectError::PeerGone { node: peer }),
        (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => return Err(timed_out()),
        (Err(_), Err(error)) => return Err(system("greet the peer's device")(error)),
        (Err(error), Ok(())) => return Err(system("read the peer's greeting")(error)),
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
            Link::remote(peer, socket, packet, registered)
        }
        Message::Refused(Refusal::User { ours, theirs }) => Err(ConnectError::OtherUser { ours: theirs, theirs: ours }),
        Message::Refused(Refusal::Version { ours }) => {
            Err(ConnectError::Version { ours: LAYOUT_VERSION, theirs: ours })
        }
        Message::Refused(Refusal::Descriptors) => Err(ConnectError::BadAnswer {
            why: "its process has no room for more file descriptors; raise its limit (`ulimit -n`)",
        }),
        _ => Err(ConnectError::BadAnswer { why: "the greeting was not understood" }),
    }
}

/// Sends the greeting, also while too many descriptors of this user are under way: whoever they are for takes them soon.
fn greet(socket: &Socket, home: &Home) -> io::Result<()> {
    let until = Instant::now() + CROWDED;
    loop {
        match socket.send(&Message::hello(home.id()), &home.mappings()) {
            Err(error) if Waits::of(&error) == Some(Waits::ForOthers) && Instant::now() < until => {
                thread::sleep(AGAIN);
            }
            sent => return sent,
        }
    }
}

/// How long the greeting is tried: less than the peer waits for it,
const CROWDED: Duration = Duration::from_secs(1);
/// and how often.
const AGAIN: Duration = Duration::from_millis(5);
/// How long the peer's control thread may take. It waits for nobody longer than 3 s.
const DEADLINE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::soft::control::serve;
    use crate::soft::control::socket::{accept, listen, pair};
    use crate::soft::random;

    /// What comes of linking to a device that answers the greeting so.
    fn answered(answer: impl FnOnce(NodeId) -> Message) -> ConnectError {
        let (home, peer) = (Home::new().unwrap(), NodeId(random::bytes()));
        let door = listen(peer).unwrap();
        thread::scope(|scope| {
            let establishing = scope.spawn(|| establish(&home, peer));
            let socket = loop {
                if let Some(socket) = accept(door.as_fd()).unwrap() {
                    break socket;
                }
            };
            let greeting = loop {
                match socket.recv() {
                    Ok(packet) => break packet.unwrap(),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            };
            assert!(matches!(greeting.message, Message::Hello { node, .. } if node == home.id()));
            socket.send(&answer(peer), &[]).unwrap();
            establishing.join().unwrap().unwrap_err()
        })
    }

    fn hello(version: u32, node: NodeId) -> Message {
        Message::Hello { version, node, registered: true }
    }

    #[test]
    fn a_device_of_another_version_is_refused() {
        let other = LAYOUT_VERSION + 1;
        let errors =
            [answered(|peer| hello(other, peer)), answered(|_| Message::Refused(Refusal::Version { ours: other }))];
        for error in errors {
            assert!(
                matches!(error, ConnectError::Version { ours: LAYOUT_VERSION, theirs } if theirs == other),
                "{error}"
            );
        }
    }

    #[test]
    fn a_refusal_says_why() {
        let error = answered(|_| Message::Refused(Refusal::User { ours: 5, theirs: 6 }));
        assert!(matches!(error, ConnectError::OtherUser { ours: 6, theirs: 5 }), "{error}");
        let senseless: [fn(NodeId) -> Message; 4] = [
            |_| Message::Refused(Refusal::Malformed),
            |_| Message::MapArena { arena: 1 },
            |_| hello(LAYOUT_VERSION, NodeId([1; 16])),
            |peer| hello(LAYOUT_VERSION, peer),
        ];
        for answer in senseless {
            let error = answered(answer);
            assert!(matches!(error, ConnectError::BadAnswer { .. }), "{error}");
        }
    }

    #[test]
    fn a_greeting_of_another_version_is_answered_with_ours() {
        let home = Home::new().unwrap();
        for (greeting, version) in
            [(hello(LAYOUT_VERSION + 1, home.id()), true), (Message::MapArena { arena: 1 }, false)]
        {
            let (stranger, ours) = pair();
            stranger.send(&greeting, &[]).unwrap();
            assert!(serve::greet(&home, ours).is_none());
            let answer = stranger.recv().unwrap().unwrap().message;
            match answer {
                Message::Refused(Refusal::Version { ours }) => assert!(version && ours == LAYOUT_VERSION),
                Message::Refused(Refusal::Malformed) => assert!(!version),
                other => panic!("{other:?}"),
            }
        }
    }
}
