//! The inbound ring of a queue pair: one line per message from the peer, with short messages inside the lines.
//!
//! One producer (the connected peer), one consumer (whoever polls the completion queue), no lock. A line's stamp says
//! which position it was written for, so that one cache line moves per short message and nothing else. The owner gives
//! lines free by a running count that the producer reads only when it runs out.

use std::ptr::NonNull;

use super::entry::{BODY, Entry, FIRST, HEAD, MAX_LINES, RING_INLINE, lines_for};
use crate::sync::{AtomicU32, Ordering, UnsafeCell};

/// One line of a ring.
#[repr(C, align(64))]
pub(crate) struct Slot {
    stamp: AtomicU32,
    body: UnsafeCell<[u8; BODY]>,
}

// SAFETY: the stamp says who may touch the body: the producer before it stores the stamp for a position, the consumer
// after it has seen it and until it counts the line as consumed. The stamps of lines that go on with a message are the
// producer's with the body: nobody looks at them but where a message begins.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Slot {
    /// Fills a line that goes on with a message, by part of it. A stamp of an earlier round must not be taken for data of this one,
    /// nor data for a stamp.
    ///
    /// # Safety
    /// The consumer has counted the line as consumed, and has not been told of the message that it belongs to. The part is at most
    /// [`BODY`] bytes.
    #[cfg(not(all(loom, test)))]
    #[inline(always)]
    unsafe fn go_on(&self, part: &[u8]) {
        debug_assert!(part.len() <= BODY);
        let line = std::ptr::from_ref(self).cast_mut().cast::<u128>();
        // SAFETY: four words are a line, aligned as such, and all of it is in cells; by the caller's word nobody else touches it.
        unsafe { line.write((word(part) << STAMP_BITS).to_le()) };
        let rest = part.get(WORD - STAMP_BITS / 8..).unwrap_or_default();
        for (lane, bytes) in rest.chunks(WORD).enumerate() {
            // SAFETY: as above; of a part that is at most as long as a body there are three more words at most.
            unsafe { line.add(1 + lane).write(word(bytes).to_le()) };
        }
    }

    /// The same, in cells that the model watches.
    ///
    /// # Safety
    /// As above.
    #[cfg(all(loom, test))]
    unsafe fn go_on(&self, part: &[u8]) {
        // SAFETY: by the caller's word nobody else has it, which the model checks.
        unsafe { (*std::ptr::from_ref(&self.stamp).cast_mut()).with_mut(|stamp| *stamp = 0) };
        // SAFETY: by the caller's word.
        self.body.with_mut(|body| unsafe { body.cast::<u8>().copy_from_nonoverlapping(part.as_ptr(), part.len()) });
    }
}

/// The first 16 of some bytes, or all and zeros, as a number of which the first is the least. They are put together in registers: what
/// was just written elsewhere and read back in another shape would wait until all that was written before has left this core.
#[cfg(not(all(loom, test)))]
#[inline(always)]
fn word(bytes: &[u8]) -> u128 {
    let len = bytes.len();
    // Ends overlap, and agree where they do.
    let ends = |first: u64, last: u64, width: usize| u128::from(first) | u128::from(last) << (8 * (len - width));
    if let Some(all) = bytes.first_chunk() {
        u128::from_le_bytes(*all)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        ends(u64::from_le_bytes(*first), u64::from_le_bytes(*last), 8)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        ends(u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into(), 4)
    } else {
        bytes.iter().rev().fold(0, |number, &byte| number << 8 | u128::from(byte))
    }
}

/// Bytes that a line is written by at once.
#[cfg(not(all(loom, test)))]
const WORD: usize = size_of::<u128>();
#[cfg(not(all(loom, test)))]
const STAMP_BITS: usize = 32;

/// How far in front of the next line the consumer has one fetched, for a producer that is ahead: about the time that a line
/// takes between two cores. One less does half as much for a stream; more does no more, and costs a ping-pong some percent.
const AHEAD: u32 = 2;

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64);

