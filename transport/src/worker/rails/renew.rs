//! Queue pairs of rails: made with the connection, and made anew where one failed.

use std::time::Duration;

use qpair_verbs::{Inquiry, QpAddress};

use super::lanes::{LaneQp, Lanes};
use crate::cm::{HandshakeError, Hello, Message, RailNews, RailWord};
use crate::engine::RailStage;
use crate::worker::Worker;
use crate::worker::error::{CloseReason, ConnectFailure, Lost};
use crate::worker::seen::Note;
use crate::worker::service::FLUSH_LIMIT;

impl Worker {
    /// Queue pairs on so many rails, for a connection to be.
    pub(in crate::worker) fn prepare_rails(&mut self, count: usize, caller: bool) -> Option<Box<Lanes>> {
        let count = count.min(self.rails.count());
        if count < 2 {
            return None;
        }
        let mut prepare = |rail| {
            self.rails.prepare(rail).unwrap_or_else(|error| {
                tracing::warn!(rail, %error, "no queue pair on a rail");
                None
            })
        };
        let lanes = (0..count).map(&mut prepare).collect();
        Some(Box::new(Lanes::new(lanes, caller, self.config.detection / 4)))
    }

    /// Connects what was made to the peer's. A rail that one of the sides does not have is left out for good.
    pub(in crate::worker) fn connect_rails(
        &mut self,
        lanes: &mut Lanes,
        theirs: &[Option<QpAddress>],
        inquiry: &Inquiry,
    ) {
        for (rail, lane) in lanes.lanes.iter_mut().enumerate() {
            let (LaneQp::Prepared(prepared), theirs) = (lane.take_qp(), theirs.get(rail).copied().flatten()) else {
                continue;
            };
            let connected = theirs.map(|theirs| inquiry.connect(prepared, &theirs));
            lane.qp = match connected {
                Some(Ok(qp)) => LaneQp::Connected(qp),
                Some(Err(error)) => {
                    tracing::warn!(rail, %error, "a rail could not be connected");
                    LaneQp::None
                }
                None => LaneQp::None,
            };
            if matches!(lane.qp, LaneQp::None) {
                self.rails.give_back(rail);
            }
        }
    }

