//! Two links joined by a simulated reliable connection: messages and completions take random times, in order each; every
//! receive takes a slot that must be there. Virtual time; no thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use qpair_verbs::{RemoteSlice, Rkey};

use super::lanes::Repeat;
use super::side::{Dice, Side, Way};
use crate::engine::*;

pub(super) const EAGER_LIMIT: u64 = 100;
/// Longest payload without a receive.
pub(super) const LONGEST: u64 = 8000;
/// Each side's only peer.
const PEER: Peer = Peer(7);
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Message { header: [u8; HEADER_BYTES], serial: u64, offer: Option<Vec<u8>> },
    Done { number: u32 },
    Read { key: u64, number: u32, serial: u64 },
    SlotFree { credited: bool },
}

pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) events: BinaryHeap<Reverse<(u64, u64, usize, What)>>,
    pub(super) dice: Dice,
    pub(super) now: u64,
    order: u64,
    pub(super) next: u64,
    /// Longest time for which the application keeps a message.
    pub(super) hold: u64,
    pub(super) broken: bool,
    /// The queue pair failed.
    pub(super) suspended: bool,
    /// Queue pairs so far.
    pub(super) lanes: u32,
    pub(super) window: u32,
}

impl Pair {
    pub(super) fn new(window: u32, depth: u32, hold_offers: bool, seed: u64) -> Self {
        let side = |epoch| {
            let config = LinkConfig {
                window,
                depth,
                epoch,
                offers: 3,
                keepalive: Duration::from_secs(1),
                detection: Duration::from_secs(1),
            };
            Side {
                link: Link::new(&config),
                inbox: Inbox::new(Policy {
                    hold_short: false,
                    hold_long: hold_offers,
                    longest: LONGEST,
                    orphans: 4,
                    seeds: Seeds::SOME,
                }),
                reading: BTreeMap::new(),
                gathering: BTreeMap::new(),
                slots: window + RESERVED_SLOTS,
                shares: Shares::new(window, 4 * window, 2 * window),
                delivered: Vec::new(),
                sent: Vec::new(),
                cut: Vec::new(),
                failed: Vec::new(),
                starved: false,
                refusals: 0,
                exposed: BTreeMap::new(),
                lost: Vec::new(),
                repeats: VecDeque::new(),
                last_out: 0,
                last_done: 0,
                credit_messages: 0,
                serials: Vec::new(),
            }
        };
        Pair {
            sides: [side(10), side(11)],
            events: BinaryHeap::new(),
            dice: Dice::new(seed),
            now: 0,
            order: 0,
            next: 0,
            hold: 50,
            broken: false,
            suspended: false,
            lanes: 0,
            window,
        }
    }

    pub(super) fn established(window: u32, depth: u32, seed: u64) -> Self {
        let mut pair = Pair::new(window, depth, false, seed);
        pair.open(window);
        pair
    }

    pub(super) fn open(&mut self, window: u32) {
        for side in [A, B] {
            let terms = PeerTerms { epoch: 11 - side as u32, credits: window };
            self.sides[side].link.retain();
            self.sides[side].link.open(&terms, Duration::ZERO).unwrap();
            self.pump(side);
        }
    }

    /// Sends a message as the driver does; gives its serial number, which is its op too.
    pub(super) fn send(&mut self, side: usize, tag: u64, len: u64) -> Option<u64> {
        let serial = self.next;
        let link = &mut self.sides[side].link;
        if len <= EAGER_LIMIT {
            match link.eager(Envelope::bare(tag), len) {
                Ok(frame) => {
                    self.sides[side].sent.push(serial);
                    self.post(side, &frame, serial, None);
                }
                Err(Blocked::Later) => {
                    let envelope = Envelope::bare(tag);
                    link.enqueue(Pending { op: serial, envelope, len, readable: None, payload: serial });
                }
                Err(Blocked::Closed) => return None,
            }
        } else if !link.takes_messages() {
            return None;
        } else {
            let remote = RemoteSlice { addr: serial << 20, len, rkey: Rkey(7) };
            self.sides[side].exposed.insert(remote.addr, serial);
            let envelope = Envelope::bare(tag);
            // Now and then one that can not be read yet.
            let readable = match self.dice.below(3) {
                0 => Readable::InParts(len),
                _ => Readable::At(remote.into()),
            };
            match self.sides[side].link.offer(serial, envelope, readable, serial) {
                Ok((frame, offer)) => self.post(side, &frame, serial, Some(offer)),
                Err(payload) => {
                    let pending = Pending { op: serial, envelope, len, readable: Some(readable), payload };
                    self.sides[side].link.enqueue(pending);
                }
            }
        }
        self.sides[side].serials.push((tag, serial));
        self.next += 1;
        Some(serial)
    }

