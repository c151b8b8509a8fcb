//! The order in which a machine is read means nothing.

mod support;

use qpair_topology::{Machine, Selection};
use support::machines;
use support::random::{self, Random};

fn one_answer(machine: &Machine, orders: usize, seed: u64) {
    let mut random = Random(seed);
    let choice = Selection::of(machine).choose().expect("nothing was asked for");
    for order in 0..orders {
        let other = random::reordered(machine, &mut random);
        // Equal machines have equal answers: selection sees nothing else. Some are asked to make sure.
        assert_eq!(&other, machine, "order {order} from seed {seed}");
        if order < 3 {
            assert_eq!(Selection::of(&other).choose().as_ref(), Ok(&choice), "order {order} from seed {seed}");
        }
    }
}

#[test]
fn ten_thousand_orders_of_a_machine_have_one_answer() {
    one_answer(&machines::hgx_two_per_nic(), 10_000, 1);
}

#[test]
fn orders_of_every_machine_have_one_answer() {
    machines::all().iter().for_each(|machine| one_answer(machine, 10, 2));
}

#[test]
fn orders_of_random_machines_have_one_answer() {
    for seed in 0..100 {
        one_answer(&random::machine(&mut Random(seed), 6, 6), 5, seed);
    }
}
