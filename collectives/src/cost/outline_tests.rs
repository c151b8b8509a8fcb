//! What algorithms say of themselves in closed form, against their plans.

use super::seats::Spread;
use super::{CostModel, Link, Seats};
use crate::algorithms::{Algorithm, Nodes, Outline, Phase, Recipe, Shape, Side, outline};
use crate::plan::{Collective, Elements, Plan, Ranks, Spec, StepKind};
use crate::tune::{Tuner, Tuning};

/// Plans of powers of two, where nothing is rounded.
fn recipes(ranks: &[u32], elements: u64, segment: u64) -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for &ranks in ranks {
                for nodes in [1, 4] {
                    let blocks = if collective.has_blocks() { elements / u64::from(ranks) } else { elements };
                    let spec = Spec::new(collective, Ranks(ranks), Elements(blocks), 4);
                    let nodes =
                        if algorithm == Algorithm::Hierarchical { Nodes::Of(ranks / nodes) } else { Nodes::One };
                    let shape = Shape { segment, nodes, ..Shape::default() };
                    recipes.extend(Recipe::with(spec, algorithm, shape));
                }
            }
        }
    }
    assert!(recipes.len() > 40);
    recipes
}

/// Messages, their bytes, and those of them that are combined.
fn counted(plan: &Plan) -> [f64; 3] {
    let size = f64::from(plan.spec.element_size);
    let kinds = || plan.programs.iter().flat_map(|program| program.steps()).map(|step| step.kind);
    let bytes = |counts: fn(&StepKind) -> bool| kinds().filter(counts).map(|kind| kind.elements() as f64 * size).sum();
    let combined = bytes(|kind| matches!(kind, StepKind::RecvReduce { .. }));
    [kinds().filter(|kind| kind.is_send()).count() as f64, bytes(|kind| kind.is_send()), combined]
}

