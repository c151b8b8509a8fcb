//! Bytes over a queue pair: each write is a message, which a read may take in parts.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};

use qpair_verbs::{
    Arm, Buffer, CmConnection, CompletionChannel, CompletionError, CompletionQueue, Context, CqError, Established,
    Prepared, ProtectionDomain, QueuePair, WcOpcode, WcStatus, WorkCompletion,
};

use super::RdmaCmError;

/// A stream of bytes to one peer. It never blocks; its descriptor is readable once there may be more to do after a read or
/// write that would have blocked.
#[derive(Debug)]
pub(crate) struct Pipe {
    qp: QueuePair,
    connection: CmConnection,
    parts: Parts,
    /// What came and was not read to its end.
    unread: VecDeque<Part>,
    /// Messages that the peer's device has not acknowledged.
    under_way: usize,
    end: Option<End>,
}

/// What a stream needs beside its queue pair.
#[derive(Debug)]
pub(super) struct Parts {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// For what is sent.
    free: Vec<Buffer>,
    /// For what comes; empty once they are posted.
    receives: Vec<Buffer>,
}

/// A message that came.
#[derive(Debug)]
struct Part {
    memory: Buffer,
    len: usize,
    /// Bytes of it that were read.
    read: usize,
}

/// What a completion said, and the memory that came back with it.
struct Done {
    wc: WorkCompletion,
    error: Option<CompletionError>,
    memory: Option<Buffer>,
}

#[derive(Debug)]
enum End {
    /// The peer ended it, or is gone.
    HungUp,
    /// It broke for that reason.
    Broken(Box<str>),
}

impl Parts {
    pub(super) fn new(context: &Context, pd: &ProtectionDomain) -> Result<Self, RdmaCmError> {
        let channel = context.create_channel()?;
        let cq = context.create_cq_on(SENDS + RECEIVES, &channel)?;
        let memory = |count| (0..count).map(|_| pd.alloc(PART)).collect::<Result<Vec<_>, _>>();
        Ok(Parts { cq, channel, free: memory(SENDS)?, receives: memory(RECEIVES)? })
    }

    pub(super) fn queue(&self) -> &CompletionQueue {
        &self.cq
    }

    pub(super) fn post_receives(&mut self, prepared: &mut Prepared) -> Result<(), RdmaCmError> {
        for memory in self.receives.drain(..) {
            prepared.recv(memory).post().map_err(|rejected| rejected.error)?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Done>, CqError> {
        let done = self.cq.poll()?;
        Ok(done.map(|done| Done { wc: done.values(), error: done.ok().err(), memory: done.into_buffer().ok() }))
    }
}

impl Pipe {
    pub(super) fn new(established: Established, parts: Parts) -> Self {
        let Established { queue_pair: qp, connection, .. } = established;
        Pipe { qp, connection, parts, unread: VecDeque::new(), under_way: 0, end: None }
    }

    /// Reads what is there, up to the length of `into`; 0 once the peer is gone.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing is there; others if the stream broke.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() {
            self.look(|pipe| !pipe.unread.is_empty());
        }
        let Some(part) = self.unread.front_mut() else {
            return match &self.end {
                None => Err(ErrorKind::WouldBlock.into()),
                Some(End::HungUp) => Ok(0),
                Some(End::Broken(why)) => Err(io::Error::other(why.to_string())),
            };
        };
        let rest = &part.memory[part.read..part.len];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        part.read += count;
        if part.read == part.len
            && let Some(Part { memory, .. }) = self.unread.pop_front()
        {
            self.post_receive(memory);
        }
        Ok(count)
    }

    /// Sends the beginning of `data`, as much as one message holds.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if all that may be under way is; others if the stream is over.
    pub(crate) fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.parts.free.is_empty() {
            self.look(|pipe| !pipe.parts.free.is_empty());
        }
        if self.end.is_some() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let Some(mut memory) = self.parts.free.pop() else { return Err(ErrorKind::WouldBlock.into()) };
        let count = data.len().min(PART);
        memory[..count].copy_from_slice(&data[..count]);
        match self.qp.send(memory).range(0..count).signaled().post() {
            Ok(()) => {
                self.under_way += 1;
                Ok(count)
            }
            Err(rejected) => Err(io::Error::other(rejected.error.to_string())),
        }
    }

    /// True if the peer's device has all that was written, or never will.
    pub(crate) fn is_flushed(&mut self) -> bool {
        self.look(|pipe| pipe.under_way == 0);
        self.under_way == 0 || self.end.is_some()
    }

    /// Takes completions until there is what is looked for. Where there is not, the descriptor tells of what comes.
    fn look(&mut self, is_there: impl Fn(&Pipe) -> bool) {
        self.reap();
        if is_there(self) || self.end.is_some() {
            return;
        }
        self.parts.channel.clear();
        self.parts.cq.arm(Arm::Any);
        self.reap();
    }

    fn reap(&mut self) {
        // Completions of what was posted meanwhile come with the next look.
        for _ in 0..SENDS + RECEIVES {
            let Done { wc, error, memory } = match self.parts.next() {
                Ok(None) => return,
                Ok(Some(done)) => done,
                Err(error) => return self.ends(End::Broken(error.to_string().into())),
            };
            if wc.opcode != WcOpcode::RECV {
                self.under_way = self.under_way.saturating_sub(1);
                self.parts.free.extend(memory);
            } else if error.is_none()
                && let Some(memory) = memory
            {
                match wc.byte_len as usize {
                    // No peer that obeys sends one; and receives that were posted here would have no end.
                    0 => self.ends(End::Broken("an empty message came".into())),
                    len => self.unread.push_back(Part { len: len.min(memory.len()), memory, read: 0 }),
                }
            }
            if let Some(error) = error {
                let parted = wc.status == WcStatus::WR_FLUSH_ERR || self.connection.poll().is_some();
                self.ends(if parted { End::HungUp } else { End::Broken(error.to_string().into()) });
            }
        }
    }

    fn post_receive(&mut self, memory: Buffer) {
        if self.end.is_none()
            && let Err(rejected) = self.qp.recv(memory).post()
        {
            self.ends(End::Broken(rejected.error.to_string().into()));
        }
    }

    /// Says why the stream is over, once.
    fn ends(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}

impl AsRawFd for Pipe {
    fn as_raw_fd(&self) -> RawFd {
        self.parts.channel.as_raw_fd()
    }
}

/// Messages under way in each direction, at most: those of a handshake, and what is said at its end.
pub(super) const SENDS: u32 = 2;
pub(super) const RECEIVES: u32 = 4;
/// Bytes of a message: a hello fits one.
const PART: usize = 4096;
