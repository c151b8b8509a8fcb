//! How algorithms are chosen, and what is told of it.

use qpair_collectives::cost::{CostModel, Link};
use qpair_collectives::tune::Tuning;
use qpair_collectives::{Algorithm, Communicator, Elements, Ranks, Recipe, ReduceOp, Spec};

use crate::support::{all_reduce, group};

/// Messages cost much, and bytes nothing; or the other way round.
fn models() -> [CostModel; 2] {
    let slow = CostModel { send: 1e-3, receive: 1e-3, transfer: 1e-3, ..CostModel::free() };
    let narrow = CostModel { copy: 1e3, straight: 1e3, combine: 1e3, ..CostModel::free() };
    [slow, narrow]
}

#[test]
fn the_choice_follows_the_model_and_is_told_with_all_candidates() {
    group(4, |comm| {
        let mut chosen = Vec::new();
        for model in models() {
            comm.set_cost_model(model).unwrap();
            all_reduce::<f32>(&comm, 4000, ReduceOp::Sum);
            let spec = Spec::all_reduce(Ranks(4), Elements(4000), 4);
            let expected = comm.tuner().choose(&spec, Algorithm::Auto).unwrap();
            chosen.push(expected);
            let text = comm.explain().to_string();
            assert!(text.contains("\ncost model: set by the program\n"), "{text}");
            assert!(text.contains(&format!("of 4000 f32 by {expected} (plan ")), "{text}");
            let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("  predicted ")).collect();
            let candidates = comm.tuner().candidates(&spec);
            assert!(table[1].starts_with(&format!("  {expected} ")) && table[1].ends_with("  chosen"), "{text}");
            assert_eq!(table.iter().filter(|line| line.ends_with("  chosen")).count(), 1, "{text}");
            // Columns line up.
            let width = table[0].len();
            let rows = &table[1..=candidates.len()];
            assert!(rows.iter().all(|row| row.trim_end_matches("  chosen").len() == width), "{text}");
        }
        assert_ne!(chosen[0], chosen[1]);
        comm.set_algorithm(Algorithm::Ring);
        all_reduce::<f32>(&comm, 4000, ReduceOp::Sum);
        assert!(comm.explain().to_string().contains("\n  asked for"), "{}", comm.explain());
    });
}

#[test]
fn an_own_plan_is_told_of_until_something_uses_it() {
    group(2, |comm| {
        let spec = Spec::all_reduce(Ranks(2), Elements(40), 4);
        comm.set_plan(Recipe::new(spec, Algorithm::Ring).unwrap().plan()).unwrap();
        let is_told = || comm.explain().to_string().contains("own that nothing used so far");
        assert!(is_told());
        all_reduce::<f32>(&comm, 40, ReduceOp::Sum);
        assert!(!is_told(), "{}", comm.explain());
    });
}

#[test]
fn a_model_that_makes_no_sense_is_refused_and_the_former_stays() {
    let comm = Communicator::group(1).unwrap().remove(0);
    let before = comm.tuner().model;
    assert_eq!(before.check(), Ok(()));
    let error = comm.set_cost_model(CostModel { combine: -1.0, ..before }).unwrap_err();
    assert_eq!(error.name, "combine");
    assert_eq!(comm.tuner().model, before);
}

#[test]
fn communicators_that_are_split_off_choose_by_the_same_model() {
    let between = Link { latency: 1.0, speed: 1.0 };
    group(4, |comm| {
        let model = CostModel { between, ..models()[0] };
        comm.set_cost_model(model).unwrap();
        let half = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().unwrap();
        assert_eq!(half.tuner().model, model);
        assert!(half.explain().to_string().contains("\ncost model: set by the program\n"), "{}", half.explain());
        all_reduce::<f64>(&half, 100, ReduceOp::Max);
        // What the program tunes is the communicator's own, as ever.
        assert_eq!(half.tuner().tuning, Tuning::default());
    });
}

#[test]
fn ranks_with_other_models_are_told_so() {
    group(3, |comm| {
        let [slow, narrow] = models();
        comm.set_cost_model(if comm.rank() == 1 { narrow } else { slow }).unwrap();
        let own = comm.tuner().choose(&Spec::all_reduce(Ranks(3), Elements(4000), 4), Algorithm::Auto).unwrap();
        let mut vector = comm.buffer::<f32>(4000).unwrap();
        let error = comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap_err().to_string();
        assert!(error.contains("rank 1") && error.contains(own.name()), "{error}");
    });
}
