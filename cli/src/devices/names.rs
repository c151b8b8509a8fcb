//! Words for what devices tell in numbers.

use qpair::verbs::{AtomicAbility, GidKind, LinkLayer, PhysicalState, PortState};

/// The word for the state of a port.
pub fn state(state: PortState) -> String {
    match state {
        PortState::Down => "down".to_owned(),
        PortState::Init => "init".to_owned(),
        PortState::Armed => "armed".to_owned(),
        PortState::Active => "active".to_owned(),
        PortState::Unknown(code) => code_name(code),
    }
}

/// The word for the state of a link.
pub fn physical_state(state: PhysicalState) -> String {
    match state {
        PhysicalState::Sleep => "sleep".to_owned(),
        PhysicalState::Polling => "polling".to_owned(),
        PhysicalState::Disabled => "disabled".to_owned(),
        PhysicalState::Training => "training".to_owned(),
        PhysicalState::LinkUp => "link up".to_owned(),
        PhysicalState::Recovery => "recovery".to_owned(),
        PhysicalState::PhyTest => "test".to_owned(),
        PhysicalState::Unknown(code) => code_name(code.into()),
    }
}

/// What a port is made of.
pub fn link_layer(layer: LinkLayer) -> String {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        LinkLayer::SharedMemory => "shared memory".to_owned(),
        LinkLayer::Unknown(code) => code_name(code),
    }
}

/// The kind of a GID.
pub fn gid_kind(kind: GidKind) -> String {
    match kind {
        GidKind::InfiniBand => "InfiniBand".to_owned(),
        GidKind::RoceV1 => "RoCE v1".to_owned(),
        GidKind::RoceV2 => "RoCE v2".to_owned(),
        GidKind::Unknown(code) => code_name(code),
    }
}

/// How far atomics are atomic.
pub fn atomics(ability: AtomicAbility, with_cpu: bool) -> String {
    match ability {
        _ if with_cpu => "towards the CPU too".to_owned(),
        AtomicAbility::None => "none".to_owned(),
        AtomicAbility::Device => "towards the same device".to_owned(),
        AtomicAbility::Everywhere => "towards all devices".to_owned(),
        AtomicAbility::Unknown(code) => code_name(code),
    }
}

/// The abilities in `enum ibv_device_cap_flags` and above, without their prefix; a bit that has no name by its number.
pub fn device_flags(bits: u64) -> Vec<String> {
    let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
    set.map(|bit| {
        let known = DEVICE_FLAGS.iter().find(|(number, _)| *number == bit);
        known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).to_owned())
    })
    .collect()
}

/// `RC: SEND, RECV`; `None` if there is nothing.
pub fn paged_operations(service: &str, bits: u32) -> Option<String> {
    let operations = ["SEND", "RECV", "WRITE", "READ", "ATOMIC", "SRQ RECV"];
    let set: Vec<&str> =
        operations.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, name)| *name).collect();
    (!set.is_empty()).then(|| format!("{service}: {}", set.join(", ")))
}

fn code_name(code: u32) -> String {
    format!("code {code}")
}

const DEVICE_FLAGS: [(u32, &str); 29] = [
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
    (34, "RAW_SCATTER_FCS"),
    (36, "PCI_WRITE_END_PADDING"),
    (38, "FLUSH_GLOBAL"),
    (39, "FLUSH_PERSISTENT"),
    (40, "ATOMIC_WRITE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_are_shown() {
        assert_eq!(state(PortState::Unknown(9)), "code 9");
        assert_eq!(physical_state(PhysicalState::Unknown(77)), "code 77");
        assert_eq!(link_layer(LinkLayer::Unknown(4)), "code 4");
        assert_eq!(gid_kind(GidKind::Unknown(3)), "code 3");
        assert_eq!(atomics(AtomicAbility::Unknown(8), false), "code 8");
    }

    #[test]
    fn flags_have_names_or_numbers() {
        assert_eq!(device_flags(1 << 17 | 1 << 63), ["MEM_WINDOW", "bit 63"]);
        assert!(device_flags(0).is_empty());
        assert!(DEVICE_FLAGS.is_sorted());
    }
}
