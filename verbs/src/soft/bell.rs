//! The bell of a completion queue: its owner sleeps on it, and whoever has its rope rings, in this process or another.
//!
//! It is a pair of sockets, since calls of those can say themselves that they do not wait. What an open file says of that, all
//! change who have it. Peers have the rope alone, so that they can not take a ring away. To be woken takes half a microsecond
//! longer so than by an event descriptor, on a Xeon.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt};

use super::eventfd::wait;

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Bell {
    heard: OwnedFd,
    rope: Rope,
}

/// What a bell is rung by.
#[derive(Clone, Debug)]
pub(crate) struct Rope(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // Of streams, so that one call forgets many rings. A peer that shuts down the rope makes it ring for good: its owner
        // polls then, and misses nothing.
        let (heard, rope) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Bell { heard, rope: Rope(Arc::new(rope)) })
    }

    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Forgets the rings so far. Never blocks. Where somebody has rung very often, some may be left.
    pub(crate) fn clear(&self) {
        let _ = recv(&self.heard, &mut [0u8; RINGS], RecvFlags::DONTWAIT);
    }

    /// Sleeps until it rings or `limit` is over; true if it rings. It keeps ringing until cleared.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        wait(&self.heard, limit)
    }
}

impl Rope {
    /// The rope that a peer passed, which may be anything.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        // Of what is no socket, ringing could wait.
        if sockopt::socket_domain(&fd)? != AddressFamily::UNIX || sockopt::socket_type(&fd)? != SocketType::STREAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Rope(Arc::new(fd)))
    }

    /// One that is in use here.
    pub(crate) fn again(known: &Weak<OwnedFd>) -> Option<Self> {
        known.upgrade().map(Rope)
    }

    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Wakes who sleeps on the bell. Never blocks: one that has no room is rung already, and one that is gone wakes nobody.
    #[inline]
    pub(crate) fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for Rope {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.heard.as_raw_fd()
    }
}

/// More than a socket of the usual size holds: some 280.
const RINGS: usize = 1024;

#[cfg(test)]
mod tests {
    use rustix::io::ioctl_fionbio;
    use rustix::net::{Shutdown, shutdown};
    use rustix::pipe::pipe;

    use super::*;

    fn rings(bell: &Bell) -> bool {
        bell.wait(Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn it_rings_until_it_is_cleared_however_often_it_was_rung() {
        let bell = Bell::new().unwrap();
        // Both wait whenever they are let, as far as the open files say.
        ioctl_fionbio(&bell.heard, false).unwrap();
        ioctl_fionbio(&bell.rope, false).unwrap();
        for count in [1, 2, 5000] {
            bell.clear();
            assert!(!rings(&bell));
            (0..count).for_each(|_| bell.rope().ring());
            assert!(rings(&bell) && rings(&bell));
            bell.clear();
            assert!(!rings(&bell), "after {count} rings");
        }
    }

    #[test]
    fn a_bell_that_is_gone_is_rung_in_vain() {
        let rope = Bell::new().unwrap().rope().clone();
        rope.ring();
    }

    #[test]
    fn who_shuts_down_the_rope_keeps_nobody_asleep() {
        let bell = Bell::new().unwrap();
        shutdown(bell.rope(), Shutdown::Both).unwrap();
        bell.rope().ring();
        bell.clear();
        assert!(rings(&bell));
    }

    #[test]
    fn what_is_no_socket_is_no_rope() {
        let bell = Bell::new().unwrap();
        Rope::from_peer(bell.rope().as_fd().try_clone_to_owned().unwrap()).unwrap().ring();
        assert!(rings(&bell));
        let (_read, write) = pipe().unwrap();
        assert!(Rope::from_peer(write).is_err());
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        assert!(Rope::from_peer(counter).is_err());
    }
}
