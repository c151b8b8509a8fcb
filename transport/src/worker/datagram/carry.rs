//! What comes over datagrams, and what time brings.

use qpair_verbs::Slab;

use super::line::{Arrived, line_of};
use super::queue::{Came, DEPTH};
use crate::engine::{Header, HeaderView, Kind, NotSent, Violation};
use crate::worker::Worker;
use crate::worker::error::{CloseReason, Lost};
use crate::worker::ids::EndpointId;
use crate::worker::work_id::Job;

impl Worker {
    /// Takes packets that came, at most so many, and sends what is due by that. True if all that came were taken.
    #[cold]
    pub(in crate::worker) fn poll_datagrams(&mut self, most: u32) -> bool {
        let Some(datagrams) = &mut self.datagrams else { return true };
        datagrams.forget_time();
        datagrams.refresh();
        datagrams.take_sent();
        // What comes while so many are taken is the next look's.
        // Of a queue pair that failed, all that came before is taken.
        let most = if datagrams.has_failed { DEPTH } else { most };
        datagrams.is_drained = most >= DEPTH;
        let mut left = most;
        while let Some(datagrams) = &mut self.datagrams {
            if left == 0 {
                self.cut_short = true;
                break;
            }
            left -= 1;
            match datagrams.take(&mut self.endpoints, &mut self.slabs) {
                Came::Nothing => {
                    datagrams.is_drained = true;
                    break;
                }
                Came::Stray => self.counters.packets_stray += 1,
                Came::Of { index, result } => self.packet_came(index, result),
            }
        }
        self.see_to_lines();
        left > 0
    }

    fn packet_came(&mut self, index: usize, result: Result<(), NotSent>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        if let Err(NotSent { said, sent }) = result {
            return self.break_off(index, CloseReason::Protocol(Violation::Acknowledged { said, sent }));
        }
        endpoint.link.heard();
        let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams) else { return };
        datagrams.mark(line, ep.index);
        let mut is_probed = false;
        while let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams)
            && let Some(packet) = line.flow.released()
        {
            let done = packet.done;
            datagrams.give_back(packet);
            if let Some((job, number)) = done {
                endpoint.link.retire(number);
                is_probed |= job == Job::Probe;
            }
        }
        if is_probed {
            self.probe_answered(index);
        }
        while let Some((line, datagrams)) =
            self.endpoints.get_mut(ep).and_then(|endpoint| line_of(endpoint, &mut self.datagrams))
            && let Some(Arrived { slab, len }) = line.flow.next()
        {
            datagrams.held -= 1;
            if let Some(slab) = slab {
                self.datagram_message(ep, slab, len);
            }
        }
        self.settle(index);
        self.advance(index);
    }

    /// The next message of a connection.
    fn datagram_message(&mut self, ep: EndpointId, slab: Slab, len: usize) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return self.slabs.put_by(slab) };
        let header = match HeaderView::new_checked(slab.get(..len).unwrap_or_default()) {
            Ok(view) => Header::parse(&view),
            Err(error) => return self.refuse_datagram(ep, slab, error.into()),
        };
        if let Err(violation) = endpoint.link.accept(&header) {
            return self.refuse_datagram(ep, slab, violation);
        }
        if header.kind == Kind::ReadyToSend {
            return self.refuse_datagram(ep, slab, Violation::OfferByDatagram);
        }
        self.received_other(ep, &header, slab, len);
    }

    #[cold]
    fn refuse_datagram(&mut self, ep: EndpointId, slab: Slab, violation: Violation) {
        self.slabs.put_by(slab);
        self.announce(ep.index as usize);
        self.break_off(ep.index as usize, CloseReason::Protocol(violation));
    }

    /// Looks at all connections that were sent to, or heard of.
    fn see_to_lines(&mut self) {
        while let Some(datagrams) = &mut self.datagrams
            && !datagrams.is_exhausted()
            && let Some(index) = datagrams.dirty.pop_front()
        {
            self.see_to_line(index as usize);
        }
        // The others' turn comes with the next poll.
        self.cut_short |= self.datagrams.as_ref().is_some_and(|datagrams| !datagrams.dirty.is_empty());
        match &self.datagrams {
            Some(datagrams) if datagrams.has_failed && datagrams.is_drained => self.lose_datagrams(),
            Some(datagrams) => self.cut_short |= datagrams.has_failed,
            None => {}
        }
    }

    /// Sends what is due, and sees to it that the connection is looked at when there is more.
    pub(in crate::worker) fn see_to_line(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams) else { return };
        line.is_dirty = false;
        datagrams.transmit(line, datagrams.is_drained);
        if line.is_lost {
            return self.break_off(index, CloseReason::PeerLost(Lost::Unacknowledged));
        }
        if datagrams.is_exhausted() {
            return datagrams.mark(line, index as u32);
        }
        if let Some(due) = line.flow.due() {
            self.schedule(index, due);
        }
    }

    /// Its time has come, perhaps.
    pub(in crate::worker) fn look_at_line(&mut self, index: usize) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.forget_time();
        }
        self.see_to_line(index);
    }

    /// The connection ends: nothing more goes out.
    pub(in crate::worker) fn end_line(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams) else { return };
        line.to = None;
        let (packets, arrived) = line.flow.end();
        packets.for_each(|packet| datagrams.give_back(packet));
        for Arrived { slab, .. } in arrived {
            datagrams.held -= 1;
            slab.into_iter().for_each(|slab| self.slabs.put_by(slab));
        }
    }

    /// Both sides are done: the peer shall know at once that its last word came.
    pub(in crate::worker) fn acknowledge_last(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams) else { return };
        line.flow.acknowledge_now();
        datagrams.transmit(line, false);
    }

    /// The queue pair is of no use any more, nor are the connections over it. The next one makes another.
    #[cold]
    fn lose_datagrams(&mut self) {
        let over: Vec<_> = self.endpoints.iter().filter(|one| one.is_of_datagrams()).map(|one| one.id.index).collect();
        for index in over {
            self.fail(index as usize, CloseReason::PeerLost(Lost::QueuePair));
        }
        self.packets_repeated = self.packets_repeated();
        self.datagrams = None;
    }

    /// Packets that were sent again, of all connections.
    pub(in crate::worker) fn packets_repeated(&self) -> u64 {
        self.packets_repeated + self.datagrams.as_ref().map_or(0, |datagrams| datagrams.repeated())
    }
}

/// Packets that one poll takes at most.
pub(in crate::worker) const BATCH: u32 = 32;
