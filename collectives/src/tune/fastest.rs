//! Which algorithm was the fastest where all were measured: it counts for more than what the cost model predicts.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::algorithms::Algorithm;
use crate::cost::Seats;
use crate::plan::{Collective, Counts, Spec};

/// Which algorithm was the fastest where all were measured, on one machine or between some like it. `qpair bench --compare --keep`
/// measures, and keeps it for communicators of the machine.
///
/// ```
/// use qpair_collectives::tune::{Case, Fastest, Tuner};
/// use qpair_collectives::{Algorithm, Elements, Ranks, Spec};
///
/// let spec = |n| Spec::all_reduce(Ranks(8), Elements(n), 4);
/// let mut tuner = Tuner::default();
/// tuner.fastest.set(Case::of(&spec(4096), &tuner.seats, Algorithm::ParameterServer).expect("ranks on one node"));
/// assert_eq!(tuner.choose(&spec(5000), Algorithm::Auto)?, Algorithm::ParameterServer);
/// assert_eq!(tuner.choose(&spec(1 << 20), Algorithm::Auto)?, Algorithm::Direct); // was not measured
/// # Ok::<(), qpair_collectives::RecipeError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fastest {
    /// No two in the same place of the same size.
    cases: Vec<Case>,
}

/// One size of a collective, in one place, and which algorithm was the fastest there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    place: Place,
    bytes: u64,
    algorithm: Algorithm,
}

/// What the time of an algorithm depends on, beside the size. Elements of other types are taken to be alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// With rank 0 as the root.
    collective: Collective,
    ranks: u32,
    /// With as many of the ranks each.
    nodes: u32,
    /// Of a node, that its ranks can use: no more than they are.
    cores: f64,
}

/// What was measured can not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The environment names no folder for it.
    #[error("there is no folder to keep it in: set HOME, or XDG_CACHE_HOME to a folder for caches")]
    NoFolder,
    /// The system does not let the file be written.
    #[error("{} can not be written: {source}; XDG_CACHE_HOME names another folder", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Case {
    /// The size and the place of what is asked for. `None` where ranks have lengths of their own, or nodes other numbers of ranks,
    /// which no two communicators have alike.
    pub fn of(spec: &Spec, seats: &Seats, algorithm: Algorithm) -> Option<Case> {
        let Counts::Even(elements) = spec.counts else { return None };
        let ranks = spec.ranks.0;
        let sizes = seats.nodes.sizes(0..ranks);
        let each = *sizes.values().next()?;
        if matches!(spec.collective, Collective::Transfer { .. }) || sizes.values().any(|&other| other != each) {
            return None;
        }
        let cores = seats.cores.min(f64::from(each));
        let place = Place { collective: spec.collective.with_root(0), ranks, nodes: sizes.len() as u32, cores };
        let blocks = if spec.collective.has_blocks() { u64::from(ranks) } else { 1 };
        let bytes = elements.saturating_mul(blocks).saturating_mul(spec.element_size.into());
        Some(Case { place, bytes, algorithm })
    }

    /// The vector's bytes, or those of all blocks together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Which algorithm was the fastest.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many times as large this is as another, or the other as this.
    fn distance(&self, other: &Case) -> f64 {
        let (a, b) = (self.bytes.max(1) as f64, other.bytes.max(1) as f64);
        (a / b).max(b / a)
    }

    /// Whether it says what can be.
    fn is_sound(&self) -> bool {
        let Place { collective, ranks, nodes, cores } = self.place;
        let names_one = !matches!(self.algorithm, Algorithm::Auto | Algorithm::Listed);
        names_one && self.algorithm.does(collective) && ranks > 0 && (1..=ranks).contains(&nodes) && cores > 0.0
    }
}

impl Fastest {
    /// Notes a case, instead of the one that was measured before of the same.
    pub fn set(&mut self, case: Case) {
        match self.cases.iter_mut().find(|old| old.place == case.place && old.bytes == case.bytes) {
            Some(old) => *old = case,
            None => self.cases.push(case),
        }
    }

    /// The case that is nearest to what is asked for, if one is in the same place, at no more than twice or half its size.
    pub fn nearest(&self, spec: &Spec, seats: &Seats) -> Option<&Case> {
        if self.cases.is_empty() {
            return None;
        }
        let asked = Case::of(spec, seats, Algorithm::Auto)?;
        let same = self.cases.iter().filter(|case| case.place == asked.place);
        let nearest = same.min_by(|a, b| asked.distance(a).total_cmp(&asked.distance(b)))?;
        (asked.distance(nearest) <= FURTHEST).then_some(nearest)
    }

    /// How many cases there are.
    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// Whether all cases say what can be. Those that were read from a file may say anything.
    pub(crate) fn is_sound(&self) -> bool {
        self.cases.iter().all(Case::is_sound)
    }
}

