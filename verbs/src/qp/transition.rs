//! Which state transitions of a queue pair are legal, and which attributes each takes: InfiniBand section 10.3, as Linux has it
//! (`qp_state_table` in its drivers/infiniband/core/verbs.c).

use std::fmt;
use std::ops::BitOr;

use crate::error::ModifyError;
use crate::types::{QpState, QpType};

/// What a legal transition takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be given.
    pub required: QpAttributes,
    /// Attributes that may be given besides; all others are refused.
    pub optional: QpAttributes,
}

/// The transition from one state to another, or `None` if it is not legal.
///
/// ```
/// use qpair_verbs::{QpAttribute, QpState, QpType, transition};
///
/// let to_rtr = transition(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
/// assert!(to_rtr.required.contains(QpAttribute::DestQpn));
/// assert!(transition(QpType::Rc, QpState::Reset, QpState::Rts).is_none());
/// ```
pub const fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpAttribute::*;
    use QpState::*;
    use QpType::*;
    let (required, optional): (&[QpAttribute], &[QpAttribute]) = match (from, to) {
        (Unknown(_), _) | (_, Unknown(_)) => return None,
        (_, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (&[], &[]),

        (Reset, Init) => (to_init(qp_type), &[]),
        (Init, Init) => (&[], to_init(qp_type)),

        (Init, Rtr) => match qp_type {
            Rc => (
                &[AddressVector, PathMtu, DestQpn, RqPsn, MaxDestRdAtomic, MinRnrTimer],
                &[AlternatePath, AccessFlags, PkeyIndex],
            ),
            Uc => (&[AddressVector, PathMtu, DestQpn, RqPsn], &[AlternatePath, AccessFlags, PkeyIndex]),
            Ud => (&[], &[PkeyIndex, Qkey]),
        },

        (Rtr, Rts) => match qp_type {
            Rc => (&[Timeout, RetryCount, RnrRetry, SqPsn, MaxRdAtomic], while_sending(qp_type)),
            Uc | Ud => (&[SqPsn], while_sending(qp_type)),
        },
        (Rts | Sqd, Rts) => (&[], while_sending(qp_type)),

        (Rts, Sqd) => (&[], &[SqdNotify]),
        (Sqd, Sqd) => match qp_type {
            Rc => (
                &[],
                &[
                    Port,
                    AddressVector,
                    Timeout,
                    RetryCount,
                    RnrRetry,
                    MaxRdAtomic,
                    MaxDestRdAtomic,
                    AlternatePath,
                    AccessFlags,
                    PkeyIndex,
                    MinRnrTimer,
                    PathMigration,
                ],
            ),
            Uc => (&[], &[AddressVector, AlternatePath, AccessFlags, PkeyIndex, PathMigration]),
            Ud => (&[], &[PkeyIndex, Qkey]),
        },

        (Sqe, Rts) => match qp_type {
            // A send error of a reliable connection ends in Err, never in Sqe.
            Rc => return None,
            Uc => (&[], &[CurrentState, AccessFlags]),
            Ud => (&[], &[CurrentState, Qkey]),
        },

        (Reset, Rtr | Rts | Sqd | Sqe | Err)
        | (Init, Rts | Sqd | Sqe)
        | (Rtr, Init | Rtr | Sqd | Sqe)
        | (Rts, Init | Rtr | Sqe)
        | (Sqd, Init | Rtr | Sqe)
        | (Sqe, Init | Rtr | Sqd | Sqe)
        | (Err, Init | Rtr | Rts | Sqd | Sqe) => return None,
    };
    // Each modify call names the state it leads to.
    Some(Transition { required: QpAttributes::of(required).with(State), optional: QpAttributes::of(optional) })
}

/// What Init sets: required from Reset, changeable within Init.
const fn to_init(qp_type: QpType) -> &'static [QpAttribute] {
    use QpAttribute::{AccessFlags, PkeyIndex, Port, Qkey};
    match qp_type {
        QpType::Rc | QpType::Uc => &[PkeyIndex, Port, AccessFlags],
        QpType::Ud => &[PkeyIndex, Port, Qkey],
    }
}

