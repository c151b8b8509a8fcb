//! Operations that are run straight, and those that do not go on so.

use std::collections::{HashMap, VecDeque};

use super::*;
use crate::algorithms::{Recipe, Shape};
use crate::plan::What;

/// What a rank does in the order in which it runs straight; `None` where it does not.
fn course(key: &Key, me: u32) -> (Compiled, Option<Vec<u32>>) {
    let plan = Compiled::new(key.clone(), me, &Tuner::default(), &[]).unwrap();
    let order = plan.straight.as_ref().map(|order| order.steps().to_vec());
    (plan, order)
}

fn keys() -> impl Iterator<Item = Key> {
    let cases = Algorithm::ALL.into_iter().flat_map(|wish| Collective::ALL.into_iter().map(move |of| (wish, of)));
    let sizes = [2, 3, 4, 5, 8].into_iter().flat_map(|ranks| [false, true].map(|in_place| (ranks, in_place)));
    let all = cases.flat_map(move |case| sizes.clone().map(move |size| (case, size)));
    all.filter_map(|((wish, collective), (ranks, in_place))| {
        let elements = if collective == Collective::Barrier { 0 } else { 4 };
        let spec = Spec { in_place, ..Spec::new(collective, Ranks(ranks), Elements(elements), 4) };
        Recipe::with(spec.clone(), wish, Shape::default()).ok()?;
        let data_type = (collective != Collective::Barrier).then_some(DataType::F32);
        let op = collective.reduces().then_some(ReduceOp::Sum);
        Some(Key { spec, data_type, op, wish, lenient: false, on_gpu: false })
    })
}

/// With each rank waiting for one message at a time, in its order, all come to the end.
#[test]
fn ranks_that_run_straight_wait_for_each_other_and_come_to_the_end() {
    let (mut straight, mut overtake) = (HashMap::new(), Vec::new());
    for key in keys() {
        let ranks: Vec<_> = (0..key.spec.ranks.0).map(|me| course(&key, me)).collect();
        let all = ranks.iter().all(|(_, order)| order.is_some());
        let most = ranks.iter().filter_map(|(plan, _)| Some(plan.straight.as_ref()?.overtakes)).max();
        assert!(most <= Some(1), "{} {}: {most:?}", key.wish, key.spec);
        if most == Some(1) && !overtake.contains(&key.wish) {
            overtake.push(key.wish);
        }
        straight.insert((key.wish, key.spec.collective, key.spec.ranks.0, key.spec.in_place), all);
        let what = format!("{} {}", key.wish, key.spec);
        // The others do what is next in the program, whatever that is, which no message waits longer for.
        let orders: Vec<Vec<u32>> = ranks
            .iter()
            .map(|(plan, order)| order.clone().unwrap_or_else(|| (0..plan.len() as u32).collect()))
            .collect();
        for ((plan, order), own) in ranks.iter().zip(&orders).filter(|((_, order), _)| order.is_some()) {
            let mut sorted = order.clone().unwrap();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..plan.len() as u32), "{what}");
            let place = |number: u32| own.iter().position(|&at| at == number);
            for number in 0..plan.len() as u32 {
                for &dependent in plan.graph.dependents(number) {
                    assert!(place(number) < place(dependent), "{what}: {number} before {dependent}");
                }
            }
        }
        if all {
            run_all(&ranks, &orders, &what);
        }
    }
    let is = |wish, collective, ranks, in_place| straight[&(wish, collective, ranks, in_place)];
    for ranks in [2, 4, 8] {
        assert!(is(Algorithm::Exchange, Collective::AllReduce, ranks, true));
        assert!(is(Algorithm::RecursiveDoubling, Collective::AllReduce, ranks, false));
        assert!(is(Algorithm::Direct, Collective::AllToAll, ranks, false));
        assert!(is(Algorithm::Direct, Collective::AllGather, ranks, true));
        assert!(is(Algorithm::BinomialTree, Collective::Broadcast { root: 0 }, ranks, true));
        assert!(is(Algorithm::Dissemination, Collective::Barrier, ranks, true));
    }
    // Most send in the order of the program; a leaf of one tree, whose parent there is its child in the other, sends that one first.
    assert_eq!(overtake, [Algorithm::DoubleTree]);
    // What goes down one tree is not to wait for what comes down the other.
    assert!(!is(Algorithm::DoubleTree, Collective::Broadcast { root: 0 }, 8, true));
}

