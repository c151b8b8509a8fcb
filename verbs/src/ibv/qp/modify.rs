//! State transitions.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::attributes;
use super::create::OwnedQp;
use super::diagnose::diagnose;
use crate::QpAddress;
use crate::device::preferred_gid;
use crate::error::{ConnectError, CreateError, ModifyError};
use crate::ibv::address;
use crate::ibv::ah::Ah;
use crate::ibv::handle::outcome;
use crate::ibv::quirks;
use crate::ibv::resolve::is_silence;
use crate::qp::{QpAttributes, check, transition};
use crate::sync::lock;
use crate::types::{QpState, QpType};

impl OwnedQp {
    pub(super) fn bring_to_init(&self) -> Result<(), CreateError> {
        let attributes = attributes::init(&self.options, self.pkey_index, self.pd.device().attributes().atomics);
        let source = match self.modify(QpState::Init, &attributes) {
            Ok(()) => return Ok(()),
            Err(Failed::Illegal(error)) => io::Error::other(error),
            Err(Failed::Refused(source)) => source,
        };
        let attribute = diagnose(self, QpState::Init, &attributes);
        Err(CreateError::Transition { to: QpState::Init, attribute, source })
    }

    /// INIT to RTR, towards a peer.
    pub(crate) fn connect(&self, peer: &QpAddress) -> Result<(), ConnectError> {
        let (ours, theirs) = (self.qp_type(), peer.qp_type);
        if ours != theirs || ours == QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours, theirs });
        }
        address::check_peer(peer)?;
        self.agree_on_ece(peer);
        let mtu = self.address.mtu.min(peer.mtu);
        let path = self.local.path_to(peer);
        let attributes = attributes::ready_to_receive(&self.options, path, peer, mtu, self.reads[0]);
        self.modify(QpState::Rtr, &attributes).map_err(|failed| match failed {
            // No attribute is to blame, and to try each would have the kernel ask for the peer as often.
            Failed::Refused(source) if is_silence(self.local.link_layer, &source) => {
                ConnectError::Unreachable { gid: peer.gid, source }
            }
            failed => self.error(QpState::Rtr, &attributes, failed),
        })?;
        *lock(&self.explanation) = self.explain_path(peer, mtu.bytes());
        *lock(&self.peer_reads) = Some(peer.max_rd_atomic);
        Ok(())
    }

    /// RTR to RTS.
    pub(crate) fn start_sending(&self) -> Result<(), ConnectError> {
        // No more READs under way than the peer answers at once; one that does not say answers what this side asks.
        let most = lock(&self.peer_reads).filter(|&reads| reads > 0).unwrap_or(u8::MAX);
        let mut attributes = attributes::ready_to_send(&self.options, self.address.psn, self.reads[1].min(most));
        attributes.retry_cnt = quirks::retry_count(self.pd.device().attributes(), attributes.retry_cnt);
        self.enter_state(QpState::Rts, &attributes)
    }

    /// Brings a datagram queue pair to RTS.
    pub(crate) fn activate(&self) -> Result<(), ConnectError> {
        let mut attributes = attributes::none();
        attributes.qp_state = sys::IBV_QPS_RTR;
        self.enter_state(QpState::Rtr, &attributes)?;
        attributes = attributes::ready_to_send(&self.options, self.address.psn, 0);
        self.enter_state(QpState::Rts, &attributes)?;
        *lock(&self.explanation) = format!("datagrams of device {}, {}", self.pd.device().name(), self.explain_side());
        Ok(())
    }

    /// The way that datagrams take to a peer: from the row of the GID table that was asked for, else from the one that fits
    /// the peer's.
    pub(crate) fn target(&self, peer: &QpAddress) -> Result<Arc<Ah>, ConnectError> {
        let mut local = self.local;
        if self.options.gid_index.is_none() {
            let port = self.pd.device().side(local.port);
            let port = port.map_err(|source| ConnectError::System { what: "ask the device for its port", source })?;
            let row = preferred_gid(&port.gids, Some(peer.gid));
            if let Some((index, gid)) = row.and_then(|row| Some((u8::try_from(row.index).ok()?, row.gid))) {
                (local.gid_index, local.gid) = (index, gid);
            }
        }
        Ah::create(&self.pd, &local, peer)
    }

    pub(crate) fn to_error(&self) -> Result<(), ModifyError> {
        self.fail().map_err(|failed| self.not_failed(failed))
    }

    /// The same. Nothing is logged here.
    pub(super) fn fail(&self) -> Result<(), Failed> {
        let mut attributes = attributes::none();
        attributes.qp_state = sys::IBV_QPS_ERR;
        self.modify(QpState::Err, &attributes)?;
        // The time for the last receive runs from now on.
        self.failed();
        Ok(())
    }

    /// Why it did not go to the error state; logged, if it is the device's doing.
    pub(super) fn not_failed(&self, failed: Failed) -> ModifyError {
        match failed {
            Failed::Illegal(error) => error,
            Failed::Refused(error) => {
                tracing::error!(qpn = %self.qpn(), %error, "the device does not move a queue pair to the error state");
                let (qp_type, from) = (self.qp_type(), self.known_state());
                ModifyError { qp_type, from, to: QpState::Err, detail: ": the device refuses" }
            }
        }
    }

    pub(super) fn enter_state(&self, to: QpState, attributes: &sys::ibv_qp_attr) -> Result<(), ConnectError> {
        self.modify(to, attributes).map_err(|failed| self.error(to, attributes, failed))
    }

    /// Why a transition failed, with the attribute that is to blame.
    fn error(&self, to: QpState, attributes: &sys::ibv_qp_attr, failed: Failed) -> ConnectError {
        match failed {
            Failed::Illegal(error) => error.into(),
            Failed::Refused(source) => {
                let from = self.known_state();
                ConnectError::Refused { from, to, attribute: diagnose(self, to, attributes), source }
            }
        }
    }

    /// One transition, with the attributes that the table asks for.
    fn modify(&self, to: QpState, attributes: &sys::ibv_qp_attr) -> Result<(), Failed> {
        let from = self.known_state();
        check(self.qp_type(), from, to).map_err(Failed::Illegal)?;
        let required = transition(self.qp_type(), from, to).map_or(QpAttributes::NONE, |cell| cell.required);
        self.modify_raw(attributes, required).map_err(Failed::Refused)?;
        if to == QpState::Err {
            self.shared.fail();
        } else {
            self.shared.entered(to);
        }
        Ok(())
    }

    pub(super) fn modify_raw(&self, attributes: &sys::ibv_qp_attr, mask: QpAttributes) -> io::Result<()> {
        let mut attributes = *attributes;
        let mask = mask.bits() as c_int;
        // SAFETY: the queue pair is alive.
        outcome(unsafe { (self.library().ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask) })
    }

    fn explain_path(&self, peer: &QpAddress, mtu: u32) -> String {
        format!(
            "device {} to queue pair {} at {}: {}; path MTU {mtu}",
            self.pd.device().name(),
            peer.qpn,
            if self.local.is_global(peer) { peer.gid.to_string() } else { format!("LID {}", peer.lid) },
            self.explain_side()
        )
    }

    fn explain_side(&self) -> String {
        let domain = match (self.options.thread_domain, self.in_domain.has_thread_domain()) {
            (_, true) => "; no provider lock (thread domain)",
            (true, false) => "; the provider has no thread domains",
            (false, false) => "",
        };
        format!(
            "port {}, GID {} ({}); posted by {}{domain}{}",
            self.local.port,
            self.local.gid_index,
            self.address.gid,
            self.submit.name(),
            self.inline
        )
    }
}

/// Why a transition failed.
pub(super) enum Failed {
    /// By the table.
    Illegal(ModifyError),
    /// By the device.
    Refused(io::Error),
}
