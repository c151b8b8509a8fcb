//! Senders with a queue pair each, the port between, and one receiver.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use qpair_roce::congestion::{DcqcnParameters, MIN_TIME_BETWEEN_CNPS, NotificationPoint, Pacer, Rate, ReactionPoint};
use qpair_roce::wire::{Action, DEFAULT_PKEY, ICRC_LEN, Packet};
use qpair_roce::{Counters, Qpn};

use super::bottleneck::{Bottleneck, Red, Usage};

pub struct World {
    start: Instant,
    now: Instant,
    link: Rate,
    port: Bottleneck,
    senders: Vec<Sender>,
    /// Of the receiver, one for each sender.
    points: Vec<NotificationPoint>,
    pub counters: Counters,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    number: u64,
}

struct Sender {
    point: ReactionPoint,
    pacer: Pacer,
    active: bool,
    /// Bytes since they were asked for last.
    sent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start(usize, Rate),
    Stop(usize),
    /// The pacer lets through the next packet of this sender.
    Send(usize),
    /// A marked packet of it comes to the receiver.
    Marked(usize),
    /// A CNP is due.
    Notify(usize),
    /// It comes to the queue pair.
    Notified(Qpn),
}

/// What one interval brought.
pub struct Sample {
    /// Bytes of each sender.
    pub sent: Vec<u64>,
    pub usage: Usage,
    pub len: Duration,
}

impl World {
    pub fn new(senders: usize, link: Rate, red: Red, seed: u64) -> Self {
        let start = Instant::now();
        let parameters = DcqcnParameters::new(link);
        let sender = |_| Sender {
            point: ReactionPoint::new(parameters),
            pacer: Pacer::new(start, link, PACKET),
            active: false,
            sent: 0,
        };
        let point = |sender| NotificationPoint::new(qpn(sender), DEFAULT_PKEY, MIN_TIME_BETWEEN_CNPS);
        World {
            start,
            now: start,
            link,
            port: Bottleneck::new(start, link.bps(), red, seed),
            senders: (0..senders).map(sender).collect(),
            points: (0..senders).map(point).collect(),
            counters: Counters::default(),
            events: BinaryHeap::new(),
            number: 0,
        }
    }

    /// A sender begins, so long after the start, and always has something to send.
    pub fn starts(&mut self, sender: usize, after: Duration, rate: Rate) {
        self.push(self.start + after, Event::Start(sender, rate));
    }

    pub fn stops(&mut self, sender: usize, after: Duration) {
        self.push(self.start + after, Event::Stop(sender));
    }

    /// Goes on for so long.
    pub fn run(&mut self, len: Duration) -> Sample {
        let end = self.now + len;
        while let Some(Reverse((at, _, event))) = self.events.peek().copied()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            self.happen(event);
        }
        self.now = end;
        let sent = self.senders.iter_mut().map(|sender| std::mem::take(&mut sender.sent)).collect();
        Sample { sent, usage: self.port.usage(end), len }
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Start(number, rate) => {
                let sender = &mut self.senders[number];
                sender.point = ReactionPoint::starting_at(now, rate, DcqcnParameters::new(self.link));
                sender.pacer = Pacer::new(now, sender.point.rate(), PACKET);
                sender.active = true;
                self.push(now, Event::Send(number));
            }
            Event::Stop(number) => self.senders[number].active = false,
            Event::Send(number) => self.send(number),
            Event::Marked(number) => {
                let waits = self.points[number].timeout().is_some();
                self.points[number].handle_marked(now, &mut self.counters);
                if let Some(due) = self.points[number].timeout().filter(|_| !waits) {
                    self.push(due, Event::Notify(number));
                }
            }
            Event::Notify(number) => {
                let mut bytes = [0; NotificationPoint::CNP_LEN + ICRC_LEN];
                if self.points[number].transmit(now, &mut bytes, &mut self.counters).is_some() {
                    let bth = Packet::parse(&bytes).expect("it is a packet").headers.bth;
                    assert_eq!(
                        bth.opcode.meaning().map(|meaning| meaning.action),
                        Some(Action::CongestionNotification)
                    );
                    self.push(now + DELAY, Event::Notified(bth.destination));
                }
            }
            Event::Notified(qpn) => {
                let sender = &mut self.senders[(qpn.0 - FIRST_QPN) as usize];
                sender.point.handle_cnp(now, &mut self.counters);
                sender.pacer.set_rate(now, sender.point.rate());
            }
        }
    }

    /// What a driver does for a sender whose packet the pacer lets through.
    fn send(&mut self, number: usize) {
        let (now, sender) = (self.now, &mut self.senders[number]);
        if !sender.active {
            return;
        }
        if sender.point.timeout().is_some_and(|at| at <= now) {
            sender.point.handle_timeout(now);
            sender.pacer.set_rate(now, sender.point.rate());
        }
        // A CNP may have come since, and moved the time.
        let mut next = sender.pacer.next(now, PACKET);
        if next <= now {
            sender.pacer.sent(now, PACKET);
            sender.point.sent(PACKET);
            sender.pacer.set_rate(now, sender.point.rate());
            sender.sent += u64::from(PACKET);
            next = sender.pacer.next(now, PACKET);
            let (gone, marked) = self.port.take(now, PACKET);
            if marked {
                self.push(gone + DELAY, Event::Marked(number));
            }
        }
        // A rate that is raised moves the next packet on.
        let next = self.senders[number].point.timeout().map_or(next, |at| at.min(next));
        self.push(next, Event::Send(number));
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }
}

fn qpn(sender: usize) -> Qpn {
    Qpn(FIRST_QPN + sender as u32)
}

const FIRST_QPN: u32 = 0x11;
/// Bytes of a packet of MTU 1024 on the wire, with Ethernet's headers and gap.
const PACKET: u32 = 1024 + 82;
/// From the port to a host, or back: a few switches of a data centre.
const DELAY: Duration = Duration::from_micros(2);
