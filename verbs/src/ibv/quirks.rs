//! Providers that do other than they say, and what is done instead.

use qpair_verbs_sys as sys;

use super::device::Device;
use crate::device::DeviceAttributes;

/// Whether queue pairs may be posted to by `ibv_wr_*`.
///
/// Not on rxe: its user library (seen in rdma-core 44) sends the first piece only of a list set by `wr_set_sge_list`, and
/// no byte of data set by `wr_set_inline_data`.
pub(super) fn sound_work_requests(attributes: &DeviceAttributes) -> bool {
    attributes.vendor_id != RXE_VENDOR
}

/// Whether extended completion queues may be polled.
///
/// Not on rxe before rdma-core 55, whose user library takes each completion twice; and not where the version is not known.
pub(super) fn sound_extended_queues(attributes: &DeviceAttributes, device: &Device) -> bool {
    let version = device.handle().library.rdma_core_version();
    attributes.vendor_id != RXE_VENDOR || version.is_some_and(|version| version >= 55)
}

/// The flags of a completion which say that its message invalidated a key.
///
/// On rxe (seen in Linux 6.12) also the kernel's own flag, which is another than that of libibverbs.
pub(super) fn invalidated_flags(attributes: &DeviceAttributes) -> u32 {
    match attributes.vendor_id {
        RXE_VENDOR => sys::IBV_WC_WITH_INV | KERNEL_WITH_INV,
        _ => sys::IBV_WC_WITH_INV,
    }
}

/// How often to ask a device to try again towards a peer that does not answer.
///
/// On rxe (seen in Linux 6.12) 7 is without end, as if it stood for receivers that are not ready.
pub(super) fn retry_count(attributes: &DeviceAttributes, asked: u8) -> u8 {
    if attributes.vendor_id == RXE_VENDOR { asked.min(6) } else { asked }
}

/// Whether receives that are posted to a failed queue pair are flushed.
///
/// Not by rxe (seen in rdma-core 44), whose user library tells the kernel of no receive: it finds them when something
/// else wakes it, such as a transition.
pub(super) fn flushes_late_receives(attributes: &DeviceAttributes) -> bool {
    attributes.vendor_id != RXE_VENDOR
}

/// Whether the user library may copy what was received, out of the completion and by the processor, to where the receive's piece
/// is: there must be memory of this process then, and none of a GPU or a DMA-buf.
///
/// libmlx5 does so with up to 64 bytes, of `datagrams` not, unless the environment says no (`use_scatter_to_cqe` of rdma-core's
/// providers/mlx5/verbs.c), libhns with what it has room for (`handle_recv_inl_data` of providers/hns/hns_roce_u_hw_v2.c).
pub(super) fn copies_received(attributes: &DeviceAttributes, datagrams: bool) -> bool {
    match attributes.vendor_id {
        HUAWEI_VENDOR => true,
        vendor if MELLANOX_VENDORS.contains(&vendor) => {
            !datagrams && std::env::var_os("MLX5_SCATTER_TO_CQE").is_none_or(|chosen| chosen != "0")
        }
        _ => false,
    }
}

/// `IB_WC_WITH_INVALIDATE` of the kernel's include/rdma/ib_verbs.h.
const KERNEL_WITH_INV: u32 = 1 << 2;
/// What the kernel's drivers/infiniband/sw/rxe/rxe_param.h gives for a vendor.
const RXE_VENDOR: u32 = 0x00ff_ffff;
/// What libhns's devices give: `PCI_VENDOR_ID_HUAWEI`.
const HUAWEI_VENDOR: u32 = 0x19e5;
/// What libmlx5's and libmlx4's devices give: Mellanox, by IEEE and by PCI, and those who have sold its devices as theirs (Topspin,
/// Voltaire, Sun, HP, Bull).
const MELLANOX_VENDORS: [u32; 8] = [0x02c9, 0x15b3, 0x05ad, 0x066a, 0x08f1, 0x03ba, 0x1708, 0x119f];
