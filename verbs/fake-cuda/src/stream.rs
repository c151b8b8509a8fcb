//! Streams and events. What a stream is given waits in its queue until somebody waits for it, so that a program which does
//! not reads what was there before.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::backing::{self, Piece};
use crate::code::{self, Code, Outcome};
use crate::kernel::Launch;
use crate::settings::attribute;
use crate::space::Access;
use crate::world::{Locked, State, World};

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    queue: VecDeque<Op>,
    /// The last of its work that was done, and that it was given.
    done: u64,
    last: u64,
    /// Queries since it was given something.
    queries: u64,
    /// Whether it waits for the stream 0 and is waited for by it.
    pub(crate) blocking: bool,
    /// The lower the number, the sooner its work is to begin; kept, and of no effect.
    pub(crate) priority: i32,
    pub(crate) held: bool,
    /// Whether it was destroyed; what it was given before is still to be done.
    pub(crate) gone: bool,
    /// Whether the device has it from the start.
    pub(crate) hidden: bool,
}

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// Since when, in which stream, it waits to be reached.
    recorded: Option<Mark>,
    time: Option<Instant>,
    timed: bool,
    queries: u64,
}

/// A place in a stream: its handle, and the work that has to be done.
pub(crate) type Mark = (u64, u64);

/// What a stream is given.
#[derive(Debug)]
struct Op {
    sequence: u64,
    symbol: &'static str,
    /// What has to be done before.
    after: Vec<Mark>,
    work: Work,
}

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Work {
    Copy {
        to: u64,
        from: Source,
        len: u64,
        /// The devices whose rights count, where those are not the stream's.
        between: Option<[usize; 2]>,
    },
    Set {
        to: u64,
        value: u8,
        len: u64,
    },
    Launch(Launch),
    Record(u64),
    Wait,
    /// Waits until a word is as it is to be.
    Until(Word),
}

/// A word of memory that somebody else writes, and what is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) at: u64,
    /// Bytes: 4 or 8.
    pub(crate) len: u64,
    pub(crate) value: u64,
    pub(crate) condition: Condition,
}

/// `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Condition {
    /// At least the value, cyclically.
    AtLeast,
    Equal,
    /// Some of the value's bits.
    And,
    /// Not all bits that the value leaves open.
    Nor,
}

/// The range of priorities ends there; it begins at 0.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// What copies between devices are counted as, beside the calls, that the one which does them does not reach by itself.
const STAGED: &str = "staged";

/// Where a copy comes from.
#[derive(Debug)]
pub(crate) enum Source {
    At(u64),
    /// Bytes of host memory that is not pinned, as they were when the copy was asked for.
    Staged(Vec<u8>),
}

impl Stream {
    pub(crate) fn new(blocking: bool) -> Stream {
        Stream {
            queue: VecDeque::new(),
            done: 0,
            last: 0,
            queries: 0,
            blocking,
            priority: 0,
            held: false,
            gone: false,
            hidden: false,
        }
    }

    /// One that a device has from the start.
    pub(crate) fn hidden() -> Stream {
        Stream { hidden: true, ..Stream::new(true) }
    }
}

impl Event {
    pub(crate) fn new(timed: bool) -> Event {
        Event { timed, ..Event::default() }
    }
}

impl Work {
    /// Whether it touches some addresses.
    fn touches(&self, base: u64, len: u64) -> bool {
        let touches = |at: u64, bytes: u64| at < base + len && base < at.saturating_add(bytes);
        match self {
            Work::Copy { to, from, len, .. } => {
                touches(*to, *len) || matches!(from, Source::At(from) if touches(*from, *len))
            }
            Work::Set { to, len, .. } => touches(*to, *len),
            Work::Launch(launch) => launch.operands().iter().any(|operand| touches(operand.at, operand.len)),
            Work::Until(word) => touches(word.at, word.len),
            Work::Record(_) | Work::Wait => false,
        }
    }
}

impl Word {
    /// Whether it is as it is to be when it has this value.
    fn is_met(&self, found: u64) -> bool {
        let whole = if self.len == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let (found, value) = (found & whole, self.value & whole);
        match self.condition {
            Condition::AtLeast if self.len == 4 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
            Condition::AtLeast => found.wrapping_sub(value) as i64 >= 0,
            Condition::Equal => found == value,
            Condition::And => found & value != 0,
            Condition::Nor => !(found | value) & whole != 0,
        }
    }
}

