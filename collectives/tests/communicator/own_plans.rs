//! Plans that a program gives.

use std::sync::Arc;

use qpair_collectives::tune::Tuning;
use qpair_collectives::{
    Algorithm, Buffer, Collective, CollectiveError, Communicator, Counts, Elements, FORMAT, Plan, Program, Ranks,
    Recipe, ReduceOp, Slice, Spec, StepKind,
};

use crate::operations::{filled, holds, sum, value};
use crate::support::group as on_ranks;

/// A plan that a user supplies is run, once it is proved; one that is wrong is not.
#[test]
fn plans_of_the_users_own() {
    on_ranks(3, |comm: Communicator| {
        let spec = Spec::all_reduce(Ranks(3), Elements(999), 8);
        let plan = Recipe::new(spec, Algorithm::Chain).unwrap().plan();
        let mut wrong = plan.clone();
        wrong.programs.swap(0, 1);
        let error = comm.set_plan(wrong).unwrap_err().to_string();
        assert!(error.starts_with("the plan is refused: "), "{error}");
        comm.set_plan(plan).unwrap();
        let mut vector = filled(&comm, 999);
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
        holds(&vector, |at| sum(3, at), "the user's own");
        assert!(comm.explain().to_string().contains("by listed"), "{}", comm.explain());
        comm.barrier().unwrap();
    });
}

/// What it sends from scratch is longer than the vector, which is short enough to be copied.
#[test]
fn a_plan_of_the_users_own_may_send_more_than_its_vector() {
    const LEN: u64 = 1000;
    let part = |buffer, number, len| Slice { buffer, offset: number * LEN, len };
    let vector = part(Buffer::Data, 0, LEN);
    let threefold = part(Buffer::Scratch, 0, 3 * LEN);
    let mut root = Program::new();
    let copies = [0, 1, 2].map(|number| {
        root.push(StepKind::Copy { src: vector, dst: part(Buffer::Scratch, number, LEN) }, []);
        number as u32
    });
    root.push(StepKind::Send { peer: 1, src: threefold }, copies);
    let mut other = Program::new();
    other.push(StepKind::Recv { peer: 0, dst: threefold }, []);
    other.push(StepKind::Copy { src: part(Buffer::Scratch, 2, LEN), dst: vector }, [0]);
    let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(2), Elements(LEN), 8);
    let plan = Plan { format: FORMAT, spec, algorithm: "threefold".into(), programs: vec![root, other] };
    on_ranks(2, |comm: Communicator| {
        comm.set_plan(plan.clone()).unwrap();
        let mut vector = filled(&comm, LEN as usize);
        comm.broadcast(&mut vector, 0).unwrap();
        holds(&vector, |at| value(0, at), "threefold");
        assert!(comm.explain().to_string().contains("by listed"), "{}", comm.explain());
        comm.barrier().unwrap();
    });
}

/// Whatever size of elements its file says.
#[test]
fn a_barrier_goes_by_a_plan_of_ones_own() {
    let spec = Spec::new(Collective::Barrier, Ranks(3), Elements(0), 4);
    let plan = Recipe::new(spec, Algorithm::Flat).unwrap().plan();
    on_ranks(3, |comm: Communicator| {
        comm.set_plan(plan.clone()).unwrap();
        comm.barrier().unwrap();
        assert!(comm.explain().to_string().contains("by listed"), "{}", comm.explain());
    });
}

/// It would never be used, and nobody would know.
#[test]
fn a_plan_for_what_no_operation_is_is_refused() {
    // No algorithm makes one from one vector into another, which a file may be.
    let broadcast = |spec| {
        let part = |buffer| Slice { buffer, offset: 0, len: 4 };
        let (mut root, mut other) = (Program::new(), Program::new());
        root.push(StepKind::Send { peer: 1, src: part(Buffer::Input) }, []);
        root.push(StepKind::Copy { src: part(Buffer::Input), dst: part(Buffer::Data) }, []);
        other.push(StepKind::Recv { peer: 0, dst: part(Buffer::Data) }, []);
        Plan { format: FORMAT, spec, algorithm: "by hand".into(), programs: vec![root, other] }
    };
    let of = |collective, counts| Spec::new(collective, Ranks(2), Elements(4), 8).with_counts(counts);
    let pairs = Counts::Pairs(Arc::new(vec![1, 2, 3, 4]));
    let ragged = Counts::Ragged(Arc::new(vec![1, 2]));
    for (spec, is_used) in [
        (of(Collective::Gather { root: 0 }, Counts::Even(4)), false),
        (of(Collective::Gather { root: 0 }, Counts::Even(4)).separate(), true),
        (of(Collective::AllGather, ragged.clone()), false),
        (of(Collective::AllGather, ragged).separate(), true),
        (of(Collective::AllToAll, pairs).separate(), false),
        (of(Collective::Transfer { from: 0, to: 1 }, Counts::Even(4)), true),
        (of(Collective::Broadcast { root: 0 }, Counts::Even(4)), true),
        (of(Collective::Broadcast { root: 0 }, Counts::Even(4)).separate(), false),
    ] {
        let recipe = |algorithm| Recipe::new(spec.clone(), algorithm);
        let recipe = recipe(Algorithm::Flat).or(recipe(Algorithm::Pairwise));
        let plan = recipe.map_or_else(|_| broadcast(spec.clone()), |recipe| recipe.plan());
        assert!(plan.verify().is_ok());
        on_ranks(2, |comm: Communicator| match comm.set_plan(plan.clone()) {
            Ok(()) => assert!(is_used, "{:?}", plan.spec),
            Err(error) => assert!(!is_used && error.to_string().contains("no operation"), "{error}"),
        });
    }
}

/// It is right, and not for results that are to be the same whatever the algorithm.
#[test]
fn a_plan_of_ones_own_that_does_not_combine_in_order_is_refused_where_results_are_to_be_deterministic() {
    let spec = Spec::all_reduce(Ranks(4), Elements(100), 8);
    let plan = Recipe::new(spec, Algorithm::Chain).unwrap().plan();
    on_ranks(4, |comm: Communicator| {
        comm.set_plan(plan.clone()).unwrap();
        comm.set_tuning(Tuning { deterministic: true, ..Tuning::default() });
        let error = comm.all_reduce(&mut filled(&comm, 100), ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::OwnPlan(_)), "{error}");
        assert!(!error.to_string().contains("bug"), "{error}");
    });
}
