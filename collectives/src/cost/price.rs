//! What an outline takes: each phase by what holds it up.

use super::model::CostModel;
use super::seats::Spread;
use crate::algorithms::{Nodes, Outline, Phase, Reach, Side};

/// What an operation takes by an algorithm, as far as that can be told without its plan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Price {
    /// From the common start to the last rank's end, in seconds.
    pub seconds: f64,
    /// Seconds of these in which ranks wait for messages to arrive, or for a core.
    pub waiting: f64,
    /// Seconds of these in which links between islands of a node are full.
    pub beside: f64,
    /// Seconds of these in which links between nodes are full.
    pub between: f64,
}

impl CostModel {
    /// Prices an outline among ranks so spread, whose messages are copied or go straight from memory to memory. `near` is whom
    /// the algorithm takes to be on one node.
    pub(crate) fn price(&self, outline: &Outline, spread: &Spread, near: &Nodes, copied: bool) -> Price {
        let (model, copy) = self.among(spread);
        let taken: f64 = outline.phases.iter().map(|phase| phase.rounds * phase.takes.bytes).sum();
        let uncached = if taken > 0.0 { (1.0 - CACHED / (spread.crowd() * taken)).max(0.0) } else { 0.0 };
        let pricing = Pricing { model, copy, uncached, copied, spread, near };
        let mut price = Price::default();
        price.add(pricing.edges(outline), (1.0, 1.0));
        for phase in outline.phases.iter().filter(|phase| phase.rounds > 0.0 && phase.takes.ranks > 0.0) {
            price.add(pricing.round(phase), (phase.rounds, phase.waits));
        }
        price
    }
}

impl Price {
    /// Adds another, so many times, of which so many wait.
    fn add(&mut self, other: Price, (times, waits): (f64, f64)) {
        self.seconds += times * (other.seconds - other.waiting) + waits * other.waiting;
        self.waiting += waits * other.waiting;
        self.beside += times * other.beside;
        self.between += times * other.between;
    }
}

struct Pricing<'a> {
    model: CostModel,
    /// At which a rank copies a message.
    copy: f64,
    /// The part of what it takes that the caches of its core do not hold: that is in the memory which all share.
    uncached: f64,
    copied: bool,
    spread: &'a Spread,
    near: &'a Nodes,
}

impl Pricing<'_> {
    /// Beginning and end. A rank whose memory a peer is to reach tells it when it has begun, and hears when it is done.
    fn edges(&self, outline: &Outline) -> Price {
        let CostModel { start, send, receive, packet, within, between, .. } = self.model;
        let crossing = self.spread.nodes.crossing(Reach::All, self.near);
        let word = send + receive + 2.0 * packet * crossing;
        let told = |ranks: f64| if self.copied { 0.0 } else { ranks * word };
        // The rank with most to tell shares its core with others that have less.
        let work = self.spread.crowd() * (start + told(outline.usual)) + told(outline.reaches - outline.usual);
        let link = if crossing > 0.0 { between } else { within };
        let waiting = if self.copied { 0.0 } else { link.latency };
        Price { seconds: work + waiting, waiting, ..Price::default() }
    }

    fn round(&self, phase: &Phase) -> Price {
        let Spread { nodes, islands, .. } = self.spread;
        let [crossing, leaving] = [nodes, islands].map(|parted| parted.crossing(phase.reach, self.near));
        let (gives, takes) = (self.giving(phase, crossing), self.taking(phase, crossing));
        // The part of the ranks that are on the fullest node; no more of them at a time than there are.
        let part = |fullest: f64| fullest / f64::from(self.spread.ranks.max(1));
        let here = part(self.spread.nodes.fullest);
        let shared = |give: f64, take: f64| {
            let all = here * (phase.gives.ranks * give + phase.takes.ranks * take);
            (give + take).max(all / self.spread.cores)
        };
        let messages = shared(gives.messages, takes.messages);
        let copies = shared(gives.bytes, takes.bytes);
        let bytes = here * phase.takes.ranks * phase.takes.bytes * self.uncached;
        if phase.takes.messages <= 0.0 {
            return Price { seconds: messages + copies.max(bytes / self.model.within.speed), ..Price::default() };
        }
        let aside = (leaving - crossing).max(0.0);
        let memory = bytes * (1.0 - crossing) / self.model.within.speed;
        // Those of a side that are few are in one place.
        let most = |side: Side, part: f64| (part * side.ranks).max(side.ranks.min(1.0)) * side.bytes;
        let link = |fullest: f64| most(phase.gives, part(fullest)).max(most(phase.takes, part(fullest)));
        let beside = link(islands.fullest) * aside / self.model.beside.speed;
        let rails = link(nodes.fullest) * crossing / self.model.between.speed;
        let link = match (crossing > 0.0, aside > 0.0) {
            (true, _) => self.model.between,
            (false, true) => self.model.beside,
            (false, false) => self.model.within,
        };
        // What is read from another node is asked for first. A rank that waited finds the others on its core before it.
        let ways = if crossing > 0.0 && !self.copied { 2.0 } else { 1.0 };
        let waiting = ways * link.latency + self.model.turn * (self.spread.crowd() - 1.0);
        let busy = copies.max(memory).max(beside).max(rails);
        let full = |link: f64| if link > 0.0 && link >= busy { link } else { 0.0 };
        let between = full(rails);
        let beside = if between > 0.0 { 0.0 } else { full(beside) };
        Price { seconds: waiting + messages + busy, waiting, beside, between }
    }

    /// Of a rank that gives, in a round, if that part of its messages goes to other nodes.
    fn giving(&self, phase: &Phase, crossing: f64) -> Work {
        let (side, model) = (phase.gives, self.model);
        let (packet, carried) = (model.packet * crossing, model.carrying(side.bytes * crossing));
        if self.copied {
            return Work { messages: side.messages * (model.send + packet), bytes: side.bytes / self.copy + carried };
        }
        // A word says when what was passed on may be read; what is read is asked for and answered.
        let told = if phase.passes_on { model.send + packet } else { 0.0 };
        Work { messages: side.messages * (told + READ * packet), bytes: carried }
    }

    /// Of a rank that takes.
    fn taking(&self, phase: &Phase, crossing: f64) -> Work {
        let (side, model) = (phase.takes, self.model);
        let packet = model.packet * crossing;
        let straight = !self.copied && side.messages > 0.0;
        let heard = if phase.passes_on { model.receive + packet } else { 0.0 };
        let each = if straight { model.transfer + heard + READ * packet } else { model.receive + packet };
        let speed = if phase.combines {
            model.combine
        } else if straight {
            model.straight
        } else if side.messages > 0.0 {
            self.copy
        } else {
            model.copy
        };
        let carried = if side.messages > 0.0 { model.carrying(side.bytes * crossing) } else { 0.0 };
        Work { messages: side.messages * each, bytes: side.bytes / speed + carried }
    }
}

/// Bytes of an operation that a core's own caches hold beside all else: a quarter of the least second-level cache of servers' cores.
const CACHED: f64 = 64e3;

/// Packets of a read, at either end.
pub(super) const READ: f64 = 2.0;

/// Seconds of a rank's work.
struct Work {
    messages: f64,
    bytes: f64,
}
