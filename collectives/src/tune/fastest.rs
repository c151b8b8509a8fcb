//! Which algorithm was the fastest where all were measured: it counts for more than what the cost model predicts.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::algorithms::Algorithm;
use crate::cost::{CostModel, Seats};
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
/// let case = Case::of(&spec(4096), &tuner.seats, &tuner.model, Algorithm::ParameterServer).expect("ranks on one node");
/// tuner.fastest.set(case);
/// assert_eq!(tuner.choose(&spec(5000), Algorithm::Auto)?, Algorithm::ParameterServer);
/// assert_eq!(tuner.choose(&spec(1 << 20), Algorithm::Auto)?, Algorithm::Direct); // was not measured
/// # Ok::<(), qpair_collectives::RecipeError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fastest {
    /// Each of another place.
    places: Vec<Measured>,
}

/// What was measured in one place: sizes in bytes, in ascending order, and which algorithm was the fastest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    place: Place,
    sizes: Vec<(u64, Algorithm)>,
}

/// One size of a collective, in one place, and which algorithm was the fastest there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    place: Place,
    bytes: u64,
    algorithm: Algorithm,
}

/// What the time of an algorithm depends on, beside the size. Elements of other types are taken to be alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// With rank 0 as the root.
    collective: Collective,
    ranks: u32,
    /// With as many of the ranks each.
    nodes: u32,
    /// Of which the nodes are made.
    islands: u32,
    /// Of a node, that its ranks can use: no more than they are.
    cores: f64,
    /// Whether the software device carries all that goes between ranks, within a node by shared memory.
    by_software: bool,
    /// What the rails of a node carry, in Gbit/s; 0 where there is one node.
    rails: u64,
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
    /// There is no room for more.
    #[error("{} has no room for so many sizes: measure fewer of them, or remove it to begin anew", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
}

impl Case {
    /// The size and the place of what is asked for, with ranks as `seats` says, and rails as fast as `model` says. `None` where ranks
    /// have lengths of their own, or nodes other numbers of ranks, which no two communicators have alike.
    pub fn of(spec: &Spec, seats: &Seats, model: &CostModel, algorithm: Algorithm) -> Option<Case> {
        let Counts::Even(elements) = spec.counts else { return None };
        let ranks = spec.ranks.0;
        let sizes = seats.nodes.sizes(0..ranks);
        let each = *sizes.values().next()?;
        if matches!(spec.collective, Collective::Transfer { .. }) || sizes.values().any(|&other| other != each) {
            return None;
        }
        let nodes = sizes.len() as u32;
        let place = Place {
            collective: spec.collective.with_root(0),
            ranks,
            nodes,
            islands: seats.islands.as_ref().map_or(nodes, |islands| islands.sizes(0..ranks).len() as u32),
            cores: seats.cores.min(f64::from(each)),
            by_software: seats.by_software,
            rails: if nodes > 1 { (model.between.speed * 8e-9).round() as u64 } else { 0 },
        };
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
}

impl Place {
    /// Whether it is one that there can be.
    fn is_sound(&self) -> bool {
        let Place { ranks, nodes, islands, cores, .. } = *self;
        ranks > 0 && (1..=ranks).contains(&nodes) && (1..=ranks).contains(&islands) && cores > 0.0
    }
}

impl Measured {
    /// Whether it says what can be.
    fn is_sound(&self) -> bool {
        let names = |algorithm: Algorithm| {
            !matches!(algorithm, Algorithm::Auto | Algorithm::Listed) && algorithm.does(self.place.collective)
        };
        self.place.is_sound()
            && self.sizes.is_sorted_by(|(one, _), (next, _)| one < next)
            && self.sizes.iter().all(|&(_, algorithm)| names(algorithm))
    }
}

impl Fastest {
    /// Notes a case, instead of the one that was measured before of the same.
    pub fn set(&mut self, case: Case) {
        let at = self.places.iter().position(|measured| measured.place == case.place);
        let at = at.unwrap_or_else(|| {
            self.places.push(Measured { place: case.place, sizes: Vec::new() });
            self.places.len() - 1
        });
        let sizes = &mut self.places[at].sizes;
        match sizes.binary_search_by_key(&case.bytes, |&(bytes, _)| bytes) {
            Ok(at) => sizes[at].1 = case.algorithm,
            Err(at) => sizes.insert(at, (case.bytes, case.algorithm)),
        }
    }