fn run_all(ranks: &[(Compiled, Option<Vec<u32>>)], orders: &[Vec<u32>], what: &str) {
    let mut places = vec![0; ranks.len()];
    let mut under_way: HashMap<(u32, u32), VecDeque<u32>> = HashMap::new();
    loop {
        let before = places.clone();
        for (me, ((plan, _), order)) in (0..).zip(ranks.iter().zip(orders)) {
            let place = &mut places[me as usize];
            while let Some(&number) = order.get(*place) {
                let step = plan.steps[number as usize];
                let peer = plan.peers.get(step.slot as usize).map(|peer| peer.rank);
                match (step.what, peer) {
                    (What::Send, Some(peer)) => under_way.entry((me, peer)).or_default().push_back(step.message),
                    (What::Recv | What::RecvReduce, Some(peer)) => {
                        let messages = under_way.entry((peer, me)).or_default();
                        let Some(at) = messages.iter().position(|message| *message == step.message) else { break };
                        messages.remove(at);
                    }
                    _ => {}
                }
                *place += 1;
            }
        }
        if places == before {
            break;
        }
    }
    assert!(places.iter().zip(orders).all(|(place, order)| *place == order.len()), "{what}: {places:?}");
    assert!(under_way.values().all(VecDeque::is_empty), "{what}");
}

#[test]
fn plans_of_more_steps_than_a_mask_has_bits_are_left_to_the_engine() {
    // The root sends to each of the others.
    for (ranks, is_straight) in [(65, true), (66, false)] {
        let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(ranks), Elements(2), 4);
        let key = Key { spec, op: None, ..key(Algorithm::Flat, 2) };
        let (plan, order) = course(&key, 0);
        assert_eq!((plan.len(), order.is_some()), (ranks as usize - 1, is_straight));
    }
}

/// Rank 1 reduces so often, while `script` plays rank 0. How often that was done straight, and how often it stopped.
fn straight(times: u32, script: impl FnOnce(&mut Forger)) -> (Reduced, [u32; 2]) {
    let key = key(Algorithm::RecursiveDoubling, 2);
    play_and(times, key, |forger, _| script(forger), Communicator::run_straight)
}

fn ones() -> Vec<u8> {
    1.0_f32.to_le_bytes().repeat(2)
}

/// The first is not run straight, as no peer has been told what the plan's number stands for. Its message is the last, so that
/// those of the others are there.
#[test]
fn messages_that_are_there_are_taken_straight() {
    let (vector, ended) = straight(9, |forger| {
        for sequence in (1..9).chain([0]) {
            forger.say_in(sequence, Kind::Data, 0, &ones());
        }
    });
    assert_eq!(vector.unwrap(), [10.0; 2]);
    assert_eq!(ended, [8, 0]);
}

/// Numbers come round again after some thousands of plans.
#[test]
fn what_another_number_stands_for_from_now_on_keeps_no_plan_from_being_run_straight() {
    let (vector, ended) = straight(3, |forger| {
        forger.hear(Kind::Data);
        (3..5).for_each(|elements| forger.announce_as(9, key(Algorithm::Ring, elements)));
        [1, 2, 0].into_iter().for_each(|sequence| forger.say_in(sequence, Kind::Data, 0, &ones()));
    });
    assert_eq!(vector.unwrap(), [4.0; 2]);
    assert_eq!(ended, [2, 0]);
}

#[test]
fn messages_of_operations_to_come_are_kept() {
    let (vector, _) = straight(4, |forger| {
        for sequence in [1, 3, 2, 0] {
            forger.say_in(sequence, Kind::Data, 0, &ones());
        }
    });
    assert_eq!(vector.unwrap(), [5.0; 2]);
}

