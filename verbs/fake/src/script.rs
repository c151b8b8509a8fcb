//! What tests have told a device to do wrong.

use std::collections::VecDeque;
use std::ffi::c_int;

use qpair_verbs_sys::ibv_wc;

use crate::interface::{Forged, field};

/// The script of one device.
#[derive(Debug, Default)]
pub(crate) struct Script {
    failures: Vec<Failure>,
    forgeries: Vec<(u32, Forged)>,
    poll_returns: VecDeque<c_int>,
}

#[derive(Debug)]
struct Failure {
    symbol: String,
    /// Calls that still succeed.
    before: u32,
    /// Calls that then fail; `None` is all.
    left: Option<u32>,
    errno: c_int,
}

/// What becomes of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Once,
    Never,
    Twice,
}

impl Script {
    pub(crate) fn fail(&mut self, symbol: &str, nth: u32, times: u32, errno: c_int) {
        self.failures.push(Failure {
            symbol: symbol.to_owned(),
            before: nth.saturating_sub(1),
            left: (times > 0).then_some(times),
            errno,
        });
    }

    /// Whether this call of a function is to fail; counts it.
    pub(crate) fn call(&mut self, symbol: &str) -> Result<(), c_int> {
        let mut result = Ok(());
        for failure in self.failures.iter_mut().filter(|failure| failure.symbol == symbol) {
            match (&mut failure.before, &mut failure.left) {
                (0, _) if result.is_err() => {}
                (0, None) => result = Err(failure.errno),
                (0, Some(left)) => {
                    *left -= 1;
                    result = Err(failure.errno);
                }
                (before, _) => *before -= 1,
            }
        }
        self.failures.retain(|failure| failure.left != Some(0));
        result
    }

    pub(crate) fn forge(&mut self, nth: u32, forged: Forged) {
        self.forgeries.push((nth.saturating_sub(1), forged));
    }

    /// Changes a completion that is about to be delivered.
    pub(crate) fn completion(&mut self, wc: &mut ibv_wc) -> Delivery {
        let mut delivery = Delivery::Once;
        self.forgeries.retain_mut(|(before, forged)| {
            if let Some(fewer) = before.checked_sub(1) {
                *before = fewer;
                return true;
            }
            apply(forged, wc);
            if forged.fields & field::DROP != 0 {
                delivery = Delivery::Never;
            } else if forged.fields & field::TWICE != 0 {
                delivery = Delivery::Twice;
            }
            false
        });
        delivery
    }

    pub(crate) fn poll_returns(&mut self, value: c_int) {
        self.poll_returns.push_back(value);
    }

    /// What a poll that found something is to return instead of the truth.
    pub(crate) fn polled(&mut self) -> Option<c_int> {
        self.poll_returns.pop_front()
    }
}

/// Writes the fields that count into a completion.
pub(crate) fn apply(forged: &Forged, wc: &mut ibv_wc) {
    let has = |bit| forged.fields & bit != 0;
    if has(field::STATUS) {
        wc.status = forged.status;
    }
    if has(field::OPCODE) {
        wc.opcode = forged.opcode;
    }
    if has(field::QP_NUM) {
        wc.qp_num = forged.qp_num;
    }
    if has(field::BYTE_LEN) {
        wc.byte_len = forged.byte_len;
    }
    if has(field::WC_FLAGS) {
        wc.wc_flags = forged.wc_flags;
    }
    if has(field::IMM_DATA) {
        wc.__bindgen_anon_1.imm_data = forged.imm_data;
    }
    if has(field::VENDOR_ERR) {
        wc.vendor_err = forged.vendor_err;
    }
    if has(field::WR_ID) {
        wc.wr_id = forged.wr_id;
    }
}