    /// Posts a receive, which may need other memory first. `None`: the message next for it does not fit, or none comes.
    pub(super) fn recv(&mut self, side: usize, tag: u64, limit: u64) -> Option<u64> {
        if self.broken {
            return None;
        }
        let staged = self.dice.below(4) == 0;
        let op = 1 << 32 | self.next;
        self.next += 1;
        // Now and then one that would take anyone's messages.
        let source = (self.dice.below(4) > 0).then_some(PEER);
        let mask = if self.dice.below(8) > 0 { u64::MAX } else { 1 };
        let pattern = Pattern { source, tag, mask };
        let posted = Posted { op, pattern, fit: Fit { limit, granule: 1 }, staged, memory: () };
        let placed = self.sides[side].inbox.post(posted);
        if let Placed::Startable(PEER, key) = placed {
            self.sides[side].link.want(key);
        }
        self.release(side);
        self.pump(side);
        (!matches!(placed, Placed::Misfit { .. })).then_some(op)
    }

    /// Takes a send or a receive back, if it is still to be had.
    pub(super) fn cancel(&mut self, side: usize, op: u64) {
        let Side { inbox, link, .. } = &mut self.sides[side];
        if let Some(posted) = inbox.cancel(op, |_| link.is_closing()) {
            self.sides[side].failed.push(posted.op);
            self.release(side);
        } else if let Cancelled::Taken(..) = self.sides[side].link.cancel(op) {
            self.sides[side].cut.push(op);
        }
        self.pump(side);
    }

    pub(super) fn close(&mut self, side: usize) {
        let me = &mut self.sides[side];
        me.link.close();
        me.inbox.release_offers(PEER).into_iter().for_each(|key| me.link.want(key));
        self.pump(side);
    }

    /// The side has had nothing to send for a while.
    pub(super) fn rest(&mut self, side: usize) {
        if let Some(frame) = self.sides[side].link.give_up_slots() {
            self.post(side, &frame, 0, None);
        }
    }

    /// The memory of the transport's own is spent.
    pub(super) fn stall(&mut self, side: usize) {
        self.sides[side].starved = true;
    }

    /// There is memory of the transport's own again.
    pub(super) fn resume(&mut self, side: usize) {
        self.sides[side].starved = false;
        let me = &mut self.sides[side];
        me.inbox.resume().into_iter().for_each(|(_, key)| me.link.want(key));
        self.pump(side);
    }

    /// The device will not take the memory of the next receive.
    pub(super) fn refuse(&mut self, side: usize) {
        self.sides[side].refusals += 1;
    }

    /// The connection breaks: what is under way is lost, and each side ends its operations, before or after its device has
    /// given up its reads.
    pub(super) fn break_off(&mut self) {
        self.broken = true;
        for side in [A, B] {
            let me = &mut self.sides[side];
            let repeats = std::mem::take(&mut me.repeats);
            let reads = std::mem::take(&mut me.lost).into_iter().map(|(_, repeat)| repeat).chain(repeats);
            for read in reads.collect::<Vec<_>>() {
                if let Repeat::Read { key, serial } = read {
                    self.at(self.now, side, What::Read { key, number: 0, serial });
                }
            }
        }
        let early = self.dice.below(2) as usize;
        self.abort(early);
        for Reverse((_, _, side, what)) in std::mem::take(&mut self.events) {
            if let What::Read { key, .. } = what {
                let me = &mut self.sides[side];
                let (key, op) = me.reading.remove(&key).expect("a read fails once");
                assert_eq!(me.inbox.fail(key), op);
                me.failed.extend(op);
                self.release(side);
            }
        }
        self.abort(1 - early);
        self.end_gathering();
    }

    /// The receives that still wait for a message.
    pub(super) fn left(&mut self, side: usize) -> Vec<u64> {
        let mut left: Vec<_> = self.sides[side].inbox.drop_peer(PEER).into_iter().map(|posted| posted.op).collect();
        let anyones = self.sides[side].inbox.posted().map(|posted| posted.op).collect::<Vec<_>>();
        left.extend(anyones);
        left
    }

