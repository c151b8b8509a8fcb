//! A stream of a GPU on which slots of memory are copied, with an event for each.

use super::capture::is_refusal;
use super::device::{Device, Gpu};
use super::driver::{Handle, NOT_READY};
use super::lane::Lane;
use crate::error::GpuError;

/// The copies of some slots of memory, in order, and how far they are. Nothing is allocated once it is made. When it is dropped
/// it waits for all.
pub(super) struct Copies {
    device: &'static Device,
    /// Its stream is nobody else's until it is given back.
    lane: Lane,
    slots: Vec<Slot>,
}

/// One slot.
struct Slot {
    /// Behind the last copy of it.
    event: Handle,
    is_under_way: bool,
}

impl Copies {
    /// Those of `count` slots, by a GPU.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(super) fn new(gpu: Gpu, count: usize) -> Result<Self, GpuError> {
        let device = gpu.device();
        let lane = device.take_lane()?;
        let mut copies = Copies { device, lane, slots: Vec::with_capacity(count) };
        let _entered = device.enter()?;
        for _ in 0..count {
            // SAFETY: the context is this thread's.
            let event = unsafe { device.driver.create_event() }?;
            copies.slots.push(Slot { event, is_under_way: false });
        }
        Ok(copies)
    }

    pub(super) fn gpu(&self) -> Gpu {
        Gpu::on(self.device)
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Whether a copy of a slot may be under way.
    pub(super) fn is_under_way(&self, slot: usize) -> bool {
        self.slots[slot].is_under_way
    }

    /// Starts what `work` puts into the stream, for a slot. It may be under way until the slot was [waited for](Copies::wait), or
    /// was found [done](Copies::is_done).
    ///
    /// # Errors
    /// [`GpuError::Driver`]; nothing is under way then.
    ///
    /// # Safety
    /// What `work` starts reaches only memory that is there until it is over. The device's context is this thread's while it runs.
    pub(super) unsafe fn start(
        &mut self,
        slot: usize,
        work: impl FnOnce(&'static Device, Handle) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let stream = self.lane.stream();
        let _entered = self.device.enter()?;
        // SAFETY: the context is this thread's; the event is this value's.
        let started = work(self.device, stream)
            .and_then(|()| unsafe { self.device.driver.record(self.slots[slot].event, stream) });
        if let Err(error) = started {
            // Part of it may have been.
            self.stop();
            return Err(error);
        }
        self.slots[slot].is_under_way = true;
        Ok(())
    }

    /// Whether no copy of a slot is under way.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: its copy has failed, and is over.
    pub(super) fn is_done(&mut self, slot: usize) -> Result<bool, GpuError> {
        if !self.slots[slot].is_under_way {
            return Ok(true);
        }
        // SAFETY: the event is alive as long as this value.
        match self.device.enter().and_then(|_entered| unsafe { self.device.driver.query(self.slots[slot].event) }) {
            Err(GpuError::Driver { code: NOT_READY, .. }) => Ok(false),
            // It may be under way: it is asked again.
            Err(error) if is_refusal(&error) => Ok(false),
            other => self.over(slot, other).map(|()| true),
        }
    }

    /// Waits until no copy of a slot is under way.
    ///
    /// # Errors
    /// As [`is_done`](Copies::is_done).
    pub(super) fn wait(&mut self, slot: usize) -> Result<(), GpuError> {
        if !self.slots[slot].is_under_way {
            return Ok(());
        }
        // SAFETY: as in `is_done`.
        let waited =
            self.device.enter().and_then(|_entered| unsafe { self.device.driver.wait(self.slots[slot].event) });
        match waited {
            Err(error) if is_refusal(&error) => {
                let settled = self.settle();
                self.over(slot, settled)
            }
            other => self.over(slot, other),
        }
    }

    /// No copy of a slot is under way any more.
    fn over(&mut self, slot: usize, result: Result<(), GpuError>) -> Result<(), GpuError> {
        if result.is_err() {
            self.stop();
        }
        self.slots[slot].is_under_way = false;
        result
    }

    /// Waits for all that the stream was given, though the driver did not do as it was told. Where it does not do this either,
    /// the context is lost, and all that ran in it.
    #[cold]
    fn stop(&self) {
        if let Err(error) = self.settle() {
            tracing::error!(%error, "a stream of a GPU does not end");
        }
    }

    fn settle(&self) -> Result<(), GpuError> {
        self.device.enter().and_then(|_entered| self.lane.settle(self.device))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for slot in 0..self.slots.len() {
            // What has failed is over too.
            let _ = self.wait(slot);
        }
        let entered = self.device.enter();
        for slot in &self.slots {
            // SAFETY: nobody has the event any more, and nothing is under way.
            let destroyed = unsafe { self.device.driver.destroy_event(slot.event) };
            if let Err(error) = destroyed {
                tracing::error!(%error, "an event of a GPU could not be destroyed");
            }
        }
        drop(entered);
        self.device.give_lane(self.lane);
    }
}
