//! Plans as JSON, as text and as a hash.

use qpair_collectives::{Collective, Elements, Graph, Plan, Ranks, VerifyError};

use crate::catalog::{ALL, Case, plan};

#[test]
fn json_round_trip() {
    for case in ALL {
        let plan = plan(case, 5, 17, 2);
        let json = serde_json::to_string(&plan).unwrap();
        let back: Plan = serde_json::from_str(&json).unwrap();
        assert_eq!(back, plan);
        assert_eq!(back.hash(), plan.hash());
    }
}

#[test]
fn json_of_anyone_is_refused_or_verified_but_never_panics() {
    let json = r#"{"format":1,"collective":{"broadcast":{"root":0}},"algorithm":"x","ranks":2,
        "elements":1,"element_size":4,"segment":1,"scratch":0,"programs":[
        [{"kind":{"send":{"peer":1,"src":{"buffer":"data","offset":0,"len":1}}},"deps":[7]}],[]]}"#;
    let plan: Plan = serde_json::from_str(json).unwrap();
    assert!(!plan.to_string().is_empty());
    let graph = Graph::of(plan.program(0).unwrap());
    assert_eq!(graph.dep_counts(), [1]);
    let (rank, step, dep) = (0, 0, 7);
    assert_eq!(plan.verify(), Err(VerifyError::Dependency { rank, step, dep }));
    assert!(plan.cost(&Default::default()).is_err());
    assert!(serde_json::from_str::<Plan>(&json.replace("send", "shout")).is_err());
}

/// Who changes an algorithm changes its line here. If all lines change, the encoding has, and
/// `FORMAT` must.
#[test]
fn hashes_are_stable() {
    let hash = |case| plan(case, 3, 10, 2).hash().to_string();
    assert_eq!(ALL.map(hash), HASHES);
}

const HASHES: [&str; 9] = [
    "ac24e51d118331b2",
    "1449da20d3ae4c48",
    "7c1e6bec05fb352f",
    "f9db224f71a2779b",
    "90e27674add22415",
    "eed157ee79b7c539",
    "d0601f39b4d7b338",
    "13577f426a7aa658",
    "d876dbe64ee648b3",
];

#[test]
fn hashes_differ_by_every_field() {
    let base = plan(Case::Ring, 3, 10, 2);
    let changes: [fn(&mut Plan); 10] = [
        |plan| plan.format += 1,
        |plan| plan.collective = Collective::Broadcast { root: 0 },
        |plan| plan.collective = Collective::Broadcast { root: 1 },
        |plan| plan.algorithm.push('x'),
        |plan| plan.ranks = Ranks(4),
        |plan| plan.elements = Elements(11),
        |plan| plan.element_size = 4,
        |plan| plan.segment = 3,
        |plan| plan.scratch = 1,
        |plan| plan.programs.swap(0, 1),
    ];
    let mut hashes = vec![base.hash()];
    for change in changes {
        let mut plan = base.clone();
        change(&mut plan);
        hashes.push(plan.hash());
    }
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), changes.len() + 1);
}

#[test]
fn the_listing_reads() {
    let plan = plan(Case::RecursiveDoubling, 2, 4, 4);
    let head = format!(
        "all-reduce by recursive-doubling, 2 ranks, 4 elements of 8 B, segments of 4, scratch of 8, \
         hash {}\n",
        plan.hash()
    );
    let lines = "rank 0
     0  copy        data[0..4] to scratch[0..4]
     1  send        to 1    scratch[0..4]  after 0
     2  recv-reduce of 1    data[0..4]  after 0
rank 1
     0  copy        data[0..4] to scratch[0..4]
     1  send        to 0    scratch[0..4]  after 0
     2  recv-reduce of 0    data[0..4]  after 0
";
    assert_eq!(plan.to_string(), head + lines);
}

#[test]
fn graphs_turn_dependencies_round() {
    for case in ALL {
        let plan = plan(case, 7, 40, 3);
        for program in &plan.programs {
            let graph = Graph::of(program);
            let mut turned = vec![Vec::new(); program.len()];
            for step in 0..program.len() as u32 {
                assert_eq!(graph.dep_counts()[step as usize] as usize, program.deps(step).len());
                for &dep in program.deps(step) {
                    turned[dep as usize].push(step);
                }
            }
            for (step, dependents) in (0..).zip(&turned) {
                assert_eq!(graph.dependents(step), dependents);
            }
            assert!(graph.dependents(u32::MAX).is_empty());
        }
    }
}
