//! Reading long payloads over rails.

use std::time::Duration;

use qpair_verbs::{DividedMemory, Local, WcStatus, WorkCompletion};

use super::lanes::{Fed, Lanes};
use super::request::LaneWork;
use crate::engine::RailStage;
use crate::worker::Worker;
use crate::worker::endpoint::{Reading, Stage};
use crate::worker::error::WorkerError;
use crate::worker::failed::reason_of;
use crate::worker::seen::Note;

impl Worker {
    /// Reads a payload over rails, if it is long enough and there are some. Gives it back otherwise.
    pub(in crate::worker) fn read_over_rails(
        &mut self,
        index: usize,
        reading: Reading,
        memory: Local,
    ) -> Option<(Reading, Local)> {
        let takes = |lanes: &Lanes| reading.calc.is_none() && lanes.takes(&reading.remote);
        let lanes = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_mut());
        let Some(lanes) = lanes.filter(|lanes| takes(lanes)) else { return Some((reading, memory)) };
        match DividedMemory::of(memory) {
            Ok(memory) => {
                lanes.begin(reading, memory);
                self.feed_rails(index);
                None
            }
            Err(memory) => Some((reading, memory)),
        }
    }

    /// Takes what completed on rails, at most a batch.
    pub(in crate::worker) fn poll_rails(&mut self) -> Result<(), WorkerError> {
        for device in 0..self.rails.devices() {
            self.cut_short |= self.poll_rails_of(device, BATCH)?;
        }
        Ok(())
    }

    /// Takes all that has completed on rails by now: how late this side comes to see it says nothing of a rail.
    pub(in crate::worker) fn drain_rails(&mut self) -> Result<(), WorkerError> {
        for device in 0..self.rails.devices() {
            self.poll_rails_of(device, self.rails.posted_at_most())?;
        }
        Ok(())
    }

    /// True if there may be more.
    fn poll_rails_of(&mut self, device: usize, most: usize) -> Result<bool, WorkerError> {
        for _ in 0..most {
            match self.rails.poll(device) {
                Ok(Some(wc)) => self.completed_on_rail(&wc),
                Ok(None) => return Ok(false),
                Err(error) if device == 0 => return Err(error.into()),
                Err(error) => {
                    self.lose_device(device, &error);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn completed_on_rail(&mut self, wc: &WorkCompletion) {
        let LaneWork { ep, rail, is_probe } = LaneWork::of(wc.wr_id);
        let now = self.now();
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        let index = ep.index as usize;
        // All that a queue pair had came back before another took its place.
        let Some(lanes) = endpoint.lanes.as_mut().filter(|lanes| lanes.is_current(rail, wc.qpn.0)) else { return };
        let succeeded = wc.status.is_success();
        let over = if is_probe {
            let since = lanes.lanes[rail].probed.take();
            if succeeded {
                self.answered_on_rail(index, rail, now.saturating_sub(since.unwrap_or(now)));
            }
            None
        } else {
            lanes.came_back(rail, succeeded, now)
        };
        if !succeeded {
            match wc.status {
                // The memory was not to be read, or written, so: another rail would be told the same. One whose device failed with
                // it (LOC_QP_OP_ERR, REM_OP_ERR) may be another's yet.
                WcStatus::REM_ACCESS_ERR
                | WcStatus::REM_INV_REQ_ERR
                | WcStatus::LOC_PROT_ERR
                | WcStatus::LOC_LEN_ERR
                    if !is_probe =>
                {
                    self.break_off(index, reason_of(wc));
                }
                _ => self.lose_rail(index, rail, true),
            }
        }
        if let Some(key) = over {
            self.end_transfer(index, key);
        }
        self.feed_rails(index);
        self.settle_rails(index);
    }

    /// A transfer has nothing under way, and needs nothing more.
    fn end_transfer(&mut self, index: usize, key: usize) {
        let Some(lanes) = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_mut()) else { return };
        let Some((reading, awaited, memory)) = lanes.take(key) else { return };
        let before = if awaited || reading.pooled > 0 { reading.remote.len() } else { 0 };
        self.pulled(index, Reading { before, ..reading }, awaited, memory);
        self.advance(index);
    }

    /// Of a connection that ends: payloads that are not with devices any more.
    fn settle_rails(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !matches!(endpoint.stage, Stage::Ending { .. }) {
            return;
        }
        self.end_rails(index);
        self.settle(index);
    }

    /// The connection ends: nothing more is read.
    pub(in crate::worker) fn end_rails(&mut self, index: usize) {
        let Some(lanes) = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_mut()) else { return };
        for (reading, awaited, memory) in lanes.end() {
            self.unread(index, reading, awaited, memory);
        }
    }

    /// Posts slices while rails have room for them. Where there is no rail left, the messages' queue pair reads what waits.
    pub(in crate::worker) fn feed_rails(&mut self, index: usize) {
        let now = self.now();
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return };
            if !matches!(endpoint.stage, Stage::Up | Stage::Recovering(_)) || endpoint.broken.is_some() {
                return;
            }
            let ep = endpoint.id;
            let Some(lanes) = &mut endpoint.lanes else { return };
            match lanes.feed(ep, now) {
                Fed::Posted => break,
                Fed::Refused(rail) => self.lose_rail(index, rail, true),
                Fed::Ended(key) => self.end_transfer(index, key),
            }
        }
        self.probe_idle_rails(index, now);
        self.look_after_rails(index, now);
        self.read_without_rails(index);
    }

    /// Rails that have nothing to do while others have are asked now and then how they are.
    fn probe_idle_rails(&mut self, index: usize, now: Duration) {
        while let Some(endpoint) = self.endpoints.at(index) {
            let ep = endpoint.id;
            let Some(lanes) = &mut endpoint.lanes else { return };
            let Some(rail) = lanes.unasked(now) else { return };
            if !lanes.probe(ep, rail, now) {
                self.lose_rail(index, rail, true);
            }
        }
    }

    fn read_without_rails(&mut self, index: usize) {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return };
            if !endpoint.up || !endpoint.link.has_slot() {
                return;
            }
            let Some(lanes) = &mut endpoint.lanes else { return };
            let Some((reading, awaited, memory)) = lanes.stranded().and_then(|key| lanes.take(key)) else { return };
            if let Err(unread) = endpoint.read_part(reading, awaited, memory) {
                self.read_refused(index, *unread, awaited);
            }
        }
    }

    /// A rail failed, or is too slow: it is left out. `tell`: the peer is told.
    pub(in crate::worker) fn lose_rail(&mut self, index: usize, rail: usize, tell: bool) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some(lanes) = endpoint.lanes.as_mut().filter(|lanes| rail < lanes.count()) else { return };
        if !lanes.rails.down(rail, now) {
            return;
        }
        lanes.lanes[rail].fail();
        lanes.lanes[rail].failed = Some(now);
        endpoint.note(now, Note::of("leaves out rail", rail as u64));
        tracing::info!(parent: &endpoint.span, rail, "a rail is left out");
        self.counters.rails_lost += 1;
        if tell {
            self.tell_rail_is_down(index, rail);
        }
        self.look_after_rails(index, now);
    }

    /// A probe was answered, after that time.
    fn answered_on_rail(&mut self, index: usize, rail: usize, took: Duration) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let Some(lanes) = &mut endpoint.lanes else { return };
        let was_up = lanes.rails.stage(rail) == RailStage::Up;
        let is_up = lanes.rails.probed(rail, took);
        if is_up && let Some(left) = lanes.lanes[rail].to_ask.checked_sub(1) {
            lanes.lanes[rail].to_ask = left;
            lanes.probe(ep, rail, now);
        }
        if was_up || !is_up {
            return;
        }
        endpoint.note(now, Note::of("uses rail", rail as u64));
        tracing::debug!(parent: &endpoint.span, rail, "a rail is used");
        self.counters.rails_used += 1;
    }

    /// Sees to it that the connection is looked after while rails need that.
    pub(super) fn look_after_rails(&mut self, index: usize, now: Duration) {
        let lanes = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_ref());
        if let Some(due) = lanes.and_then(|lanes| lanes.due(now)) {
            self.schedule(index, due);
        }
    }
}

/// Completions that are taken at once.
const BATCH: usize = 16;