    /// The peer has answered: connects the rails that it has too.
    pub(in crate::worker) fn rails_answered(&mut self, index: usize, theirs: &Hello, inquiry: &Inquiry) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some(mut lanes) = endpoint.lanes.take() else { return };
        lanes.agree((self.rails.for_messages(), self.rails.home()), (theirs.message_rails, theirs.home()));
        let theirs = &theirs.rails[..];
        // One alone is none: the messages' queue pair is there anyway.
        let count = if theirs.len() < 2 { 0 } else { theirs.len() };
        for rail in lanes.truncate(count) {
            self.rails.give_back(rail);
        }
        self.connect_rails(&mut lanes, theirs, inquiry);
        if let Some(endpoint) = self.endpoints.at(index).filter(|_| count > 0) {
            endpoint.lanes = Some(lanes);
        }
    }

    /// Both sides are connected: those rails are used that a probe gets through.
    pub(in crate::worker) fn probe_rails(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let Some(lanes) = &mut endpoint.lanes else { return };
        let refused: Vec<_> = lanes.queue_pairs().into_iter().filter(|&rail| !lanes.probe(ep, rail, now)).collect();
        for rail in refused {
            self.lose_rail(index, rail, true);
        }
    }

    /// Looks after the rails of a connection: what takes too long, and what is to be tried again.
    pub(in crate::worker) fn look_at_rails(&mut self, index: usize, now: Duration) {
        while let Some(lanes) = self.lanes(index)
            && let Some(rail) = lanes.rails.overdue(now)
        {
            self.lose_rail(index, rail, true);
        }
        let Some(lanes) = self.lanes(index) else { return };
        if lanes.held_since().is_some_and(|since| now.saturating_sub(since) >= FLUSH_LIMIT) {
            // Another queue pair for messages would change nothing about it.
            return self.fail(index, CloseReason::PeerLost(Lost::QueuePair));
        }
        while let Some(rail) = self.lanes(index).and_then(|lanes| lanes.to_renew(now)) {
            self.renew_rail(index, rail, now);
        }
        self.feed_rails(index);
    }

    /// This side called, and tries a rail again.
    fn renew_rail(&mut self, index: usize, rail: usize, now: Duration) {
        let made = self.make_anew(index, rail);
        let limit = self.config.connect_timeout;
        let Some(lanes) = self.lanes(index) else { return };
        lanes.rails.renewing(rail, now.saturating_add(limit));
        match made {
            Some(address) => self.say_of_rail(index, rail, RailNews::Made(address)),
            // The next try comes later.
            None => self.lose_rail(index, rail, false),
        }
    }

    /// Makes another queue pair for a rail of which nothing is with the device.
    fn make_anew(&mut self, index: usize, rail: usize) -> Option<QpAddress> {
        let now = self.now();
        let ep = self.endpoints.at(index)?.id;
        let lane = self.lanes(index)?.lanes.get_mut(rail)?;
        let old = lane.take_qp();
        (lane.probed, lane.failed, lane.made) = (None, None, now);
        if !matches!(old, LaneQp::None) {
            self.rails.give_back(rail);
        }
        if let LaneQp::Connected(old) = old {
            self.parting.extend(Some(old).filter(|old| !old.is_settled()).map(|old| (ep, old)));
        }
        match self.rails.prepare(rail) {
            Ok(Some(prepared)) => {
                let address = prepared.address();
                self.lanes(index)?.lanes.get_mut(rail)?.qp = LaneQp::Prepared(prepared);
                Some(address)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(rail, %error, "no queue pair on a rail");
                None
            }
        }
    }

    /// The peer tells what is new on a rail.
    pub(in crate::worker) fn heard_of_rail(&mut self, index: usize, word: RailWord, inquiry: &Inquiry) {
        let rail = usize::from(word.rail);
        let limit = self.config.connect_timeout;
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        let stage = endpoint.lanes.as_ref().map_or(RailStage::Absent, |lanes| lanes.rails.stage(rail));
        let caller = endpoint.lanes.as_ref().is_some_and(|lanes| lanes.caller);
        let count = endpoint.lanes.as_ref().map_or(0, |lanes| lanes.count());
        match (word.news, stage) {
            // Of a rail that this side does not have after all, too.
            (RailNews::Down, _) if rail < count => self.lose_rail(index, rail, false),
            (RailNews::Barred, _) if rail < count => self.barred(index, rail),
            (RailNews::Made(theirs), RailStage::Down(_)) if !caller => {
                // What is still with the device comes back first; and no peer has a queue pair made as often as it likes.
                let can = self.lanes(index).is_some_and(|lanes| !lanes.is_busy(rail) && lanes.has_rested(rail, now));
                let made = if can { self.make_anew(index, rail) } else { None };
                match made {
                    Some(ours) if self.connect_anew(index, rail, &theirs, inquiry) => {
                        if let Some(lanes) = self.lanes(index) {
                            lanes.rails.renewing(rail, now.saturating_add(limit));
                        }
                        self.say_of_rail(index, rail, RailNews::Made(ours));
                    }
                    _ => self.tell_rail_is_down(index, rail),
                }
            }
            (RailNews::Made(theirs), RailStage::Renewing(_)) if caller => {
                if self.connect_anew(index, rail, &theirs, inquiry) {
                    self.say_of_rail(index, rail, RailNews::Ready);
                    self.probe_again(index, rail);
                } else {
                    self.lose_rail(index, rail, true);
                }
            }
            (RailNews::Ready, RailStage::Renewing(_)) if !caller => self.probe_again(index, rail),
            // Said before the peer heard that this side gave the rail up meanwhile.
            (RailNews::Made(_) | RailNews::Ready, RailStage::Down(_)) => {}
            // Meanwhile it was tried once more: both sides begin anew. Words that the network holds back cross others, as where
            // both sides give a rail up at once.
            (RailNews::Made(_), RailStage::Renewing(_) | RailStage::Probing | RailStage::Up) => {
                self.lose_rail(index, rail, true);
            }
            (RailNews::Ready, RailStage::Probing | RailStage::Up) if !caller => self.lose_rail(index, rail, true),
            _ => {
                let error = HandshakeError::Unexpected(RAIL);
                self.fail(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }

    fn connect_anew(&mut self, index: usize, rail: usize, theirs: &QpAddress, inquiry: &Inquiry) -> bool {
        let Some(lane) = self.lanes(index).and_then(|lanes| lanes.lanes.get_mut(rail)) else { return false };
        let LaneQp::Prepared(prepared) = lane.take_qp() else { return false };
        match inquiry.connect(prepared, theirs) {
            Ok(qp) => lane.qp = LaneQp::Connected(qp),
            Err(error) => {
                tracing::warn!(rail, %error, "a rail could not be connected again");
                self.rails.give_back(rail);
                return false;
            }
        }
        true
    }

    fn probe_again(&mut self, index: usize, rail: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        endpoint.note(now, Note::of("tries rail again", rail as u64));
        if let Some(lanes) = &mut endpoint.lanes
            && !lanes.probe(ep, rail, now)
        {
            self.lose_rail(index, rail, true);
        }
    }

    pub(super) fn tell_rail_is_down(&mut self, index: usize, rail: usize) {
        self.say_of_rail(index, rail, RailNews::Down);
    }

    pub(in crate::worker) fn say_of_rail(&mut self, index: usize, rail: usize, news: RailNews) {
        let Some(socket) = self.endpoints.at(index).and_then(|endpoint| endpoint.socket) else { return };
        self.sockets.send(socket, &Message::Rail(RailWord { rail: rail as u8, news }));
    }

    /// A connection is removed, and its queue pairs with it.
    pub(in crate::worker) fn forget_rails(&mut self, lanes: &Lanes) {
        for rail in lanes.queue_pairs() {
            self.rails.give_back(rail);
        }
    }

    fn lanes(&mut self, index: usize) -> Option<&mut Lanes> {
        self.endpoints.at(index)?.lanes.as_deref_mut()
    }
}

impl Lanes {
    /// The addresses of queue pairs that are not connected yet, for the peer.
    pub(in crate::worker) fn addresses(&self) -> Vec<Option<QpAddress>> {
        let address = |lane: &super::lanes::Lane| match &lane.qp {
            LaneQp::Prepared(prepared) => Some(prepared.address()),
            LaneQp::None | LaneQp::Connected(_) => None,
        };
        self.lanes.iter().map(address).collect()
    }

    /// The rails that have a queue pair, as the peer is to be told.
    pub(in crate::worker) fn keep_made(&self, addresses: &mut [Option<QpAddress>]) {
        for (address, lane) in addresses.iter_mut().zip(&self.lanes) {
            address.take_if(|_| matches!(lane.qp, LaneQp::None));
        }
    }
}

/// The message about rails, as the handshake's errors name it.
const RAIL: u8 = 7;
