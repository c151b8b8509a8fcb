//! Ranks on several hosts, and by what all of them choose algorithms.

use std::time::Duration;

use super::LIMIT;
use super::port::Port;
use crate::bootstrap::environment::Arrival;
use crate::bootstrap::whereabouts::whereabouts;
use crate::bootstrap::{Environment, Whereabouts};
use crate::communicator::Communicator;
use crate::cost::CostModel;
use crate::error::BootstrapError;
use crate::machine::{Known, Origin};
use crate::tune::Tuning;
use crate::{Algorithm, Collective, Nodes, ReduceOp};

/// Ranks that each believe to be on that machine, and what their attempts came to.
fn meet(machines: &[&str], limit: Duration) -> Vec<Result<Communicator, BootstrapError>> {
    let places: Vec<_> = machines.iter().map(|&machine| (machine, machine)).collect();
    meet_in(&places, limit)
}

/// The same, each on a node of the machine.
fn meet_in(machines: &[(&str, &str)], limit: Duration) -> Vec<Result<Communicator, BootstrapError>> {
    let port = Port::keep();
    let size = machines.len() as u32;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .zip(machines)
            .map(|(rank, &(machine, node))| {
                let environment = Environment { limit, ..Environment::at(rank, size, "127.0.0.1", port.number) };
                let (machine, node) = (machine.to_owned(), node.to_owned());
                let whereabouts = Whereabouts { machine, node, ..whereabouts() };
                // Each has measured something else.
                let model = CostModel { turn: f64::from(rank), ..CostModel::default() };
                let cost = Ok(Some(Known {
                    model,
                    origin: Origin::Measured { took: Duration::from_millis(1) },
                    ..Known::default()
                }));
                scope.spawn(move || environment.connect_with(Arrival { whereabouts, cost }))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_that_are_not_told_their_number_on_the_host_are_counted() {
    let ranks = meet(&["a", "b", "a"], LIMIT).into_iter().map(Result::unwrap);
    assert_eq!(ranks.map(|comm| comm.local_rank()).collect::<Vec<_>>(), [0, 0, 1]);
}

#[test]
fn ranks_on_several_hosts_are_where_topology_places_them_and_reach_each_other() {
    let ranks = meet(&["a", "a", "b"], LIMIT);
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let comm = comm.unwrap();
                let mut vector = comm.buffer::<i32>(5).unwrap();
                vector.fill(1 << comm.rank());
                comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                assert_eq!(vector[..], [7; 5]);
                let text = comm.explain().to_string();
                let place = text.lines().find(|line| line.starts_with("device ")).unwrap();
                assert!(std::env::var_os("QPAIR_DEVICE").is_some() || place.contains(": NUMA "), "{text}");
            });
        }
    });
}

#[test]
fn ranks_of_a_machine_that_do_not_reach_each_others_memory_are_on_several_nodes() {
    let ranks = meet_in(&[("a", "a1"), ("a", "a2"), ("a", "a1")], LIMIT);
    let ranks: Vec<Communicator> = ranks.into_iter().map(Result::unwrap).collect();
    for comm in &ranks {
        let nodes = [0, 1, 2].map(|rank| comm.node_of(rank));
        assert_eq!((comm.nodes(), nodes, comm.local_size()), (2, [0, 1, 0], 3));
        let text = comm.explain().to_string();
        assert!(text.contains("up to 262144 bytes") && text.contains("built in for the software device"), "{text}");
        comm.set_tuning(Tuning { eager: Some(1 << 20), ..Tuning::default() });
        assert_eq!(comm.tuner().eager(Collective::AllReduce), 256 << 10);
    }
    let ranks = meet_in(&[("a", "a1"), ("a", "a1")], LIMIT);
    for comm in ranks.into_iter().map(Result::unwrap) {
        let text = comm.explain().to_string();
        assert!(
            text.contains("up to 8192 bytes copy them, or up to 16384 where data goes one way;")
                && !text.contains("between nodes, "),
            "{text}"
        );
        comm.set_tuning(Tuning { eager: Some(1 << 20), ..Tuning::default() });
        assert_eq!(comm.tuner().eager(Collective::AllReduce), 16 << 10);
    }
}

