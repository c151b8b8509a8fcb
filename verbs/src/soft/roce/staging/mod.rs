//! GPU memory of packets: packets are too small for a copy of the driver each, so that bytes of many come and go together, by
//! slots of pinned memory. What is sent is read ahead, while the packets before it go; what came is written behind, before
//! anybody is told of it.

mod ahead;
mod behind;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) use ahead::{ReadAhead, Source};
pub(super) use behind::{Bytes, WriteBehind};

use crate::error::GpuError;
use crate::gpu::{HostSlots, Place};

/// What there is for each GPU: made when its memory is first met. `None` where it could not be.
struct PerGpu<T>(Vec<(Place, Option<T>)>);

impl<T> PerGpu<T> {
    const fn new() -> Self {
        PerGpu(Vec::new())
    }

    /// That of the GPU at `place`.
    fn get(&mut self, place: Place, make: impl FnOnce(HostSlots) -> T) -> Option<&mut T> {
        let known = self.0.iter().position(|(of, _)| *of == place);
        let index = known.unwrap_or_else(|| {
            let made = place.opened().map(|gpu| HostSlots::new(gpu, SLOTS, SLOT));
            let made = made.and_then(|made| {
                let refused = |error| tracing::warn!(%error, "no slots for GPU memory; packets are copied one by one");
                made.map_err(refused).ok()
            });
            self.0.push((place, made.map(make)));
            self.0.len() - 1
        });
        self.0[index].1.as_mut()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().filter_map(|(_, of)| of.as_mut())
    }
}

/// Logs what a driver says of bytes that are not moved. Whoever listens may panic: those that are being moved are to come to
/// their end all the same, before their memory may be another's.
fn log(error: &GpuError) {
    let _ = catch_unwind(AssertUnwindSafe(|| tracing::error!(%error, "GPU memory of packets was not moved")));
}

/// Bytes of a slot: what few packets of 64 KiB hold, which the system takes and gives at once. A copy of so many takes about as
/// long as starting one; a multiple of every element's size.
const SLOT: usize = 128 << 10;
/// Slots in each direction: those of some connections at once, each with one that is used and one ahead or behind.
const SLOTS: usize = 16;
