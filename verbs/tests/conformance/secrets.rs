//! What gives access or names a connection can not be guessed from what came before.

use std::collections::HashSet;

use qpair_verbs::{Access, Context};

use crate::harness::{Env, Promise};

one_sided! {
    keys_are_unpredictable,
    queue_pair_numbers_are_unpredictable,
    first_sequence_numbers_are_unpredictable,
    devices_opened_are_told_apart,
}

const SAMPLES: usize = 64;
/// Lowest bits of a queue pair's number, which lead packets of the network to the process that has it.
const PLACE: u32 = 6;

/// Asserts that numbers of `bits` bits follow no simple rule.
fn assert_unpredictable(numbers: &[u32], bits: u32) {
    let mask = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
    assert!(numbers.iter().all(|number| number & !mask == 0), "more than {bits} bits: {numbers:x?}");
    let distinct: HashSet<_> = numbers.iter().collect();
    assert!(distinct.len() + 1 >= numbers.len(), "numbers come again: {numbers:x?}");
    for (rule, of) in [("differences", u32::wrapping_sub as fn(u32, u32) -> u32), ("flips", |a, b| a ^ b)] {
        let steps: HashSet<_> = numbers.windows(2).map(|two| of(two[1], two[0]) & mask).collect();
        assert!(steps.len() + 3 >= numbers.len(), "{rule} come again: {numbers:x?}");
    }
    let (all, any) = numbers.iter().fold((mask, 0), |(all, any), number| (all & number, any | number));
    assert_eq!((all, any), (0, mask), "bits that never change: {numbers:x?}");
    // Each bit is set in about half of the numbers; 10 of 64 is seven sigma away.
    for bit in 0..bits {
        let set = numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
        assert!((SAMPLES / 6..=SAMPLES - SAMPLES / 6).contains(&set), "bit {bit} is set {set} times: {numbers:x?}");
    }
}

fn keys_are_unpredictable(env: &Env) {
    if !env.promises(Promise::NumbersAreRandom) {
        return;
    }
    let pd = env.ctx().alloc_pd().unwrap();
    let kept: Vec<_> = (0..SAMPLES).map(|_| pd.expose(64, Access::REMOTE_READ).unwrap()).collect();
    assert_unpredictable(&kept.iter().map(|region| region.rkey().0).collect::<Vec<_>>(), 32);
    let dropped = (0..SAMPLES).map(|_| pd.expose(64, Access::REMOTE_READ).unwrap().rkey().0);
    assert_unpredictable(&dropped.collect::<Vec<_>>(), 32);
    let fresh = (0..SAMPLES).map(|_| {
        let ctx = Context::open(env.device()).unwrap();
        ctx.alloc_pd().unwrap().expose(64, Access::REMOTE_READ).unwrap().rkey().0
    });
    assert_unpredictable(&fresh.collect::<Vec<_>>(), 32);
}

fn queue_pair_numbers_are_unpredictable(env: &Env) {
    if !env.promises(Promise::NumbersAreRandom) {
        return;
    }
    let pd = env.ctx().alloc_pd().unwrap();
    let cq = env.ctx().create_cq(4).unwrap();
    let kept: Vec<_> = (0..SAMPLES).map(|_| pd.rc(&cq).build().unwrap()).collect();
    assert_unpredictable(&kept.iter().map(|qp| qp.number().0 >> PLACE).collect::<Vec<_>>(), 24 - PLACE);
    let dropped = (0..SAMPLES).map(|_| pd.rc(&cq).build().unwrap().number().0 >> PLACE);
    assert_unpredictable(&dropped.collect::<Vec<_>>(), 24 - PLACE);
}

fn first_sequence_numbers_are_unpredictable(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let cq = env.ctx().create_cq(4).unwrap();
    let numbers = (0..SAMPLES).map(|_| pd.rc(&cq).build().unwrap().address().psn.get());
    assert_unpredictable(&numbers.collect::<Vec<_>>(), 24);
}

fn devices_opened_are_told_apart(env: &Env) {
    let mut nodes = HashSet::new();
    for _ in 0..SAMPLES {
        let ctx = Context::open(env.device()).unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let address = pd.rc(&ctx.create_cq(4).unwrap()).build().unwrap().address();
        let Some(soft) = address.soft else {
            _ = env.able("addresses within a host", false);
            return;
        };
        assert!(nodes.insert(soft.node), "a device's number came again");
        let zeros = soft.node.0.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 8, "{} is not random", soft.node);
    }
}