    /// The case that is nearest to what is asked for, if one is in the same place, at no more than twice or half its size.
    pub fn nearest(&self, spec: &Spec, seats: &Seats, model: &CostModel) -> Option<Case> {
        if self.places.is_empty() {
            return None;
        }
        let asked = Case::of(spec, seats, model, Algorithm::Auto)?;
        let Measured { place, sizes } = self.places.iter().find(|measured| measured.place == asked.place)?;
        // How many times as large one is as the other.
        let distance = |bytes: u64| {
            let (a, b) = (asked.bytes.max(1) as f64, bytes.max(1) as f64);
            (a / b).max(b / a)
        };
        let &(bytes, algorithm) = sizes.iter().min_by(|(a, _), (b, _)| distance(*a).total_cmp(&distance(*b)))?;
        (distance(bytes) <= FURTHEST).then_some(Case { place: *place, bytes, algorithm })
    }

    /// How many cases there are.
    pub fn len(&self) -> usize {
        self.places.iter().map(|measured| measured.sizes.len()).sum()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether all cases say what can be, and are no more than ranks tell each other. Those that come from elsewhere may say anything.
    pub(crate) fn is_sound(&self) -> bool {
        let fits = serde_json::to_string(self).is_ok_and(|text| text.len() <= LONGEST);
        fits && self.places.iter().all(Measured::is_sound)
    }
}

/// As JSON, which rank 0 tells all: some 450 sizes.
pub(crate) const LONGEST: usize = 16 << 10;

/// Between sizes of which each is four times the one before, one of the two is as near as that.
const FURTHEST: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Nodes;
    use crate::cost::Link;
    use crate::plan::{Elements, Ranks};
    use crate::tune::{Tuner, Tuning};

    fn spec(collective: Collective, elements: u64) -> Spec {
        Spec::new(collective, Ranks(8), Elements(elements), 4)
    }

    /// Where rails are those of the default model.
    fn case_of(spec: &Spec, seats: &Seats, algorithm: Algorithm) -> Option<Case> {
        Case::of(spec, seats, &CostModel::default(), algorithm)
    }

    fn nearest(fastest: &Fastest, spec: &Spec, seats: &Seats) -> Option<Case> {
        fastest.nearest(spec, seats, &CostModel::default())
    }

    fn seats(nodes: Nodes, cores: f64) -> Seats {
        Seats { nodes, cores, ..Seats::default() }
    }

    #[test]
    fn the_nearest_size_counts_in_the_same_place_alone() {
        let here = seats(Nodes::One, 2.0);
        let mut fastest = Fastest::default();
        for (elements, algorithm) in [(1024, Algorithm::ParameterServer), (4096, Algorithm::Ring)] {
            fastest.set(case_of(&spec(Collective::AllReduce, elements), &here, algorithm).unwrap());
        }
        let found = |collective, elements, seats: &Seats| {
            nearest(&fastest, &spec(collective, elements), seats).map(|case| case.algorithm())
        };
        let sizes = [511, 512, 2047, 2049, 8192, 8193].map(|elements| found(Collective::AllReduce, elements, &here));
        let (server, ring) = (Some(Algorithm::ParameterServer), Some(Algorithm::Ring));
        assert_eq!(sizes, [None, server, server, ring, ring, None]);
        assert_eq!(found(Collective::Reduce { root: 0 }, 1024, &here), None);
        let on_islands = Seats { islands: Some(Nodes::Of(4)), ..here.clone() };
        for elsewhere in [seats(Nodes::One, 4.0), seats(Nodes::Of(4), 2.0), on_islands] {
            assert_eq!(found(Collective::AllReduce, 1024, &elsewhere), None);
        }
        // Sixteen cores are as many as eight for eight ranks.
        let [eight, many] = [8.0, f64::INFINITY].map(|cores| seats(Nodes::One, cores));
        let case = |seats: &Seats| case_of(&spec(Collective::AllReduce, 1), seats, Algorithm::Ring);
        assert_eq!(case(&eight), case(&many));
        assert_ne!(case(&eight), case(&here));
        // What carries bytes matters, also within a node: a device that was named is no shared memory.
        let carried = |nodes: Nodes, by_software| case(&Seats { by_software, ..seats(nodes, 2.0) });
        assert_ne!(carried(Nodes::One, true), carried(Nodes::One, false));
        assert_ne!(carried(Nodes::Of(4), true), carried(Nodes::Of(4), false));
        // So does how fast rails are, where there are any.
        let over = |nodes: Nodes, speed| {
            let between = Link { speed, ..CostModel::default().between };
            let model = CostModel { between, ..CostModel::default() };
            Case::of(&spec(Collective::AllReduce, 1), &seats(nodes, 2.0), &model, Algorithm::Ring)
        };
        assert_ne!(over(Nodes::Of(4), 2.9e9), over(Nodes::Of(4), 46e9));
        assert_eq!(over(Nodes::Of(4), 46e9), over(Nodes::Of(4), 46.01e9));
        assert_eq!(over(Nodes::One, 2.9e9), over(Nodes::One, 46e9));
    }

