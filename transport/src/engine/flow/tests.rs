use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);
const SETTINGS: FlowSettings = FlowSettings {
    ack_delay: Duration::from_micros(100),
    least_timeout: MILLI,
    patience: Duration::from_secs(1),
    // Three of ten packets get lost, and three of ten acknowledgments.
    tries: 32,
};

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What happens to packets, per thousand.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u64,
    twice: u64,
    late: u64,
}

const NONE: Faults = Faults { lost: 0, twice: 0, late: 0 };

/// On its way: when it comes, in which order it was sent, where to, and what.
type Packet = Reverse<(Duration, u64, usize, [u8; FLOW_BYTES], u32)>;

/// Two sides and what is between them.
struct Between {
    sides: [Flow<u32, u32>; 2],
    wire: BinaryHeap<Packet>,
    faults: Faults,
    dice: Dice,
    now: Duration,
    order: u64,
    sent: [u32; 2],
    came: [u32; 2],
    acked: [u32; 2],
}

impl Between {
    fn new(faults: Faults, seed: u64) -> Self {
        Between {
            sides: [Flow::new(&SETTINGS), Flow::new(&SETTINGS)],
            wire: BinaryHeap::new(),
            faults,
            dice: Dice(seed | 1),
            now: Duration::ZERO,
            order: 0,
            sent: [0; 2],
            came: [0; 2],
            acked: [0; 2],
        }
    }

    /// As if so many packets had gone each way before.
    fn begin_at(&mut self, sequence: u32) {
        for side in &mut self.sides {
            side.sending.begin_at(sequence);
            side.arrivals.begin_at(sequence);
        }
    }

    fn carry(&mut self, to: usize, header: FlowHeader, packet: u32) {
        let mut bytes = [0; FLOW_BYTES];
        header.emit(7, 8, &mut bytes);
        let roll = self.dice.below(1000);
        let Faults { lost, twice, late } = self.faults;
        let copies = if roll < lost { 0 } else { 1 + u32::from(roll < lost + twice) };
        for _ in 0..copies {
            let late = if self.dice.below(1000) < late { self.dice.below(400) } else { 0 };
            self.order += 1;
            self.wire.push(Reverse((self.now + MICRO * (20 + late) as u32, self.order, to, bytes, packet)));
        }
    }

    fn send(&mut self, side: usize, count: u32) {
        for _ in 0..count {
            self.sides[side].send(self.sent[side]);
            self.sent[side] += 1;
        }
    }

    fn poll(&mut self, side: usize) {
        loop {
            let (header, packet) = match self.sides[side].poll(self.now) {
                None => return,
                Some(Due::Packet(header, &mut packet)) => (header, packet),
                Some(Due::Ack(header)) => (header, u32::MAX),
                Some(Due::Lost) => panic!("given up"),
            };
            self.carry(1 - side, header, packet);
        }
    }

    /// Until all is there and acknowledged.
    fn run(&mut self) {
        while self.came != [self.sent[1], self.sent[0]] || self.sides.iter().any(|side| !side.is_settled()) {
            assert!(self.now < Duration::from_secs(3600), "{:?} {:?}", self.sent, self.came);
            (0..2).for_each(|side| self.poll(side));
            let next = self.wire.peek().map(|Reverse(next)| next.0);
            let due = self.sides.iter().filter_map(Flow::due).min();
            let Some(at) = [next, due].into_iter().flatten().min() else { continue };
            self.now = self.now.max(at);
            while let Some(Reverse((_, _, to, bytes, packet))) =
                self.wire.peek().copied().filter(|next| next.0.0 <= self.now)
            {
                self.wire.pop();
                let (connection, secret, header) = FlowHeader::parse(&bytes).unwrap();
                assert_eq!((connection, secret), (7, 8));
                let wanted = self.sides[to].wants(&header).then_some(packet);
                self.sides[to].receive(&header, wanted, self.now).unwrap();
                while let Some(packet) = self.sides[to].next() {
                    assert_eq!(packet, self.came[to], "in order, and once");
                    self.came[to] += 1;
                }
            }
        }
        for (side, flow) in self.sides.iter_mut().enumerate() {
            let released: Vec<_> = std::iter::from_fn(|| flow.released()).collect();
            assert!(released.iter().copied().eq(self.acked[side]..self.sent[side]), "acknowledged in order");
            self.acked[side] = self.sent[side];
        }
    }

    fn repeated(&self) -> u64 {
        self.sides.iter().map(|side| side.counts().repeated).sum()
    }
}

#[test]
fn packets_come_once_and_in_order_whatever_happens_to_them() {
    let first = crate::soak::seed();
    for seed in (0..12).map(|round| first.wrapping_add(round)) {
        for faults in [
            NONE,
            Faults { lost: 50, ..NONE },
            Faults { lost: 300, twice: 100, late: 300 },
            Faults { twice: 500, ..NONE },
            Faults { late: 500, ..NONE },
        ] {
            println!("seed {seed}, {faults:?}");
            let mut between = Between::new(faults, seed);
            between.send(0, 500);
            between.send(1, 300);
            between.run();
            let faultless = faults.lost == 0 && faults.late == 0;
            assert!(!faultless || between.repeated() == 0, "{} for nothing", between.repeated());
            assert!(faults.twice == 0 || between.sides.iter().any(|side| side.counts().duplicates > 0));
        }
    }
}

