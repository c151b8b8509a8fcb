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
    /// Requests that were refused for what they are, or were too long for their receive.
    pub resp_local_length_error: u64,
    /// Messages of unreliable service that were dropped for want of a receive.
    pub out_of_buffer: u64,
    /// Datagrams that had another key than their queue pair (as in `struct ibv_port_attr`).
    pub qkey_viol_cntr: u64,
    /// Packets that the service of their queue pair does not have. Linux counts no such.
    pub unsupported_opcode: u64,
    /// Datagrams that are no packets.
    pub malformed_packets: u64,
    /// Packets for a queue pair that there is not.
    pub unknown_qp: u64,
    /// Packets of another partition (as in `struct ibv_port_attr`).
    pub bad_pkey_cntr: u64,
    /// Packets for a connection from elsewhere than its peer.
    pub wrong_address: u64,
    /// Packets whose CRC was wrong (mlx5).
    pub rx_icrc_encapsulated: u64,
    /// Packets for queue pair 1 that are no datagrams of the connection manager, or came too fast.
    pub management_dropped: u64,
    /// Packets that came marked for congestion.
    pub np_ecn_marked_roce_packets: u64,
    /// Congestion notification packets sent for those.
    pub np_cnp_sent: u64,
    /// Those of the peer that lowered the rate.
    pub rp_cnp_handled: u64,
    /// Those of the peer that did not: they came too soon after another.
    pub rp_cnp_ignored: u64,
}