/// Rank 1 of two trees gives up its vector and gets the halves of the sum, the second first. How often that was done straight, how
/// often it stopped, and how many halves were taken before the first was. One half that is too short is the last.
fn halves(times: u32, second: fn(u16) -> Vec<f32>, pause: fn(&mut Forger)) -> (Reduced, [u32; 3]) {
    let bytes = |half: &[f32]| half.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<_>>();
    let script = |forger: &mut Forger, _| {
        for sequence in 0..times as u16 {
            forger.hear(Kind::Data);
            forger.hear(Kind::Data);
            let second = second(sequence);
            forger.say_in(sequence, Kind::Data, 1, &bytes(&second));
            if second.len() < 4 {
                forger.is_closed();
                return;
            }
            pause(forger);
            forger.say_in(sequence, Kind::Data, 0, &bytes(&[10.0; 4]));
        }
    };
    let see = |comm: &Communicator| {
        let [whole, stopped] = comm.run_straight();
        [whole, stopped, comm.taken_ahead()]
    };
    play_and(times, key(Algorithm::DoubleTree, 8), script, see)
}

/// How many are taken so depends on who is when at work.
#[test]
fn what_comes_before_it_is_waited_for_is_taken_straight() {
    let (vector, [whole, stopped, ahead]) = halves(50, |_| vec![4.0; 4], |_| ());
    assert_eq!(vector.unwrap(), [[10.0; 4], [4.0; 4]].concat());
    assert_eq!(whole + stopped, 49);
    assert!((1..=49).contains(&ahead), "{ahead}");
}

#[test]
fn the_engine_goes_on_behind_what_was_taken_before_it_was_waited_for() {
    let (vector, [_, stopped, _]) = halves(3, |_| vec![2.0; 4], keep_waiting);
    assert_eq!(vector.unwrap(), [[10.0; 4], [2.0; 4]].concat());
    assert_eq!(stopped, 2);
}

#[test]
fn what_comes_before_it_is_waited_for_has_to_fit() {
    let (result, [whole, ..]) = halves(2, |sequence| vec![4.0; 4 - usize::from(sequence)], |_| ());
    let error = result.unwrap_err().to_string();
    assert!(error.contains("rank 0 failed: what it gave rank 1"), "{error}");
    assert_eq!(whole, 0);
}

/// Keeps the other rank waiting far beyond the polls of a short wait, also where many threads share the cores: each gets as many
/// turns.
fn keep_waiting(forger: &mut Forger) {
    let (since, mut turns) = (Instant::now(), 0);
    while turns < 500 || since.elapsed() < Duration::from_millis(100) {
        forger.worker.poll().unwrap();
        std::thread::yield_now();
        turns += 1;
    }
}

/// A peer that keeps it waiting for longer than it waits so.
#[test]
fn what_takes_long_is_left_to_the_engine() {
    let (vector, [_, stopped]) = straight(3, |forger| {
        for sequence in 0..3 {
            forger.hear(Kind::Data);
            keep_waiting(forger);
            forger.say_in(sequence, Kind::Data, 0, &ones());
        }
    });
    assert_eq!(vector.unwrap(), [4.0; 2]);
    assert_eq!(stopped, 2);
}

