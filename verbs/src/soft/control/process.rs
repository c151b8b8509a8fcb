//! The process at the other end of a link, whose memory the system may copy from and to, and whose end it tells.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::socket::Socket;
use crate::soft::switches;

/// A process, as far as it is known.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number, and what tells of its end; `None` if it can not be seen from here.
    known: Option<(i32, OwnedFd)>,
    /// True once process_vm_readv and writev are known to be of no use.
    refused: AtomicBool,
}

impl Process {
    /// That at the other end of `socket`.
    ///
    /// # Errors
    /// If the system does not say whose that is.
    pub(super) fn of(socket: &Socket) -> io::Result<Self> {
        let pid = socket.peer()?.pid;
        let process = Process::numbered(pid);
        if switches::no_process_vm() {
            process.refuse();
        }
        Ok(process)
    }

    /// That of number `pid`, or none for 0. It was at the other end of a socket before: as long as that is open, the number has
    /// not become another's, unless it has left the socket to a process that it started.
    fn numbered(pid: i32) -> Self {
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).map(|fd| (pid.as_raw_nonzero().get(), fd));
        let known = Pid::from_raw(pid).and_then(|pid| {
            let not_told = |error| tracing::info!(%error, "a peer's end is not told; a bounce area is used");
            open(pid).map_err(not_told).ok()
        });
        Process { refused: AtomicBool::new(known.is_none()), known }
    }

    /// Has `token` told of its end, if that can be seen from here.
    pub(super) fn watch(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let Some((_, end)) = &self.known else { return Ok(()) };
        registry.register(&mut SourceFd(&end.as_raw_fd()), token, Interest::READABLE)
    }

    pub(super) fn unwatch(&self, registry: &Registry) {
        if let Some((_, end)) = &self.known {
            let _ = registry.deregister(&mut SourceFd(&end.as_raw_fd()));
        }
    }

    /// True once it has ended, if that can be seen from here.
    pub(super) fn has_ended(&self) -> bool {
        let Some((_, end)) = &self.known else { return false };
        let mut fds = [PollFd::new(end, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default()))) == Ok(1)
    }

    /// Its number, if its memory may be copied from or to by system calls now: it has not ended, and `socket` still leads to it,
    /// so that it has not become another program either. If it does so between this look and the copy, and is waited for by its
    /// parent, and all other numbers are given out meanwhile, the copy is another process's of the same user.
    #[cold]
    pub(super) fn reachable(&self, socket: &Socket) -> Option<i32> {
        let (pid, end) = self.known.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed))?;
        let mut fds = [PollFd::new(end, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
        // A signal that comes first makes it no less alive, but then nobody has looked.
        let ended = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        (ended == Ok(0)).then_some(*pid)
    }

    #[cfg(test)]
    pub(super) fn allow(&self) {
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Notes that the system refuses; true if that is news.
    pub(super) fn refuse(&self) -> bool {
        !self.refused.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::soft::control::socket::pair;

    fn child() -> std::process::Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_number_is_used_as_long_as_its_process_is_there() {
        let (ours, _theirs) = pair();
        let mut child = child();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::numbered(pid);
        assert_eq!(process.reachable(&ours), Some(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.reachable(&ours), None);
    }

    #[test]
    fn a_number_is_not_used_once_the_link_is_closed_or_the_system_refuses() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let (ours, theirs) = pair();
        let process = Process::of(&ours).unwrap();
        assert_eq!(process.reachable(&ours), (!switches::no_process_vm()).then_some(own));
        drop(theirs);
        assert_eq!(process.reachable(&ours), None);
        let (ours, _theirs) = pair();
        let process = Process::numbered(own);
        assert_eq!(process.reachable(&ours), Some(own));
        assert!(process.refuse() && !process.refuse());
        assert_eq!(process.reachable(&ours), None);
        assert_eq!(Process::numbered(0).reachable(&ours), None);
    }
}
