//! Access to memory that can neither be mapped nor copied by system call: in parts through a bounce area of the
//! initiator's shared mapping, which the owner's control thread copies from or to.

use super::bounce_area::{AREA, Bouncing};
use super::request::{LOST, Outcome, Own, Request, Wait};
use super::sender::{Sender, Whose, take};
use crate::calc::Calc;
use crate::memory::{Atomic, RemoteSlice, Spot};
use crate::soft::control::BounceOp;
use crate::soft::layout::FaultKind;
use crate::soft::peer::PeerView;
use crate::status::WcStatus;

impl Sender {
    /// Moves the local side out through the area. `None` once all of it is there.
    pub(super) fn bounce_out(
        &mut self,
        own: &Own,
        request: &Request<'_>,
        next: impl Fn(&PeerView, usize, usize, u32) -> Option<(usize, BounceOp)>,
    ) -> Option<Outcome> {
        let total = request.len();
        if let Err(outcome) = self.bounce_start(own, true) {
            return Some(outcome);
        }
        loop {
            match self.bounce_answer() {
                Answer::Waiting => return Some(Outcome::Wait(Wait::Memory)),
                Answer::Refused(kind) => return Some(self.bounce_refused(own, kind)),
                Answer::Done(_) => {}
            }
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return Some(LOST) };
            bouncing.done += std::mem::take(&mut bouncing.part);
            if bouncing.done >= total {
                self.bounce_end();
                return None;
            }
            let want = AREA.min(total - bouncing.done);
            let Some((area, to)) = bouncing.area(own.home) else { return Some(LOST) };
            let Some((part, op)) = next(peer, bouncing.done, want, area as u32) else {
                return Some(self.bounce_refused(own, FaultKind::Access));
            };
            let mut failed = None;
            request.part(bouncing.done, part, |offset, piece| {
                // SAFETY: the area holds `part` bytes and nobody uses it between parts; the piece is posted memory.
                let one = unsafe { Spot::host(to.wrapping_add(offset)).copy_from(piece.spot(), piece.len) };
                failed = failed.take().or(one.err());
            });
            if let Some(error) = failed {
                self.bounce_end();
                return Some(self.gpu_failed(own, &error, Whose::Own));
            }
            bouncing.part = part;
            bouncing.request = peer.link.bounce(op);
        }
    }

    /// Reads `remote` through the area into the local side.
    pub(super) fn bounce_in(
        &mut self,
        own: &Own,
        request: &Request<'_>,
        remote: RemoteSlice,
        calc: Option<Calc>,
    ) -> Outcome {
        let total = request.len();
        if let Err(outcome) = self.bounce_start(own, true) {
            return outcome;
        }
        loop {
            match self.bounce_answer() {
                Answer::Waiting => return Outcome::Wait(Wait::Memory),
                Answer::Refused(kind) => return self.bounce_refused(own, kind),
                Answer::Done(_) => {}
            }
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return LOST };
            let Some((area, from)) = bouncing.area(own.home) else { return LOST };
            let part = std::mem::take(&mut bouncing.part);
            let mut failed = None;
            request.part(bouncing.done, part, |offset, piece| {
                // SAFETY: the peer filled `part` bytes of the area; the piece is posted memory.
                let one = unsafe { take(piece, Spot::host(from.wrapping_add(offset)), calc) };
                failed = failed.take().or(one.err());
            });
            if let Some(error) = failed {
                self.bounce_end();
                return self.gpu_failed(own, &error, Whose::Own);
            }
            bouncing.done += part;
            if bouncing.done >= total {
                self.bounce_end();
                return Outcome::Done(WcStatus::SUCCESS, total as u64);
            }
            let (addr, len) = (remote.addr + bouncing.done as u64, AREA.min(total - bouncing.done));
            bouncing.part = len;
            bouncing.request = peer.link.bounce(BounceOp::Read {
                qpn: peer.who.qpn,
                rkey: remote.rkey.0,
                addr,
                len: len as u32,
                slot: area as u32,
            });
        }
    }

    /// An atomic by the owner's control thread: the value before, or what to do instead.
    pub(super) fn bounce_atomic(&mut self, own: &Own, remote: RemoteSlice, atomic: Atomic) -> Result<u64, Outcome> {
        let starting = self.bouncing.is_none();
        self.bounce_start(own, false)?;
        if starting {
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return Err(LOST) };
            let (qpn, rkey, addr) = (peer.who.qpn, remote.rkey.0, remote.addr);
            bouncing.request = peer.link.bounce(match atomic {
                Atomic::CompareSwap(compare, swap) => BounceOp::CompareSwap { qpn, rkey, addr, compare, swap },
                Atomic::FetchAdd(add) => BounceOp::FetchAdd { qpn, rkey, addr, add },
            });
        }
        match self.bounce_answer() {
            Answer::Waiting => Err(Outcome::Wait(Wait::Memory)),
            Answer::Refused(kind) => Err(self.bounce_refused(own, kind)),
            Answer::Done(old) => {
                self.bounce_end();
                Ok(old)
            }
        }
    }

    fn bounce_refused(&mut self, own: &Own, kind: FaultKind) -> Outcome {
        self.bounce_end();
        let Some(peer) = &self.peer else { return LOST };
        // One that has failed meanwhile refuses all.
        if !peer.is_open() {
            return LOST;
        }
        let status = match kind {
            FaultKind::Access => WcStatus::REM_ACCESS_ERR,
            FaultKind::Request => WcStatus::REM_INV_REQ_ERR,
            FaultKind::Operation => WcStatus::REM_OP_ERR,
        };
        own.refused(peer, status, Some(kind))
    }

    fn bounce_start(&mut self, own: &Own, with_area: bool) -> Result<(), Outcome> {
        if self.bouncing.is_none() {
            // A full shared mapping is waited out: areas come back.
            self.bouncing = Some(Bouncing::new(own.home, with_area).ok_or(Outcome::Wait(Wait::Memory))?);
        }
        Ok(())
    }

    fn bounce_answer(&mut self) -> Answer {
        let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else {
            return Answer::Refused(FaultKind::Access);
        };
        let Some(request) = bouncing.request else { return Answer::Done(0) };
        match peer.link.bounce_result(request) {
            None => Answer::Waiting,
            Some(result) => {
                bouncing.request = None;
                // Each part shows that the peer answers: patience is for one of them.
                self.waiting = None;
                result.map_or_else(Answer::Refused, Answer::Done)
            }
        }
    }
}