impl World {
    /// The handle of the stream that a caller means, for whom 0 to 2 are those of the current context.
    pub(crate) fn stream_handle(&mut self, symbol: &str, device: usize, stream: u64) -> Outcome<u64> {
        let handle = match stream {
            0 | 1 => self.devices[device].default_streams[0],
            2 => self.devices[device].default_streams[1],
            handle => handle,
        };
        let object = self.object(symbol, handle)?;
        let (number, owner) = (object.number, object.device);
        match &object.state {
            State::Stream(stream) if stream.gone => {
                self.violation(owner, symbol, format_args!("stream{number} was destroyed before"));
                Err(code::INVALID_HANDLE)
            }
            State::Stream(_) => Ok(handle),
            _ => Err(code::INVALID_HANDLE),
        }
    }

    /// A stream that is there, destroyed or not.
    pub(crate) fn stream(&mut self, handle: u64) -> &mut Stream {
        match self.objects.get_mut(&handle).map(|object| &mut object.state) {
            Some(State::Stream(stream)) => stream,
            _ => panic!("the caller has looked for the stream"),
        }
    }

    pub(crate) fn event(&mut self, symbol: &str, handle: u64) -> Outcome<(usize, &mut Event)> {
        let object = self.object(symbol, handle)?;
        match &mut object.state {
            State::Event(event) => Ok((object.device, event)),
            _ => Err(code::INVALID_HANDLE),
        }
    }

    /// The device of a stream.
    pub(crate) fn stream_device(&self, handle: u64) -> usize {
        self.objects[&handle].device
    }

    /// Gives a stream something to do, after what it was given before and after the marks.
    pub(crate) fn enqueue(&mut self, symbol: &'static str, handle: u64, mut after: Vec<Mark>, work: Work) {
        let device = self.stream_device(handle);
        after.extend(self.implied(device, handle));
        self.sequence += 1;
        let sequence = self.sequence;
        if let Work::Record(event) = work
            && let Ok((_, event)) = self.event(symbol, event)
        {
            (event.recorded, event.time, event.queries) = (Some((handle, sequence)), None, 0);
        }
        let stream = self.stream(handle);
        stream.queue.push_back(Op { sequence, symbol, after, work });
        (stream.last, stream.queries) = (sequence, 0);
        if self.devices[device].settings.get("queries") == 0 {
            // What is held is done later.
            let _ = self.run(vec![(handle, sequence)]);
        }
    }

    /// What stream 0 waits for, or what waits for it.
    fn implied(&self, device: usize, handle: u64) -> Vec<Mark> {
        let legacy = self.devices[device].default_streams[0];
        let mark = |(handle, object): (&u64, &crate::world::Object)| match &object.state {
            State::Stream(stream) if stream.blocking && object.device == device && stream.done < stream.last => {
                Some((*handle, stream.last))
            }
            _ => None,
        };
        if handle == legacy {
            return self.objects.iter().filter_map(mark).filter(|(other, _)| *other != handle).collect();
        }
        let blocking = matches!(&self.objects[&handle].state, State::Stream(stream) if stream.blocking);
        let waits = self.objects.get_key_value(&legacy).filter(|_| blocking);
        waits.and_then(mark).into_iter().collect()
    }

    /// Where a stream is to be for all that it was given to be done.
    pub(crate) fn mark(&mut self, handle: u64) -> Mark {
        (handle, self.stream(handle).last)
    }

    /// That of all streams of a device.
    pub(crate) fn marks(&self, device: usize) -> Vec<Mark> {
        let of_device = self.objects.iter().filter(|(_, object)| object.device == device);
        let marks = of_device.filter_map(|(handle, object)| match &object.state {
            State::Stream(stream) => Some((*handle, stream.last)),
            _ => None,
        });
        marks.collect()
    }

    /// Does what has to be done to reach some marks; nothing if some of that is held. Where a stream waits for a word, what is
    /// behind that stays, also in other streams.
    pub(crate) fn run(&mut self, marks: Vec<Mark>) -> Outcome<()> {
        let needed = self.needed(marks);
        let mut order = Vec::new();
        for (handle, upto) in &needed {
            let device = self.stream_device(*handle);
            let held = self.devices[device].held;
            let stream = self.stream(*handle);
            if held || stream.held {
                return Err(code::NOT_READY);
            }
            let ops = stream.queue.iter().take_while(|op| op.sequence <= *upto);
            order.extend(ops.map(|op| (op.sequence, *handle)));
        }
        // What something waits for was asked for before it.
        order.sort_unstable();
        let mut waiting = Vec::new();
        for (sequence, handle) in order {
            if waiting.contains(&handle) || !self.may_go_on(handle) {
                waiting.push(handle);
                continue;
            }
            let stream = self.stream(handle);
            let op = stream.queue.pop_front();
            stream.done = sequence;
            if let Some(op) = op {
                self.execute(handle, op);
            }
        }
        if waiting.is_empty() { Ok(()) } else { Err(code::NOT_READY) }
    }