/// What may change on the way into Rts, or in it.
const fn while_sending(qp_type: QpType) -> &'static [QpAttribute] {
    use QpAttribute::{AccessFlags, AlternatePath, CurrentState, MinRnrTimer, PathMigration, Qkey};
    match qp_type {
        QpType::Rc => &[CurrentState, AlternatePath, AccessFlags, MinRnrTimer, PathMigration],
        QpType::Uc => &[CurrentState, AlternatePath, AccessFlags, PathMigration],
        QpType::Ud => &[CurrentState, Qkey],
    }
}

/// Whether a queue pair may go from one state to another; the error says what is missing.
pub(crate) fn check(qp_type: QpType, from: QpState, to: QpState) -> Result<(), ModifyError> {
    if transition(qp_type, from, to).is_some() {
        return Ok(());
    }
    Err(ModifyError { qp_type, from, to, detail: advice(from, to) })
}

/// What to do instead of an illegal transition.
const fn advice(from: QpState, to: QpState) -> &'static str {
    use QpState::*;
    match (from, to) {
        (_, Unknown(_)) => ": no state has that code",
        (Unknown(_), _) => ": its state is not known; bring it to Reset first",
        (_, Sqe) => ": only the device enters this state, after a failed send",
        (Err, _) => ": it has failed; bring it to Reset first, or make a new one",
        (Reset, _) => ": bring it to Init first",
        (_, Init) => ": it has been connected; bring it to Reset first",
        (Init, _) => ": bring it to Rtr first, that is, connect it",
        (Rtr | Rts | Sqd | Sqe, Rtr) => ": it is ready to receive already",
        (Rtr, _) => ": bring it to Rts first",
        (Sqe, _) => ": bring it back to Rts first; on reliable connections this state does not exist",
        (Rts | Sqd, _) => "",
    }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        /// An attribute of a queue pair that a transition may set; the values are those of `enum ibv_qp_attr_mask`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum QpAttribute {
            $($(#[$doc])* $name = 1 << $bit,)*
        }

        impl QpAttribute {
            /// Every attribute, in the order of their bits.
            pub const ALL: [QpAttribute; [$($bit),*].len()] = [$(QpAttribute::$name),*];
        }
    };
}

attributes! {
    /// The state to go to. `IBV_QP_STATE`.
    State = 0;
    /// The state that the caller takes the queue pair to be in. `IBV_QP_CUR_STATE`.
    CurrentState = 1;
    /// An event once the send queue has drained. `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
    SqdNotify = 2;
    /// What peers may do. `IBV_QP_ACCESS_FLAGS`.
    AccessFlags = 3;
    /// Partition key. `IBV_QP_PKEY_INDEX`.
    PkeyIndex = 4;
    /// Port. `IBV_QP_PORT`.
    Port = 5;
    /// Q_Key of datagrams. `IBV_QP_QKEY`.
    Qkey = 6;
    /// The path to the peer. `IBV_QP_AV`.
    AddressVector = 7;
    /// MTU of the path. `IBV_QP_PATH_MTU`.
    PathMtu = 8;
    /// How long to wait for an answer. `IBV_QP_TIMEOUT`.
    Timeout = 9;
    /// Attempts after a missing answer. `IBV_QP_RETRY_CNT`.
    RetryCount = 10;
    /// Attempts after "receiver not ready". `IBV_QP_RNR_RETRY`.
    RnrRetry = 11;
    /// First PSN that is received. `IBV_QP_RQ_PSN`.
    RqPsn = 12;
    /// READs and atomics that this side may have under way. `IBV_QP_MAX_QP_RD_ATOMIC`.
    MaxRdAtomic = 13;
    /// The path to change to on failure. `IBV_QP_ALT_PATH`.
    AlternatePath = 14;
    /// How long the peer waits after "receiver not ready". `IBV_QP_MIN_RNR_TIMER`.
    MinRnrTimer = 15;
    /// First PSN that is sent. `IBV_QP_SQ_PSN`.
    SqPsn = 16;
    /// READs and atomics that the peer may have under way here. `IBV_QP_MAX_DEST_RD_ATOMIC`.
    MaxDestRdAtomic = 17;
    /// State of path migration. `IBV_QP_PATH_MIG_STATE`.
    PathMigration = 18;
    /// Sizes of the queues. `IBV_QP_CAP`.
    Capacity = 19;
    /// Number of the peer's queue pair. `IBV_QP_DEST_QPN`.
    DestQpn = 20;
    /// Limit of the sending rate. `IBV_QP_RATE_LIMIT`.
    RateLimit = 25;
}