/// The lines of a ring: a power of two of them, in memory that outlives the user of this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    first: NonNull<Slot>,
    mask: u32,
}

// SAFETY: it names memory that is `Sync`.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// # Safety
    /// `first` starts `count` lines that stay mapped as long as this value or a copy is used. `count` is a power of two.
    pub(crate) unsafe fn new(first: NonNull<Slot>, count: u32) -> Self {
        debug_assert!(count.is_power_of_two());
        Lines { first, mask: count - 1 }
    }

    #[inline(always)]
    fn at(&self, position: u32) -> &Slot {
        // SAFETY: the mask keeps the index below the number of lines, which are mapped (`new`).
        unsafe { self.first.add((position & self.mask) as usize).as_ref() }
    }

    fn count(&self) -> u32 {
        self.mask + 1
    }
}

/// The stamp of a position: never 0, which is what fresh and continuation lines hold.
#[inline(always)]
const fn stamp(position: u32) -> u32 {
    position | 1 << 31
}

impl Lines {
    /// Writes a message without inline bytes at `position`, which the caller has claimed.
    pub(crate) fn place(&self, position: u32, entry: Entry) {
        self.write(position, Entry { lines: 1, ..entry }, &[]);
    }

    /// True if a message is there at `position`: its writer is done. Asked of where a message begins only.
    #[inline(always)]
    pub(crate) fn has(&self, position: u32) -> bool {
        self.at(position).stamp.load(Ordering::Acquire) == stamp(position)
    }

    /// Has the processor fetch the line of `position`, if another core has written it.
    #[inline(always)]
    fn fetch(&self, position: u32) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: it reads nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self.at(position)).cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        let _ = position;
    }

    /// Fills the line of `position` and stamps it.
    #[inline(always)]
    fn write(&self, position: u32, entry: Entry, head: &[u8]) {
        let slot = self.at(position);
        slot.body.with_mut(|body| {
            // SAFETY: the consumer counted this line as consumed and does not touch it before the stamp below. The body
            // holds HEAD + FIRST bytes, and follows the 4-byte stamp, so `Entry` (align 4) is aligned.
            unsafe {
                body.cast::<Entry>().write(entry);
                copy_short(body.cast::<u8>().add(HEAD), head.as_ptr(), head.len().min(FIRST));
            }
        });
        slot.stamp.store(stamp(position), Ordering::Release);
    }
}