#[test]
fn what_is_not_due_ends_it_as_it_does_elsewhere() {
    type Case<'a> = (&'a str, u16, Kind, u32, &'a [u8], &'a str);
    let ones = ones();
    let cases: [Case<'_>; 6] = [
        ("a message that there is not", 1, Kind::Data, 7, &ones, "has no use for"),
        ("one that is too short", 1, Kind::Data, 0, &ones[..4], "rank 0 failed: what it gave rank 1"),
        ("the memory of a short operation", 1, Kind::Begin, 0, &[], "has no use for"),
        ("a word of reading", 1, Kind::Read, 0, &[], "has no use for"),
        ("one of an operation that is over", 0, Kind::Data, 0, &ones, "rank 0"),
        ("a plan that nobody announced", 1, Kind::Announce, 0, b"?", "rank 0"),
    ];
    for (what, sequence, kind, message, contents, words) in cases {
        let (result, _) = straight(2, |forger| {
            forger.say(Kind::Data, 0, &ones);
            // The second is under way.
            forger.hear(Kind::Data);
            forger.hear(Kind::Data);
            forger.say_in(sequence, kind, message, contents);
            forger.is_closed();
        });
        let error = result.expect_err(what).to_string();
        assert!(error.contains(words), "{what}: {error}");
    }
}

/// Also where that is no hindrance to those that are due.
#[test]
fn what_no_step_takes_is_not_left_lying() {
    // Each sends two messages, of which the second comes first here, and comes again, or has come of another plan.
    for (what, plan) in [("twice", 0), ("of another plan", 1)] {
        let differs = plan == 1;
        let result = play_times(2, key(Algorithm::Ring, 2), |forger, _| {
            forger.announce_as(1, key(Algorithm::Ring, 3));
            forger.say(Kind::Data, 0, &[0; 4]);
            forger.say(Kind::Data, 1, &[0; 4]);
            // The second operation is under way.
            (0..3).for_each(|_| drop(forger.hear(Kind::Data)));
            let tag = Fields { kind: Kind::Data, rank: 0, plan, sequence: 1, message: 1 }.encode();
            forger.worker.send(forger.ep, tag, Bytes::copy_from_slice(&[0; 4])).unwrap();
            forger.say_in(1, Kind::Data, 1, &[0; 4]);
            forger.say_in(1, Kind::Data, 0, &[0; 4]);
            forger.is_closed();
        });
        let error = result.expect_err(what);
        assert_eq!(matches!(error, CollectiveError::Mismatch(_)), differs, "{what}: {error}");
        assert!(differs || error.to_string().contains("has no use for"), "{what}: {error}");
    }
}

#[test]
fn a_peer_that_goes_is_named() {
    let (result, _) = straight(2, |forger| {
        forger.say(Kind::Data, 0, &ones());
        forger.hear(Kind::Data);
        forger.hear(Kind::Data);
        forger.worker.close(forger.ep);
        forger.is_closed();
    });
    let error = result.unwrap_err();
    assert!(matches!(error, CollectiveError::RankLeft { rank: 0, .. }), "{error}");
}

/// Where a peer has room for one message at a time, so that what is given away goes to some and not to others.
#[test]
fn peers_without_room_are_sent_to_later() {
    for window in [1, 2] {
        let settings = NetSettings { window, ..NetSettings::default() };
        let group = Communicator::group_knowing(3, settings, &Known::default()).unwrap();
        let ended: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> =
                group.into_iter().map(|comm| scope.spawn(move || exchanges_and_broadcasts(&comm))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(ended.iter().any(|[_, stopped]| *stopped > 0), "{ended:?}");
    }
}

fn exchanges_and_broadcasts(comm: &Communicator) -> [u32; 2] {
    comm.set_timeout(LIMIT);
    let (me, mut vector) = (comm.rank(), comm.buffer::<f32>(2).unwrap());
    for round in 0..200 {
        comm.set_algorithm(Algorithm::Flat);
        // The root waits for nobody.
        for _ in 0..4 {
            vector.fill(if me == round % 3 { round as f32 } else { -1.0 });
            comm.broadcast(&mut vector, round % 3).unwrap();
            assert_eq!(vector[..], [round as f32; 2]);
        }
        comm.set_algorithm(Algorithm::Exchange);
        vector.fill(1.0 + me as f32);
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
        assert_eq!(vector[..], [6.0; 2]);
        vector.fill(2.0 + me as f32);
        comm.all_reduce(&mut vector, ReduceOp::Avg).unwrap();
        assert_eq!(vector[..], [3.0; 2]);
    }
    comm.run_straight()
}