/// A set of attributes. Combine with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QpAttributes(u32);

impl QpAttributes {
    /// No attribute.
    pub const NONE: QpAttributes = QpAttributes(0);

    /// The attributes of a list.
    pub const fn of(list: &[QpAttribute]) -> Self {
        let mut set = QpAttributes::NONE;
        let mut next = 0;
        while next < list.len() {
            set = set.with(list[next]);
            next += 1;
        }
        set
    }

    /// This set and `attribute`.
    #[must_use]
    pub const fn with(self, attribute: QpAttribute) -> Self {
        QpAttributes(self.0 | attribute as u32)
    }

    /// True if `attribute` is in the set.
    pub const fn contains(self, attribute: QpAttribute) -> bool {
        self.0 & attribute as u32 != 0
    }

    /// True if nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The bits, as in `enum ibv_qp_attr_mask`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The attributes in the set, in the order of their bits.
    pub fn iter(self) -> impl Iterator<Item = QpAttribute> {
        QpAttribute::ALL.into_iter().filter(move |attribute| self.contains(*attribute))
    }
}

impl From<QpAttribute> for QpAttributes {
    fn from(attribute: QpAttribute) -> Self {
        QpAttributes::NONE.with(attribute)
    }
}

impl FromIterator<QpAttribute> for QpAttributes {
    fn from_iter<I: IntoIterator<Item = QpAttribute>>(attributes: I) -> Self {
        attributes.into_iter().fold(QpAttributes::NONE, QpAttributes::with)
    }
}

impl<T: Into<QpAttributes>> BitOr<T> for QpAttributes {
    type Output = QpAttributes;
    fn bitor(self, other: T) -> QpAttributes {
        QpAttributes(self.0 | other.into().0)
    }
}

impl<T: Into<QpAttributes>> BitOr<T> for QpAttribute {
    type Output = QpAttributes;
    fn bitor(self, other: T) -> QpAttributes {
        QpAttributes::from(self) | other
    }
}

