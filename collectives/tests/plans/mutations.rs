//! Plans broken in one place: the verifier refuses them.

use qpair_collectives::{Algorithm, Collective, Plan, Program, Slice, StepKind, VerifyError};

use crate::catalog::{Case, all, recipe};
use crate::execution::{check_result, finished, given, vectors};
use crate::executor::run;
use crate::random::seed;

/// Steps as a list that can be changed.
type Steps = Vec<(StepKind, Vec<u32>)>;

fn steps(program: &Program) -> Steps {
    let numbered = (0..).zip(program.steps());
    numbered.map(|(i, step)| (step.kind, program.deps(i).to_vec())).collect()
}

/// The plan, with one rank's steps changed.
fn changed(plan: &Plan, rank: usize, change: impl FnOnce(&mut Steps)) -> Plan {
    let mut list = steps(&plan.programs[rank]);
    change(&mut list);
    let mut program = Program::new();
    for (kind, deps) in list {
        program.push(kind, deps);
    }
    let mut plan = plan.clone();
    plan.programs[rank] = program;
    plan
}

/// Every step of every rank of small plans of every algorithm.
fn each_step(mut visit: impl FnMut(Case, &Plan, usize, usize)) {
    for case in all() {
        for n in [2, 5] {
            let plan = plan(case, n);
            let _ = plan.verify().unwrap();
            for rank in 0..n as usize {
                for step in 0..plan.programs[rank].len() {
                    visit(case, &plan, rank, step);
                }
            }
        }
    }
}

fn plan(case: Case, n: u32) -> Plan {
    let len = if case.collective.has_blocks() { 5 } else { 11 };
    recipe(case, n, len, 3).plan()
}

fn kind_of(plan: &Plan, rank: usize, step: usize) -> StepKind {
    plan.programs[rank].kind(step as u32).unwrap()
}

/// Whether only that the step happens counts: it moves nothing, from or to nowhere in particular.
fn is_signal(step: StepKind) -> bool {
    step.src().or(step.dst()).is_some_and(|slice| slice.len == 0)
}

fn refused(plan: &Plan, what: &str, rank: usize, step: usize) {
    assert!(plan.verify().is_err(), "{what} of rank {rank}, step {step} passes:\n{plan}");
}

#[test]
fn a_dropped_step_is_found() {
    each_step(|_, plan, rank, step| {
        let plan = changed(plan, rank, |steps| {
            let (_, inherited) = steps.remove(step);
            let gone = step as u32;
            for (_, deps) in &mut steps[step..] {
                if deps.contains(&gone) {
                    deps.extend(&inherited);
                    deps.retain(|&dep| dep != gone);
                }
                deps.iter_mut().filter(|dep| **dep > gone).for_each(|dep| *dep -= 1);
            }
        });
        refused(&plan, "dropping", rank, step);
    });
}

#[test]
fn a_duplicated_step_is_found() {
    each_step(|_, plan, rank, step| {
        let plan = changed(plan, rank, |steps| {
            let twin = steps[step].clone();
            steps.push(twin);
        });
        refused(&plan, "duplicating", rank, step);
    });
}

fn slice_mut(kind: &mut StepKind, source: bool) -> Option<&mut Slice> {
    match kind {
        StepKind::Send { src, .. } | StepKind::Copy { src, .. } | StepKind::Reduce { src, .. } if source => Some(src),
        StepKind::Recv { dst, .. }
        | StepKind::RecvReduce { dst, .. }
        | StepKind::Copy { dst, .. }
        | StepKind::Reduce { dst, .. }
        | StepKind::Finish { dst }
            if !source =>
        {
            Some(dst)
        }
        _ => None,
    }
}

#[test]
fn a_moved_slice_is_found() {
    each_step(|_, plan, rank, step| {
        if is_signal(kind_of(plan, rank, step)) {
            return;
        }
        for source in [true, false] {
            for by in [1, u64::MAX, 7] {
                let mut kind = kind_of(plan, rank, step);
                let Some(slice) = slice_mut(&mut kind, source) else {
                    continue;
                };
                slice.offset = slice.offset.wrapping_add(by);
                let plan = changed(plan, rank, |steps| steps[step].0 = kind);
                refused(&plan, "moving a slice", rank, step);
            }
        }
    });
}

#[test]
fn a_shortened_or_lengthened_slice_is_found() {
    each_step(|_, plan, rank, step| {
        for source in [true, false] {
            for by in [1, u64::MAX] {
                let mut kind = kind_of(plan, rank, step);
                let Some(slice) = slice_mut(&mut kind, source) else {
                    continue;
                };
                slice.len = slice.len.wrapping_add(by);
                let plan = changed(plan, rank, |steps| steps[step].0 = kind);
                refused(&plan, "resizing a slice", rank, step);
            }
        }
    });
}

fn with_peer(kind: StepKind, peer: u32) -> StepKind {
    match kind {
        StepKind::Send { src, .. } => StepKind::Send { peer, src },
        StepKind::Recv { dst, .. } => StepKind::Recv { peer, dst },
        StepKind::RecvReduce { dst, .. } => StepKind::RecvReduce { peer, dst },
        local => local,
    }
}

