//! What is said of choices that are proven to be the best, and of those that are not.

mod support;

use qpair_topology::{Machine, Proven, Selection};
use support::machines;
use support::random::{self, Random};

/// A machine of 16 GPUs and 16 NICs with which the search does not come to its end.
fn too_many_to_try() -> Machine {
    let machines = (0..).map(|seed| random::machine(&mut Random(seed), 16, 16));
    let mut large = machines.filter(|machine| (machine.gpus().len(), machine.nics().len()) == (16, 16));
    large.find(|machine| !Selection::of(machine).choose().is_ok_and(|choice| choice.is_proven())).expect("some are odd")
}

#[test]
fn the_choice_for_a_machine_that_people_have_is_proven() {
    for machine in machines::all().into_iter().chain([machines::pairs(16)]) {
        let choice = Selection::of(&machine).choose().unwrap();
        assert_eq!(choice.proven(), Proven { gpus: true, cpus: true }, "{:?}", machine.name());
        assert!(choice.is_proven() && !choice.explain().to_string().contains("not proven"), "{:?}", machine.name());
        assert_eq!(choice.proven().to_string(), "");
    }
}

#[test]
fn where_the_proof_runs_out_it_is_said_of_whom() {
    let machine = too_many_to_try();
    let choice = Selection::of(&machine).choose().unwrap();
    assert_eq!((choice.is_proven(), choice.proven()), (false, Proven { gpus: false, cpus: true }));
    let explained = choice.explain().to_string();
    let last = explained.lines().last().unwrap_or_default();
    assert!(last.starts_with("The choice of GPUs is good, and not proven to be the best"), "{explained}");
    let choice = Selection::of(&machine).gpus([]).choose().unwrap();
    assert!(choice.is_proven(), "NUMA nodes alone are few");
}

#[test]
fn a_group_of_few_is_proven_where_all_are_not() {
    let machine = too_many_to_try();
    let choice = Selection::of(&machine).gpus(machine.gpu_ids().take(2)).only("mlx5_0").choose().unwrap();
    assert!(choice.is_proven());
}
