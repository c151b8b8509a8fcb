//! Which attribute a device does not like, of a transition that it refused: it says no more than an error number.

use qpair_verbs_sys as sys;

use super::attributes::none;
use super::create::OwnedQp;
use crate::qp::{QpAttribute, QpAttributes, transition};
use crate::types::QpState;

/// The attribute that is to blame, with its value: the first without which, or with a plainer value of which, the device
/// takes the transition. The queue pair is of no use afterwards.
pub(super) fn diagnose(qp: &OwnedQp, to: QpState, refused: &sys::ibv_qp_attr) -> Option<String> {
    let cell = transition(qp.qp_type(), qp.known_state(), to)?;
    if takes(qp, cell.required, *refused) {
        // It was no attribute: a resource that was short for the moment, or an address that was not resolved yet.
        return None;
    }
    let suspects = cell.required.iter().filter(|&attribute| attribute != QpAttribute::State);
    suspects.into_iter().find(|&attribute| takes(qp, cell.required, plainer(refused, attribute))).map(|attribute| {
        let value = value(refused, attribute);
        format!("{attribute:?} ({value})")
    })
}

fn takes(qp: &OwnedQp, mask: QpAttributes, attributes: sys::ibv_qp_attr) -> bool {
    qp.modify_raw(&attributes, mask).is_ok()
}

/// The same attributes with one at a value that every device takes.
fn plainer(refused: &sys::ibv_qp_attr, attribute: QpAttribute) -> sys::ibv_qp_attr {
    let (mut tried, zero) = (*refused, none());
    match attribute {
        QpAttribute::PkeyIndex => tried.pkey_index = 0,
        QpAttribute::Port => tried.port_num = 1,
        QpAttribute::AccessFlags => tried.qp_access_flags = 0,
        QpAttribute::Qkey => tried.qkey = 0x1111_1111,
        QpAttribute::AddressVector => tried.ah_attr = zero.ah_attr,
        QpAttribute::PathMtu => tried.path_mtu = sys::IBV_MTU_256,
        QpAttribute::DestQpn => tried.dest_qp_num = 2,
        QpAttribute::RqPsn => tried.rq_psn = 0,
        QpAttribute::MaxDestRdAtomic => tried.max_dest_rd_atomic = 1,
        QpAttribute::MinRnrTimer => tried.min_rnr_timer = 12,
        QpAttribute::Timeout => tried.timeout = 14,
        QpAttribute::RetryCount => tried.retry_cnt = 7,
        QpAttribute::RnrRetry => tried.rnr_retry = 7,
        QpAttribute::SqPsn => tried.sq_psn = 0,
        QpAttribute::MaxRdAtomic => tried.max_rd_atomic = 1,
        _ => {}
    }
    if attribute == QpAttribute::AddressVector {
        // To itself, which is always there.
        tried.ah_attr.port_num = refused.ah_attr.port_num;
        tried.ah_attr.is_global = refused.ah_attr.is_global;
        tried.ah_attr.dlid = 1;
        tried.ah_attr.grh.hop_limit = 1;
        tried.ah_attr.grh.sgid_index = refused.ah_attr.grh.sgid_index;
        tried.ah_attr.grh.dgid.raw = LOOPBACK;
    }
    tried
}

fn value(refused: &sys::ibv_qp_attr, attribute: QpAttribute) -> String {
    match attribute {
        QpAttribute::PkeyIndex => refused.pkey_index.to_string(),
        QpAttribute::Port => refused.port_num.to_string(),
        QpAttribute::AccessFlags => format!("0x{:x}", refused.qp_access_flags),
        QpAttribute::Qkey => format!("0x{:x}", refused.qkey),
        QpAttribute::AddressVector => {
            let grh = &refused.ah_attr.grh;
            // SAFETY: any 16 bytes are a GID.
            let gid = crate::types::Gid(unsafe { grh.dgid.raw });
            format!("to {gid} from GID index {} of port {}", grh.sgid_index, refused.ah_attr.port_num)
        }
        QpAttribute::PathMtu => format!("{} B", 128_u32.checked_shl(refused.path_mtu).unwrap_or(0)),
        QpAttribute::DestQpn => format!("0x{:06x}", refused.dest_qp_num),
        QpAttribute::RqPsn => refused.rq_psn.to_string(),
        QpAttribute::MaxDestRdAtomic => refused.max_dest_rd_atomic.to_string(),
        QpAttribute::MinRnrTimer => format!("code {}", refused.min_rnr_timer),
        QpAttribute::Timeout => format!("code {}", refused.timeout),
        QpAttribute::RetryCount => refused.retry_cnt.to_string(),
        QpAttribute::RnrRetry => refused.rnr_retry.to_string(),
        QpAttribute::SqPsn => refused.sq_psn.to_string(),
        QpAttribute::MaxRdAtomic => refused.max_rd_atomic.to_string(),
        _ => String::new(),
    }
}

/// ::ffff:127.0.0.1.
const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
