//! Plans as JSON, as text and as a hash.

use std::collections::BTreeMap;

use qpair_collectives::{Algorithm, Collective, Counts, Graph, Plan, Ranks, Recipe, VerifyError};
use serde_json::Value;

use crate::catalog::{all, all_reduces, recipe};

#[test]
fn json_round_trip() {
    for case in all() {
        let recipe = recipe(case, 5, 17, 2);
        let back: Recipe = serde_json::from_str(&serde_json::to_string(&recipe).unwrap()).unwrap();
        assert_eq!((back.hash(), &back), (recipe.hash(), &recipe));
        let plan = recipe.plan();
        let back: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!((back.hash(), back), (plan.hash(), plan));
    }
}

/// How many objects are in it; the one of that number is given a field that nothing has.
fn misspell(value: &mut Value, number: usize) -> usize {
    match value {
        Value::Object(fields) => {
            let mut objects = 1;
            for field in fields.values_mut() {
                objects += misspell(field, number.wrapping_sub(objects));
            }
            if number == 0 {
                fields.insert("segmnet".into(), 1.into());
            }
            objects
        }
        Value::Array(values) => {
            let mut objects = 0;
            for value in values {
                objects += misspell(value, number.wrapping_sub(objects));
            }
            objects
        }
        _ => 0,
    }
}

#[test]
fn a_field_that_nothing_has_is_refused_wherever_it_stands() {
    let recipe = recipe(all().remove(0), 3, 5, 1);
    type Read = fn(Value) -> Result<(), serde_json::Error>;
    let whole: [(Value, Read); 2] = [
        (serde_json::to_value(&recipe).unwrap(), |value| serde_json::from_value::<Recipe>(value).map(drop)),
        (serde_json::to_value(recipe.plan()).unwrap(), |value| serde_json::from_value::<Plan>(value).map(drop)),
    ];
    for (value, read) in whole {
        read(value.clone()).unwrap();
        let objects = misspell(&mut value.clone(), usize::MAX);
        assert!(objects > 3, "{value}");
        for number in 0..objects {
            let mut other = value.clone();
            misspell(&mut other, number);
            assert_ne!(other, value);
            assert!(read(other.clone()).is_err(), "{other}");
        }
    }
}

#[test]
fn json_of_anyone_is_refused_or_verified_but_never_panics() {
    let json = r#"{"format":2,"spec":{"collective":{"broadcast":{"root":0}},"ranks":2,"counts":{"even":1},
        "element_size":4,"in_place":true},"algorithm":"x","programs":[
        [{"kind":{"send":{"peer":1,"src":{"buffer":"data","offset":0,"len":1}}},"deps":[7]}],[]]}"#;
    let plan: Plan = serde_json::from_str(json).unwrap();
    assert!(!plan.to_string().is_empty());
    let graph = Graph::of(plan.program(0).unwrap());
    assert_eq!(graph.dep_counts(), [1]);
    let (rank, step, dep) = (0, 0, 7);
    assert_eq!(plan.verify(), Err(VerifyError::Dependency { rank, step, dep }));
    assert!(plan.cost(&Default::default()).is_err());
    assert!(serde_json::from_str::<Plan>(&json.replace("send", "shout")).is_err());
    let of_ranks = |ranks: usize| json.replace(",[]]}", &format!("{}]}}", ",[]".repeat(ranks - 1)));
    assert_eq!(serde_json::from_str::<Plan>(&of_ranks(1 << 16)).unwrap().programs.len(), 1 << 16);
    let error = serde_json::from_str::<Plan>(&of_ranks((1 << 16) + 1)).unwrap_err();
    assert!(error.to_string().contains("the programs of up to 65536 ranks"), "{error}");
}

/// Who changes an algorithm changes its line here. If all lines change, the encoding has, and
/// `FORMAT` must.
#[test]
fn hashes_are_stable() {
    let mut hashes = BTreeMap::new();
    for case in all() {
        let hash: &mut u64 = hashes.entry(case.algorithm.name()).or_default();
        *hash = hash.rotate_left(7) ^ recipe(case, 5, 10, 2).plan().hash().0;
    }
    let lines: Vec<String> = hashes.iter().map(|(name, hash)| format!("{name} {hash:016x}")).collect();
    assert_eq!(lines, HASHES);
}

const HASHES: [&str; 14] = [
    "binomial-tree c43bed3eb87e93fe",
    "bruck f40138c57fcc9e7a",
    "chain b26c4ba40adecf43",
    "direct e440a074286d7776",
    "dissemination de157ae467108d8e",
    "double-tree 7902a73a0be044e1",
    "exchange ebf2b72e8cb162a2",
    "flat 6be23db3864656bc",
    "halving-doubling 947003fc48c9ca71",
    "hierarchical 546d4c767be62f08",
    "pairwise 98df3b2ab57ecba0",
    "parameter-server 3711a76fcb826eb3",
    "recursive-doubling e06f960f04390c05",
    "ring 0f4bafdfe6ccf12f",
];

#[test]
fn hashes_differ_by_every_field() {
    let base = recipe(all_reduces()[0], 3, 10, 2).plan();
    let changes: [fn(&mut Plan); 10] = [
        |plan| plan.format += 1,
        |plan| plan.spec.collective = Collective::Broadcast { root: 0 },
        |plan| plan.spec.collective = Collective::Broadcast { root: 1 },
        |plan| plan.algorithm.push('x'),
        |plan| plan.spec.ranks = Ranks(4),
        |plan| plan.spec.counts = Counts::Even(11),
        |plan| plan.spec.element_size = 4,
        |plan| plan.spec.in_place = false,
        |plan| plan.spec.finish = true,
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
    let case = all_reduces().into_iter().find(|case| case.algorithm == Algorithm::RecursiveDoubling);
    let plan = recipe(case.unwrap(), 2, 4, 4).plan();
    let head = format!("all-reduce among 2 ranks, 4 elements of 8 B by recursive-doubling, hash {}\n", plan.hash());
    let lines = "rank 0, scratch of 4
     0  copy        data[0..4] to scratch[0..4]
     1  send        to 1    scratch[0..4]  after 0
     2  recv-reduce of 1    data[0..4]  after 0
rank 1, scratch of 4
     0  copy        data[0..4] to scratch[0..4]
     1  send        to 0    scratch[0..4]  after 0
     2  recv-reduce of 0    data[0..4]  after 0
";
    assert_eq!(plan.to_string(), head + lines);
}

#[test]
fn graphs_turn_dependencies_round() {
    for case in all() {
        let plan = recipe(case, 7, 13, 3).plan();
        for program in &plan.programs {
            let graph = Graph::of(program);
            let mut turned = vec![Vec::new(); program.len()];
            for step in 0..program.len() as u32 {
                assert_eq!(graph.dep_counts()[step as usize] as usize, program.deps(step).len());
                for dep in program.deps(step).iter() {
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
