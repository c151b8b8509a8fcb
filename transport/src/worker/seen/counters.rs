//! What a worker did, in numbers.

/// Counts since the worker was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages copied to peers.
    pub eager_sent: u64,
    /// Messages offered to peers for reading.
    pub rendezvous_sent: u64,
    /// Messages received by copy.
    pub eager_received: u64,
    /// Messages received by reading.
    pub rendezvous_received: u64,
    /// Messages that went for nothing but to give credits back.
    pub credits_sent: u64,
    /// Messages that had to wait before they could be sent.
    pub queued: u64,
    /// Bytes of messages that this side copied: into a request or a buffer on their way out, out of a slab into the memory of
    /// a receive.
    pub bytes_copied: u64,
    /// Times that `Bytes` were registered with the device, to be read where they lie.
    pub registered: u64,
    /// Times that such were sent again, or part of them, without being registered again.
    pub reused: u64,
    /// Answers to requests that nobody waited for any more.
    pub late_answers: u64,
    /// Handshakes of peers that failed.
    pub rejected: u64,
    /// Connections lost, or ended by an error.
    pub lost: u64,
    /// Times that a connection went on over another queue pair.
    pub recovered: u64,
    /// Times that a rail came into use, at first or again.
    pub rails_used: u64,
    /// Times that a rail was left out, because it failed or was too slow.
    pub rails_lost: u64,
    /// Packets of connections over datagrams that were sent again.
    pub packets_repeated: u64,
    /// Packets that came over datagrams for no connection that there is, or for which there was no memory.
    pub packets_stray: u64,
}

/// Messages of a connection in one direction, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages of the application's.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    #[inline(always)]
    pub(crate) fn count(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}
