//! What was decided, in words.

use std::fmt;

use super::core::Core;
use crate::bootstrap::Member;

/// What a communicator decided, and how it is doing; for people, by [`Display`](fmt::Display).
#[derive(Clone, Debug)]
pub struct Explanation {
    lines: Vec<String>,
}

impl Explanation {
    pub(super) fn new(core: &Core, rank: u32, members: &[Member]) -> Self {
        let mut lines = vec![format!("rank {rank} of {}", members.len())];
        if let Some(error) = core.error() {
            lines.push(format!("ended: {error}"));
        }
        if let Some(net) = &core.net {
            lines.push(format!("device {}: {}", net.device(), net.placed()));
        }
        for (other, Member { whereabouts: its, device }) in (0_u32..).zip(members) {
            let link = core.net.as_ref().filter(|_| other != rank).map(|net| net.describe(other));
            let link = link.unwrap_or_else(|| "this rank".into());
            lines.push(format!("rank {other}: {} on {} cores, {device}, {link}", its.host, its.cores.len()));
        }
        let (spins, yields) = (core.patience.spins, core.patience.yields);
        lines.push(format!(
            "waiting: {spins} polls, {}; then {yields} polls between which the core is given away; then sleep, \
             and give up after {:?}",
            if spins > 0 { "as each rank here has a core" } else { "as ranks here share cores" },
            core.limit
        ));
        let tuning = &core.tuning;
        lines.push(format!(
            "plans whose messages have up to {} bytes copy them; others let them go from memory to memory, in segments of \
             {} bytes",
            tuning.eager, tuning.segment
        ));
        lines.push(format!(
            "all-reduce: recursive doubling up to {} bytes, or exchange among up to {} ranks; then direct among up to {} \
             ranks, then ring",
            tuning.recursive_doubling_to, tuning.exchange_to_ranks, tuning.direct_to_ranks
        ));
        lines.push(format!(
            "among up to {} ranks: flat broadcast, barrier by exchange; else binomial tree up to {} bytes, then chain; \
             barrier by dissemination",
            tuning.flat_to_ranks, tuning.tree_to
        ));
        for plan in core.plans() {
            let how = if plan.is_large() { "straight" } else { "copied" };
            lines.push(format!("plan: {}, {} steps here, messages {how}", plan.call(), plan.len()));
        }
        Explanation { lines }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
