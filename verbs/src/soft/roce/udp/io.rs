//! Sends and receives with names and control messages; the system calls, and nothing that knows what is in the bytes.

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

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
    /// Messages to ask for. Each costs the system something though it is not there, and many long ones would be gone from the
    /// processor's cache before they are looked at: several are asked for where short ones come in numbers.
    width: usize,
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
            width: 1,
        }
    }

    /// Receives some of what waits, and says how many messages that is. It never blocks.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let got = match self.ask(socket) {
            Ok(got) => got,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        let are_short = self.lens[..got].iter().all(|lens| lens.bytes <= SHORT);
        self.width = if got == self.width && are_short { (2 * self.width).min(self.names.len()) } else { 1 };
        Ok(got)
    }

    #[inline(always)]
    fn ask(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut headers = [MaybeUninit::<libc::mmsghdr>::uninit(); MOST];
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; MOST];
        let places = self.bytes.chunks_exact_mut(self.size).zip(&mut self.names);
        let places = places.zip(self.controls.chunks_exact_mut(self.control)).take(self.width);
        for (((bytes, name), control), (header, part)) in places.zip(headers.iter_mut().zip(&mut parts)) {
            // SAFETY: all zeros are a header of a message without anything.
            let header = header.write(unsafe { mem::zeroed() });
            let header = &mut header.msg_hdr;
            header.msg_iov = part.write(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
            header.msg_iovlen = 1;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = NAME as libc::socklen_t;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(control) as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let no_limit = ptr::null_mut::<libc::timespec>();
        // Not by the C library's function, in which a thread can be cancelled: the preparations for that cost as much as an
        // empty call.
        // SAFETY: `width` headers are filled, which is no more than there are. Each points to memory of this object and of
        // `parts`, as long as it says, that nothing else uses until the call returns.
        let result = unsafe {
            libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), self.width, flags, no_limit)
        };
        let got = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        #[allow(clippy::unnecessary_cast, reason = "the C libraries differ in this length's type")]
        for (lens, header) in self.lens.iter_mut().zip(&headers).take(got) {
            // SAFETY: it was filled above, and by the system, which counts those that it filled.
            let header = unsafe { header.assume_init_ref() };
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
        // By the system call, as above.
        // SAFETY: the header points to what the caller lends, as long as it says; the kernel only reads it. IoSlice has the
        // form of iovec by its documentation.
        if unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const header, flags) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends messages, each to a name with bytes and control messages; how many went. It never blocks.
pub(super) fn send_several<'a>(
    socket: BorrowedFd<'_>,
    messages: impl Iterator<Item = (&'a [u8], &'a [u8], &'a [u8])>,
) -> io::Result<usize> {
    let mut headers = [MaybeUninit::<libc::mmsghdr>::uninit(); MOST_SENT];
    let mut parts = [const { MaybeUninit::<IoSlice<'_>>::uninit() }; MOST_SENT];
    let mut count = 0;
    for ((name, bytes, control), (header, part)) in messages.zip(headers.iter_mut().zip(&mut parts)) {
        // SAFETY: all zeros are a header of a message without anything.
        let header = &mut header.write(unsafe { mem::zeroed() }).msg_hdr;
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        header.msg_iov = ptr::from_mut(part.write(IoSlice::new(bytes))).cast();
        header.msg_iovlen = 1;
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // By the system call, as above.
    // SAFETY: `count` headers are filled. Each points to what the caller lends and to `parts`, as long as it says; the kernel
    // only reads that. IoSlice has the form of iovec by its documentation.
    let result = unsafe { libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), count, flags) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Messages that are sent at a time, at most.
pub(super) const MOST_SENT: usize = 16;
/// Messages that are received at a time, at most.
const MOST: usize = 8;
/// Bytes of a message that is short.
const SHORT: usize = 2048;
/// Bytes of a sender's name: of a Unix socket, with room to spare.
const NAME: usize = 112;
