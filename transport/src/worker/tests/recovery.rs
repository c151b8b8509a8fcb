//! Queue pairs that fail under a connection: it goes on over others.

use std::collections::{BTreeMap, BTreeSet};

use qpair_verbs::ExposedRegion;

use super::*;
use crate::cm::HandshakeError;

/// Everything that an application does, at random, on a worker that is connected to itself, while queue pairs fail.
struct Storm {
    worker: Worker,
    ends: [EndpointId; 2],
    dice: u64,
    /// Operations that are to end with an event.
    open: BTreeSet<OpId>,
    /// By receiving end and tag, numbers of messages that are still to come.
    due: BTreeMap<(usize, u64), VecDeque<u32>>,
    sent: u32,
    region: ExposedRegion,
    /// What is to stand in the region, a byte for each of its places.
    written: Vec<u8>,
    added: u64,
    /// Atomics of which nobody knows whether they were carried out.
    unknown: u64,
    closed: Vec<CloseReason>,
}

const TAGS: u64 = 3;
const PLACE: usize = 64;
const PLACES: usize = 256;
/// Where numbers are read that nobody changes.
const CONSTANT: usize = PLACE * PLACES;
/// Where atomics add.
const SUM: usize = CONSTANT + 4096;

impl Storm {
    fn new(config: Config, seed: u64) -> Storm {
        let (worker, a, b) = mirror(config);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = worker.domain().expose(SUM + 8, access).unwrap();
        region.write(CONSTANT, &[7; 4096]).unwrap();
        Storm {
            worker,
            ends: [a, b],
            dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            open: BTreeSet::new(),
            due: BTreeMap::new(),
            sent: 0,
            region,
            written: Vec::new(),
            added: 0,
            unknown: 0,
            closed: Vec::new(),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % limit
    }

    /// A message of so many bytes, with its number in front and then a byte by it.
    fn message(number: u32, len: usize) -> Vec<u8> {
        let mut message = vec![number as u8; len.max(4)];
        message[..4].copy_from_slice(&number.to_le_bytes());
        message
    }

    fn act(&mut self) {
        let side = self.below(2) as usize;
        let ep = self.ends[side];
        let (tag, number) = (self.below(TAGS), self.sent);
        match self.below(16) {
            0..6 => {
                let len = if self.below(4) == 0 { 2000 + self.below(30_000) } else { self.below(500) } as usize;
                let op = self.worker.send(ep, Tag(tag), Storm::message(number, len)).unwrap();
                self.open.insert(op);
                self.is_sent(side, tag);
            }
            6..11 => {
                let len = self.below(300) as usize;
                match self.worker.send_copy(ep, Tag(tag), &Storm::message(number, len)) {
                    Ok(()) => self.is_sent(side, tag),
                    Err(error) => assert_eq!(error, SendCopyError::WouldBlock),
                }
            }
            11 if self.written.len() < PLACES => {
                let value = self.below(256) as u8;
                let mut buffer = self.worker.domain().alloc(PLACE).unwrap();
                buffer.fill(value);
                let remote = self.place();
                self.tried(
                    |worker| worker.put(ep, buffer, remote).map_err(|error| error.error),
                    |storm| {
                        storm.written.push(value);
                    },
                );
            }
            12 if self.written.len() < PLACES => {
                let value = self.below(256) as u8;
                let remote = self.place();
                match self.worker.put_copy(ep, &[value; PLACE], remote) {
                    Ok(()) => self.written.push(value),
                    Err(error) => assert_eq!(error, OneSidedFailure::WouldBlock),
                }
            }
            13 => {
                let buffer = self.worker.domain().alloc(4096).unwrap();
                let remote = self.region.remote(CONSTANT..SUM);
                self.tried(|worker| worker.get(ep, remote, buffer, None).map_err(|error| error.error), |_| ());
            }
            14 => {
                let remote = self.region.remote(SUM..SUM + 8);
                self.tried(|worker| worker.fetch_add(ep, remote, 1), |storm| storm.added += 1);
            }
            _ => {
                let op = self.worker.flush(ep).expect("it does not end");
                self.open.insert(op);
            }
        }
    }

    fn place(&self) -> RemoteSlice {
        let at = self.written.len() * PLACE;
        self.region.remote(at..at + PLACE)
    }

    fn tried(
        &mut self,
        begin: impl FnOnce(&mut Worker) -> Result<OpId, OneSidedFailure>,
        begun: impl FnOnce(&mut Storm),
    ) {
        match begin(&mut self.worker) {
            Ok(op) => {
                self.open.insert(op);
                begun(self);
            }
            Err(error) => assert_eq!(error, OneSidedFailure::WouldBlock),
        }
    }

    fn is_sent(&mut self, side: usize, tag: u64) {
        self.due.entry((1 - side, tag)).or_default().push_back(self.sent);
        self.sent += 1;
    }

    fn handle(&mut self, event: Event) {
        if let Some(op) = event.op() {
            assert!(self.open.remove(&op), "{event:?} is not due");
        }
        match event {
            Event::Received { ep, tag: Tag(tag), message } => {
                let side = usize::from(ep == self.ends[1]);
                let number = u32::from_le_bytes(*message.first_chunk().unwrap());
                let due = self.due.get_mut(&(side, tag)).and_then(VecDeque::pop_front);
                assert_eq!(due, Some(number), "at end {side}, of tag {tag}");
                assert!(message[..] == Storm::message(number, message.len()));
            }
            Event::Got { memory: Local::Buffer(buffer), .. } => assert!(buffer[..] == [7; 4096]),
            Event::Failed { error: OpError::Unknown, returned: Returned::Nothing, .. } => self.unknown += 1,
            Event::Sent { .. } | Event::Put { .. } | Event::Fetched { .. } | Event::Flushed { .. } => {}
            Event::Closed { reason, .. } => self.closed.push(reason),
            other => panic!("{other:?}"),
        }
    }

    /// The device puts the queue pair of one end into the error state.
    fn fail(&mut self, side: usize) {
        let qp = self.worker.endpoints.get_mut(self.ends[side]).and_then(|endpoint| endpoint.qp.as_mut());
        // It may be on its way out already.
        let _ = qp.map(|qp| qp.to_error());
    }

    fn run_until(&mut self, done: impl Fn(&Storm) -> bool) {
        while !done(self) {
            let event = self.worker.wait(Some(PATIENCE)).unwrap();
            let Some(event) = event else {
                panic!("{:?} and {:?} are open; {:#?}", self.open, self.due, self.worker.metrics())
            };
            self.handle(event);
        }
    }

    fn is_over(&self) -> bool {
        self.open.is_empty() && self.due.values().all(VecDeque::is_empty)
    }

    fn region_is_whole(&self) {
        let mut place = [0; PLACE];
        for (at, &value) in self.written.iter().enumerate() {
            self.region.read(at * PLACE, &mut place).unwrap();
            assert_eq!(place, [value; PLACE], "place {at}");
        }
        let sum = self.region.load(SUM).unwrap();
        assert!((self.added - self.unknown..=self.added).contains(&sum), "{sum} of {}", self.added);
    }
}

fn config() -> Config {
    Config::default().recovery(PATIENCE).window(8).send_depth(16).eager_limit(512)
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_when_queue_pairs_fail() {
    let seed = crate::soak::seed();
    for (round, config) in [config(), config().shared_receives(4, 16)].into_iter().enumerate() {
        let mut storm = Storm::new(config, seed + round as u64);
        for _ in 0..2000 {
            storm.act();
            if storm.below(50) == 0 {
                let side = storm.below(2) as usize;
                storm.fail(side);
            }
            for _ in 0..storm.below(4) {
                if let Some(event) = storm.worker.poll().unwrap() {
                    storm.handle(event);
                }
            }
        }
        storm.run_until(Storm::is_over);
        storm.region_is_whole();
        let recovered = storm.worker.counters().recovered;
        assert!(recovered >= 2, "{recovered} times for both ends");
        storm.worker.close(storm.ends[0]);
        storm.run_until(|storm| storm.closed.len() == 2);
        assert!(storm.closed.iter().all(CloseReason::is_orderly), "{:?}", storm.closed);
    }
}

/// Two workers that are connected, with an end each.
fn two(ours: Config, theirs: Config) -> (Worker, EndpointId, Worker, EndpointId) {
    let (mut a, mut b) = (Worker::new(ours).unwrap(), Worker::new(theirs).unwrap());
    let listener = b.listen("127.0.0.1:0").unwrap();
    let at_a = a.connect(listener.local_addr()).unwrap();
    let (mut up, mut at_b) = (false, None);
    while !up || at_b.is_none() {
        up |= matches!(a.poll().unwrap(), Some(Event::Connected { .. }));
        if let Some(Event::Accepted { ep, .. }) = b.poll().unwrap() {
            at_b = Some(ep);
        }
    }
    (a, at_a, b, at_b.unwrap())
}

fn to_error(worker: &mut Worker, ep: EndpointId) {
    worker.endpoints.get_mut(ep).unwrap().qp.as_mut().unwrap().to_error().unwrap();
}

fn end(worker: &mut Worker) -> CloseReason {
    loop {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { reason, .. } => return reason,
            Event::Failed { .. } | Event::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn both_sides_must_want_to_recover() {
    for (ours, theirs) in [(config(), Config::default()), (Config::default(), config())] {
        let (mut a, at_a, mut b, at_b) = two(ours, theirs);
        for worker in [(&mut a, at_a), (&mut b, at_b)] {
            assert!(!worker.0.endpoints.get_mut(worker.1).unwrap().link.retains());
        }
        to_error(&mut a, at_a);
        assert!(matches!(end(&mut a), CloseReason::PeerLost(_)));
        assert!(matches!(end(&mut b), CloseReason::PeerLost(_)));
        assert_eq!(a.counters().recovered + b.counters().recovered, 0);
    }
}

#[test]
fn a_peer_that_does_not_answer_is_waited_for_until_the_limit_and_all_is_handed_back() {
    // It is not polled, from here on.
    let (mut a, ep, _b, _) = two(config().recovery(Duration::from_millis(20)), config());
    let region = a.domain().expose(64, Access::REMOTE_WRITE).unwrap();
    let mut open = BTreeSet::new();
    open.insert(a.send(ep, Tag(1), vec![1; 100]).unwrap());
    open.insert(a.send(ep, Tag(1), vec![2; 100_000]).unwrap());
    to_error(&mut a, ep);
    // The queue pair does nothing with it any more, and the connection would.
    open.insert(a.send(ep, Tag(1), vec![3; 100]).unwrap());
    let buffer = a.domain().alloc(64).unwrap();
    open.insert(a.put(ep, buffer, region.remote(0..64)).unwrap());
    open.insert(a.flush(ep).unwrap());
    let reason = loop {
        match a.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { reason, .. } => break reason,
            event => assert!(open.remove(&event.op().expect("of an operation")), "{event:?}"),
        }
    };
    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
    assert_eq!((open.len(), a.counters().recovered, a.counters().lost), (0, 0, 1));
}

#[test]
fn what_was_sent_before_a_close_arrives_though_the_queue_pair_fails() {
    let mut recovered = 0;
    for polls in 0..60 {
        let mut storm = Storm::new(config(), polls + 1);
        for number in 0..12 {
            let len = if number % 5 == 4 { 5000 } else { 400 };
            let op = storm.worker.send(storm.ends[0], Tag(0), Storm::message(number, len)).unwrap();
            storm.open.insert(op);
            storm.is_sent(0, 0);
        }
        let (early, side) = (storm.below(2) == 0, storm.below(2) as usize);
        if early {
            storm.worker.close(storm.ends[0]);
        }
        for _ in 0..polls {
            if let Some(event) = storm.worker.poll().unwrap() {
                storm.handle(event);
            }
        }
        if storm.closed.len() < 2 {
            storm.fail(side);
        }
        if !early {
            storm.worker.close(storm.ends[0]);
        }
        storm.run_until(|storm| storm.closed.len() == 2);
        assert!(storm.is_over() && storm.closed.iter().all(CloseReason::is_orderly), "{polls}: {:?}", storm.closed);
        recovered += storm.worker.counters().recovered;
    }
    assert!(recovered > 20, "{recovered}");
}

#[test]
fn a_renewal_that_is_not_due_ends_the_connection() {
    for config in [Config::default(), config()] {
        let (mut worker, ep, _) = mirror(config);
        let index = ep.index as usize;
        let prepared = worker.prepare(ep).unwrap();
        let hello = worker.hello(&prepared, 1);
        worker.unprepare();
        let renewal = || Box::new(crate::cm::Renewal { hello: hello.clone(), received: 0 });
        let recovers = worker.endpoints.at(index).unwrap().link.retains();
        if recovers {
            worker.peer_renews(index, renewal());
            assert!(worker.endpoints.at(index).unwrap().broken.is_some(), "one is due");
        }
        worker.peer_renews(index, renewal());
        let reason = end(&mut worker);
        let CloseReason::Failed(ConnectFailure::Handshake { error, .. }) = reason else { panic!("{reason}") };
        assert_eq!(error, HandshakeError::Unexpected(6));
    }
}

#[test]
fn what_the_device_combines_can_not_be_done_again() {
    let (mut worker, ep, _) = mirror(config());
    let sum = Some(Calc::of::<i32>(ReduceOp::Sum));
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let reason = CloseReason::PeerLost(Lost::QueuePair);
    assert!(endpoint.can_recover(&reason) && !endpoint.can_recover(&CloseReason::PeerLost(Lost::HungUp)));
    for (calc, recovers) in [(None, true), (sum, false)] {
        let what = OneSided::Get { remote: RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }, calc };
        endpoint.reads.push_back(InFlight { number: 70, order: 0, awaited: true, len: 0, what });
        assert_eq!(endpoint.can_recover(&reason), recovers);
    }
    endpoint.reads.clear();
}

#[test]
fn a_get_that_is_no_longer_awaited_is_not_done_again() {
    let (mut worker, ep, _) = mirror(config());
    let region = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let memory = worker.domain().alloc(64).unwrap();
    to_error(&mut worker, ep);
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let what = OneSided::Get { remote: region.remote(0..64), calc: None };
    let order = endpoint.link.posted();
    let work = InFlight { number: 70, order, awaited: true, len: 64, what };
    endpoint.repeats.lost.push((work, memory.into()));
    let op = OpId { number: 70, index: ep.index };
    assert!(!worker.cancel(op), "its memory may be with the device");
    worker.set_deadline(op, Duration::ZERO);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match worker.wait(Some(PATIENCE)).unwrap().expect("in time") {
            Event::Failed { op: of, error: OpError::TimedOut, returned: Returned::Withheld, .. } if of == op => {
                seen.push("failed");
            }
            Event::Released { op: of, returned: Returned::Memory(_) } if of == op => seen.push("released"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["failed", "released"]);
}

#[test]
fn what_had_come_counts_though_nobody_has_polled() {
    let config = config().close_timeout(Duration::from_millis(10));
    let (mut a, at_a, mut b, at_b) = two(config.clone(), config);
    for number in 0..5u8 {
        a.send_copy(at_a, Tag(7), &[number]).unwrap();
    }
    let begin = Instant::now();
    while b.endpoints.get(at_b).unwrap().qp.as_ref().unwrap().arrivals() == Some(0) && begin.elapsed() < PATIENCE {}
    to_error(&mut b, at_b);
    let before = b.endpoints.get(at_b).unwrap().link.received();
    b.suspend(at_b.index as usize, CloseReason::PeerLost(Lost::QueuePair));
    b.look_at_recovering().unwrap();
    let endpoint = b.endpoints.get(at_b).unwrap();
    let ready = b.ready.iter().filter(|event| matches!(event, Event::Received { .. })).count() as u32;
    assert_eq!(endpoint.link.received() - before, ready, "each of them is handed out");
    assert!(endpoint.qp.is_none(), "another was made");
    let (mut seen, begin) = (Vec::new(), Instant::now());
    while seen.len() < 5 {
        if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
            seen.push(message[0]);
        }
        assert!(a.poll().unwrap().is_none() && begin.elapsed() < PATIENCE, "{seen:?}");
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn one_sided_work_is_done_again_unless_that_might_do_harm() {
    let (mut worker, ep, _) = mirror(config());
    let index = ep.index as usize;
    let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
    let work = |number: u64, order, what| InFlight { number, order, awaited: true, len: 0, what };
    let get = || OneSided::Get { remote, calc: None };
    let lost = &mut worker.endpoints.get_mut(ep).unwrap().repeats.lost;
    for work in [
        // The peer has a message that went after it, and may have changed the place since.
        work(70, 5, OneSided::Put { remote }),
        work(71, 6, OneSided::Fetch { pooled: 0 }),
        work(72, 6, get()),
        work(73, 9, OneSided::Put { remote }),
        InFlight { awaited: false, ..work(74, 9, get()) },
        InFlight { awaited: false, ..work(75, 9, OneSided::Put { remote }) },
        work(76, 9, OneSided::Fetch { pooled: 0 }),
    ] {
        lost.push((work, Local::None));
    }
    let again = worker.settle_works(index, Some(7));
    assert_eq!(again.iter().map(|(work, _)| work.number).collect::<Vec<_>>(), [72, 73]);
    let events: Vec<_> = worker.ready.drain(..).collect();
    let [
        Event::Put { op: OpId { number: 70, .. }, .. },
        Event::Failed { op: OpId { number: 71, .. }, error: OpError::Unknown, .. },
        Event::Released { op: OpId { number: 74, .. }, .. },
        Event::Released { op: OpId { number: 75, .. }, .. },
        Event::Failed { op: OpId { number: 76, .. }, error: OpError::Unknown, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
}