/// Between sizes of which each is four times the one before, one of the two is as near as that.
const FURTHEST: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Nodes;
    use crate::plan::{Elements, Ranks};
    use crate::tune::{Tuner, Tuning};

    fn spec(collective: Collective, elements: u64) -> Spec {
        Spec::new(collective, Ranks(8), Elements(elements), 4)
    }

    fn seats(nodes: Nodes, cores: f64) -> Seats {
        Seats { nodes, cores, ..Seats::default() }
    }

    #[test]
    fn the_nearest_size_counts_in_the_same_place_alone() {
        let here = seats(Nodes::One, 2.0);
        let mut fastest = Fastest::default();
        for (elements, algorithm) in [(1024, Algorithm::ParameterServer), (4096, Algorithm::Ring)] {
            fastest.set(Case::of(&spec(Collective::AllReduce, elements), &here, algorithm).unwrap());
        }
        let found = |collective, elements, seats: &Seats| {
            fastest.nearest(&spec(collective, elements), seats).map(Case::algorithm)
        };
        let sizes = [511, 512, 2047, 2049, 8192, 8193].map(|elements| found(Collective::AllReduce, elements, &here));
        let (server, ring) = (Some(Algorithm::ParameterServer), Some(Algorithm::Ring));
        assert_eq!(sizes, [None, server, server, ring, ring, None]);
        assert_eq!(found(Collective::Reduce { root: 0 }, 1024, &here), None);
        for elsewhere in [seats(Nodes::One, 4.0), seats(Nodes::Of(4), 2.0)] {
            assert_eq!(found(Collective::AllReduce, 1024, &elsewhere), None);
        }
        // Sixteen cores are as many as eight for eight ranks.
        let [eight, many] = [8.0, f64::INFINITY].map(|cores| seats(Nodes::One, cores));
        let case = |seats| Case::of(&spec(Collective::AllReduce, 1), seats, Algorithm::Ring);
        assert_eq!(case(&eight), case(&many));
        assert_ne!(case(&eight), case(&here));
    }

    #[test]
    fn any_root_is_alike_and_blocks_count_together() {
        let here = Seats::default();
        let mut fastest = Fastest::default();
        fastest.set(Case::of(&spec(Collective::Broadcast { root: 3 }, 64), &here, Algorithm::Chain).unwrap());
        fastest.set(Case::of(&spec(Collective::AllGather, 64), &here, Algorithm::Ring).unwrap());
        assert_eq!(fastest.nearest(&spec(Collective::Broadcast { root: 5 }, 64), &here).unwrap().bytes(), 256);
        assert_eq!(fastest.nearest(&spec(Collective::AllGather, 64), &here).unwrap().bytes(), 8 * 256);
    }

    #[test]
    fn what_was_measured_again_takes_the_place() {
        let here = Seats::default();
        let mut fastest = Fastest::default();
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            fastest.set(Case::of(&spec(Collective::AllReduce, 64), &here, algorithm).unwrap());
        }
        assert_eq!(fastest.len(), 1);
        assert_eq!(fastest.cases[0].algorithm(), Algorithm::Direct);
    }

    #[test]
    fn lengths_and_nodes_of_their_own_are_no_case() {
        let here = Seats::default();
        let each = Counts::Ragged((0..8).collect::<Vec<u64>>().into());
        let of_any_length = spec(Collective::AllGather, 1).with_counts(each);
        assert_eq!(Case::of(&of_any_length, &here, Algorithm::Ring), None);
        let other = seats(Nodes::Of(5), 8.0);
        assert_eq!(Case::of(&spec(Collective::AllReduce, 1), &other, Algorithm::Ring), None);
        assert_eq!(Case::of(&spec(Collective::Transfer { from: 0, to: 1 }, 1), &here, Algorithm::Flat), None);
    }

    #[test]
    fn what_can_not_be_is_not_believed_and_not_chosen() {
        let case = Case::of(&spec(Collective::AllReduce, 64), &Seats::default(), Algorithm::Ring).unwrap();
        let sound = |case: Case| Fastest { cases: vec![case] }.is_sound();
        assert!(sound(case.clone()));
        let place = case.place.clone();
        for wrong in [
            Case { algorithm: Algorithm::Auto, ..case.clone() },
            Case { algorithm: Algorithm::Dissemination, ..case.clone() },
            Case { place: Place { nodes: 9, ..place.clone() }, ..case.clone() },
            Case { place: Place { cores: f64::NAN, ..place }, ..case.clone() },
        ] {
            assert!(!sound(wrong.clone()), "{wrong:?}");
        }
        // A ring does not combine in the canonical order.
        let tuning = Tuning { deterministic: true, ..Tuning::default() };
        let tuner = Tuner { tuning, fastest: Fastest { cases: vec![case] }, ..Tuner::default() };
        let chosen = tuner.choose(&spec(Collective::AllReduce, 64), Algorithm::Auto).unwrap();
        assert_ne!(chosen, Algorithm::Ring);
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut fastest = Fastest::default();
        for (collective, algorithm) in
            [(Collective::Broadcast { root: 0 }, Algorithm::Chain), (Collective::Barrier, Algorithm::Exchange)]
        {
            fastest.set(Case::of(&spec(collective, 64), &seats(Nodes::Of(2), 0.5), algorithm).unwrap());
        }
        let text = serde_json::to_string(&fastest).unwrap();
        assert_eq!(serde_json::from_str::<Fastest>(&text).unwrap(), fastest);
    }
}
