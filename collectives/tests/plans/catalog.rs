//! What is under test: each algorithm, on each collective that it does, with the counts and parameters that it knows.

use qpair_collectives::{Algorithm, Collective, Counts, Elements, Nodes, Ranks, Recipe, Shape, Spec};

/// An algorithm with all parameters but ranks, length and segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub algorithm: Algorithm,
    pub collective: Collective,
    pub in_place: bool,
    pub counts: Kind,
    pub variant: u32,
}

/// What kind of counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Even,
    Uneven,
}

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for in_place in [true, false] {
                for counts in [Kind::Even, Kind::Uneven] {
                    for variant in 0..variants(algorithm) {
                        let case = Case { algorithm, collective, in_place, counts, variant };
                        if try_recipe(case, 4, 3, 2).is_some() {
                            cases.push(case);
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Those of one algorithm.
pub fn of(algorithm: Algorithm) -> Vec<Case> {
    all().into_iter().filter(|case| case.algorithm == algorithm).collect()
}

/// One all-reduce of each algorithm, in place.
pub fn all_reduces() -> Vec<Case> {
    let plain = |case: &Case| case.collective == Collective::AllReduce && case.in_place;
    all().into_iter().filter(plain).collect()
}

/// A recipe with segments of `segment` elements. Roots are the middle rank.
pub fn recipe(case: Case, n: u32, len: u64, segment: u64) -> Recipe {
    try_recipe(case, n, len, segment).unwrap()
}

fn try_recipe(case: Case, n: u32, len: u64, segment: u64) -> Option<Recipe> {
    let collective = match case.collective {
        Collective::Transfer { .. } => Collective::Transfer { from: n / 2, to: n - 1 },
        other => other.with_root(n / 2),
    };
    let uneven = |i: u64| len.wrapping_mul(i * 7 + 3) % (len + 2) * (i % 3).min(1);
    let counts = match (case.counts, collective) {
        (Kind::Even, Collective::Barrier) => Counts::Even(0),
        (Kind::Even, _) => Counts::Even(len),
        (Kind::Uneven, Collective::AllToAll) => {
            Counts::Pairs((0..u64::from(n * n)).map(uneven).collect::<Vec<_>>().into())
        }
        (Kind::Uneven, _) => Counts::Ragged((0..u64::from(n)).map(uneven).collect::<Vec<_>>().into()),
    };
    let spec = Spec {
        in_place: case.in_place,
        finish: collective.reduces() && case.variant % 2 == 1,
        ..Spec::new(collective, Ranks(n), Elements(len), 8)
    };
    let shape = Shape {
        segment,
        ordered: case.variant % 2 == 1,
        channels: 1 + case.variant,
        servers: 1 + 2 * case.variant,
        nodes: match case.variant {
            0 => Nodes::Of(2),
            1 => Nodes::Of(3),
            2 => Nodes::Listed((0..n).map(|rank| rank % 2).collect::<Vec<_>>().into()),
            _ => Nodes::Listed((0..n).map(|rank| rank * rank % 5).collect::<Vec<_>>().into()),
        },
    };
    Recipe::with(spec.with_counts(counts), case.algorithm, shape).ok()
}

fn variants(algorithm: Algorithm) -> u32 {
    match algorithm {
        Algorithm::Hierarchical => 4,
        _ => 2,
    }
}