#[test]
fn another_peer_is_found() {
    each_step(|_, plan, rank, step| {
        let kind = kind_of(plan, rank, step);
        for peer in (0..=plan.spec.ranks.0).filter(|&peer| kind.peer().is_some_and(|p| p != peer)) {
            let plan = changed(plan, rank, |steps| steps[step].0 = with_peer(kind, peer));
            refused(&plan, "another peer", rank, step);
        }
    });
}

#[test]
fn swapped_peers_are_found() {
    let mut swapped = 0;
    each_step(|case, plan, rank, step| {
        let list = plan.programs[rank].steps();
        let kind = kind_of(plan, rank, step);
        // With signals, and where every rank gets the same, only who hears when may change.
        if case.algorithm != Algorithm::Direct || case.collective == Collective::AllGather {
            return;
        }
        for (other, with) in list.iter().enumerate().skip(step + 1) {
            let (Some(a), Some(b)) = (kind.peer(), with.kind.peer()) else {
                continue;
            };
            if a == b || kind.src() == with.kind.src() && kind.is_send() == with.kind.is_send() {
                continue;
            }
            if kind.is_send() && with.kind.is_send() && !(is_signal(kind) && is_signal(with.kind)) {
                let plan = changed(plan, rank, |steps| {
                    steps[step].0 = with_peer(kind, b);
                    steps[other].0 = with_peer(with.kind, a);
                });
                refused(&plan, "swapping peers", rank, step);
                swapped += 1;
            }
        }
    });
    assert!(swapped > 100);
}

#[test]
fn a_reduction_turned_copy_or_back_is_found() {
    each_step(|_, plan, rank, step| {
        let step_is = kind_of(plan, rank, step);
        let kind = match step_is {
            StepKind::Recv { peer, dst } => StepKind::RecvReduce { peer, dst },
            StepKind::RecvReduce { peer, dst } => StepKind::Recv { peer, dst },
            _ => return,
        };
        if !is_signal(step_is) {
            let plan = changed(plan, rank, |steps| steps[step].0 = kind);
            refused(&plan, "another kind", rank, step);
        }
    });
}

/// Not every dependency is needed: one may be there to bound what is under way. What the
/// verifier accepts without it must still give the right result under every schedule tried.
#[test]
fn a_dropped_dependency_is_found_or_harmless() {
    let seed = seed();
    let mut found = 0;
    for case in all() {
        for n in [2, 5] {
            let whole = plan(case, n);
            for rank in 0..n as usize {
                for (step, (_, deps)) in steps(&whole.programs[rank]).iter().enumerate() {
                    for dep in 0..deps.len() {
                        let plan = changed(&whole, rank, |steps| {
                            steps[step].1.remove(dep);
                        });
                        if plan.verify().is_err() {
                            found += 1;
                        } else {
                            runs_right(&plan, seed);
                        }
                    }
                }
            }
        }
    }
    assert!(found > 1000, "{found}");
}

fn runs_right(plan: &Plan, seed: u64) {
    for schedule in 0..4 {
        let result = result(plan, seed, seed + schedule);
        result.unwrap_or_else(|error| panic!("{error}\n{plan}"));
    }
}

fn result(plan: &Plan, seed: u64, schedule: u64) -> Result<(), String> {
    let given = given(&plan.spec, seed);
    let mut data = vectors(&plan.spec, &given);
    run(plan, &mut data, i64::MIN / 3, i64::wrapping_add, finished, schedule)?;
    check_result(&plan.spec, &given, &data)
}

/// The schedules are wild enough to show a race that the verifier names.
#[test]
fn a_race_gives_a_wrong_result_under_some_schedule() {
    let seed = seed();
    // Rank 0 no longer copies its vector before the partner's comes in.
    let case = all().into_iter().find(|case| case.algorithm == Algorithm::RecursiveDoubling && case.in_place);
    let plan = changed(&recipe(case.unwrap(), 2, 23, 3).plan(), 0, |steps| steps[2].1.clear());
    let error = plan.verify().unwrap_err();
    assert!(matches!(error, VerifyError::Race { rank: 0, step: 2, other: 0, .. }), "{error}");
    assert!((0..100).any(|schedule| result(&plan, seed, seed + schedule).is_err()));
}

#[test]
fn each_dependency_of_direct_and_trees_matters() {
    let trees = [Algorithm::Direct, Algorithm::BinomialTree, Algorithm::Chain, Algorithm::Ring];
    // In the canonical order, some only repeat what follows from others.
    for case in all().into_iter().filter(|case| trees.contains(&case.algorithm) && case.variant == 0) {
        let whole = plan(case, 5);
        for rank in 0..5 {
            for (step, (_, deps)) in steps(&whole.programs[rank]).iter().enumerate() {
                for dep in 0..deps.len() {
                    let plan = changed(&whole, rank, |steps| {
                        steps[step].1.remove(dep);
                    });
                    refused(&plan, "dropping a dependency", rank, step);
                }
            }
        }
    }
}
