//! Sends and receives with names and control messages; the system calls, and nothing that knows what is in the bytes.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{mem, ptr};

use super::control;

/// Room for messages that are received together. Nothing is allocated once it is made.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    names: Box<[[u8; NAME]]>,
    /// Words, since the kernel's headers are aligned so.
    controls: Box<[u64]>,
    lens: [Lens; MOST],
    /// Bytes that a message may have.
    size: usize,
    /// Words of control messages that may come with it.
    control: usize,
}

/// A message that came.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    /// What it carries.
    pub(super) bytes: &'a [u8],
    /// Name of the sender.
    pub(super) name: &'a [u8],
    /// Its control messages.
    pub(super) control: &'a [u8],
    /// True if bytes or control messages were cut off.
    pub(super) truncated: bool,
}

#[derive(Clone, Copy, Default)]
struct Lens {
    bytes: usize,
    name: usize,
    control: usize,
    truncated: bool,
}

impl Batch {
    /// For `count` messages of `size` bytes, with so many words of control messages.
    pub(super) fn new(count: usize, size: usize, control: usize) -> Self {
        assert!(count <= MOST);
        Batch {
            bytes: vec![0; count * size].into(),
            names: vec![[0; NAME]; count].into(),
            controls: vec![0; count * control].into(),
            lens: [Lens::default(); MOST],
            size,
            control,
        }
    }

    /// Receives what waits, and says how many messages that is. It never blocks.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: all zeros are a header of a message without anything.
        let mut headers: [libc::mmsghdr; MOST] = unsafe { mem::zeroed() };
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MOST];
        let places = self.bytes.chunks_exact_mut(self.size).zip(&mut self.names);
        let places = places.zip(self.controls.chunks_exact_mut(self.control));
        let mut count = 0;
        for (((bytes, name), control), (header, part)) in places.zip(headers.iter_mut().zip(&mut parts)) {
            *part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let header = &mut header.msg_hdr;
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = NAME as libc::socklen_t;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(control) as _;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `count` headers are filled. Each points to memory of this object and of `parts`, as long as it says, that
        // nothing else uses until the call returns.
        let result =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags as _, ptr::null_mut()) };
        let Ok(got) = usize::try_from(result) else {
            let error = io::Error::last_os_error();
            let is_none = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if is_none { Ok(0) } else { Err(error) };
        };
        #[allow(clippy::unnecessary_cast, reason = "the C libraries differ in this length's type")]
        for (lens, header) in self.lens.iter_mut().zip(&headers).take(got) {
            *lens = Lens {
                bytes: header.msg_len as usize,
                name: header.msg_hdr.msg_namelen as usize,
                control: header.msg_hdr.msg_controllen as usize,
                truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            };
        }
        Ok(got)
    }

    /// A message of those that were received last.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Received<'_> {
        let lens = self.lens[index];
        let control: &[u8] = bytemuck::cast_slice(&self.controls[index * self.control..][..self.control]);
        Received {
            bytes: &self.bytes[index * self.size..][..lens.bytes.min(self.size)],
            name: &self.names[index][..lens.name.min(NAME)],
            control: &control[..lens.control.min(control.len())],
            truncated: lens.truncated,
        }
    }

    /// Receives one message, and takes the descriptors that came with it.
    pub(super) fn receive_descriptors(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Vec<OwnedFd>>> {
        assert_eq!(self.names.len(), 1, "descriptors of each message are to be taken");
        if self.receive(socket)? == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for item in control::items(self.get(0).control) {
            if (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                for fd in item.data.chunks_exact(size_of::<i32>()).filter_map(<[u8]>::first_chunk) {
                    // SAFETY: the kernel opened it for the message that was just received, of which they are taken once.
                    descriptors.push(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(*fd)) });
                }
            }
        }
        Ok(Some(descriptors))
    }
}

/// Sends a message, and never blocks.
pub(super) fn send(socket: BorrowedFd<'_>, name: &[u8], parts: &[IoSlice<'_>], control: &[u8]) -> io::Result<()> {
    // SAFETY: all zeros are a header of a message without anything.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the header points to what the caller lends, as long as it says; the kernel only reads it. IoSlice has the
        // form of iovec by its documentation.
        if unsafe { libc::sendmsg(socket.as_raw_fd(), &header, flags) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Messages that are received at a time.
const MOST: usize = 8;
/// Bytes of a sender's name: of a Unix socket, with room to spare.
const NAME: usize = 112;
