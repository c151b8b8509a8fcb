//! Providers that do other than they say, and what is done instead.

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

/// What the kernel's drivers/infiniband/sw/rxe/rxe_param.h gives for a vendor.
const RXE_VENDOR: u32 = 0x00ff_ffff;
