//! Packet sockets between processes of one host: abstract names, peer credentials, descriptors in flight.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, recvmsg,
    sendmsg, socket_with, sockopt,
};

use super::Message;
use crate::address::NodeId;

/// A connected socket. Packets keep their boundaries (SOCK_SEQPACKET).
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// A received packet.
pub(crate) struct Packet {
    pub(crate) message: Message,
    pub(crate) fds: Vec<OwnedFd>,
    /// True if descriptors are missing that this process had no room for.
    pub(crate) truncated: bool,
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    pub(crate) user: u32,
    /// 0 if the process is in a namespace that can not be seen from here.
    pub(crate) pid: i32,
}

impl Socket {
    /// Connects to the device `node` of this host and network namespace. This, and each [`recv`](Socket::recv) and
    /// [`send`](Socket::send) that follows, blocks for `limit` at most and gives `WouldBlock` then.
    pub(crate) fn connect(node: NodeId, limit: Duration) -> io::Result<Self> {
        let fd = new_socket()?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(limit))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(limit))?;
        connect(&fd, &name(node)?)?;
        Ok(Socket(fd))
    }

    /// Who is at the other end: who connected, or who began to listen.
    pub(crate) fn peer(&self) -> io::Result<Credentials> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let to = std::ptr::from_mut(&mut found).cast();
        // SAFETY: the kernel writes at most `len` bytes, all of them integers, to `found`.
        let result = unsafe { libc::getsockopt(self.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Credentials { user: found.uid, pid: found.pid })
    }

    /// Whether the process at the other end, which has connected, is the one that listens as the device `node`; `None` if that
    /// can not be told now, as between namespaces in which processes have no number for each other. Never blocks.
    pub(crate) fn speaks_for(&self, node: NodeId) -> Option<bool> {
        let probe = Socket(new_socket().ok()?);
        probe.set_nonblocking().ok()?;
        match connect(&probe.0, &name(node).ok()?) {
            Ok(()) => {}
            Err(rustix::io::Errno::CONNREFUSED) => return Some(false),
            Err(_) => return None,
        }
        let (theirs, listener) = (self.peer().ok()?.pid, probe.peer().ok()?.pid);
        (theirs != 0 || listener != 0).then_some(theirs == listener)
    }

    /// Tells the other end that nothing follows; what it sends is still received.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    /// True once nothing follows what was received or waits: the other end is closed, or has hung up.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let found = poll(&mut fds, Some(&Timespec::default()));
        found.is_ok() && !fds[0].revents().is_empty()
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, true)?)
    }

    /// Sends one message with descriptors. A full socket gives `WouldBlock`.
    pub(crate) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors in one message"));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives one message; `None` once the other end is closed.
    pub(crate) fn recv(&self) -> io::Result<Option<Packet>> {
        let mut bytes = [0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = Vec::new();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = item {
                fds.extend(rights);
            }
        }
        if got.bytes == 0 {
            return Ok(None);
        }
        let message = serde_json::from_slice(&bytes[..got.bytes.min(MAX_MESSAGE)])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some(Packet { message, fds, truncated: got.flags.contains(ReturnFlags::CTRUNC) }))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Listens under the device's abstract name. Nothing of it is in any file system; it goes with the process.
pub(crate) fn listen(node: NodeId) -> io::Result<OwnedFd> {
    let fd = new_socket()?;
    bind(&fd, &name(node)?)?;
    rustix::net::listen(&fd, 128)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

/// The next connection, if one waits.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<Socket>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(Socket(fd))),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn name(node: NodeId) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("qpair-{node}").as_bytes())?)
}

/// Two ends of a connection within this process.
#[cfg(test)]
pub(crate) fn pair() -> (Socket, Socket) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Socket(a), Socket(b))
}

/// Longest message; the longest there is has some 500 bytes.
const MAX_MESSAGE: usize = 4096;
const MAX_FDS: usize = 4;
