//! What a step does, without on what.

use super::step::StepKind;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
    Finish,
}

impl What {
    pub(crate) const fn of(kind: &StepKind) -> Self {
        match kind {
            StepKind::Send { .. } => What::Send,
            StepKind::Recv { .. } => What::Recv,
            StepKind::RecvReduce { .. } => What::RecvReduce,
            StepKind::Copy { .. } => What::Copy,
            StepKind::Reduce { .. } => What::Reduce,
            StepKind::Finish { .. } => What::Finish,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            What::Send => "send",
            What::Recv => "recv",
            What::RecvReduce => "recv-reduce",
            What::Copy => "copy",
            What::Reduce => "reduce",
            What::Finish => "finish",
        }
    }

    /// Whether it takes a message.
    #[inline]
    pub(crate) const fn is_recv(self) -> bool {
        matches!(self, What::Recv | What::RecvReduce)
    }

    /// Whether it is one side of a message.
    #[inline]
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, What::Send | What::Recv | What::RecvReduce)
    }
}
