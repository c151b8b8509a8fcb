//! Any traffic over a bad network: a message arrives whole, in its turn and once, or not at all.

use proptest::prelude::*;
use qpair_roce::{Completion, Extra, Mtu, Op, Outcome, Remote};

use super::pair::Pair;
use crate::network::{Faults, Random};
use crate::side::{BASE, KEY};

/// A message, without its contents.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32, Extra),
    /// With immediate data, or not.
    Write(u32, bool),
}

/// A message that was sent: its operation, its contents, its first packet, and how many they are.
struct Message {
    op: Op,
    contents: Vec<u8>,
    packets: std::ops::Range<usize>,
}

const LONGEST: u32 = 6000;
/// Receives have more room than the longest message.
const ROOM: u32 = 6100;

fn step() -> impl Strategy<Value = Step> {
    let len = || 0..=LONGEST;
    let extra = prop_oneof![Just(Extra::Nothing), any::<u32>().prop_map(Extra::Immediate)];
    prop_oneof![
        (len(), extra).prop_map(|(len, extra)| Step::Send(len, extra)),
        (len(), any::<bool>()).prop_map(|(len, notify)| Step::Write(len, notify)),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let share = || prop_oneof![Just(0.0), 0.0..0.2f64];
    (share(), share(), share(), share()).prop_map(|(loss, duplicate, corrupt, reorder)| Faults {
        loss,
        duplicate,
        corrupt,
        reorder,
        late: 0.0,
    })
}

fn mtu() -> impl Strategy<Value = Mtu> {
    prop_oneof![Just(Mtu::B256), Just(Mtu::B1024), Just(Mtu::B4096)]
}

/// Posts all, each WRITE to memory of its own.
fn post(pair: &mut Pair, seed: u64, steps: &[Step]) -> Vec<Message> {
    let mut random = Random(seed ^ 0x5eed);
    let mtu = pair.ends[0].uc.config().mtu.bytes() as usize;
    let mut begins = 0;
    let mut messages = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let remote = Remote { va: BASE + number as u64 * u64::from(LONGEST), rkey: KEY };
        let (op, len) = match *step {
            Step::Send(len, extra) => (Op::Send(extra), len),
            Step::Write(len, notify) => (Op::Write(remote, notify.then_some(number as u32)), len),
        };
        let contents: Vec<u8> = (0..len).map(|_| random.next() as u8 | 1).collect();
        let packets = begins..begins + contents.len().div_ceil(mtu).max(1);
        begins = packets.end;
        pair.post(0, op, contents.clone());
        messages.push(Message { op, contents, packets });
    }
    messages
}

/// What the receiver learns of a message, if anything: what it brought, whether it was a WRITE, and what is in the receive.
fn seen(message: &Message) -> Option<(Extra, bool, &[u8])> {
    match message.op {
        Op::Send(extra) => Some((extra, false, &message.contents)),
        Op::Write(_, immediate) => {
            immediate.map(|immediate| (Extra::Immediate(immediate), true, &message.contents[..]))
        }
        _ => unreachable!("no other is sent"),
    }
}

/// What came, as [`seen`] has it, in receives of their order. Where a WRITE went is looked at elsewhere.
fn arrived(pair: &Pair) -> Vec<(Extra, bool, &[u8])> {
    let side = &pair.ends[1].side;
    let one = |(number, completion): (usize, &Completion<usize>)| match completion {
        Completion::Received { id, outcome: Outcome::Success, local, message } => {
            assert_eq!(*id, number as u64, "receives are used in order");
            let len = message.len as usize;
            let buffer = &side.buffers[*local];
            let contents = if message.is_write { &[] } else { &buffer[..len] };
            (message.extra, message.is_write, contents)
        }
        other => panic!("{other:?}"),
    };
    side.completions.iter().enumerate().map(one).collect()
}

/// Bytes of the memory that a WRITE went to.
fn written<'a>(pair: &'a Pair, message: &Message) -> &'a [u8] {
    let Op::Write(remote, _) = message.op else { return &[] };
    &pair.ends[1].side.memory[(remote.va - BASE) as usize..][..message.contents.len()]
}

fn matches(message: &Message, (extra, is_write, contents): (Extra, bool, &[u8])) -> bool {
    seen(message).is_some_and(|wanted| (wanted.0, wanted.1) == (extra, is_write) && (is_write || wanted.2 == contents))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Of messages that lose packets nothing is to be seen but what WRITEs wrote, and no other message is lost with them.
    #[test]
    fn exactly_those_arrive_that_lost_no_packet(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 0..40),
        lost in prop::collection::vec(prop::bool::weighted(0.1), 1000),
        mtu in mtu(),
    ) {
        let mut pair = Pair::new(seed, Faults::default(), mtu);
        for id in 0..steps.len() as u64 {
            pair.ends[1].side.receive(id, ROOM);
        }
        let messages = post(&mut pair, seed, &steps);
        pair.lost = lost.clone();
        pair.drive();
        prop_assert_eq!(pair.sent(0).len(), steps.len());
        let is_whole = |message: &&Message| !lost[message.packets.clone()].contains(&true);
        let wanted: Vec<_> = messages.iter().filter(is_whole).filter(|message| seen(message).is_some()).collect();
        let came = arrived(&pair);
        prop_assert_eq!(came.len(), wanted.len());
        for (message, came) in wanted.iter().zip(came) {
            prop_assert!(matches(message, came), "{:?}", message.op);
        }
        for message in messages.iter().filter(is_whole) {
            if let Op::Write(..) = message.op {
                prop_assert!(written(&pair, message) == &message.contents[..], "{:?}", message.op);
            }
        }
    }

    #[test]
    fn whole_in_order_and_once_or_not_at_all(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 0..40),
        receives in 0..40u64,
        faults in faults(),
        mtu in mtu(),
    ) {
        let mut pair = Pair::new(seed, faults, mtu);
        for id in 0..receives {
            pair.ends[1].side.receive(id, ROOM);
        }
        let messages = post(&mut pair, seed, &steps);
        pair.drive();
        prop_assert_eq!(pair.sent(0).len(), steps.len());
        // What came is what was sent, less some.
        let mut left = messages.iter();
        for came in arrived(&pair) {
            let message = left.find(|message| matches(message, came));
            prop_assert!(message.is_some(), "{:?} of {} bytes is none that is due", came.0, came.2.len());
            if let Some(message) = message.filter(|_| came.1) {
                prop_assert!(written(&pair, message) == &message.contents[..], "{:?}", message.op);
            }
        }
        // Of a WRITE each packet arrived whole or not at all, and nothing else was written.
        let mut elsewhere = pair.ends[1].side.memory.clone();
        for message in &messages {
            let Op::Write(remote, _) = message.op else { continue };
            let start = (remote.va - BASE) as usize;
            elsewhere[start..start + message.contents.len()].fill(0);
            let mtu = mtu.bytes() as usize;
            for (now, wanted) in written(&pair, message).chunks(mtu).zip(message.contents.chunks(mtu)) {
                prop_assert!(now == wanted || now.iter().all(|byte| *byte == 0), "{:?}", message.op);
            }
        }
        prop_assert!(elsewhere.iter().all(|byte| *byte == 0), "no byte more");
    }
}