#[test]
fn messages_are_copied_up_to_a_length_and_read_beyond() {
    for (machines, longest) in [(["a", "a"], 16 << 10), (["a", "b"], 256 << 10)] {
        copied_up_to(longest, meet(&machines, LIMIT).into_iter().map(Result::unwrap).collect());
    }
}

/// Broadcasts of so many bytes among two ranks, and of one more.
fn copied_up_to(longest: usize, ranks: Vec<Communicator>) {
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                comm.set_algorithm(Algorithm::Flat);
                for (len, how) in [(longest, "copied"), (longest + 1, "straight")] {
                    let mut vector = comm.buffer::<u8>(len).unwrap();
                    vector.fill(1 + comm.rank() as u8);
                    comm.broadcast(&mut vector, 1).unwrap();
                    assert!(vector.iter().all(|&element| element == 2), "{len}");
                    let text = comm.explain().to_string();
                    let plan = text.lines().find(|line| line.contains(&format!(" of {len} u8 ")));
                    assert!(plan.is_some_and(|plan| plan.ends_with(&format!("messages {how}"))), "{text}");
                }
            });
        }
    });
}

#[test]
fn all_ranks_choose_by_what_rank_0_measured() {
    let ranks: Vec<Communicator> = meet(&["a", "a", "b", "b"], LIMIT).into_iter().map(Result::unwrap).collect();
    let first = ranks[0].tuner();
    assert_eq!((first.model.turn, &first.seats.nodes), (0.0, &Nodes::Listed(vec![0, 0, 1, 1].into())));
    for comm in &ranks {
        assert_eq!(comm.tuner(), first);
        assert!(comm.explain().to_string().contains("cost model: measured by rank 0 at set-up, in 1.0 ms"));
    }
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                for len in [1, 1000, 100_000] {
                    let mut vector = comm.buffer::<i32>(len).unwrap();
                    vector.fill(1 << comm.rank());
                    comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                    assert!(vector.iter().all(|&sum| sum == 15));
                }
            });
        }
    });
}

#[test]
fn a_cost_model_that_can_not_be_had_at_rank_0_is_told_to_all() {
    let port = Port::keep();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let environment = Environment::at(rank, 2, "127.0.0.1", port.number);
            let broken = || BootstrapError::CostModel { path: "broken.json".into(), reason: "it is empty".into() };
            let cost = if rank == 0 { Err(broken()) } else { Ok(None) };
            let arrival = Arrival { whereabouts: whereabouts(), cost };
            scope.spawn(move || environment.connect_with(arrival).unwrap_err().to_string())
        });
        ranks.map(|rank| rank.join().unwrap()).into()
    });
    assert!(texts.iter().all(|text| text.contains("broken.json") && text.contains("it is empty")), "{texts:?}");
}

#[test]
fn a_cost_model_that_makes_no_sense_is_refused_by_all() {
    let port = Port::keep();
    let model = CostModel { turn: -1.0, ..CostModel::default() };
    std::thread::scope(|scope| {
        for rank in [0, 1] {
            let environment = Environment::at(rank, 2, "127.0.0.1", port.number);
            let cost = Ok((rank == 0).then(|| Known { model, ..Known::default() }));
            let arrival = Arrival { whereabouts: whereabouts(), cost };
            scope.spawn(move || {
                let error = environment.connect_with(arrival).unwrap_err();
                assert!(matches!(error, BootstrapError::Stranger { .. }), "{error}");
                assert!(error.to_string().contains("(costs: turn is -1: give seconds, from 0 to 1000)"), "{error}");
            });
        }
    });
}
