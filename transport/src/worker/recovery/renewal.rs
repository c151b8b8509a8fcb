//! Another queue pair: on which rail, what is told of it, and what becomes of it. The side that called chooses the rail, the
//! other follows.

use qpair_verbs::{Inquiry, Local, PostError, Prepared, QpState};

use super::trial::AT_ONCE;
use super::{Step, Worker};
use crate::cm::{HandshakeError, Message, RailNews, Renewal};
use crate::engine::{Again, RemoteMemory, Unconfirmed};
use crate::worker::endpoint::{Endpoint, InFlight, OneSided, Stage};
use crate::worker::error::{CloseReason, ConnectFailure, Lost, ResourceError};
use crate::worker::memory::EagerSlabs;
use crate::worker::seen::Note;
use crate::worker::setup::{epoch, terms};

/// Another queue pair of the peer, and the answer for it.
#[derive(Debug)]
pub(in crate::worker) struct Renewed {
    pub(in crate::worker) renewal: Renewal,
    pub(in crate::worker) inquiry: Inquiry,
    /// Others before it that this side had not come to see to.
    replaced: u32,
}

impl Renewed {
    pub(in crate::worker) fn new(renewal: Renewal, inquiry: Inquiry) -> Box<Self> {
        Box::new(Renewed { renewal, inquiry, replaced: 0 })
    }
}

impl Endpoint {
    /// True if messages can go over another rail.
    fn has_other_rail(&self) -> bool {
        let next = self.lanes.as_ref().and_then(|lanes| lanes.next_for_messages(self.rail, false));
        next.is_some_and(|next| next != self.rail)
    }

    /// True if all that is to be written again can be: what follows may count on it.
    fn can_repeat(&self, unconfirmed: &[Unconfirmed], works: &[(InFlight, Local)]) -> bool {
        let is_known = |remote: &RemoteMemory| self.name(remote).is_ok();
        let copies = unconfirmed.iter().all(|one| match &one.what {
            Again::Write(remote, _) => is_known(remote),
            Again::Message(_) => true,
        });
        copies
            && works.iter().all(|(work, _)| match &work.what {
                OneSided::Put { remote, .. } => is_known(remote),
                _ => true,
            })
    }
}