    #[test]
    fn any_root_is_alike_and_blocks_count_together() {
        let here = Seats::default();
        let mut fastest = Fastest::default();
        fastest.set(case_of(&spec(Collective::Broadcast { root: 3 }, 64), &here, Algorithm::Chain).unwrap());
        fastest.set(case_of(&spec(Collective::AllGather, 64), &here, Algorithm::Ring).unwrap());
        let bytes = |collective| nearest(&fastest, &spec(collective, 64), &here).unwrap().bytes();
        assert_eq!([bytes(Collective::Broadcast { root: 5 }), bytes(Collective::AllGather)], [256, 8 * 256]);
    }

    #[test]
    fn what_was_measured_again_takes_the_place() {
        let here = Seats::default();
        let mut fastest = Fastest::default();
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            fastest.set(case_of(&spec(Collective::AllReduce, 64), &here, algorithm).unwrap());
        }
        assert_eq!(fastest.len(), 1);
        assert_eq!(fastest.places[0].sizes, [(256, Algorithm::Direct)]);
    }

    #[test]
    fn lengths_and_nodes_of_their_own_are_no_case() {
        let here = Seats::default();
        let each = Counts::Ragged((0..8).collect::<Vec<u64>>().into());
        let of_any_length = spec(Collective::AllGather, 1).with_counts(each);
        assert_eq!(case_of(&of_any_length, &here, Algorithm::Ring), None);
        let other = seats(Nodes::Of(5), 8.0);
        assert_eq!(case_of(&spec(Collective::AllReduce, 1), &other, Algorithm::Ring), None);
        assert_eq!(case_of(&spec(Collective::Transfer { from: 0, to: 1 }, 1), &here, Algorithm::Flat), None);
    }

    #[test]
    fn what_can_not_be_is_not_believed_and_not_chosen() {
        let case = case_of(&spec(Collective::AllReduce, 64), &Seats::default(), Algorithm::Ring).unwrap();
        let alone = |case: Case| {
            let mut fastest = Fastest::default();
            fastest.set(case);
            fastest
        };
        assert!(alone(case).is_sound());
        let place = case.place;
        for wrong in [
            Case { algorithm: Algorithm::Auto, ..case },
            Case { algorithm: Algorithm::Dissemination, ..case },
            Case { place: Place { nodes: 9, ..place }, ..case },
            Case { place: Place { islands: 0, ..place }, ..case },
            Case { place: Place { cores: f64::NAN, ..place }, ..case },
        ] {
            assert!(!alone(wrong).is_sound(), "{wrong:?}");
        }
        let twice = Measured { place, sizes: vec![(8, Algorithm::Ring); 2] };
        assert!(!Fastest { places: vec![twice] }.is_sound());
        let chosen = |tuning, case| {
            let tuner = Tuner { tuning, fastest: alone(case), ..Tuner::default() };
            tuner.choose(&spec(Collective::AllReduce, 64), Algorithm::Auto).unwrap()
        };
        assert_eq!(chosen(Tuning::default(), case), Algorithm::Ring);
        // A ring does not combine in the canonical order; it was measured with other segments; and on one island a hierarchy is
        // another algorithm by a longer way.
        assert_ne!(chosen(Tuning { deterministic: true, ..Tuning::default() }, case), Algorithm::Ring);
        assert_ne!(chosen(Tuning { segment: 1 << 10, ..Tuning::default() }, case), Algorithm::Ring);
        let hierarchical = Case { algorithm: Algorithm::Hierarchical, ..case };
        assert_ne!(chosen(Tuning::default(), hierarchical), Algorithm::Hierarchical);
    }

    #[test]
    fn more_than_ranks_tell_each_other_is_not_believed() {
        let mut fastest = Fastest::default();
        let mut set = |elements| {
            fastest.set(case_of(&spec(Collective::AllReduce, elements), &Seats::default(), Algorithm::Ring).unwrap());
            fastest.is_sound()
        };
        assert!((1..400).all(&mut set));
        assert!(!(400..1600).all(&mut set));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut fastest = Fastest::default();
        for (collective, algorithm) in
            [(Collective::Broadcast { root: 0 }, Algorithm::Chain), (Collective::Barrier, Algorithm::Exchange)]
        {
            fastest.set(case_of(&spec(collective, 64), &seats(Nodes::Of(2), 0.5), algorithm).unwrap());
        }
        let text = serde_json::to_string(&fastest).unwrap();
        assert_eq!(serde_json::from_str::<Fastest>(&text).unwrap(), fastest);
    }
}
