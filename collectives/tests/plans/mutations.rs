//! Plans broken in one place: the verifier refuses them.

use qpair_collectives::{Plan, Program, Slice, StepKind, VerifyError};

use crate::catalog::{ALL, Case, plan};
use crate::execution::{expected, inputs};
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
    for case in ALL {
        for n in [2, 4, 5, 7] {
            let plan = plan(case, n, 23, 3);
            plan.verify().unwrap();
            for rank in 0..n as usize {
                for step in 0..plan.programs[rank].len() {
                    visit(case, &plan, rank, step);
                }
            }
        }
    }
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
            if !source =>
        {
            Some(dst)
        }
        _ => None,
    }
}

#[test]
fn a_moved_slice_is_found() {
    each_step(|case, plan, rank, step| {
        if matches!(case, Case::Barrier | Case::ExchangeBarrier) {
            return;
        }
        for source in [true, false] {
            for by in [1, u64::MAX, 7] {
                let mut kind = plan.programs[rank].steps()[step].kind;
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
                let mut kind = plan.programs[rank].steps()[step].kind;
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
        let kind = plan.programs[rank].steps()[step].kind;
        for peer in (0..=plan.ranks.0).filter(|&peer| kind.peer().is_some_and(|p| p != peer)) {
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
        let kind = list[step].kind;
        // With signals, and where every rank gets the same, only who hears when may change.
        if !matches!(case, Case::Direct) {
            return;
        }
        for (other, with) in list.iter().enumerate().skip(step + 1) {
            let (Some(a), Some(b)) = (kind.peer(), with.kind.peer()) else {
                continue;
            };
            if a == b || kind.src() == with.kind.src() && kind.is_send() == with.kind.is_send() {
                continue;
            }
            if kind.is_send() == with.kind.is_send() && kind.is_send() {
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
    each_step(|case, plan, rank, step| {
        let kind = match plan.programs[rank].steps()[step].kind {
            StepKind::Recv { peer, dst } => StepKind::RecvReduce { peer, dst },
            StepKind::RecvReduce { peer, dst } => StepKind::Recv { peer, dst },
            _ => return,
        };
        if !matches!(case, Case::Barrier | Case::ExchangeBarrier) {
            let plan = changed(plan, rank, |steps| steps[step].0 = kind);
            refused(&plan, "another kind", rank, step);
        }
    });
}

/// Not every dependency is needed: one may be there to bound what is outstanding. What the
/// verifier accepts without it must still give the right result under every schedule tried.
#[test]
fn a_dropped_dependency_is_found_or_harmless() {
    let seed = seed();
    for case in ALL {
        let mut found = 0;
        for n in [2, 4, 5] {
            let whole = plan(case, n, 23, 3);
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
        // These two have none.
        let without = matches!(case, Case::Flat | Case::ExchangeBarrier);
        assert!(found > 0 || without, "{case:?}: no dependency matters");
    }
}

fn runs_right(plan: &Plan, seed: u64) {
    let inputs = inputs(plan, seed);
    let expected = expected(plan, &inputs);
    for schedule in 0..10 {
        let mut data = inputs.clone();
        run(plan, &mut data, i64::MIN / 3, i64::wrapping_add, seed + schedule).unwrap();
        assert!(data.iter().all(|vector| *vector == expected), "{plan}");
    }
}

/// The schedules are wild enough to show a race that the verifier names.
#[test]
fn a_race_gives_a_wrong_result_under_some_schedule() {
    let seed = seed();
    // Rank 0 no longer copies its vector before the partner's comes in.
    let plan = changed(&plan(Case::RecursiveDoubling, 2, 23, 3), 0, |steps| steps[2].1.clear());
    let error = plan.verify().unwrap_err();
    assert!(matches!(error, VerifyError::Race { rank: 0, step: 2, other: 0, .. }), "{error}");
    let inputs = inputs(&plan, seed);
    let expected = expected(&plan, &inputs);
    let wrong = (0..100).filter(|schedule| {
        let mut data = inputs.clone();
        run(&plan, &mut data, i64::MIN / 3, i64::wrapping_add, seed + schedule).unwrap();
        data.iter().any(|vector| *vector != expected)
    });
    assert!(wrong.count() > 0);
}

#[test]
fn each_dependency_of_direct_and_broadcasts_matters() {
    for case in [Case::Direct, Case::Binomial, Case::Chain] {
        let whole = plan(case, 5, 23, 3);
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