    /// Whether nothing holds up the next work of a stream: a word that it waits for, or other streams that wait for one.
    fn may_go_on(&self, handle: u64) -> bool {
        let done = |(stream, upto): &Mark| match self.objects.get(stream).map(|object| &object.state) {
            Some(State::Stream(stream)) => stream.done >= *upto,
            _ => true,
        };
        let Some(State::Stream(stream)) = self.objects.get(&handle).map(|object| &object.state) else { return true };
        let Some(op) = stream.queue.front() else { return true };
        let device = self.stream_device(handle);
        op.after.iter().all(done)
            && match &op.work {
                // A context with an error waits no more; nor does one for memory that is gone, which `execute` tells of.
                Work::Until(word) if self.devices[device].context.error.is_none() => !self.is_awaited(device, word),
                _ => true,
            }
    }

    /// Whether a word is there and not as it is to be.
    fn is_awaited(&self, device: usize, word: &Word) -> bool {
        let found = self.resolve(device, word.at, word.len, false, true).map(|pieces| backing::word(&pieces));
        matches!(found, Ok(Ok(found)) if !word.is_met(found))
    }

    /// The names of streams of a device that wait for words, or will with what they have been given.
    pub(crate) fn held_up(&self, device: usize) -> Vec<String> {
        if self.devices[device].context.error.is_some() {
            return Vec::new();
        }
        let awaits = |op: &Op| matches!(&op.work, Work::Until(word) if self.is_awaited(device, word));
        let streams = self.objects.values().filter(|object| match &object.state {
            State::Stream(stream) => object.device == device && stream.queue.iter().any(awaits),
            _ => false,
        });
        streams.map(crate::world::Object::name).collect()
    }

    /// All marks that others depend on, by stream; only those that are not reached.
    fn needed(&mut self, mut marks: Vec<Mark>) -> BTreeMap<u64, u64> {
        let mut needed = BTreeMap::new();
        while let Some((handle, upto)) = marks.pop() {
            let stream = self.stream(handle);
            let known = needed.get(&handle).copied().unwrap_or(stream.done);
            if upto <= known {
                continue;
            }
            let between = stream.queue.iter().filter(|op| op.sequence > known && op.sequence <= upto);
            marks.extend(between.flat_map(|op| op.after.iter().copied()));
            needed.insert(handle, upto);
        }
        needed
    }

    fn execute(&mut self, handle: u64, op: Op) {
        let device = self.stream_device(handle);
        let failed = self.devices[device].context.error.is_some();
        let symbol = op.symbol;
        let result = match op.work {
            Work::Record(event) => {
                // It may be destroyed, or recorded again.
                if let Some(State::Event(event)) = self.objects.get_mut(&event).map(|object| &mut object.state)
                    && event.recorded == Some((handle, op.sequence))
                {
                    event.time = Some(Instant::now());
                }
                Ok(())
            }
            Work::Wait => Ok(()),
            // A context with an error does nothing more.
            _ if failed => Ok(()),
            Work::Copy { to, from, len, between } => {
                if between.is_some() && !self.is_direct(device, to, &from) {
                    *self.devices[device].counts.entry(STAGED.to_owned()).or_default() += 1;
                }
                self.copy(between.unwrap_or([device; 2]), to, from, len)
            }
            Work::Set { to, value, len } => self.resolve(device, to, len, true, false).and_then(|pieces| {
                backing::scatter(&pieces, &vec![value; len as usize]).map_err(|error| (error, "the host".to_owned()))
            }),
            Work::Launch(launch) => self.launched(device, &launch),
            Work::Until(word) => self.resolve(device, word.at, word.len, false, true).map(drop),
        };
        if let Err((error, what)) = result {
            if !what.is_empty() {
                self.violation(device, symbol, format_args!("{what} (found when it was done)"));
            }
            self.devices[device].context.error = Some(error);
        }
    }

