//! What was decided, in words.

use std::fmt;

use super::core::Core;
use crate::algorithms::Algorithm;
use crate::bootstrap::Member;
use crate::cost::Seats;
use crate::execute::{Compiled, OwnPlan};
use crate::plan::Collective;
use crate::tune::Tuner;

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
        let why = (0..).zip(members).find_map(|(other, member)| Some(member.staging?.words(other)));
        if let (Some(why), Some(net)) = (why, &core.net) {
            lines.push(format!("messages of GPUs: by {}, {why}", net.slots_are()));
        }
        for (other, Member { whereabouts: its, device, .. }) in (0_u32..).zip(members) {
            let link = core.net.as_ref().filter(|_| other != rank).map(|net| net.describe(other));
            let link = link.unwrap_or_else(|| "this rank".into());
            let gpu = its.gpu.map(|gpu| format!(", GPU {gpu}")).unwrap_or_default();
            lines.push(format!("rank {other}: {} on {} cores{gpu}, {device}, {link}", its.host, its.cores.len()));
        }
        let (spins, yields) = (core.patience.spins, core.patience.yields);
        lines.push(format!(
            "waiting: {spins} polls, {}; then {yields} polls between which the core is given away; then sleep, \
             and give up after {:?}",
            core.patience.reason(),
            core.limit
        ));
        // One collective of each kind.
        let [eager, one_way] =
            [Collective::AllReduce, Collective::Broadcast { root: 0 }].map(|collective| core.tuner.eager(collective));
        let apart = (one_way != eager).then(|| format!(", or up to {one_way} where data goes one way"));
        let Tuner { tuning, model, seats, fastest } = &core.tuner;
        lines.push(format!(
            "plans whose messages have up to {eager} bytes copy them{}; others let them go from memory to memory, in \
             segments of {} bytes",
            apart.unwrap_or_default(),
            tuning.segment
        ));
        let order = if tuning.deterministic { ", of those that combine in the canonical order" } else { "" };
        lines.push(format!(
            "algorithms: the one that takes the least time by the cost model{order}; {} cores a node{}",
            seats.cores,
            islands(seats, members.len() as u32)
        ));
        if !fastest.is_empty() {
            let cases = if fastest.len() == 1 { "case" } else { "cases" };
            lines.push(match core.tuner.goes_by_cases() {
                true => format!("but the one that was the fastest in the nearest of {} {cases} that were measured", fastest.len()),
                false => format!(
                    "{} {cases} that were measured count for nothing, as they are of other segments or copies than these",
                    fastest.len()
                ),
            });
        }
        lines.push(format!("cost model: {}", core.origin));
        lines.extend(model.to_string().lines().map(|line| format!("  {line}")));
        for plan in core.plans() {
            let how = match (plan.is_staged(), plan.is_large()) {
                (true, _) => "by slots",
                (false, true) => "straight",
                (false, false) => "copied",
            };
            lines.push(format!("plan: {}, {} steps here, messages {how}", plan.call(), plan.len()));
            lines.extend(choice(core, plan));
        }
        let is_unused = |own: &&OwnPlan| !core.plans().any(|plan| *plan.spec() == own.plan.spec);
        let unused = core.own_plans.iter().filter(is_unused);
        lines.extend(unused.map(|own| format!("a plan of the user's own that nothing used so far: {}", own.plan.spec)));
        Explanation { lines }
    }
}

/// How ranks are on islands of their nodes, where there are several.
fn islands(seats: &Seats, ranks: u32) -> String {
    let kinds = [(&seats.islands, "sockets"), (&seats.gpu_islands, "islands of GPUs")];
    let told = kinds.into_iter().filter_map(|(islands, what)| {
        let on = islands.as_ref()?.sizes(0..ranks);
        Some(format!("; on {} {what}", on.len()))
    });
    told.collect()
}

/// Why a plan is by that algorithm: the candidates, and what each takes.
fn choice(core: &Core, plan: &Compiled) -> Vec<String> {
    let (wish, chosen) = (plan.wish(), plan.call().algorithm);
    if chosen == Algorithm::Listed {
        return vec!["  a plan of the user's own".into()];
    }
    if wish == chosen {
        return vec!["  asked for".into()];
    }
    let tuner = core.tuner.where_vectors_are(plan.call().on_gpu);
    let measured = tuner.case(plan.spec()).filter(|case| case.algorithm() == chosen);
    let measured = measured.map(|case| format!("  the fastest of all that were measured at {} bytes", case.bytes()));
    let candidates = tuner.candidates(plan.spec());
    let us = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let header = format!(
        "  {:<20}{:>14}{:>14}{:>14}{:>14}",
        "predicted", "time (us)", "waiting (us)", "islands (us)", "rails (us)"
    );
    let rows = candidates.iter().map(|candidate| {
        let (price, mark) = (candidate.price, if candidate.algorithm == chosen { "  chosen" } else { "" });
        let name = candidate.algorithm.name();
        let [time, waiting, beside, between] = [price.seconds, price.waiting, price.beside, price.between].map(us);
        format!("  {name:<20}{time:>14}{waiting:>14}{beside:>14}{between:>14}{mark}")
    });
    measured.into_iter().chain([header]).chain(rows).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
