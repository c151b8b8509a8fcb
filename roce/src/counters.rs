//! What happened to packets, counted. The names are those of Linux' rdma_rxe and mlx5
//! (`/sys/class/infiniband/*/ports/1/hw_counters`).

/// Counts since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent_pkts: u64,
    /// Packets taken in.
    pub rcvd_pkts: u64,
    /// Requests that had come before.
    pub duplicate_request: u64,
    /// Requests behind one that is missing.
    pub out_of_sequence: u64,
    /// Sequence errors that the peer told of.
    pub packet_seq_err: u64,
    /// Answers of a sequence number that nothing is under way with.
    pub unexpected_answer: u64,
    /// Times that the peer was told that there was no receive.
    pub send_rnr_err: u64,
    /// Times that the peer told that.
    pub rcvd_rnr_err: u64,
    /// Times that an answer did not come.
    pub local_ack_timeout_err: u64,
    /// Connections that failed for want of answers.
    pub retry_exceeded_err: u64,
    /// Connections that failed for want of receives at the peer.
    pub rnr_nak_retry_err: u64,
    /// Requests that were refused for their key, range or right.
    pub resp_remote_access_errors: u64,
    /// Requests that were refused for what they are.
    pub resp_local_length_error: u64,
}