enum Answer {
    Waiting,
    Refused(FaultKind),
    Done(u64),
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::AREA;
    use crate::calc::{Calc, DataType, ReduceOp};
    use crate::{Access, Buffer, CompletionQueue, Context, ProtectionDomain, WcStatus};

    /// A domain of a device of its own, and a queue.
    fn open() -> (ProtectionDomain, CompletionQueue) {
        let ctx = Context::open("soft0").unwrap();
        (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap())
    }

    /// The memory of the next completion.
    fn done(cq: &mut CompletionQueue) -> Buffer {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing completes");
            if let Some(completion) = cq.poll().unwrap() {
                assert!(completion.status().is_success(), "{completion:?}");
                return completion.into_buffer().unwrap();
            }
        }
    }

    /// Copies by system call, which were refused once, are not taken up while the owner's thread has a part to copy.
    #[test]
    fn what_began_by_bounce_goes_on_so() {
        let ((pd, mut cq), (far, far_cq)) = (open(), open());
        let owner = far.node().home();
        // As if the owner were another process.
        let link = pd.node().link_by_socket(owner.id()).unwrap();
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (qp, peer) = (pd.rc(&cq).build().unwrap(), far.rc(&far_cq).access(rights).build().unwrap());
        let (at, at_peer) = (qp.address(), peer.address());
        let (mut qp, _peer) = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
        // Memory that is not shared.
        let target = far.register(vec![0; LEN]).unwrap().expose(rights).unwrap();
        let local = |byte| pd.register(vec![byte; LEN]).unwrap();
        let sum = Calc::new(DataType::U8, ReduceOp::Sum).unwrap();
        for (kind, brings) in [1, 2, 2 + 5].into_iter().enumerate() {
            link.vm_refused();
            let busy = owner.enter_as_engine();
            match kind {
                0 => qp.write(local(1), target.remote(0..LEN)).signaled().post().unwrap(),
                1 => qp.read(local(0), target.remote(0..LEN)).signaled().post().unwrap(),
                _ => qp.read_reduce(local(5), target.remote(0..LEN), sum).signaled().post().unwrap(),
            };
            assert!(cq.poll().unwrap().is_none());
            link.vm_allowed();
            for _ in 0..100 {
                assert!(cq.poll().unwrap().is_none(), "it goes another way than it began");
            }
            drop(busy);
            assert!(done(&mut cq).iter().all(|byte| *byte == brings));
            qp.write(local(2), target.remote(0..LEN)).signaled().post().unwrap();
            done(&mut cq);
        }
        assert!(target.revoke().unwrap().iter().all(|byte| *byte == 2));
    }

    /// Whoever had it fail has waited for those who were inside.
    #[test]
    fn nothing_comes_by_bounce_to_a_queue_pair_that_has_failed() {
        let ((pd, mut cq), (far, far_cq)) = (open(), open());
        let owner = far.node().home();
        pd.node().link_by_socket(owner.id()).unwrap().vm_refused();
        let (qp, peer) = (pd.rc(&cq).build().unwrap(), far.rc(&far_cq).access(Access::REMOTE_WRITE).build().unwrap());
        let (at, at_peer) = (qp.address(), peer.address());
        let (mut qp, mut peer) = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
        let target = far.register(vec![0; LEN]).unwrap().expose(Access::REMOTE_WRITE).unwrap();
        let busy = owner.enter_as_engine();
        qp.write(pd.register(vec![1; LEN]).unwrap(), target.remote(0..LEN)).signaled().post().unwrap();
        assert!(cq.poll().unwrap().is_none());
        let failing = std::thread::spawn(move || {
            peer.to_error().unwrap();
            peer
        });
        let start = Instant::now();
        while !owner.member(at_peer.qpn.0).unwrap().is_failed() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not fail");
        }
        drop(busy);
        let _peer = failing.join().unwrap();
        let start = Instant::now();
        let status = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing completes");
            if let Some(completion) = cq.poll().unwrap() {
                break completion.status();
            }
        };
        assert_eq!(status, WcStatus::RETRY_EXC_ERR);
        assert!(target.revoke().unwrap().iter().all(|byte| *byte == 0));
    }

    /// Its owner's thread may be copying from it, or to it.
    #[test]
    fn the_area_of_a_bounce_that_is_given_up_is_free_once_that_is_answered() {
        let ((pd, mut cq), (far, far_cq)) = (open(), open());
        let (home, owner) = (pd.node().home(), far.node().home());
        let link = pd.node().link_by_socket(owner.id()).unwrap();
        link.vm_refused();
        let target = far.register(vec![0; LEN]).unwrap().expose(Access::REMOTE_WRITE).unwrap();
        let next_area = || {
            let at = home.take_shared(AREA).unwrap();
            home.give_shared(at, AREA);
            at
        };
        for dies in [false, true] {
            let (qp, peer) =
                (pd.rc(&cq).build().unwrap(), far.rc(&far_cq).access(Access::REMOTE_WRITE).build().unwrap());
            let (at, at_peer) = (qp.address(), peer.address());
            let (mut qp, _peer) = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
            let before = next_area();
            let mut busy = Some(owner.enter_as_engine());
            qp.write(pd.register(vec![1; LEN]).unwrap(), target.remote(0..LEN)).signaled().post().unwrap();
            drop(qp);
            assert!(cq.poll().unwrap().is_none());
            assert!(next_area() > before, "the owner's thread may be copying");
            if dies {
                link.end();
            } else {
                busy = None;
            }
            let start = Instant::now();
            while next_area() > before {
                assert!(start.elapsed() < Duration::from_secs(60), "it does not come back");
            }
            drop(busy);
        }
    }

    const LEN: usize = 150_000;
}
