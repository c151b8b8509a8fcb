//! How connections end: closed by either side, or broken. What had come before is delivered first; then every operation
//! ends, memory is taken back from the peer, and the last event says why.

use std::time::Duration;

use qpair_verbs::{Local, QueuePair};

use super::Worker;
use super::delivery::receive_op;
use super::endpoint::{Endpoint, InFlight, OneSided, Stage};
use super::error::{CloseReason, ConnectFailure, Lost, OpError, WorkerError};
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId};
use super::seen::Note;
use super::watch::Watch;
use crate::cm::HandshakeError;
use crate::engine::Exposed;

impl Worker {
    /// The application closes a connection.
    pub(super) fn begin_close(&mut self, ep: EndpointId) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) || endpoint.closed_here {
            return;
        }
        endpoint.closed_here = true;
        endpoint.note(self.pace.now(), Note::new("this side closes"));
        let due = endpoint.closing.get_or_insert(Watch::new(now)).due(self.config.close_timeout);
        endpoint.link.close();
        let waits = matches!(endpoint.stage, Stage::Recovering(_)) || endpoint.link.queued() > 0;
        if !endpoint.is_connected() && !waits {
            return self.fail(ep.index as usize, CloseReason::Local);
        }
        for key in self.inbox.release_offers(ep.peer()) {
            endpoint.link.want(key);
        }
        self.schedule(ep.index as usize, due);
        self.advance(ep.index as usize);
    }

    /// The peer sends nothing more, and waits for this side to say so too.
    pub(super) fn peer_closes(&mut self, index: usize) {
        let now = self.now();
        if let Some(endpoint) = self.endpoints.at(index) {
            let due = endpoint.closing.get_or_insert(Watch::new(now)).due(self.config.close_timeout);
            endpoint.note(self.pace.now(), Note::new("the peer closes"));
            self.schedule(index, due);
        }
    }

    /// Both sides have sent all and know it.
    pub(super) fn finish_close(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let reason = if endpoint.closed_here { CloseReason::Local } else { CloseReason::Remote };
        // The last acknowledgment to the peer may get lost, or come late: it is told by another way.
        if let Some(socket) = endpoint.socket {
            self.sockets.part(socket);
        }
        self.acknowledge_last(index);
        self.fail(index, reason);
    }

    /// A connection broke. It ends when the completion queue has run empty, so that what had come before is delivered.
    #[cold]
    pub(super) fn break_off(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        match endpoint.stage {
            Stage::Ending { .. } => return,
            // What is flushed says nothing new.
            Stage::Recovering(_) if reason.is_of_queue_pair() => return,
            Stage::Recovering(_) => return self.fail(index, reason),
            _ => {}
        }
        if endpoint.link.is_suspended() && reason.is_of_refusal() {
            // Of what was asked of a queue pair that has failed, which another takes the place of.
            return;
        }
        tracing::debug!(parent: &endpoint.span, %reason, "broken");
        endpoint.hold_back(&reason);
        if endpoint.broken.as_ref().is_none_or(|(noted, _)| reason.tells_more_than(noted)) {
            endpoint.note(now, Note::new(reason.kind()));
        }
        match &mut endpoint.broken {
            None => {
                endpoint.broken = Some((reason, now));
                self.broken += 1;
            }
            Some((noted, _)) if reason.tells_more_than(noted) => *noted = reason,
            Some(_) => {}
        }
    }

    /// Ends connections that broke before `since`, though the queue never ran empty: others send on, or the application
    /// takes its time. What had come before they broke is taken from the queue first, and delivered before their end.
    #[cold]
    pub(super) fn end_overdue(&mut self, since: Duration) -> Result<(), WorkerError> {
        let overdue = |endpoint: &Endpoint| endpoint.broken.as_ref().is_some_and(|(_, broke)| *broke <= since);
        if !self.endpoints.iter().any(overdue) {
            return Ok(());
        }
        let result = self.take_all();
        self.end_broken(Some(since));
        result
    }

    /// Takes what is in the completion queue now, all of it, and makes events of it.
    #[cold]
    pub(super) fn take_all(&mut self) -> Result<(), WorkerError> {
        // It is no poll, however often it is done between two.
        let countdown = self.countdown;
        let mut taken = std::mem::take(&mut self.ready);
        // What notices have of windows goes along with them.
        let mut notices = self.notices.as_mut().map(std::mem::take).unwrap_or_default();
        let mut result = Ok(());
        let most = self.config.capacity().0;
        self.poll_further_devices(most.try_into().unwrap_or(u32::MAX));
        taken.append(&mut self.ready);
        self.notices.iter_mut().for_each(|new| notices.append(new));
        // As much as the queue can hold: all that is there, and an end to it.
        for _ in 0..most {
            self.cut_short = false;
            match self.reap() {
                Ok(Some(event)) => {
                    if event.is_notice() {
                        notices.push_back(self.notice.take());
                    }
                    taken.push_back(event);
                }
                Ok(None) if self.cut_short => {}
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            taken.append(&mut self.ready);
            self.notices.iter_mut().for_each(|new| notices.append(new));
        }
        taken.append(&mut self.ready);
        self.ready = taken;
        self.countdown = countdown;
        if let Some(new) = &mut self.notices {
            notices.append(new);
            *new = notices;
        }
        result
    }

    /// Ends connections that broke before `since`; without it all but those that broke while the peer was read from, by a
    /// hang-up or for a reason that tells little: a device may be about to tell why.
    #[cold]
    pub(super) fn end_broken(&mut self, since: Option<Duration>) {
        for index in 0..self.endpoints.bound() {
            let Some(endpoint) = self.endpoints.at(index) else { continue };
            let reads = !endpoint.reads.is_empty();
            let due = |(reason, broke): &mut (CloseReason, Duration)| match since {
                Some(since) => *broke <= since,
                None => !reads || !(reason.is_vague() || matches!(reason, CloseReason::PeerLost(Lost::HungUp))),
            };
            if let Some((reason, _)) = endpoint.broken.take_if(due) {
                self.broken -= 1;
                let is_lost = matches!(reason, CloseReason::PeerLost(_) | CloseReason::Completion(_));
                let is_answered = matches!(reason, CloseReason::PeerLost(Lost::Silent(_)))
                    && endpoint.link.is_answered()
                    && endpoint.renewal.is_none();
                if is_lost && endpoint.parted && endpoint.link.awaits_last_acknowledgment() {
                    self.finish_close(index);
                // The answer to a probe may have waited in the queue when its time was over. A peer that has given the queue
                // pair up counts on another.
                } else if is_answered {
                    self.advance(index);
                    self.feed_rails(index);
                    // Who looked last took the connection for lost.
                    let now = self.now();
                    self.schedule(index, now);
                } else if endpoint.can_recover(&reason) {
                    self.suspend(index, reason);
                } else {
                    self.fail(index, reason);
                }
            }
        }
    }

    /// Ends a connection: its queue pair flushes, every operation ends.
    pub(super) fn fail(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return;
        }
        endpoint.note(now, Note::new("ends"));
        endpoint.fail_queue_pair();
        let ep = endpoint.id;
        let (sends, flushes) = endpoint.link.abort();
        endpoint.cut = sends;
        (endpoint.renewal, endpoint.trial) = (None, None);
        let works = endpoint.repeats.abort();
        (endpoint.stage, endpoint.up) = (Stage::Ending { reason, since: now }, false);
        if let Some(socket) = endpoint.socket.take() {
            self.sockets.close(socket);
        }
        self.end_rails(index);
        self.end_incoming_of(index, false);
        self.end_line(index);
        for posted in self.inbox.drop_peer(ep.peer()) {
            self.failed(receive_op(&posted), ep, Returned::Memory(posted.memory.memory));
        }
        for number in flushes {
            self.failed(OpId::new(number, Some(ep)), ep, Returned::Nothing);
        }
        for (work, memory) in works {
            self.work_lost(index, work, memory, OpError::Closed);
        }
        self.deliver_due();
        self.schedule(index, now);
        self.settle(index);
    }

    /// Removes an ending connection once nothing of it is with the device or a peer.
    pub(super) fn settle(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !matches!(endpoint.stage, Stage::Ending { .. }) {
            return;
        }
        let ep = endpoint.id;
        for exposed in std::mem::take(&mut endpoint.cut) {
            let Exposed { op, envelope, payload, awaited, was_read } = exposed;
            match self.take_back(ep, payload) {
                Ok(payload) => self.conclude(ep, Exposed { op, envelope, payload, awaited, was_read }, OpError::Closed),
                Err(payload) => {
                    if let Some(endpoint) = self.endpoints.at(index) {
                        endpoint.cut.push(Exposed { op, envelope, payload, awaited, was_read });
                    }
                }
            }
        }
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if endpoint.is_with_nobody() && !self.staging.takes_from(ep) && self.next_withheld_of(ep).is_none() {
            self.remove(index);
        }
    }

    /// Removes a connection, and tells the application. What is still with the device or a peer stays there.
    pub(super) fn remove(&mut self, index: usize) {
        self.end_incoming_of(index, true);
        let Some(mut endpoint) = self.endpoints.remove(index) else { return };
        let ep = endpoint.id;
        self.part_with(ep, endpoint.qp.take());
        if let Some(lanes) = endpoint.lanes.take() {
            self.forget_rails(&lanes);
            let (qps, works) = lanes.remove();
            self.parting.extend(qps.into_iter().filter(|qp| !qp.is_settled()).map(|qp| (ep, qp)));
            endpoint.reads.extend(works);
        }
        if endpoint.is_starved {
            self.pool.forget(ep.index);
        }
        self.broken -= usize::from(endpoint.broken.is_some());
        self.lines -= usize::from(endpoint.is_of_datagrams());
        endpoint.release_slots(&mut self.shares, &mut self.slabs);
        self.write_off(&mut endpoint);
        for exposed in std::mem::take(&mut endpoint.cut) {
            let op = exposed.op;
            tracing::warn!(%ep, op, "a peer that does not answer is in the middle of reading; the memory is withheld");
            if exposed.awaited {
                self.send_failed(op, ep, exposed.envelope, OpError::Closed, Returned::Withheld);
            }
            self.withhold(ep, Exposed { awaited: false, ..exposed });
        }
        while let Some(exposed) = self.next_withheld_of(ep) {
            exposed.awaited = false;
            let (op, envelope) = (exposed.op, exposed.envelope);
            self.send_failed(op, ep, envelope, OpError::Closed, Returned::Withheld);
        }
        self.drop_calls(ep);
        self.drop_streams(ep);
        let Endpoint { stage: Stage::Ending { reason, .. }, listener, peer, span, history, .. } = endpoint else {
            return;
        };
        if reason.is_orderly() {
            tracing::info!(parent: &span, %reason, "closed");
        } else {
            tracing::info!(parent: &span, %reason, "lost; what happened last:\n{history}");
        }
        match listener {
            Some(listener) => {
                self.counters.rejected += 1;
                let error = match reason {
                    CloseReason::Failed(ConnectFailure::Handshake { error, .. }) => error,
                    CloseReason::Failed(ConnectFailure::TimedOut { .. }) => HandshakeError::TimedOut,
                    _ => HandshakeError::HungUp,
                };
                self.ready.push_back(Event::Rejected { listener, peer, error });
            }
            None => {
                self.counters.lost += u64::from(!reason.is_orderly());
                self.ready.push_back(Event::Closed { ep, reason });
            }
        }
    }

    /// The queue pair of a connection goes, now or when peers have left its memory.
    pub(super) fn part_with(&mut self, ep: EndpointId, qp: Option<QueuePair>) {
        let stays = |qp: &QueuePair| self.config.shared_receives.is_some() || !qp.is_settled();
        self.parting.extend(qp.filter(stays).map(|qp| (ep, qp)));
    }

    /// True if the peer of a connection may be in the middle of an access, by the queue pair that it has or one that it had.
    pub(super) fn may_be_read(&self, ep: EndpointId) -> bool {
        let own = self.endpoints.get(ep).and_then(|endpoint| endpoint.qp.as_ref());
        let had = self.parting.iter().filter(|(of, _)| *of == ep).map(|(_, qp)| qp);
        own.into_iter().chain(had).any(|qp| !qp.is_settled())
    }

    /// Ends the operations of a connection that the device did not end.
    fn write_off(&mut self, endpoint: &mut Endpoint) {
        let ep = endpoint.id;
        self.pool.lose_messages(endpoint.copied);
        for InFlight { number, mut awaited, what, .. } in std::mem::take(&mut endpoint.reads) {
            let op = OpId::new(number, Some(ep));
            let (op, returned) = match what {
                OneSided::Pull(mut reading) => {
                    let mut own = None;
                    if let Some(piece) = reading.piece {
                        let Some(whole) = self.piece_lost(piece, None) else { continue };
                        let memory;
                        (reading, awaited, memory) = whole;
                        own = matches!(memory, Local::Gpu(_)).then_some(memory);
                    }
                    self.inbox.fail(reading.key);
                    self.pool.lose_slabs(reading.pooled);
                    let Some(posted) = reading.posted else { continue };
                    let op = receive_op(&posted);
                    match reading.pooled {
                        0 => (op, own.map_or(Returned::Withheld, Returned::Memory)),
                        _ => (op, Returned::Memory(posted.memory.memory)),
                    }
                }
                OneSided::Put { own: Some((own, pooled)), .. } => {
                    self.pool.lose_slabs(pooled);
                    (op, Returned::Memory(own))
                }
                OneSided::Get { .. } | OneSided::Put { .. } => (op, Returned::Withheld),
                OneSided::Fetch { pooled } => {
                    self.pool.lose_slabs(pooled);
                    let (error, returned) = (OpError::Unknown, Returned::Nothing);
                    if awaited {
                        self.ready.push_back(Event::Failed { op, ep: Some(ep), error, returned });
                    }
                    continue;
                }
                OneSided::Combine { target, pooled, .. } => {
                    self.pool.lose_slabs(pooled);
                    (op, Returned::Memory(target.memory))
                }
            };
            if awaited {
                self.failed(op, ep, returned);
            } else if !matches!(returned, Returned::Withheld) {
                self.ready.push_back(Event::Released { op, returned });
            }
        }
        self.deliver_due();
    }

    /// An operation ends with its connection.
    fn failed(&mut self, op: OpId, ep: EndpointId, returned: Returned) {
        self.ready.push_back(Event::Failed { op, ep: Some(ep), error: OpError::Closed, returned });
    }

    /// Lets go of queue pairs that peers and the device have left. What one took from a shared queue is taken first: a device
    /// may remove a queue pair's completions along with it.
    pub(super) fn look_at_parting(&mut self) -> Result<(), WorkerError> {
        if self.parting.is_empty() {
            return Ok(());
        }
        let settled: Vec<_> = self.parting.extract_if(.., |(_, qp)| qp.is_settled()).collect();
        if settled.is_empty() || self.config.shared_receives.is_none() {
            return Ok(());
        }
        let result = self.take_all();
        drop(settled);
        result
    }
}
