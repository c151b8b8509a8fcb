//! Measures what GPUs take: to start a kernel and wait for it, and for each byte.

use std::ops::Range;
use std::time::{Duration, Instant};

use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{Gpu, GpuBuffer, GpuStage, MemoryError, ProtectionDomain};

use super::{digits, time};
use crate::cost::{GpuModel, SLOT, SLOTS};

impl GpuModel {
    /// Measures what operations take on a GPU, in some tenths of a second and with 256 MiB of its memory; what passes between it and
    /// 128 MiB of `neighbour`, one of another island
    /// ([`Machine::gpu_islands`](qpair_topology::Machine::gpu_islands)), if there is one; and what passes by pinned slots that are
    /// registered with `domain`. What can not be is as in the default. That ranks read each other's memory as fast as the GPU copies
    /// its own holds where they share it; where each has its own, over NVLink, it takes longer.
    ///
    /// Communicators do not measure it by themselves, since ranks come together before it is known whether they will use GPUs: let
    /// QPAIR_COST_MODEL name a file of a [`CostModel`](crate::cost::CostModel) with it, as `qpair plan model measure --gpu --json`
    /// prints it.
    ///
    /// ```no_run
    /// use qpair_collectives::cost::{CostModel, GpuModel};
    /// use qpair_verbs::{Context, Gpu};
    ///
    /// let domain = Context::open("soft0")?.alloc_pd()?;
    /// let gpu = GpuModel::measured(Gpu::open(0)?, None, &domain)?;
    /// let model = CostModel { gpu, ..CostModel::of_this_machine()? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError`] if there is no memory for it, or the driver refuses.
    pub fn measured(gpu: Gpu, neighbour: Option<Gpu>, domain: &ProtectionDomain) -> Result<Self, MemoryError> {
        let built_in = GpuModel::default();
        let (mut to, from) = (gpu.alloc(LONG)?, gpu.alloc(LONG)?);
        let sum = Calc::of::<f32>(ReduceOp::Sum);
        let started = least(|| Ok(to.combine_from((0, &from, 0), SHORT, sum)?))?;
        let combined = least(|| Ok(to.combine_from((0, &from, 0), LONG, sum)?))?;
        let copied = least(|| Ok(to.copy_from(0, &from, 0, LONG)?))?;
        let crossed = match neighbour.map(|other| other.alloc(LONG)).transpose()? {
            Some(there) => Some(least(|| Ok(to.copy_from(0, &there, 0, LONG)?))?),
            None => None,
        };
        let staged = staged(&mut to, &from, domain)?;
        let rate = |seconds: f64, otherwise| speed(LONG, seconds - started, otherwise);
        let copy = rate(copied, built_in.copy);
        let mut model = GpuModel {
            transfer: time(started, built_in.transfer),
            copy,
            straight: copy,
            combine: rate(combined, built_in.combine),
            within: copy,
            beside: crossed.map_or(built_in.beside, |seconds| rate(seconds, built_in.beside)),
            staged: speed(LONG, staged, built_in.staged),
        };
        let GpuModel { transfer, copy, straight, combine, within, beside, staged } = &mut model;
        [transfer, copy, straight, combine, within, beside, staged].into_iter().for_each(digits);
        Ok(model)
    }
}

/// Of bytes that took so long, if a GPU can do that.
fn speed(bytes: usize, seconds: f64, otherwise: f64) -> f64 {
    let speed = bytes as f64 / seconds;
    if PLAUSIBLE_SPEEDS.contains(&speed) { speed } else { otherwise }
}

/// Seconds for all of a buffer to leave by slots, while as much comes.
fn staged(to: &mut GpuBuffer, from: &GpuBuffer, domain: &ProtectionDomain) -> Result<f64, MemoryError> {
    let stage = || GpuStage::new(domain, from.gpu(), SLOTS, SLOT);
    let (mut out, mut into) = (stage()?, stage()?);
    least(|| {
        for (part, start) in (0..LONG).step_by(SLOT).enumerate() {
            let slot = part % SLOTS;
            out.wait(slot)?;
            out.fill(slot, from, start..start + SLOT)?;
            into.wait(slot)?;
            into.drain(slot, to, start..start + SLOT, None)?;
        }
        for slot in 0..SLOTS {
            out.wait(slot)?;
            into.wait(slot)?;
        }
        Ok(())
    })
}

/// Seconds of the fastest of some times, after one that has the driver load what it needs.
fn least(mut work: impl FnMut() -> Result<(), MemoryError>) -> Result<f64, MemoryError> {
    work()?;
    let (mut least, begin) = (f64::INFINITY, Instant::now());
    for _ in 0..TRIALS {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed().as_secs_f64());
        if begin.elapsed() > BUDGET {
            break;
        }
    }
    Ok(least)
}

/// Bytes that take no time beside that of the kernel; and such that it takes none beside theirs, more than a GPU's cache holds: a
/// multiple of a slot.
const SHORT: usize = 4;
const LONG: usize = 128 << 20;
const TRIALS: u32 = 20;
/// Bytes per second that a GPU may copy or combine, or its stand-in of the tests.
const PLAUSIBLE_SPEEDS: Range<f64> = 1e6..1e14;
const BUDGET: Duration = Duration::from_millis(100);
