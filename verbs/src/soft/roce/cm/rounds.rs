//! The connection manager in the engine's rounds.

use std::time::Instant;

use qpair_roce::{Qpn, Route};

use super::agent::{ASKS_EVERY, Agent, Over};
use super::watch::is_same;
use crate::qp::HOP_LIMIT;
use crate::soft::roce::engine::Engine;

impl Engine {
    /// The managers, which there are from now on.
    pub(super) fn agent(&mut self) -> &mut Agent {
        let home = &self.home;
        self.agent.get_or_insert_with(|| Box::new(Agent::new(home.clone())))
    }

    /// Takes in messages that came, and does what is due.
    pub(in crate::soft::roce) fn manage(&mut self, now: Instant) {
        let Some(agent) = &mut self.agent else { return };
        while let Some((addresses, bytes)) = self.port.next_management() {
            agent.take(now, addresses, &bytes);
        }
        agent.hear(&self.port);
        agent.keep_time(now);
        if self.udp.take_freed() || agent.asks_at.is_some_and(|at| at <= now) {
            self.claim_management(now);
        }
        self.flush_management(now);
    }

    /// Sends what the managers have to send, and tells what they tell.
    pub(in crate::soft::roce) fn flush_management(&mut self, now: Instant) {
        let Engine { agent: Some(agent), port, udp, .. } = self else { return };
        let mut over = Vec::new();
        agent.flush(&mut over, |addresses, bytes| {
            let source_port = udp.source_port(&addresses, Qpn(1));
            // What there is no room for is lost, and repeated.
            port.send_management(Route { addresses, source_port, traffic_class: 0, hop_limit: HOP_LIMIT }, bytes);
        });
        agent.take_closed().for_each(|port| udp.unlisten(port));
        if over.is_empty() {
            return;
        }
        // What a peer sent before it said that this is the end came before that: it may say that all was taken.
        self.udp.look_everywhere();
        let _ = (0..LAST_ROUNDS).take_while(|_| self.receive(now)).count();
        over.iter().for_each(|over| self.end(Some(over)));
    }

    /// Fails the queue pair of a connection that is over.
    pub(super) fn end(&mut self, over: Option<&Over>) {
        let Some((qpn, queue_pair)) = over else { return };
        if self.side.attached.get(*qpn).is_some_and(|attached| is_same(attached.owner(), queue_pair)) {
            self.close(*qpn);
        }
    }

    /// Takes the host's share of connection management, if no other device has it, and there is a use for it.
    pub(in crate::soft::roce) fn claim_management(&mut self, now: Instant) {
        let Some(agent) = &mut self.agent else { return };
        agent.asks_at = None;
        if !agent.is_used() {
            return;
        }
        let has_it = self.udp.claim_management(now).unwrap_or_else(|error| {
            tracing::warn!(%error, "can not take part in connection management; it is tried again");
            false
        });
        if !has_it {
            agent.asks_at = Some(now + ASKS_EVERY);
        }
    }
}

/// Rounds of what has come that are taken in before a connection ends, at most: 4 MiB of long packets, or a millisecond.
const LAST_ROUNDS: usize = 64;
