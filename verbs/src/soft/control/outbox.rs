//! Messages on their way to a peer: kept in order while its socket is full, for instance because it is stopped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::message::Message;
use super::socket::Socket;
use crate::sync::lock;

/// A link's socket, with what it could not take yet.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: Socket,
    waiting: Mutex<VecDeque<Waiting>>,
    watch: OnceLock<Watch>,
}

/// A message with its descriptor, which is shared with all others that carry the same: peers that ask without end and read no
/// answer take none from this process.
type Waiting = (Message, Option<Arc<OwnedFd>>);

/// The socket's place among those that the control thread sleeps on.
#[derive(Debug)]
struct Watch {
    registry: Arc<Registry>,
    token: Token,
}

impl Outbox {
    pub(super) fn new(socket: Socket) -> Self {
        Outbox { socket, waiting: Mutex::default(), watch: OnceLock::new() }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Has the control thread hear of the socket under `token`.
    pub(super) fn watch(&self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, Interest::READABLE)?;
        let _ = self.watch.set(Watch { registry: registry.clone(), token });
        self.flush();
        Ok(())
    }

    /// Sends a message, now or as soon as the socket takes it, after those before it. False if it is lost.
    pub(super) fn send(&self, message: &Message, with: Option<&Arc<OwnedFd>>) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            match self.send_now(message, with) {
                Ok(()) => return true,
                Err(error) if Waits::of(&error).is_some() => {}
                Err(error) => {
                    tracing::debug!(%error, ?message, "a control message is lost");
                    return false;
                }
            }
        }
        if waiting.len() >= MOST {
            tracing::warn!(?message, waiting = waiting.len(), "a control message is lost; the peer takes none");
            return false;
        }
        waiting.push_back((message.clone(), with.cloned()));
        self.want_room(true);
        true
    }

    /// Sends what waits, as far as that goes. False if nobody tells when it goes on.
    pub(super) fn flush(&self) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            return true;
        }
        while let Some((message, with)) = waiting.front() {
            if let Err(error) = self.send_now(message, with.as_ref()) {
                match Waits::of(&error) {
                    Some(Waits::ForRoom) => {
                        self.want_room(true);
                        return true;
                    }
                    Some(Waits::ForOthers) => return false,
                    None => tracing::debug!(%error, ?message, "a control message is lost"),
                }
            }
            waiting.pop_front();
        }
        self.want_room(false);
        true
    }

    fn send_now(&self, message: &Message, with: Option<&Arc<OwnedFd>>) -> io::Result<()> {
        self.socket.send(message, with.map(AsFd::as_fd).as_slice())
    }

    /// Whether the control thread shall hear when the socket has room. Before it is watched, `watch` sees to that.
    fn want_room(&self, wanted: bool) {
        let Some(watch) = self.watch.get() else { return };
        let interest = if wanted { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        // A link that is over is not registered any more.
        let _ = watch.registry.reregister(&mut SourceFd(&self.socket.as_raw_fd()), watch.token, interest);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        lock(&self.waiting)
    }
}

/// What a message that could not be sent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Room in the socket, of which that tells.
    ForRoom,
    /// Others to take what they were sent, of which nobody tells: a user has no more descriptors under way than one of its processes
    /// may have open (unix(7), ETOOMANYREFS), and there is an end of memory.
    ForOthers,
}

impl Waits {
    /// `None` if it will not be sent at all.
    pub(super) fn of(error: &io::Error) -> Option<Waits> {
        match error.raw_os_error()? {
            libc::EAGAIN => Some(Waits::ForRoom),
            libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM => Some(Waits::ForOthers),
            _ => None,
        }
    }
}

/// Messages kept for a peer that takes none. What asks for an answer ends in a time-out then, so few pile up; the bound is
/// against peers that ask without end and read no answer.
const MOST: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::control::socket::pair;

    #[test]
    fn messages_to_a_full_socket_arrive_in_order_once_there_is_room() {
        let (ours, theirs) = pair();
        let outbox = Outbox::new(ours);
        let count = 3000;
        for arena in 0..count {
            assert!(outbox.send(&Message::MapArena { arena }, None));
        }
        assert!(!outbox.waiting().is_empty(), "the socket took all of it");
        let mut next = 0;
        while next < count {
            match theirs.recv() {
                Ok(Some(packet)) => {
                    assert!(matches!(packet.message, Message::MapArena { arena } if arena == next));
                    next += 1;
                }
                Ok(None) => panic!("it is closed"),
                Err(_) => {
                    let before = outbox.waiting().len();
                    outbox.flush();
                    assert!(outbox.waiting().len() < before, "nothing moves");
                }
            }
        }
        assert!(outbox.waiting().is_empty());
    }

    #[test]
    fn a_descriptor_that_waits_often_is_one() {
        let (ours, theirs) = pair();
        let outbox = Outbox::new(ours);
        let shared = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
        while outbox.waiting().len() < 1000 {
            assert!(outbox.send(&Message::MapArena { arena: 1 }, Some(&shared)));
        }
        assert_eq!(Arc::strong_count(&shared), 1001);
        while theirs.recv().is_ok_and(|packet| packet.unwrap().fds.len() == 1) {
            outbox.flush();
        }
        assert!(outbox.waiting().is_empty());
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn the_control_thread_hears_when_there_is_room() {
        let mut poll = mio::Poll::new().unwrap();
        let registry = Arc::new(poll.registry().try_clone().unwrap());
        let (ours, theirs) = pair();
        let outbox = Outbox::new(ours);
        outbox.watch(&registry, Token(7)).unwrap();
        while outbox.waiting().is_empty() {
            assert!(outbox.send(&Message::MapArena { arena: 1 }, None));
        }
        let mut events = mio::Events::with_capacity(4);
        let mut ready = |limit| {
            poll.poll(&mut events, Some(limit)).unwrap();
            events.iter().any(mio::event::Event::is_writable)
        };
        assert!(!ready(std::time::Duration::ZERO), "the socket is full");
        while theirs.recv().is_ok() {}
        assert!(ready(std::time::Duration::from_secs(10)));
        outbox.flush();
        assert!(matches!(theirs.recv(), Ok(Some(_))));
    }

    /// What another process does, as its limit on open files is its own: so many descriptors are under way that no more can be sent.
    #[test]
    #[ignore = "needs another test to start it, as its other process"]
    fn process() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let limit = rustix::process::Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();

        let shared = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
        let crowd: Vec<_> = (0..4).map(|_| pair()).collect();
        let message = Message::MapArena { arena: 1 };
        let crowded = crowd.iter().any(|(from, _)| {
            let refused = (0..64).find_map(|_| from.send(&message, &[shared.as_fd()]).err());
            refused.is_some_and(|error| Waits::of(&error) == Some(Waits::ForOthers))
        });
        if !crowded {
            return println!("skipped: this system has another limit");
        }

        let (ours, theirs) = pair();
        let outbox = Outbox::new(ours);
        assert!(outbox.send(&message, Some(&shared)) && outbox.send(&Message::MapArena { arena: 2 }, None));
        assert!(!outbox.flush() && outbox.waiting().len() == 2);
        for (_, to) in &crowd {
            while to.recv().is_ok() {}
        }
        while !outbox.flush() {
            std::thread::yield_now(); // Other processes' may be under way too.
        }
        assert_eq!(theirs.recv().unwrap().expect("it is open").fds.len(), 1);
        let Message::MapArena { arena } = theirs.recv().unwrap().expect("it is open").message else { panic!() };
        assert_eq!(arena, 2);
    }

    #[test]
    fn a_descriptor_waits_while_too_many_are_under_way() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "soft::control::outbox::tests::process"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
