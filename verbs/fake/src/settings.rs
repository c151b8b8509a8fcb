//! What a device claims to be and to be able to do: numbers by name, which tests may change to anything.

use std::collections::HashMap;

/// The settings of one device.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    changed: HashMap<&'static str, u64>,
}

impl Settings {
    /// A setting that exists.
    ///
    /// # Panics
    /// If it does not: the name stands in this crate.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_else(|| panic!("no setting is called {name}"))
    }

    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        let (name, default) = DEFAULTS.iter().find(|(known, _)| *known == name)?;
        Some(*self.changed.get(name).unwrap_or(default))
    }

    pub(crate) fn get_u32(&self, name: &str) -> u32 {
        self.get(name) as u32
    }

    /// Whether a feature is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name) != 0
    }

    /// Changes a setting; `None` if there is none of that name.
    pub(crate) fn set(&mut self, name: &str, value: u64) -> Option<()> {
        let (name, _) = DEFAULTS.iter().find(|(known, _)| *known == name)?;
        self.changed.insert(name, value);
        Some(())
    }

    pub(crate) fn reset(&mut self) {
        self.changed.clear();
    }
}

/// Stands for "what is true" where a setting may claim another thing.
pub(crate) const TRUTH: u64 = u64::MAX;

/// Each setting with the value it has from the start. Enumerations are numbers, so that a test may set unknown ones.
const DEFAULTS: &[(&str, u64)] = &[
    // Whether ibv_get_device_list lists the device, and whether contexts opened from now on are extended ones.
    ("listed", 1),
    ("extended", 1),
    ("node_type", 1),
    ("transport_type", 0),
    ("num_comp_vectors", 2),
    // The port.
    ("ports", 1),
    ("port_state", 4),
    ("phys_state", 5),
    ("link_layer", 2),
    ("max_mtu", 5),
    ("active_mtu", 5),
    ("active_width", 2),
    ("active_speed", 32),
    ("lid", 0),
    ("gid_tbl_len", 16),
    ("pkey_tbl_len", 1),
    ("port_flags", 0),
    ("max_msg_sz", 1 << 30),
    // Limits of the device; `send_bytes` that of a send queue, whose slots are 64 bytes and the room for inline data, of which
    // more than `max_inline` is refused, and no more than `max_inline_given` given without a word.
    ("max_mr_size", u64::MAX),
    ("max_locked", u64::MAX),
    ("max_qp", 4096),
    ("max_qp_wr", 16384),
    ("max_sge", 16),
    ("max_sge_rd", 16),
    ("send_bytes", u64::MAX),
    ("max_inline", 256),
    ("max_inline_given", u64::MAX),
    ("max_cq", 4096),
    ("max_cqe", 1 << 20),
    ("max_mr", 1 << 20),
    ("max_pd", 4096),
    ("max_qp_rd_atom", 16),
    ("max_qp_init_rd_atom", 16),
    ("max_mw", 4096),
    ("max_ah", 4096),
    ("max_srq", 4096),
    ("max_srq_wr", 16384),
    ("max_srq_sge", 16),
    ("max_recv_piece", (1 << 31) - 1),
    ("atomic_cap", 1),
    ("vendor_id", 0x02c9),
    ("vendor_part_id", 4119),
    ("hw_ver", 0),
    ("timestamp_mask", u64::MAX >> 1),
    ("core_clock_khz", 1_000_000),
    // Features: 0 is absent: functions of extended contexts are null then, others answer EOPNOTSUPP. 2 leaves the pointer
    // null where it is one of the context's own operations.
    ("rc", 1),
    ("mw", 1),
    ("srq", 1),
    ("dmabuf", 1),
    ("odp", 1),
    ("ece", 1),
    ("td", 1),
    ("parent_domain", 1),
    ("qp_ex", 1),
    ("cq_ex", 1),
    ("query_device_ex", 1),
    ("query_port_ex", 1),
    ("gid_ex", 1),
    ("post_send", 1),
    ("poll_cq", 1),
    // Conduct: an attribute (a bit of enum ibv_qp_attr_mask) whose next value that ibv_modify_qp gets is refused from then
    // on, as any other is not; sends held back until others follow; polls of a completion queue after which the sends that
    // complete there are done; an extended poll that skips each second completion; completions of a destroyed queue pair
    // taken out of its queues; the event of the last receive from a shared queue; the state that ibv_query_qp claims; what
    // becomes of a call that has the kernel find a peer's port on an Ethernet network: it goes on (1), waits until this changes
    // (0), or hears that nobody answers (2).
    ("refuse_attr", 0),
    ("defer", 0),
    ("lag", 0),
    ("cq_ex_skips", 0),
    ("purge_cq", 0),
    ("last_wqe", 1),
    ("query_qp_state", TRUTH),
    ("neighbours", 1),
];