impl Worker {
    /// Makes another queue pair, on the rail that the peer chose or on one of this side's choice, and tells the peer of it.
    pub(super) fn renew(&mut self, index: usize, chosen: Option<usize>) {
        self.put_away(index);
        let (now, most) = (self.pace.now(), EagerSlabs::most_kept(self.shares.most()) + self.shares.most());
        let Some(endpoint) = self.endpoints.at(index) else { return };
        // The peer gets a window anew, whatever the application has of those before: as much as it may keep of one connection.
        if endpoint.kept > most {
            endpoint.note(now, Note::of("makes no other queue pair; messages kept", endpoint.kept.into()));
            return self.give_up_recovering(index);
        }
        let epoch = match epoch() {
            Ok(epoch) => epoch,
            Err(error) => {
                tracing::warn!(%error, "no random number to be had");
                return self.give_up_recovering(index);
            }
        };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.link.renew(epoch);
        let ep = endpoint.id;
        let made = match chosen {
            Some(rail) => self.prepare(ep, rail).map(|prepared| (prepared, rail)),
            None => self.prepare_somewhere(index),
        };
        let (prepared, rail) = match (made, chosen) {
            (Ok(made), _) => made,
            (Err(error), Some(rail)) => {
                tracing::info!(rail, %error, "messages can not go over a rail that the peer chose");
                return self.bar_rail(index, rail);
            }
            (Err(error), None) => return self.fail(index, CloseReason::Resources(Box::new(error))),
        };
        let hello = self.hello_on(rail, prepared.address(), epoch);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        (endpoint.reserved, endpoint.rail, endpoint.device) = (true, rail, self.rails.device_of(rail));
        endpoint.note(self.pace.now(), Note::of("made another queue pair, on rail", rail as u64));
        let (sent, received) = endpoint.link.sequences();
        let renewal = Renewal { hello, received, sent, rail: rail as u8 };
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.step = Step::Renewed(prepared);
        }
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Renew(Box::new(renewal)));
        }
        self.reconnect(index);
    }

    /// The queue pair that a connection has goes, with its receives.
    fn put_away(&mut self, index: usize) {
        let Some(ep) = self.endpoints.at(index).map(|endpoint| endpoint.id) else { return };
        let qp = self.endpoints.detach(index);
        self.part_with(ep, qp);
        let kept = self.slabs.disown(ep);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.kept += kept;
        endpoint.release_slots(&mut self.shares, &mut self.slabs);
    }

    /// A queue pair on the next rail on which there is one to be had.
    fn prepare_somewhere(&mut self, index: usize) -> Result<(Prepared, usize), ResourceError> {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return Err(PostError::State(QpState::Err).into()) };
            let (ep, mut rail) = (endpoint.id, endpoint.rail);
            // A failure may have been of that moment.
            let first = matches!(&endpoint.stage, Stage::Recovering(recovery) if recovery.trial.is_first());
            if let Some(lanes) = &endpoint.lanes {
                rail = lanes.next_for_messages(rail, first).unwrap_or(rail);
            }
            let error = match self.prepare(ep, rail) {
                Ok(prepared) => return Ok((prepared, rail)),
                Err(error) => error,
            };
            tracing::info!(rail, %error, "messages can not go over a rail");
            let lanes = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_mut());
            let Some(lanes) = lanes else { return Err(error) };
            lanes.bar(rail);
            if lanes.next_for_messages(rail, false).is_none() {
                return Err(error);
            }
            self.say_of_rail(index, rail, RailNews::Barred);
        }
    }

    /// The peer chose a rail on which there is no queue pair to be had: it is told, and chooses another.
    fn bar_rail(&mut self, index: usize, rail: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.renewal = None;
        if let Some(lanes) = &mut endpoint.lanes {
            lanes.bar(rail);
        }
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.step = Step::Waiting;
        }
        self.say_of_rail(index, rail, RailNews::Barred);
    }

    /// Messages can not go over a rail on the peer's side.
    pub(in crate::worker) fn barred(&mut self, index: usize, rail: usize) {
        let Some(Endpoint { lanes: Some(lanes), stage, rail: current, .. }) = self.endpoints.at(index) else { return };
        lanes.bar(rail);
        let is_asked = matches!(stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Renewed(_)));
        if lanes.caller && is_asked && *current == rail {
            self.try_elsewhere(index, CloseReason::PeerLost(Lost::QueuePair));
        }
    }

    /// The queue pair that was to take the place of one that failed can not be had on its rail: another does, on another rail.
    /// `failure`: why the connection ends if there is none.
    pub(in crate::worker) fn try_elsewhere(&mut self, index: usize, failure: CloseReason) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if endpoint.has_other_rail() { self.try_again(index) } else { self.fail(index, failure) }
    }

    /// The queue pair that was to take the place of one that failed came to nothing: another does, soon.
    fn try_again(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        recovery.start_over(now);
        endpoint.link.suspend();
        endpoint.fail_queue_pair();
        self.recovering = true;
        self.schedule(index, now);
    }

    /// The queue pair that was to take the place of one that failed can not be connected: another does, unless none could be
    /// either.
    fn refused(&mut self, index: usize, why: ConnectFailure) {
        let now = self.pace.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(why, ConnectFailure::Handshake { .. }) && !endpoint.has_other_rail() {
            return self.fail(index, why.into());
        }
        tracing::info!(parent: &endpoint.span, %why, "another queue pair could not be connected");
        endpoint.note(now, Note::new("it could not be connected"));
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.trial.refuse(why.into());
        }
        self.try_again(index);
    }

    /// The peer tells of another queue pair of its own.
    pub(in crate::worker) fn peer_renews(&mut self, index: usize, mut renewed: Box<Renewed>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        let is_connected =
            matches!(&endpoint.stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Connected));
        // One at a time is due, unless the peer gave that up too while this side was not ready, or had not looked. More would be a
        // flood.
        let is_too_many = endpoint.renewal.as_ref().is_some_and(|before| match &mut endpoint.stage {
            Stage::Recovering(recovery) => !recovery.trial.bears_change(),
            _ => {
                renewed.replaced = before.replaced + 1;
                renewed.replaced > AT_ONCE
            }
        });
        if !endpoint.link.retains() || is_too_many {
            let error = HandshakeError::Unexpected(RENEW);
            return self.fail(index, ConnectFailure::Handshake { address, error }.into());
        }
        endpoint.renewal = Some(renewed);
        match endpoint.stage {
            // The peer could not connect the one before.
            Stage::Recovering(_) if is_connected => self.try_again(index),
            Stage::Recovering(_) => self.reconnect(index),
            _ => self.break_off(index, CloseReason::PeerLost(Lost::QueuePair)),
        }
    }

    /// Connects the new queue pair to the peer's, once both are there and on one rail.
    fn reconnect(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (address, epoch, rail) = (endpoint.peer, endpoint.link.epoch(), endpoint.rail);
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        let is_ready = matches!(recovery.step, Step::Renewed(_));
        if !is_ready && !matches!(recovery.step, Step::Waiting) {
            return;
        }
        let Some(renewed) = endpoint.renewal.take() else { return };
        if !is_ready || usize::from(renewed.renewal.rail) != rail {
            return self.follow(index, renewed);
        }
        let Renewed { renewal: theirs, inquiry, .. } = *renewed;
        let Step::Renewed(prepared) = std::mem::replace(&mut recovery.step, Step::Connected) else { return };
        let ours = self.hello_on(rail, prepared.address(), epoch);
        if let Err(error) = ours.check_fabric(&theirs.hello) {
            return self.refused(index, ConnectFailure::Handshake { address, error });
        }
        let qp = match inquiry.connect(prepared, &theirs.hello.address) {
            Ok(qp) => qp,
            Err(error) => return self.refused(index, ConnectFailure::QueuePair(Box::new(error))),
        };
        self.endpoints.replace(index, qp);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.trial.connect();
        }
        let (unconfirmed, had) = match endpoint.link.resume(&terms(&theirs.hello), (theirs.sent, theirs.received), now)
        {
            Ok(resumed) => resumed,
            Err(violation) => return self.fail(index, CloseReason::Protocol(violation)),
        };
        let works = self.settle_works(index, had);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !endpoint.can_repeat(&unconfirmed, &works) {
            endpoint.repeats.lost.extend(works);
            return self.give_up_recovering(index);
        }
        let posted = endpoint.link.posted();
        endpoint.repeats.put_first(unconfirmed, works, posted);
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Ready);
        }
    }

    /// The peer is on another rail than this side. The side that called waits for the other to follow; that one does.
    fn follow(&mut self, index: usize, theirs: Box<Renewed>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (address, chosen) = (endpoint.peer, usize::from(theirs.renewal.rail));
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        match &endpoint.lanes {
            Some(lanes) if lanes.caller => {}
            // As often as there are rails to choose from, and a few times more.
            Some(lanes) if chosen < lanes.count() && recovery.trial.bears_change() => {
                if !lanes.is_for_messages(chosen) {
                    return self.bar_rail(index, chosen);
                }
                endpoint.renewal = Some(theirs);
                self.renew(index, Some(chosen));
            }
            _ => {
                let error = HandshakeError::Unexpected(RENEW);
                self.fail(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }
}

/// The message that tells of another queue pair, as the handshake's errors name it.
const RENEW: u8 = 6;