/// Copies at most `FIRST` bytes by words: what was just written by words is read back so without a stall.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    let words = len / 8;
    // SAFETY: `words * 8 + len % 8` is `len`.
    unsafe {
        for word in 0..words {
            let value = from.cast::<u64>().add(word).read_unaligned();
            to.cast::<u64>().add(word).write_unaligned(value);
        }
        for at in words * 8..len {
            to.add(at).write(from.add(at).read());
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    lines: Lines,
    position: u32,
    /// Positions below this one (modulo 2^32) are known to be free.
    limit: u32,
}

impl Producer {
    pub(crate) fn new(lines: Lines) -> Self {
        Producer { lines, position: 0, limit: lines.count() }
    }

    /// True if `needed` lines are free. `consumed` is the consumer's running count.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, needed: u32, consumed: &AtomicU32) -> bool {
        if self.limit.wrapping_sub(self.position) >= needed {
            return true;
        }
        let free = consumed.load(Ordering::Acquire).wrapping_add(self.lines.count());
        // A count that makes no sense is not believed: room never exceeds the ring.
        if free.wrapping_sub(self.position) > self.lines.count() {
            return false;
        }
        self.limit = free;
        free.wrapping_sub(self.position) >= needed
    }

    /// Writes a message; the caller made sure of room for its lines.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut entry: Entry, inline: &[u8]) {
        debug_assert!(inline.len() <= RING_INLINE);
        let lines = lines_for(inline.len());
        entry.lines = lines as u8;
        if lines > 1 {
            self.push_rest(&inline[FIRST..]);
        }
        self.lines.write(self.position, entry, &inline[..inline.len().min(FIRST)]);
        self.position = self.position.wrapping_add(lines);
    }

    fn push_rest(&mut self, rest: &[u8]) {
        for (index, part) in rest.chunks(BODY).enumerate() {
            let slot = self.lines.at(self.position.wrapping_add(1 + index as u32));
            // SAFETY: who pushes made sure of room for it, and stamps the first line of the message after it.
            unsafe { slot.go_on(part) };
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    lines: Lines,
    position: u32,
    /// What `consumed` was last set to.
    told: u32,
    /// Lines of the last message: the next is taken to have as many.
    last: u32,
}

impl Consumer {
    pub(crate) fn new(lines: Lines) -> Self {
        Consumer { lines, position: 0, told: 0, last: 1 }
    }

    /// The next message, if one is there.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Entry> {
        if !self.lines.has(self.position) {
            // Else they would be fetched once the first is there, for as long as that takes. Where the cores are far apart,
            // 190 ns, a tagged message of 64 bytes takes 0.34 us so instead of 0.42, and one of 256 bytes 0.43 instead of
            // 0.52; where they are near, 50 ns, 0.14 instead of 0.15, and as long as before.
            (1..self.last).for_each(|ahead| self.lines.fetch(self.position.wrapping_add(ahead)));
            return None;
        }
        let slot = self.lines.at(self.position);
        // SAFETY: the stamp says that the producer is done with the line until it is counted as consumed, but one that lies
        // may write on: each word is read once. Alignment as in `push`.
        let [head, byte_len, imm, receive, src_qpn] =
            slot.body.with(|body| unsafe { body.cast::<[u32; HEAD / 4]>().read_volatile() });
        let [kind, flags, lines, reserved] = head.to_ne_bytes();
        Some(Entry { kind, flags, lines, reserved, byte_len, imm, receive, src_qpn })
    }

    /// Number of messages that are there, counted up to `limit`.
    pub(crate) fn count(&self, limit: u32) -> u32 {
        let mut ahead = Consumer { last: 1, ..*self };
        let mut count = 0;
        while count < limit
            && let Some(entry) = ahead.peek()
        {
            count += 1;
            ahead.position = ahead.position.wrapping_add(u32::from(entry.lines).clamp(1, MAX_LINES as u32));
        }
        count
    }

    /// Copies the inline bytes of the message that `peek` gave and that [is sound](Entry::is_sound).
    #[inline(always)]
    pub(crate) fn read(&self, entry: &Entry, into: &mut impl FnMut(usize, *const u8, usize)) {
        let len = (entry.byte_len as usize).min(RING_INLINE);
        let head = len.min(FIRST);
        // SAFETY: the body holds HEAD + FIRST bytes, ours to read as in `peek`.
        self.lines.at(self.position).body.with(|body| into(0, unsafe { body.cast::<u8>().add(HEAD) }, head));
        let mut done = head;
        let mut line = 1;
        while done < len {
            let part = (len - done).min(BODY);
            let slot = self.lines.at(self.position.wrapping_add(line));
            slot.body.with(|body| into(done, body.cast::<u8>(), part));
            done += part;
            line += 1;
        }
    }

    /// Copies the inline bytes of a message that [is sound](Entry::is_sound), and whatever follows in its lines: that costs less
    /// than to count.
    #[inline(always)]
    pub(crate) fn read_short(&self, entry: &Entry, into: &mut [u8; RING_INLINE]) {
        let (first, rest) = into.split_at_mut(FIRST);
        // SAFETY: the body holds HEAD + FIRST bytes, ours to read as in `peek`.
        self.lines.at(self.position).body.with(|body| unsafe {
            first.as_mut_ptr().copy_from_nonoverlapping(body.cast::<u8>().add(HEAD), FIRST);
        });
        for (line, part) in (1..u32::from(entry.lines)).zip(rest.as_chunks_mut::<BODY>().0) {
            let slot = self.lines.at(self.position.wrapping_add(line));
            // SAFETY: as above; a part holds BODY bytes.
            slot.body.with(|body| unsafe { part.as_mut_ptr().copy_from_nonoverlapping(body.cast::<u8>(), BODY) });
        }
    }

    /// Counts the message as consumed, and tells the producer every now and then.
    #[inline(always)]
    pub(crate) fn advance(&mut self, entry: &Entry, consumed: &AtomicU32) {
        let lines = u32::from(entry.lines).clamp(1, MAX_LINES as u32);
        self.position = self.position.wrapping_add(lines);
        self.last = lines;
        self.lines.fetch(self.position.wrapping_add(AHEAD));
        if self.position.wrapping_sub(self.told) >= self.lines.count() / 4 {
            self.told = self.position;
            consumed.store(self.position, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::soft::entry::{FLAG_INLINE, KIND_SEND};

    #[test]
    fn a_word_is_the_first_bytes_of_what_there_is() {
        let bytes: Vec<u8> = (1..=20).map(|byte| byte * 11).collect();
        for len in 0..=bytes.len() {
            let mut expected = [0; WORD];
            expected[..len.min(WORD)].copy_from_slice(&bytes[..len.min(WORD)]);
            assert_eq!(word(&bytes[..len]).to_le_bytes(), expected, "{len} bytes");
        }
    }

    #[test]
    fn a_message_takes_its_lines_and_no_other_and_leaves_no_stamp_but_its_own() {
        for len in 0..=RING_INLINE {
            let (mut slots, lines) = ring(16);
            for slot in &mut slots {
                (slot.stamp, slot.body) = (AtomicU32::new(u32::MAX), UnsafeCell::new([0xff; BODY]));
            }
            let data: Vec<u8> = (0..len).map(|at| at as u8 & 0x7f).collect();
            let entry = Entry { kind: KIND_SEND, flags: FLAG_INLINE, byte_len: len as u32, ..Entry::default() };
            Producer::new(lines).push(entry, &data);
            let stamps = slots.iter().map(|slot| slot.stamp.load(Ordering::Relaxed));
            let taken = lines_for(len) as usize;
            let expected = (0..16).map(|at| {
                if at == 0 {
                    stamp(0)
                } else if at < taken {
                    0
                } else {
                    u32::MAX
                }
            });
            assert!(stamps.eq(expected), "{len} bytes");
            // SAFETY: the producer is gone.
            let is_untouched = |slot: &Slot| slot.body.with(|body| unsafe { *body } == [0xff; BODY]);
            assert!(slots[taken..].iter().all(is_untouched), "{len} bytes");
        }
    }

    fn ring(count: u32) -> (Vec<Slot>, Lines) {
        let slots: Vec<Slot> =
            (0..count).map(|_| Slot { stamp: AtomicU32::new(0), body: UnsafeCell::new([0; BODY]) }).collect();
        let first = NonNull::from(&slots[0]);
        // SAFETY: the vector is handed back along with the view, and `count` is a power of two.
        let lines = unsafe { Lines::new(first, count) };
        (slots, lines)
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            lengths in proptest::collection::vec(0usize..=RING_INLINE, 1..300), lag in 0usize..12
        ) {
            let (_slots, lines) = ring(64);
            let consumed = AtomicU32::new(0);
            let (mut producer, mut consumer) = (Producer::new(lines), Consumer::new(lines));
            let mut waiting = std::collections::VecDeque::new();
            for (serial, len) in lengths.into_iter().enumerate() {
                let data: Vec<u8> = (0..len).map(|i| (i + serial) as u8 | 0x80).collect();
                while waiting.len() > lag || !producer.has_room(lines_for(len), &consumed) {
                    let (serial, expected): (usize, Vec<u8>) = waiting.pop_front().unwrap();
                    let entry = consumer.peek().unwrap();
                    prop_assert_eq!(entry.receive as usize, serial);
                    let mut got = vec![0; expected.len()];
                    consumer.read(&entry, &mut |at, from, len| {
                        // SAFETY: `from` holds `len` bytes; `got` is as long as the message.
                        got[at..at + len].copy_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
                    });
                    prop_assert!(entry.is_sound() && entry.is_short());
                    let mut short = [0; RING_INLINE];
                    consumer.read_short(&entry, &mut short);
                    prop_assert_eq!(&short[..expected.len()], &expected[..]);
                    prop_assert_eq!(got, expected);
                    consumer.advance(&entry, &consumed);
                }
                let entry = Entry { kind: KIND_SEND, flags: FLAG_INLINE, byte_len: len as u32, receive: serial as u32, ..Entry::default() };
                producer.push(entry, &data);
                waiting.push_back((serial, data));
            }
        }
    }

    #[test]
    fn a_count_that_makes_no_sense_gives_no_room() {
        let (_slots, lines) = ring(64);
        let mut producer = Producer::new(lines);
        for _ in 0..64 {
            assert!(producer.has_room(1, &AtomicU32::new(0)));
            producer.push(Entry::default(), &[]);
        }
        assert!(!producer.has_room(1, &AtomicU32::new(0)));
        assert!(!producer.has_room(1, &AtomicU32::new(1000)));
        assert!(producer.has_room(1, &AtomicU32::new(5)));
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::entry::{FLAG_INLINE, KIND_SEND};

    /// Messages of one line, two and three over a ring of four lines, which wraps: every byte arrives, and loom's cells prove
    /// that the two ends never touch a body at once.
    #[test]
    fn producer_and_consumer_take_turns() {
        loom::model(|| {
            let slots: Vec<Slot> =
                (0..4).map(|_| Slot { stamp: AtomicU32::new(0), body: UnsafeCell::new([0; BODY]) }).collect();
            let shared = Arc::new((slots, AtomicU32::new(0)));
            let theirs = shared.clone();
            let producer = thread::spawn(move || {
                // SAFETY: the `Arc` keeps the four lines.
                let lines = unsafe { Lines::new(NonNull::from(&theirs.0[0]), 4) };
                let mut producer = Producer::new(lines);
                for (serial, len) in LENGTHS.into_iter().enumerate() {
                    let data = [serial as u8 + 1; RING_INLINE];
                    while !producer.has_room(lines_for(len), &theirs.1) {
                        thread::yield_now();
                    }
                    let entry = Entry {
                        kind: KIND_SEND,
                        flags: FLAG_INLINE,
                        byte_len: len as u32,
                        receive: serial as u32,
                        ..Entry::default()
                    };
                    producer.push(entry, &data[..len]);
                }
            });
            // SAFETY: as above.
            let lines = unsafe { Lines::new(NonNull::from(&shared.0[0]), 4) };
            let mut consumer = Consumer::new(lines);
            for (serial, len) in LENGTHS.into_iter().enumerate() {
                let entry = loop {
                    match consumer.peek() {
                        Some(entry) => break entry,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((entry.receive as usize, entry.byte_len as usize), (serial, len));
                let mut sum = 0;
                consumer.read(&entry, &mut |_, from, len| {
                    // SAFETY: `from` holds `len` bytes.
                    sum +=
                        unsafe { std::slice::from_raw_parts(from, len) }.iter().map(|&b| usize::from(b)).sum::<usize>();
                });
                assert!(entry.is_sound() && entry.is_short());
                assert_eq!(sum, (serial + 1) * len);
                let mut short = [0; RING_INLINE];
                consumer.read_short(&entry, &mut short);
                assert_eq!(short[..len].iter().map(|&b| usize::from(b)).sum::<usize>(), sum);
                consumer.advance(&entry, &shared.1);
            }
            producer.join().unwrap();
        });
    }

    /// One line, two, three, one, two: each line of the ring is a first line and a continuation in turn.
    const LENGTHS: [usize; 5] = [3, FIRST + 2, FIRST + 2 * BODY, 0, FIRST + 1];
}
