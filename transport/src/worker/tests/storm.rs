//! Everything that an application does, at random.

use std::collections::{BTreeMap, BTreeSet};

use qpair_verbs::ExposedRegion;

use super::*;

/// Everything that an application does, at random, on a worker that is connected to itself, while queue pairs fail.
pub(super) struct Storm {
    pub(super) worker: Worker,
    pub(super) ends: [EndpointId; 2],
    /// Longest message.
    pub(super) longest: u64,
    dice: u64,
    /// Operations that are to end with an event.
    pub(super) open: BTreeSet<OpId>,
    /// By receiving end and tag, numbers of messages that are still to come.
    due: BTreeMap<(usize, u64), VecDeque<u32>>,
    sent: u32,
    region: ExposedRegion,
    /// What is to stand in the region, a byte for each of its places.
    written: Vec<u8>,
    added: u64,
    /// Atomics of which nobody knows whether they were carried out.
    unknown: u64,
    pub(super) closed: Vec<CloseReason>,
}

const TAGS: u64 = 3;
const PLACE: usize = 64;
const PLACES: usize = 256;
/// Where numbers are read that nobody changes.
const CONSTANT: usize = PLACE * PLACES;
/// Where atomics add.
const SUM: usize = CONSTANT + 4096;

impl Storm {
    pub(super) fn new(config: Config, seed: u64) -> Storm {
        let (worker, a, b) = mirror(config);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = worker.domain().expose(SUM + 8, access).unwrap();
        region.write(CONSTANT, &[7; 4096]).unwrap();
        Storm {
            worker,
            ends: [a, b],
            longest: 32_000,
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

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % limit
    }

    /// A message of so many bytes, with its number in front and then a byte by it.
    pub(super) fn message(number: u32, len: usize) -> Vec<u8> {
        let mut message = vec![number as u8; len.max(4)];
        message[..4].copy_from_slice(&number.to_le_bytes());
        message
    }

    pub(super) fn act(&mut self) {
        let side = self.below(2) as usize;
        let ep = self.ends[side];
        let (tag, number) = (self.below(TAGS), self.sent);
        match self.below(16) {
            0..6 => {
                let len =
                    if self.below(4) == 0 { 2000 + self.below(self.longest - 2000) } else { self.below(500) } as usize;
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
                let remote = self.worker.remote(&self.region, CONSTANT..SUM);
                self.tried(|worker| worker.get(ep, remote, buffer, None).map_err(|error| error.error), |_| ());
            }
            14 => {
                let remote = self.worker.remote(&self.region, SUM..SUM + 8);
                self.tried(|worker| worker.fetch_add(ep, remote, 1), |storm| storm.added += 1);
            }
            _ => {
                let op = self.worker.flush(ep).expect("it does not end");
                self.open.insert(op);
            }
        }
    }

    fn place(&self) -> RemoteMemory {
        let at = self.written.len() * PLACE;
        self.worker.remote(&self.region, at..at + PLACE)
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

    pub(super) fn is_sent(&mut self, side: usize, tag: u64) {
        self.due.entry((1 - side, tag)).or_default().push_back(self.sent);
        self.sent += 1;
    }

    pub(super) fn handle(&mut self, event: Event) {
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
    pub(super) fn fail(&mut self, side: usize) {
        let qp = self.worker.endpoints.get_mut(self.ends[side]).and_then(|endpoint| endpoint.qp.as_mut());
        // It may be on its way out already.
        let _ = qp.map(|qp| qp.to_error());
    }

    pub(super) fn run_until(&mut self, done: impl Fn(&Storm) -> bool) {
        while !done(self) {
            let event = self.worker.wait(Some(PATIENCE)).unwrap();
            let Some(event) = event else {
                panic!("{:?} and {:?} are open; {:#?}", self.open, self.due, self.worker.metrics())
            };
            self.handle(event);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.open.is_empty() && self.due.values().all(VecDeque::is_empty)
    }

    pub(super) fn region_is_whole(&self) {
        let mut place = [0; PLACE];
        for (at, &value) in self.written.iter().enumerate() {
            self.region.read(at * PLACE, &mut place).unwrap();
            assert_eq!(place, [value; PLACE], "place {at}");
        }
        let sum = self.region.load(SUM).unwrap();
        assert!((self.added - self.unknown..=self.added).contains(&sum), "{sum} of {}", self.added);
    }
}