    /// Whether a device reaches both ends of a copy between devices; the driver stages it otherwise.
    fn is_direct(&self, device: usize, to: u64, from: &Source) -> bool {
        let Source::At(from) = *from else { return false };
        [(to, true), (from, false)].into_iter().all(|(at, write)| self.resolve(device, at, 1, write, true).is_ok())
    }

    fn copy(&self, [into, out_of]: [usize; 2], to: u64, from: Source, len: u64) -> Result<(), (Code, String)> {
        let to = self.resolve(into, to, len, true, false)?;
        let bytes = match from {
            Source::Staged(bytes) => Ok(bytes),
            Source::At(from) => backing::gather(&self.resolve(out_of, from, len, false, false)?),
        };
        let copied = bytes.and_then(|bytes| backing::scatter(&to, &bytes));
        copied.map_err(|error| (error, "host memory that is not there".to_owned()))
    }

    /// The memory at some addresses, or the error that touching them ends in and why.
    pub(crate) fn resolve(
        &self,
        device: usize,
        address: u64,
        len: u64,
        write: bool,
        kernel: bool,
    ) -> Result<Vec<Piece>, (Code, String)> {
        let of = &self.devices[device];
        let pageable = of.settings.attribute(attribute::PAGEABLE_MEMORY_ACCESS) != 0;
        let access = Access { device, write, kernel, pageable, peers: &of.context.peers };
        self.space.resolve(address, len, access).map_err(|what| (code::ILLEGAL_ADDRESS, what))
    }

    /// How many streams a device has that were made with the greatest priority there is.
    pub(crate) fn urgent_streams(&self, device: usize) -> u64 {
        let is_urgent = |object: &&crate::world::Object| match &object.state {
            State::Stream(stream) => object.device == device && !stream.gone && stream.priority == GREATEST_PRIORITY,
            _ => false,
        };
        self.objects.values().filter(is_urgent).count() as u64
    }

    /// The names of streams with work that touches some addresses.
    pub(crate) fn users(&self, base: u64, len: u64) -> Vec<String> {
        let streams = self.objects.values().filter(|object| match &object.state {
            State::Stream(stream) => stream.queue.iter().any(|op| op.work.touches(base, len)),
            _ => false,
        });
        streams.map(crate::world::Object::name).collect()
    }

    /// Whether marks are reached, for a query: they are when it is the one that finds so.
    fn query(&mut self, device: usize, mark: Mark, queries: impl FnOnce(&mut World) -> Option<u64>) -> Outcome<()> {
        if self.stream(mark.0).done >= mark.1 {
            return Ok(());
        }
        let queries = queries(self).unwrap_or(0);
        if queries < self.devices[device].settings.get("queries") {
            return Err(code::NOT_READY);
        }
        self.run(vec![mark])
    }

    pub(crate) fn query_stream(&mut self, handle: u64) -> Outcome<()> {
        let (device, mark) = (self.stream_device(handle), self.mark(handle));
        self.query(device, mark, |world| {
            let stream = world.stream(handle);
            stream.queries += 1;
            Some(stream.queries)
        })?;
        self.devices[device].context.error.map_or(Ok(()), Err)
    }

    pub(crate) fn query_event(&mut self, symbol: &str, handle: u64) -> Outcome<()> {
        let (device, event) = self.event(symbol, handle)?;
        let Some(mark) = event.recorded else { return Ok(()) };
        self.query(device, mark, |world| {
            let (_, event) = world.event(symbol, handle).ok()?;
            event.queries += 1;
            Some(event.queries)
        })?;
        self.devices[device].context.error.map_or(Ok(()), Err)
    }

    /// Where an event was recorded; nowhere if it never was.
    pub(crate) fn event_mark(&mut self, symbol: &str, handle: u64) -> Outcome<(usize, Option<Mark>)> {
        self.event(symbol, handle).map(|(device, event)| (device, event.recorded))
    }

    /// When an event was reached.
    pub(crate) fn event_time(&mut self, symbol: &str, handle: u64) -> Outcome<Instant> {
        let (_, event) = self.event(symbol, handle)?;
        if !event.timed || event.recorded.is_none() {
            return Err(code::INVALID_HANDLE);
        }
        event.time.ok_or(code::NOT_READY)
    }
}

impl Locked {
    /// Waits until marks are reached, for a device whose context's error it then reports.
    pub(crate) fn synchronize(&mut self, device: usize, marks: Vec<Mark>) -> Outcome<()> {
        while self.run(marks.clone()).is_err() {
            self.wait();
        }
        self.devices[device].context.error.map_or(Ok(()), Err)
    }
}