#[test]
fn messages_and_bytes_are_those_of_the_plan() {
    let mut wrong = Vec::new();
    let segments = [1 << 30, 1 << 11];
    // The last of what flat takes by four may be fewer.
    let by_four = [2, 3, 5, 6, 7, 9].map(|ranks| {
        let spec = Spec::new(Collective::AllToAll, Ranks(ranks), Elements(64), 4);
        Recipe::new(spec, Algorithm::Flat).unwrap()
    });
    let all = segments.into_iter().flat_map(|segment| recipes(&[4, 8, 16], 1 << 14, segment));
    for recipe in all.chain(by_four) {
        let sums = |side: fn(&Phase) -> Side| {
            let mut sums = [0.0; 3];
            for phase in outline(&recipe, false).phases {
                let times = phase.rounds * side(&phase).ranks;
                sums[0] += times * side(&phase).messages;
                if side(&phase).messages > 0.0 {
                    sums[1] += times * side(&phase).bytes;
                    sums[2] += if phase.combines { times * side(&phase).bytes } else { 0.0 };
                }
            }
            sums
        };
        let expected = counted(&recipe.plan());
        // Sums of the canonical order are copied before they are combined, which the outline counts beside.
        let ordered = recipe.algorithm == Algorithm::Exchange;
        for (which, side) in [("gives", sums(|phase| phase.gives)), ("takes", sums(|phase| phase.takes))] {
            let near = |at: usize| (side[at] - expected[at]).abs() <= 0.02 * expected[at];
            if !near(0) || !near(1) || !(near(2) || ordered) {
                wrong.push(format!("{} {}: {which} {side:?}, not {expected:?}", recipe.algorithm, recipe.spec));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where the work is of those who send: of a binomial tree the root, which sends each segment to all its children.
#[test]
fn pipelines_down_trees_take_what_their_busiest_members_do() {
    let seats = Seats { nodes: Nodes::Of(1), by_software: true, ..Seats::default() };
    let model = CostModel { packet: 3e-6, payload: 0.5e-6, ..CostModel::default() };
    for algorithm in [Algorithm::Chain, Algorithm::BinomialTree, Algorithm::Hierarchical] {
        for (ranks, segments) in [(4, 16), (8, 8), (8, 64), (16, 32)] {
            let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(ranks), Elements(segments << 15), 4);
            let nodes = if algorithm == Algorithm::Hierarchical { Nodes::Of(1) } else { Nodes::One };
            let recipe = Recipe::with(spec, algorithm, Shape { segment: 1 << 15, nodes, ..Shape::default() }).unwrap();
            let simulated = recipe.plan().timeline_at(&model, &seats, u64::MAX).unwrap().cost().seconds;
            let tuning = Tuning { segment: 1 << 17, eager: Some(u64::MAX), ..Tuning::default() };
            let priced = Tuner { model, seats: seats.clone(), tuning, ..Tuner::default() }.price(&recipe).seconds;
            let ratio = priced / simulated;
            assert!((0.6..=1.1).contains(&ratio), "{ratio:.2} {algorithm} {ranks} {segments}: {priced:.2e}");
        }
    }
}

#[test]
fn rounds_are_the_messages_in_a_row() {
    let mut wrong = Vec::new();
    for recipe in recipes(&[2, 4, 8, 16], 1 << 14, 1 << 30) {
        let phases = outline(&recipe, false).phases.into_iter();
        let with_messages = phases.filter(|phase| phase.takes.messages > 0.0 && phase.takes.ranks > 0.0);
        let rounds: f64 = with_messages.map(|phase| phase.rounds).sum();
        let in_a_row = recipe.plan().messages_in_a_row().unwrap() as f64;
        // The two trees of a double tree are as deep as their members allow.
        let slack = if recipe.algorithm == Algorithm::DoubleTree { 0.5 * in_a_row + 2.0 } else { 0.0 };
        if (rounds - in_a_row).abs() > slack {
            wrong.push(format!("{} {}: {rounds}, not {in_a_row}", recipe.algorithm, recipe.spec));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a core's caches hold is not the memory's.
#[test]
fn short_vectors_of_many_ranks_take_what_the_simulation_does() {
    let spec = Spec::new(Collective::AllToAll, Ranks(256), Elements(1), 1);
    for algorithm in [Algorithm::Bruck, Algorithm::Direct, Algorithm::Flat] {
        let recipe = Recipe::new(spec.clone(), algorithm).unwrap();
        let tuner = Tuner::default();
        let simulated = recipe.plan().timeline_at(&tuner.model, &tuner.seats, u64::MAX).unwrap().cost().seconds;
        let ratio = tuner.price(&recipe).seconds / simulated;
        assert!((0.9..=1.1).contains(&ratio), "{ratio:.2} {algorithm}");
    }
}

/// Four ranks to a core: each has a fourth of it, and finds the caches full of what is the others'.
#[test]
fn messages_of_ranks_that_share_cores_take_longer() {
    let model = CostModel { send: 1e-6, receive: 1e-6, ..CostModel::free() };
    let spec = Spec::new(Collective::AllGather, Ranks(8), Elements(16), 4);
    let recipe = Recipe::new(spec, Algorithm::Direct).unwrap();
    let [apart, shared] = [8.0, 2.0].map(|cores| {
        let tuning = Tuning { eager: Some(u64::MAX), ..Tuning::default() };
        let tuner = Tuner { model, tuning, seats: Seats { cores, ..Seats::default() }, ..Tuner::default() };
        let simulated = recipe.plan().timeline_at(&model, &tuner.seats, u64::MAX).unwrap().cost().seconds;
        [tuner.price(&recipe).seconds, simulated]
    });
    for (apart, shared) in apart.into_iter().zip(shared) {
        let longer = shared / apart / 4.0;
        assert!((1.5..=1.7).contains(&longer), "{longer} times");
    }
}

/// A rank with much to tell its peers shares its core with others that have less.
#[test]
fn who_has_most_peers_is_not_all() {
    let model = CostModel { start: 1.0, send: 0.5, receive: 0.5, ..CostModel::free() };
    let edges = |cores| {
        let spread = Spread::of(&Seats { cores, ..Seats::default() }, 8);
        let seconds = model.price(&Outline::with_peers(7).mostly(1), &spread, &Nodes::One, false).seconds;
        // Of words, which take longer where cores are shared, in words.
        (seconds - spread.crowd()) / (1.0 + 0.8 * spread.others_part())
    };
    // There and back to seven; and three others on its core to it.
    assert_eq!([8.0, 2.0].map(|cores| edges(cores).round()), [14.0, 14.0 + 3.0 * 2.0]);
}

#[test]
fn closed_forms_are_near_the_simulation() {
    let within = Link { latency: 1e-6, speed: f64::MAX };
    let beside = Link { latency: 2e-6, speed: 8e9 };
    let (send, receive, packet, payload) = (0.03e-6, 0.03e-6, 3e-6, 0.5e-6);
    let model = CostModel { within, beside, send, receive, packet, payload, ..CostModel::default() };
    let mut wrong = Vec::new();
    for elements in [1 << 4, 1 << 10, 1 << 14, 1 << 20] {
        let recipes = recipes(&[2, 4, 8, 16], elements, 1 << 15).into_iter();
        // Of a transfer most ranks have no part.
        for recipe in recipes.filter(|recipe| recipe.spec.collective.name() != "transfer") {
            // A node is one island, or two; or those that the algorithm takes for nodes are islands of one.
            let Spec { ranks: Ranks(ranks), .. } = recipe.spec;
            let (on_one, on_two) = (None, Some(Nodes::Of((ranks / 2).max(1))));
            let near = &recipe.shape.nodes;
            let places = [(near, on_one.clone(), f64::INFINITY), (near, on_one, 2.0), (near, on_two, f64::INFINITY)];
            let among = [
                (&Nodes::One, Some(near.clone()), f64::INFINITY),
                (&Nodes::Of(1), None, f64::INFINITY),
                (&Nodes::Of(1), None, 0.5),
            ];
            for (nodes, islands, cores) in places.into_iter().chain(among) {
                let seats = Seats { nodes: nodes.clone(), islands, cores, ..Seats::default() };
                let tuner = Tuner { model, seats: seats.clone(), ..Tuner::default() };
                let eager = tuner.eager(recipe.spec.collective);
                let simulated = recipe.plan().timeline_at(&model, &seats, eager).unwrap().cost().seconds;
                let priced = tuner.price(&recipe).seconds;
                let ratio = priced / simulated;
                if !(0.4..=2.5).contains(&ratio) {
                    wrong.push(format!(
                        "{ratio:.2} {} {} {seats:?}: {priced:.2e}, {simulated:.2e}",
                        recipe.algorithm, recipe.spec
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
