//! What other processes send to the one that has a slot: requests for the sockets, and packets that came to a wrong place.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::control::{self, Control};
use super::counters::NetworkCounters;
use super::datagram::{self, Datagram};
use super::group::Group;
use super::io::{Batch, Received, send};
use super::place::{Place, What};
use super::{LONGEST_SEND, MANAGEMENT, SLOTS, SOCKETS, place_of};

/// What another process says.
pub(super) enum Said<'a> {
    /// Packets came for this one.
    Packets(Datagram<'a>),
    /// Nobody has the share of connection management any more.
    Freed,
}

/// The socket under the name that others send to.
#[derive(Debug)]
pub(super) struct Serving {
    socket: OwnedFd,
    place: Place,
}

impl Serving {
    /// Takes a name; `None` if another process has it for good.
    pub(super) fn bind(place: Place, name: What) -> io::Result<Option<Self>> {
        Ok(place.bind(name)?.map(|socket| Serving { socket, place }))
    }

    /// Takes the name for a socket's place, where another process had it that is gone, or about to be.
    pub(super) fn bind_after_another(place: Place, socket: u32) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            if let Some(serving) = Serving::bind(place, What::Serving(socket))? {
                return Ok(serving);
            }
            if start.elapsed() > LINGER {
                return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// An inbox for what comes. It has no room for descriptors, which nobody is asked for.
    pub(super) fn inbox() -> Batch {
        Batch::new(1, datagram::HEAD + LONGEST_SEND + 1024, 4)
    }

    /// Answers a message; what it says, if that is to be heeded.
    pub(super) fn take<'a>(
        &self,
        message: Received<'a>,
        group: &Group,
        counters: &mut NetworkCounters,
    ) -> Option<Said<'a>> {
        let is_own_user = is_own_user(message.control);
        if message.bytes == REQUEST {
            let mut control = credentials();
            if is_own_user {
                let mut all = [0; 4 * SOCKETS];
                for (to, socket) in all.chunks_exact_mut(4).zip(group.sockets()) {
                    to.copy_from_slice(&socket.as_raw_fd().to_ne_bytes());
                }
                control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &all);
            }
            let answer = if is_own_user { ANSWER } else { REFUSAL };
            // Who does not look after its answers goes without.
            if let Err(error) = send(self.fd(), message.name, &[IoSlice::new(answer)], control.as_bytes()) {
                tracing::debug!(%error, "a process that asked for sockets was not answered");
            }
            return None;
        }
        if message.bytes == FREED && is_own_user {
            return Some(Said::Freed);
        }
        let datagram = Datagram::from_process(message.bytes).filter(|_| is_own_user && !message.truncated);
        counters.bad_messages += u64::from(datagram.is_none());
        datagram.map(Said::Packets)
    }

    /// Tells the devices of all slots that nobody has the share of connection management now.
    pub(super) fn say_freed(&self) {
        for slot in 0..SLOTS {
            // Who does not hear it looks for itself.
            let _ = self.send(What::Serving(slot), FREED);
        }
    }

    /// Sends a message to whoever has a name.
    pub(super) fn send(&self, name: What, message: &[u8]) -> io::Result<()> {
        let name = self.place.name(name);
        send(self.fd(), name.as_bytes(), &[IoSlice::new(message)], credentials().as_bytes())
    }

    /// Hands packets to those that have the places in `others`, bit by bit.
    pub(super) fn hand_on(
        &self,
        datagram: &Datagram<'_>,
        mut others: u128,
        room: &mut Vec<u8>,
        counters: &mut NetworkCounters,
    ) {
        while others != 0 {
            let other = others.trailing_zeros();
            others &= others - 1;
            let count = datagram.hand_on(room, |packet| place_of(packet) == Some(other));
            match self.send(What::Serving(other), room) {
                Ok(()) => counters.forwarded += count,
                // There is no such process, or it has no room.
                Err(_) => counters.dropped_forwards += count,
            }
        }
    }
}

/// Who this process is, for the other end; the kernel checks it. With room for descriptors.
pub(super) fn credentials() -> Control<48> {
    let (pid, user) = (rustix::process::getpid().as_raw_nonzero().get(), rustix::process::geteuid().as_raw());
    let mut data = [0; size_of::<libc::ucred>()];
    data[..4].copy_from_slice(&pid.to_ne_bytes());
    data[4..8].copy_from_slice(&user.to_ne_bytes());
    data[8..].copy_from_slice(&rustix::process::getegid().as_raw().to_ne_bytes());
    let mut control = Control::new();
    control.push(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &data);
    control
}

/// True if a message comes from this process's own user. Root is no exception: it could get the sockets from any user, but
/// that user would go on to read what comes for it.
pub(super) fn is_own_user(control: &[u8]) -> bool {
    let user = control::items(control)
        .find(|item| (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS))
        .and_then(|item| Some(u32::from_ne_bytes(*item.data.get(4..)?.first_chunk()?)));
    user == Some(rustix::process::geteuid().as_raw())
}

pub(super) const REQUEST: &[u8] = b"qpair sockets 1?";
pub(super) const ANSWER: &[u8] = b"qpair sockets 1.";
pub(super) const REFUSAL: &[u8] = b"qpair sockets 1!";
const FREED: &[u8] = b"qpair management 1 is free";
/// How long a process that ends keeps a name after it gave up the slot.
const LINGER: Duration = Duration::from_secs(1);
const _: () = assert!(48 * 8 >= 32 + 16 + 4 * SOCKETS + 4);
const _: () = assert!(MANAGEMENT < u128::BITS);
