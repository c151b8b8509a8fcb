//! Why it was chosen so, in words.

use std::collections::BTreeMap;
use std::fmt;

use super::candidates::{Candidate, Verdict};
use super::choice::{Assignment, Proven};
use super::consumer::Consumer;
use crate::model::{Machine, NicId, NodeId};

/// The candidates of each consumer, the path of each, its limit, and the reason for the choice.
/// Printed, it is a paragraph for each, and a line where it is not proven that nothing is better.
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'a> {
    assignments: &'a [Assignment],
    labels: &'a BTreeMap<NodeId, String>,
    proven: Proven,
}

impl<'a> Explanation<'a> {
    pub(super) fn new(assignments: &'a [Assignment], labels: &'a BTreeMap<NodeId, String>, proven: Proven) -> Self {
        Self { assignments, labels, proven }
    }

    fn label(&self, node: impl Into<NodeId>) -> &'a str {
        self.labels.get(&node.into()).map_or("?", String::as_str)
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, assignment) in self.assignments.iter().enumerate() {
            if place > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}: {}", self.label(assignment.consumer), assignment.reason)?;
            for candidate in &assignment.candidates {
                let via = candidate.via.map(|gpu| format!(" over {}", self.label(gpu))).unwrap_or_default();
                let staged = if candidate.gpu_direct { "" } else { ", through host memory" };
                let class = candidate.path.class;
                let verdict = match &candidate.verdict {
                    Verdict::VirtualFunctionOf(nic) => {
                        format!("a virtual function of {}, which is here too", self.label(*nic))
                    }
                    verdict => verdict.to_string(),
                };
                let limit = match candidate.limit {
                    unknown if unknown.is_unlimited() => UNKNOWN_RATE.to_owned(),
                    limit => format!("at most {limit}"),
                };
                let nic = self.label(candidate.nic);
                writeln!(f, "  {nic}{via}: {class}, {limit}{staged}: {verdict}")?;
            }
        }
        if self.proven.gpus && self.proven.cpus { Ok(()) } else { writeln!(f, "\n{}", self.proven) }
    }
}

/// Writes the reason of each assignment, and of each candidate that was not chosen.
pub(super) fn reasons(machine: &Machine, assignments: &mut [Assignment], pinned: &[Option<Vec<u16>>]) {
    let mut users: BTreeMap<NicId, Vec<Consumer>> = BTreeMap::new();
    for assignment in assignments.iter() {
        for rail in &assignment.rails {
            users.entry(rail.nic).or_default().push(assignment.consumer);
        }
    }
    for (assignment, pinned) in assignments.iter_mut().zip(pinned) {
        assignment.reason = reason(machine, assignment, &users, pinned.is_some());
        let rails = assignment.rails.clone();
        let chosen = || assignment.candidates.iter().filter(|c| c.verdict == Verdict::Chosen);
        let farthest = chosen().map(|c| c.path.class).max();
        let least = chosen().map(|c| c.limit).min();
        let why = |candidate: &Candidate| {
            let others = users.get(&candidate.nic).into_iter().flatten().filter(|&&who| who != assignment.consumer);
            let others: Vec<String> = others.map(|&who| machine.label(who)).collect();
            if rails.iter().any(|rail| rail.nic == candidate.nic) {
                "another way to the same NIC is nearer or less used".to_owned()
            } else if least.is_some_and(|least| candidate.limit < least) {
                "slower".to_owned()
            } else if farthest.is_some_and(|class| candidate.path.class > class) {
                "farther".to_owned()
            } else if !others.is_empty() {
                format!("used by {}", others.join(", "))
            } else {
                "would add nothing".to_owned()
            }
        };
        let words: Vec<Option<String>> = assignment
            .candidates
            .iter()
            .map(|candidate| matches!(candidate.verdict, Verdict::NotChosen(_)).then(|| why(candidate)))
            .collect();
        for (candidate, word) in assignment.candidates.iter_mut().zip(words) {
            if let Some(word) = word {
                candidate.verdict = Verdict::NotChosen(word);
            }
        }
    }
}