impl fmt::Debug for QpAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    /// Legal cells as letters: row is the state before, column the state after. R, C, D: on RC, UC, UD; `*`: on all.
    const LEGAL: [[&str; 7]; 7] = [
        // Reset Init  Rtr  Rts   Sqd  Sqe  Err
        ["*", "*", "", "", "", "", ""],   // Reset
        ["*", "*", "*", "", "", "", "*"], // Init
        ["*", "", "", "*", "", "", "*"],  // Rtr
        ["*", "", "", "*", "*", "", "*"], // Rts
        ["*", "", "", "*", "*", "", "*"], // Sqd
        ["*", "", "", "CD", "", "", "*"], // Sqe
        ["*", "", "", "", "", "", "*"],   // Err
    ];

    #[test]
    fn each_cell_is_legal_or_refused_with_advice() {
        for (qp_type, letter) in [(QpType::Rc, 'R'), (QpType::Uc, 'C'), (QpType::Ud, 'D')] {
            for (row, from) in STATES.into_iter().enumerate() {
                for (column, to) in STATES.into_iter().enumerate() {
                    let want = LEGAL[row][column].contains(['*', letter]);
                    let found = transition(qp_type, from, to);
                    assert_eq!(found.is_some(), want, "{qp_type:?}: {from:?} to {to:?}");
                    assert_eq!(check(qp_type, from, to).is_ok(), want, "{qp_type:?}: {from:?} to {to:?}");
                    match found {
                        Some(cell) => {
                            assert!(cell.required.contains(QpAttribute::State));
                            assert_eq!(cell.required.bits() & cell.optional.bits(), 0, "{qp_type:?} {from:?} {to:?}");
                        }
                        None => {
                            let error = check(qp_type, from, to).unwrap_err();
                            assert_eq!((error.qp_type, error.from, error.to), (qp_type, from, to));
                            assert!(error.detail.starts_with(": "), "{qp_type:?} {from:?} {to:?}: no advice");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn masks_are_those_of_the_specification() {
        // Numbers as `ibv_modify_qp` callers write them, IBV_QP_STATE included.
        let required = |qp_type, from, to| transition(qp_type, from, to).unwrap().required.bits();
        assert_eq!(required(QpType::Rc, QpState::Reset, QpState::Init), 0x0000_0039);
        assert_eq!(required(QpType::Uc, QpState::Reset, QpState::Init), 0x0000_0039);
        assert_eq!(required(QpType::Ud, QpState::Reset, QpState::Init), 0x0000_0071);
        assert_eq!(required(QpType::Rc, QpState::Init, QpState::Rtr), 0x0012_9181);
        assert_eq!(required(QpType::Uc, QpState::Init, QpState::Rtr), 0x0010_1181);
        assert_eq!(required(QpType::Ud, QpState::Init, QpState::Rtr), 0x0000_0001);
        assert_eq!(required(QpType::Rc, QpState::Rtr, QpState::Rts), 0x0001_2e01);
        assert_eq!(required(QpType::Uc, QpState::Rtr, QpState::Rts), 0x0001_0001);
        assert_eq!(required(QpType::Ud, QpState::Rtr, QpState::Rts), 0x0001_0001);
        assert_eq!(required(QpType::Rc, QpState::Rts, QpState::Err), 0x0000_0001);
        let optional = |qp_type, from, to| transition(qp_type, from, to).unwrap().optional;
        assert_eq!(optional(QpType::Rc, QpState::Rts, QpState::Sqd), QpAttribute::SqdNotify.into());
        assert_eq!(optional(QpType::Ud, QpState::Sqe, QpState::Rts), QpAttribute::CurrentState | QpAttribute::Qkey);
        assert_eq!(optional(QpType::Rc, QpState::Rts, QpState::Rts).bits(), 0x0004_c00a);
        assert_eq!(optional(QpType::Rc, QpState::Err, QpState::Reset), QpAttributes::NONE);
    }

    #[test]
    fn unknown_states_have_no_transition() {
        for state in STATES {
            assert!(transition(QpType::Rc, QpState::Unknown(9), state).is_none());
            assert!(check(QpType::Rc, state, QpState::Unknown(9)).is_err());
        }
    }

    #[test]
    fn the_error_says_what_to_do() {
        let error = check(QpType::Rc, QpState::Reset, QpState::Rts).unwrap_err();
        assert_eq!(error.to_string(), "a Rc queue pair can not go from Reset to Rts: bring it to Init first");
    }

    #[test]
    fn sets_combine_list_and_print() {
        let set = QpAttribute::Port | QpAttribute::State | QpAttribute::Qkey;
        assert_eq!(set.iter().collect::<Vec<_>>(), [QpAttribute::State, QpAttribute::Port, QpAttribute::Qkey]);
        assert_eq!(format!("{set:?}"), "{State, Port, Qkey}");
        assert_eq!(set.iter().collect::<QpAttributes>(), set);
        assert!(set.contains(QpAttribute::Port) && !set.contains(QpAttribute::Timeout) && !set.is_empty());
    }
}