#[test]
fn numbers_that_begin_again_change_nothing() {
    let seed = crate::soak::seed();
    for before in [(1 << 31) - 250, (1 << 30) - 250] {
        let mut between = Between::new(Faults { lost: 100, twice: 50, late: 200 }, seed);
        between.begin_at(before);
        between.send(0, 500);
        between.send(1, 500);
        between.run();
    }
}

/// A window is halved by a loss however long ago the last was.
#[test]
fn losses_count_after_any_number_of_packets() {
    let mut between = Between::new(NONE, 1);
    between.send(0, 100);
    between.run();
    let window = between.sides[0].pace().0;
    for quarter in 1..=3 {
        between.begin_at(quarter << 29);
        between.send(0, 1);
        between.run();
    }
    between.send(0, 20);
    between.poll(0);
    between.wire.pop().unwrap();
    between.run();
    assert!(between.sides[0].pace().0 < window, "{} under way", between.sides[0].pace().0);
}

/// A loss costs a round trip, not the time after which a packet is sent again.
#[test]
fn a_packet_behind_which_others_come_is_sent_again_at_once() {
    let mut between = Between::new(NONE, 1);
    between.send(0, 20);
    between.poll(0);
    let lost = between.wire.pop().unwrap();
    assert_eq!(lost.0.4, 0, "the first");
    between.run();
    assert_eq!(between.repeated(), 1);
    assert!(between.now < MILLI, "{:?}", between.now);
}

#[test]
fn what_came_is_acknowledged_soon_though_nothing_goes_back() {
    let mut flow: Flow<u32, u32> = Flow::new(&SETTINGS);
    let data = |sequence| FlowHeader { kind: FlowKind::Data, sequence, acknowledged: 0, beyond: 0 };
    flow.receive(&data(0), Some(0), MILLI).unwrap();
    assert_eq!((flow.due(), flow.poll(MILLI)), (Some(MILLI + SETTINGS.ack_delay), None));
    flow.receive(&data(1), Some(1), MILLI).unwrap();
    let both = FlowHeader { kind: FlowKind::Ack, sequence: 0, acknowledged: 2, beyond: 0 };
    assert_eq!(flow.poll(MILLI), Some(Due::Ack(both)), "two at once");
    flow.receive(&data(3), Some(3), MILLI).unwrap();
    let gap = FlowHeader { kind: FlowKind::Ack, sequence: 0, acknowledged: 2, beyond: 1 };
    assert_eq!(flow.poll(MILLI), Some(Due::Ack(gap)), "one is missing");
    assert!(flow.poll(MILLI).is_none() && flow.due().is_none());
}

#[test]
fn a_peer_that_never_answers_is_given_up_and_no_jump_of_the_clock_does_it() {
    let mut flow: Flow<u32, u32> = Flow::new(&SETTINGS);
    flow.send(1);
    assert!(matches!(flow.poll(MILLI), Some(Due::Packet(_, &mut 1))));
    let mut now = Duration::from_secs(1000);
    let mut tries = 1;
    while !matches!(flow.poll(now), Some(Due::Lost)) {
        tries += 1;
        now = flow.due().unwrap();
    }
    assert_eq!((tries, flow.counts().repeated), (SETTINGS.tries, u64::from(SETTINGS.tries) - 1));
    assert!(flow.end().0.eq([1]));
    assert!(flow.is_settled() && flow.due().is_none());
}

/// Its acknowledgment may be among what was not looked at.
#[test]
fn what_is_sent_before_a_look_takes_nothing_for_lost() {
    let mut flow: Flow<u32, u32> = Flow::new(&SETTINGS);
    flow.send(1);
    assert!(matches!(flow.poll_early(MILLI), Some(Due::Packet(_, &mut 1))));
    let late = Duration::from_secs(1);
    flow.send(2);
    assert!(matches!(flow.poll_early(late), Some(Due::Packet(_, &mut 2))));
    assert!(flow.poll_early(late).is_none() && flow.counts().repeated == 0);
    assert!(flow.due().unwrap() < late, "it is still due");
    assert!(matches!(flow.poll(late), Some(Due::Packet(_, &mut 1))));
}

