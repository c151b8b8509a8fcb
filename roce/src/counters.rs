//! What happened to packets, counted. The names are those of Linux' rdma_rxe and mlx5
//! (`/sys/class/infiniband/*/ports/1/hw_counters`).

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the engine was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, by name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets taken in.
    rcvd_pkts,
    /// Requests that had come before.
    duplicate_request,
    /// Requests behind one that is missing.
    out_of_sequence,
    /// Sequence errors that the peer told of.
    packet_seq_err,
    /// Answers behind that to a READ or an atomic, which did not come.
    implied_nak_seq_err,
    /// Answers of a sequence number that nothing is under way with.
    unexpected_answer,
    /// Times that the peer was told that there was no receive.
    send_rnr_err,
    /// Times that the peer told that.
    rcvd_rnr_err,
    /// Times that an answer did not come.
    local_ack_timeout_err,
    /// Connections that failed for want of answers.
    retry_exceeded_err,
    /// Connections that failed for want of receives at the peer.
    rnr_nak_retry_err,
    /// Requests that were refused for their key, range or right.
    resp_remote_access_errors,
    /// Requests that were refused for what they are, or were too long for their receive.
    resp_local_length_error,
    /// Messages of unreliable service that were dropped for want of a receive.
    out_of_buffer,
    /// Datagrams that had another key than their queue pair (as in `struct ibv_port_attr`).
    qkey_viol_cntr,
    /// Packets that the service of their queue pair does not have. Linux counts no such.
    unsupported_opcode,
    /// Datagrams that are no packets.
    malformed_packets,
    /// Packets for a queue pair that there is not.
    unknown_qp,
    /// Packets of another partition (as in `struct ibv_port_attr`).
    bad_pkey_cntr,
    /// Packets for a connection from elsewhere than its peer.
    wrong_address,
    /// Packets whose CRC was wrong (mlx5).
    rx_icrc_encapsulated,
    /// Packets for queue pair 1 that are no datagrams of the connection manager, or came too fast.
    management_dropped,
    /// Packets that came marked for congestion.
    np_ecn_marked_roce_packets,
    /// Congestion notification packets sent for those.
    np_cnp_sent,
    /// Those of the peer that lowered the rate.
    rp_cnp_handled,
    /// Those of the peer that did not: they came too soon after another.
    rp_cnp_ignored,
}
