//! Carrying out send requests, whatever they ask for.

use super::request::{Outcome, Own, Request};
use super::sender::Sender;
use crate::memory::Atomic;
use crate::qp::{Op, Target};
use crate::status::WcStatus;

impl Sender {
    /// Carries out one request, or says what it waits for.
    #[inline(always)]
    pub(crate) fn run(&mut self, own: &Own, request: &Request<'_>) -> Outcome {
        match request.op {
            Op::Send => match request.with.to {
                None => self.send(own, request),
                Some(Target::Soft(target)) => target.send(own, &mut self.hazard, request),
                // Refused when posted, since it belongs to another domain, or sent without the help of this side.
                Some(Target::Ibv(_) | Target::Network(_)) => Outcome::Done(WcStatus::LOC_QP_OP_ERR, 0),
            },
            Op::Write(remote) => self.write(own, request, *remote),
            Op::Read(remote) => self.read(own, request, *remote, None),
            Op::ReadReduce(remote, calc) => self.read(own, request, *remote, Some(*calc)),
            Op::CompareSwap { remote, compare, swap } => {
                self.atomic(own, request, *remote, Atomic::CompareSwap(*compare, *swap))
            }
            Op::FetchAdd { remote, add } => self.atomic(own, request, *remote, Atomic::FetchAdd(*add)),
            Op::Bind { start, end, access } => match request.with.bind {
                Some(bind) => own.bind(bind, &(*start..*end), *access, false, |old| old.withdraw(own.home)),
                None => Outcome::Done(WcStatus::MW_BIND_ERR, 0),
            },
            Op::Invalidate(rkey) => own.invalidate(*rkey),
        }
    }
}