#[test]
fn an_acknowledgment_of_what_was_not_sent_is_none() {
    let mut flow: Flow<u32, u32> = Flow::new(&SETTINGS);
    flow.send(0);
    flow.send(1);
    while flow.poll(MILLI).is_some() {}
    let ack = |acknowledged, beyond| FlowHeader { kind: FlowKind::Ack, sequence: 0, acknowledged, beyond };
    assert_eq!(flow.receive(&ack(3, 0), None, MILLI), Err(NotSent { said: 3, sent: 2 }));
    assert_eq!(flow.receive(&ack(0, 2), None, MILLI), Err(NotSent { said: 3, sent: 2 }));
    assert_eq!(flow.receive(&ack(0, 1), None, MILLI), Ok(()), "the second came");
    assert_eq!(flow.released(), None, "in order");
    assert_eq!(flow.receive(&ack(2, 0), None, MILLI), Ok(()));
    assert_eq!((flow.released(), flow.released(), flow.released()), (Some(0), Some(1), None));
}

/// Loss halves the window, and silence closes it but for one packet.
#[test]
fn what_is_under_way_is_bounded_and_shrinks_with_losses() {
    let mut between = Between::new(NONE, 1);
    between.send(0, 2000);
    between.run();
    assert_eq!(between.sides[0].pace().0, REORDER as u32);
    let flow = &mut between.sides[0];
    flow.send(1);
    assert!(flow.poll(between.now).is_some());
    let late = between.now + Duration::from_secs(1);
    assert!(matches!(flow.poll(late), Some(Due::Packet(..))));
    assert_eq!(flow.pace().0, 1);
}

/// What was lost together goes out again together, as the window opens: not one packet for each timeout.
#[test]
fn a_lost_window_costs_one_timeout() {
    for lost in [10, 31, 32] {
        let mut between = Between::new(NONE, 1);
        between.send(0, 2000);
        between.run();
        let before = between.now;
        between.send(0, 32);
        between.poll(0);
        let sent = std::mem::take(&mut between.wire).into_sorted_vec();
        assert_eq!(sent.len(), 32);
        // Sorted from the last on.
        between.wire.extend(sent.into_iter().rev().skip(lost as usize));
        between.run();
        let took = between.now - before;
        assert!(took < 3 * MILLI, "{lost} lost: {took:?}");
        assert!(between.repeated() <= 32, "{} for {lost}", between.repeated());
    }
}

/// Of the first flight nothing is measured: it takes one long timeout, and not one for each packet.
#[test]
fn a_first_flight_that_is_lost_costs_one_timeout_too() {
    let mut between = Between::new(NONE, 1);
    between.send(0, 10);
    between.poll(0);
    between.wire.clear();
    between.run();
    assert!(between.now < Duration::from_millis(250), "{:?}", between.now);
}

#[test]
fn a_peer_that_answers_is_not_given_up_by_bad_luck_with_one_packet() {
    let mut flow: Flow<u32, u32> = Flow::new(&FlowSettings { tries: 3, ..SETTINGS });
    let ack = |beyond| FlowHeader { kind: FlowKind::Ack, sequence: 0, acknowledged: 0, beyond };
    flow.send(0);
    let mut now = MILLI;
    assert!(matches!(flow.poll(now), Some(Due::Packet(..))));
    // Others come all the time, and the first never.
    for other in 0..31u32 {
        flow.send(1 + other);
        for _ in 0..25 {
            now += 20 * MILLI;
            while let Some(due) = flow.poll(now) {
                assert!(!matches!(due, Due::Lost), "after {other} others");
            }
        }
        flow.receive(&ack(u32::MAX >> (31 - other)), None, now).unwrap();
    }
    // Silence gives it up.
    let silent = now;
    while !matches!(flow.poll(now), Some(Due::Lost)) {
        now += 20 * MILLI;
    }
    assert!(now - silent >= SETTINGS.patience);
}

#[test]
fn an_idle_flow_is_small() {
    let bytes = size_of::<Flow<Box<[u8]>, Box<[u8]>>>();
    assert!(bytes <= 384, "{bytes} bytes for a peer");
}

proptest! {
    #[test]
    fn garbage_is_refused_or_taken_and_never_kept_without_end(packets: Vec<(bool, u32, u32, u32)>, sent in 0..40u32) {
        let mut flow: Flow<u32, u32> = Flow::new(&SETTINGS);
        (0..sent).for_each(|packet| flow.send(packet));
        let mut now = MILLI;
        for (data, sequence, acknowledged, beyond) in packets {
            let mut bytes = [0; FLOW_BYTES];
            for (place, word) in bytes[8..].chunks_exact_mut(4).zip([sequence % 100 + (u32::from(!data) << 31), acknowledged % 50, beyond & 7]) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            let (_, _, header) = FlowHeader::parse(&bytes).unwrap();
            prop_assert_eq!(header.has_contents(), data);
            let _ = flow.receive(&header, data.then_some(header.sequence), now);
            let mut out = 0;
            while let Some(Due::Packet(..) | Due::Ack(_)) = flow.poll(now) {
                out += 1;
            }
            prop_assert!(out <= 2 * REORDER, "{out} packets for one");
            now += MICRO * 100;
        }
        let mut last = None;
        while let Some(packet) = flow.next() {
            prop_assert!(last.is_none_or(|last| packet == last + 1) && (last.is_some() || packet == 0));
            last = Some(packet);
        }
    }
}
