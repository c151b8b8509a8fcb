//! Messages by slots of GPUs, from a rank that says what it should not.

use super::*;
use crate::bootstrap::Staging;

/// Plays rank 0 by hand against a real rank 1, for a vector on a GPU whose messages go by slots.
fn play_staged(elements: u64, script: impl FnOnce(&mut Forger)) -> Result<(), CollectiveError> {
    let staged = |member| Member { staging: Some(Staging::Asked), ..member };
    let (comm, address) = real_among(members().into_iter().map(staged).collect());
    let key = Key { on_gpu: true, ..key(Algorithm::RecursiveDoubling, elements) };
    qpair_fake_cuda::control::load().unwrap();
    let gpu = qpair_verbs::Gpu::open(0).unwrap();
    std::thread::scope(|scope| {
        let rank = scope.spawn(move || {
            comm.set_algorithm(Algorithm::RecursiveDoubling);
            let mut vector = comm.gpu_buffer::<f32>(gpu, elements as usize).unwrap();
            comm.all_reduce(&mut vector, ReduceOp::Sum)
        });
        let mut forger = Forger::rank_0(address, key);
        script(&mut forger);
        let start = Instant::now();
        while !rank.is_finished() && start.elapsed() < LIMIT {
            forger.worker.poll().unwrap();
            std::thread::yield_now();
        }
        rank.join().unwrap()
    })
}

#[test]
fn what_is_not_due_of_messages_by_slots_of_a_gpu_ends_it_on_both_sides() {
    // The message of each is one slot, and part of a second: neither is cut by this algorithm.
    const SLOT: usize = crate::cost::SLOT;
    let elements = (SLOT / 4 + 1000) as u64;
    enum Does {
        Wants(u32),
        Copies,
        Offers(u32, usize),
    }
    use Does::{Copies, Offers, Wants};
    let cases: [(&str, &[Does], &str); 7] = [
        ("ready twice", &[Wants(0), Wants(0)], "has no use for"),
        ("ready for a message that there is not", &[Wants(7)], "has no use for"),
        ("a word for a message by slots", &[Copies], "has no use for"),
        ("part of a message that there is not", &[Offers(7, SLOT)], "has no use for"),
        ("a part that is too short", &[Offers(0, SLOT - 4)], "does not fit"),
        ("a second part that is too long", &[Offers(0, SLOT), Offers(0, 4004)], "does not fit"),
        ("one part too many", &[Offers(0, SLOT), Offers(0, 4000), Offers(0, 4000)], "does not fit"),
    ];
    for (what, does, words) in cases {
        let error = play_staged(elements, |forger| {
            forger.hear(Kind::Want);
            let region = forger.expose(SLOT);
            for does in does {
                match *does {
                    Wants(message) => forger.say(Kind::Want, message, &[]),
                    Copies => forger.say(Kind::Data, 0, &[0; 4]),
                    Offers(message, len) => {
                        let fields = Fields { kind: Kind::Data, rank: 0, plan: 0, sequence: 0, message };
                        let part = forger.worker.remote(&region, 0..len);
                        forger.worker.send(forger.ep, fields.encode(), part).unwrap();
                    }
                }
            }
            forger.is_closed();
        });
        let error = error.expect_err(what);
        assert!(matches!(error, CollectiveError::RankFailed { .. }), "{what}: {error}");
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}