fn reason(machine: &Machine, assignment: &Assignment, users: &BTreeMap<NicId, Vec<Consumer>>, pinned: bool) -> String {
    if assignment.rails.is_empty() {
        return if assignment.candidates.is_empty() {
            "no NIC, since the machine has none that it is joined to".to_owned()
        } else {
            "no NIC, since none of those there are can be used".to_owned()
        };
    }
    let rails = assignment.rails.iter().map(|rail| {
        let mut text = format!("{} ({}", machine.label(rail.nic), rail.path.class);
        if let Some(via) = rail.via {
            text += &format!(" over {}", machine.label(via));
        }
        if !rail.gpu_direct {
            text += ", through host memory";
        }
        let others = users.get(&rail.nic).into_iter().flatten().filter(|&&who| who != assignment.consumer);
        let others: Vec<String> = others.map(|&who| machine.label(who)).collect();
        match others.len() {
            0 => {}
            few if few <= NAMED => text += &format!(", shared with {}", others.join(", ")),
            many => text += &format!(", shared with {} and {} more", others[..NAMED - 1].join(", "), many + 1 - NAMED),
        }
        text + ")"
    });
    let rails: Vec<String> = rails.collect();
    let because = if pinned { "as told" } else { because(assignment, users) };
    format!("{}, {}: {because}", rails.join(" and "), rate(machine, assignment))
}

/// What it has, as far as that is known: a machine may not tell rates of ports and links, which then limit nothing.
fn rate(machine: &Machine, assignment: &Assignment) -> String {
    if !assignment.rails.iter().all(|rail| rail.is_rate_bounded(machine)) {
        UNKNOWN_RATE.to_owned()
    } else if assignment.rails.iter().all(|rail| rail.is_port_known(machine) && rail.are_links_known()) {
        assignment.bandwidth.to_string()
    } else {
        format!("at most {}", assignment.bandwidth)
    }
}

const UNKNOWN_RATE: &str = "at a rate that is not known";
/// Others that a NIC is shared with are named up to this many.
const NAMED: usize = 4;

/// The rule that decided.
fn because(assignment: &Assignment, users: &BTreeMap<NicId, Vec<Consumer>>) -> &'static str {
    let open = || assignment.candidates.iter().filter(|c| matches!(c.verdict, Verdict::NotChosen(_) | Verdict::Chosen));
    let rails = &assignment.rails;
    let nearest = open().map(|candidate| candidate.path.class).min();
    let chosen = rails.iter().map(|rail| rail.path.class).max();
    let nics = open().map(|candidate| candidate.nic).collect::<std::collections::BTreeSet<_>>();
    let alone = rails.iter().all(|rail| users.get(&rail.nic).is_none_or(|all| all.len() == 1));
    let software = || assignment.candidates.iter().all(|c| c.verdict != Verdict::Software);
    if rails.len() > 1 {
        "together they carry more than one, and nobody else needs them"
    } else if nics.len() == 1 && assignment.candidates.len() == 1 {
        "there is no other"
    } else if nics.len() == 1 {
        if software() && assignment.candidates.iter().any(|c| c.verdict == Verdict::NotDirect) {
            "only there GPUDirect can be used"
        } else if assignment.candidates.iter().any(|c| c.verdict == Verdict::RateUnknown) {
            "of the others it is not known how fast they are"
        } else {
            "there is no other that can be used"
        }
    } else if rails.iter().any(|rail| rail.via.is_some()) {
        "the neighbour's NIC gives more than any of its own"
    } else if chosen > nearest {
        "nearer ones are slower, or others need them more"
    } else if alone {
        "none is nearer, and it has it alone"
    } else {
        "none is nearer, and no other division gives the last more"
    }
}