    fn abort(&mut self, side: usize) {
        let me = &mut self.sides[side];
        let (sends, _) = me.link.abort();
        me.cut.extend(sends.into_iter().filter(|exposed| !exposed.envelope.is_own()).map(|exposed| exposed.op));
        me.failed.extend(me.inbox.drop_peer(PEER).into_iter().map(|posted| posted.op));
        self.release(side);
    }

    /// Handles the next `count` events; false if there are none left.
    pub(super) fn run(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(Reverse((time, _, side, what))) = self.events.pop() else { return false };
            self.now = time;
            self.handle(side, what);
            self.pump(side);
            let available = self.sides[side].link.counts().0;
            assert!(available <= credits_limit(), "{available} credits");
        }
        true
    }

    pub(super) fn run_all(&mut self) {
        let mut events = 0;
        while self.run(1) {
            events += 1;
            assert!(events < 1_000_000, "the pair does not come to rest");
        }
    }

    fn handle(&mut self, side: usize, what: What) {
        match what {
            What::Message { header, serial, offer } => self.message(side, &header, serial, offer),
            What::Done { number } => self.sides[side].link.retire(number),
            What::Read { key, number, serial } => {
                let me = &mut self.sides[side];
                me.link.retire(number);
                let (key, op) = me.reading.remove(&key).expect("a read completes once");
                if self.part_read(side, key) {
                    return;
                }
                let me = &mut self.sides[side];
                let (id, len) = me.inbox.finish(key, (serial, op), None).expect("it was being read");
                me.link.read(id, len);
                self.release(side);
            }
            What::SlotFree { credited } => {
                self.sides[side].slots += 1;
                let me = &mut self.sides[side];
                if credited {
                    me.link.give_slot();
                }
                if credited && me.link.is_used_up() {
                    let slots = me.shares.take(me.link.window());
                    me.slots += slots;
                    me.link.grow(slots);
                }
            }
        }
    }

    fn message(&mut self, side: usize, bytes: &[u8], serial: u64, offer: Option<Vec<u8>>) {
        let header = Header::parse(&HeaderView::new_checked(bytes).unwrap());
        let me = &mut self.sides[side];
        me.link.accept(&header).unwrap();
        me.link.confirm(header.acknowledged).expect("a correct peer confirms");
        let mut keep = 0;
        match header.kind {
            Kind::Eager => {
                match me.inbox.eager(PEER, header.envelope, header.length, || (serial, None)) {
                    Arrival::Unmatched => self.deliver(side, header.envelope.tag, serial, None),
                    Arrival::Matched(posted) => self.deliver(side, header.envelope.tag, serial, Some(posted.op)),
                    Arrival::Held => {}
                    Arrival::Misfit { posted, held } => {
                        me.failed.push(posted.op);
                        if !held {
                            self.deliver(side, header.envelope.tag, serial, None);
                        }
                    }
                }
                keep = 1 + self.dice.below(self.hold);
            }
            Kind::ReadyToSend => {
                let offer = Offer::parse(&offer.unwrap()).unwrap();
                let closing = me.link.is_closing();
                let outcome = me.inbox.offer(PEER, header.envelope, header.length, offer, closing);
                me.link.offered(&header, offer.id).unwrap();
                match outcome {
                    Offered::Startable(key) => me.link.want(key),
                    Offered::Held => {}
                    Offered::TooLong { limit } => panic!("{} bytes of {limit}", header.length),
                    Offered::Misfit { posted, startable } => {
                        me.failed.push(posted.op);
                        startable.into_iter().for_each(|key| me.link.want(key));
                    }
                }
            }
            Kind::Finished | Kind::Withdrawn => {
                let Exposed { op, envelope, payload, was_read, .. } = me.link.on_finished(&header).unwrap();
                if envelope.is_own() {
                    assert!(was_read);
                } else {
                    me.exposed.retain(|_, serial| *serial != payload);
                    if was_read { me.sent.push(op) } else { me.cut.push(op) }
                }
            }
            Kind::Cancel => {
                let id = header.envelope.tag as u32;
                if me.inbox.withdraw(PEER, id) {
                    me.link.withdrawn(id);
                }
            }
            Kind::Want => self.wanted(side, &header),
            Kind::Credit => {
                let slots = me.link.on_credit(&header).unwrap();
                me.shares.give(slots);
                me.slots -= slots;
            }
            Kind::Close => me.link.on_close(),
        }
        // The engine gives the slot of an offer back by itself.
        let credited = header.takes_credit() && header.kind != Kind::ReadyToSend;
        self.at(self.now + keep, side, What::SlotFree { credited });
        self.release(side);
    }

    pub(super) fn release(&mut self, side: usize) {
        while let Some(due) = self.sides[side].inbox.next_due() {
            let (serial, op) = due.body.expect("no part of a stream");
            self.deliver(side, due.envelope.tag, serial, op.or(due.posted.map(|posted| posted.op)));
        }
        let me = &mut self.sides[side];
        while let Some(freed) = me.inbox.next_freed() {
            if let Freed::Startable(_, key) = freed {
                me.link.want(key);
            }
        }
    }

    fn deliver(&mut self, side: usize, tag: u64, serial: u64, op: Option<u64>) {
        let way = op.map_or(Way::Received, Way::Into);
        self.sides[side].delivered.push((tag, serial, way));
    }

    pub(super) fn pump(&mut self, side: usize) {
        let stands = self.sides[side].link.is_interrupted() && !self.repeat(side);
        for step in 0.. {
            assert!(step < 10_000, "the link does not come to rest");
            let Some(step) = self.sides[side].link.next_step(true).filter(|_| !stands) else { break };
            match step {
                Step::Control(frame) => self.post(side, &frame, 0, None),
                Step::Eager { frame, op, payload } => {
                    self.sides[side].sent.push(op);
                    self.post(side, &frame, payload, None);
                }
                Step::Offer { frame, offer } => self.post(side, &frame, 0, Some(offer)),
                Step::Pull(key) => self.pull(side, key),
            }
        }
        if let Some(frame) = self.sides[side].link.credit() {
            self.sides[side].credit_messages += 1;
            self.post(side, &frame, 0, None);
        }
    }

    fn pull(&mut self, side: usize, key: EntryKey) {
        let me = &mut self.sides[side];
        let Some(start) = me.inbox.start(key) else { return };
        if start.envelope.class == Class::Part {
            return self.pull_part(side, &start);
        }
        let direct = start.posted.as_ref().is_some_and(|posted| !posted.staged);
        if me.starved && !direct {
            return me.inbox.stall(start);
        }
        if start.offer.in_parts {
            return self.want(side, &start);
        }
        let work = me.link.take_slot().expect("a step comes with a slot");
        let op = start.posted.map(|posted| posted.op);
        if let Some(op) = op
            && me.refusals > 0
        {
            me.refusals -= 1;
            me.link.untake_slot(work);
            assert_eq!(me.inbox.unmatch(start.key, me.link.is_closing()), Some(op));
            me.failed.push(op);
            return self.release(side);
        }
        let serial = self.sides[1 - side].exposed[&start.offer.addr];
        self.read(side, (start.key, op), work, serial);
    }

    pub(super) fn read(&mut self, side: usize, reading: (EntryKey, Option<u64>), work: Work, serial: u64) {
        self.order += 1;
        let key = self.order;
        self.sides[side].reading.insert(key, reading);
        let done = self.done_time(side);
        self.at(done, side, What::Read { key, number: work.number, serial });
    }

    pub(super) fn post(&mut self, side: usize, frame: &Frame, serial: u64, offer: Option<Offer>) {
        let peer = &mut self.sides[1 - side];
        assert!(peer.slots > 0, "a message without a receive (RNR)");
        peer.slots -= 1;
        let mut header = [0; HEADER_BYTES];
        frame.header.emit(&mut header);
        let offer = offer.map(|offer| {
            let mut bytes = [0; OFFER_LIMIT];
            offer.emit(&mut bytes).to_vec()
        });
        let kept = [&header[..], offer.as_ref().map_or(&[], |offer| &offer[..]), &serial.to_le_bytes()].concat();
        let (kind, sequence) = (frame.header.kind, frame.header.sequence);
        self.sides[side].link.keep(kind, frame.work.number, sequence, &kept);
        let time = (self.now + 1 + self.dice.below(20)).max(self.sides[side].last_out);
        self.sides[side].last_out = time;
        self.at(time, 1 - side, What::Message { header, serial, offer });
        if frame.work.signal {
            let done = self.done_time(side);
            self.at(done, side, What::Done { number: frame.work.number });
        }
    }

    pub(super) fn done_time(&mut self, side: usize) -> u64 {
        let time = (self.now + 1 + self.dice.below(30)).max(self.sides[side].last_done);
        self.sides[side].last_done = time;
        time
    }

    pub(super) fn at(&mut self, time: u64, side: usize, what: What) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, side, what)));
    }
}

fn credits_limit() -> u32 {
    64
}
