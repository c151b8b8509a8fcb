//! What goes out: what waits, what was sent and is not acknowledged, and how much may be.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use super::timing::Timing;
use super::wire::{after, distance};
use super::{FlowSettings, NotSent, REORDER};

/// Packets of this side.
#[derive(Debug)]
pub(super) struct Sending<O> {
    /// The number of the first that is not acknowledged.
    first: u32,
    sent: VecDeque<Sent<O>>,
    /// Those that wait for the window.
    unsent: VecDeque<O>,
    released: VecDeque<O>,
    /// Packets under way at most, and what is gathered for one more.
    window: u32,
    gathered: u32,
    /// Below, it doubles with each round trip.
    threshold: u32,
    /// Packets before this one were sent when the window was last halved: they do not halve it again.
    halved_at: u32,
    /// Packets that are held to be lost, and were not sent again.
    lost: u32,
    /// Packets that are under way as far as this side knows: neither lost nor there.
    flying: u32,
    timing: Timing,
    /// When the oldest is sent again.
    due: Option<Duration>,
    patience: Duration,
    tries: u32,
    /// When the peer told of something new last.
    news: Duration,
    repeated: u64,
}

#[derive(Debug)]
struct Sent<O> {
    packet: O,
    /// When it was sent first, and last.
    begun: Duration,
    at: Duration,
    tries: u32,
    has_come: bool,
    is_lost: bool,
}

impl<O> Sending<O> {
    pub(super) fn new(settings: &FlowSettings) -> Self {
        Sending {
            first: 0,
            sent: VecDeque::new(),
            unsent: VecDeque::new(),
            released: VecDeque::new(),
            window: FIRST_WINDOW,
            gathered: 0,
            threshold: LARGEST_WINDOW,
            halved_at: 0,
            lost: 0,
            flying: 0,
            timing: Timing::new(settings.least_timeout),
            due: None,
            patience: settings.patience,
            tries: settings.tries,
            news: Duration::ZERO,
            repeated: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.unsent.is_empty()
    }

    pub(super) fn repeated(&self) -> u64 {
        self.repeated
    }

    pub(super) fn pace(&self) -> (u32, Duration) {
        (self.window, self.timing.timeout())
    }

    pub(super) fn push(&mut self, packet: O) {
        self.unsent.push_back(packet);
    }

    pub(super) fn released(&mut self) -> Option<O> {
        self.released.pop_front()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = O> + '_ {
        (self.lost, self.flying, self.due) = (0, 0, None);
        let sent = self.sent.drain(..).map(|sent| sent.packet);
        self.released.drain(..).chain(sent).chain(self.unsent.drain(..))
    }

    /// Not more under way than the window, and none so far ahead that the peer could not keep it.
    fn has_room(&self) -> bool {
        self.flying < self.window && self.sent.len() < LARGEST_WINDOW as usize
    }

    pub(super) fn next_sequence(&self) -> u32 {
        after(self.first, self.sent.len() as u32)
    }

    pub(super) fn packet(&mut self, sequence: u32) -> Option<&mut O> {
        let place = usize::try_from(distance(self.first, sequence)).ok()?;
        self.sent.get_mut(place).map(|sent| &mut sent.packet)
    }

    pub(super) fn due(&self) -> Option<Duration> {
        // What is held to be lost, and what there is room for, goes out at once.
        let again = self.lost > 0 && self.flying < self.window;
        let at_once = again || (!self.unsent.is_empty() && self.has_room());
        if at_once { Some(Duration::ZERO) } else { self.due }
    }

    /// The number of a packet that goes out now, for the first time or again. `times_out`: also for its time alone. `Err`:
    /// nothing answers.
    pub(super) fn due_packet(&mut self, now: Duration, times_out: bool) -> Result<Option<u32>, ()> {
        if let Some(sequence) = self.again(now, times_out)? {
            return Ok(Some(sequence));
        }
        if !self.has_room() {
            return Ok(None);
        }
        let Some(packet) = self.unsent.pop_front() else { return Ok(None) };
        let sequence = self.next_sequence();
        self.flying += 1;
        self.sent.push_back(Sent { packet, begun: now, at: now, tries: 1, has_come: false, is_lost: false });
        self.due.get_or_insert(now + self.timing.timeout());
        Ok(Some(sequence))
    }

    /// The peer has all packets before `count`, and some beyond.
    pub(super) fn acknowledged(&mut self, count: u32, beyond: u32, now: Duration) -> Result<(), NotSent> {
        // One that was overtaken says nothing new.
        let Ok(ahead) = usize::try_from(distance(self.first, count)) else { return Ok(()) };
        let last = 32 - beyond.leading_zeros() as usize;
        let claimed = ahead + last + usize::from(beyond != 0);
        if claimed > self.sent.len() {
            return Err(NotSent { said: after(self.first, claimed as u32), sent: self.next_sequence() });
        }
        let mut news = 0;
        for sent in self.sent.drain(..ahead) {
            self.lost -= u32::from(sent.is_lost);
            if !sent.has_come {
                self.flying -= u32::from(!sent.is_lost);
                news += 1;
                self.timing.came(sent.tries, now.saturating_sub(sent.at));
            }
            self.released.push_back(sent.packet);
        }
        self.first = after(self.first, ahead as u32);
        if distance(self.first, self.halved_at) < 0 {
            // Numbers come again some day, and it is none of those then.
            self.halved_at = self.first;
        }
        for place in (0..32).filter(|place| beyond >> place & 1 == 1) {
            let sent = &mut self.sent[place + 1];
            if !mem::replace(&mut sent.has_come, true) {
                news += 1;
                self.flying -= u32::from(!sent.is_lost);
                self.lost -= u32::from(mem::take(&mut sent.is_lost));
                self.timing.came(sent.tries, now.saturating_sub(sent.at));
            }
        }
        if news > 0 {
            self.news = now;
            self.grow(news);
            self.find_lost();
            self.due = (!self.sent.is_empty()).then(|| now + self.timing.timeout());
        }
        Ok(())
    }

    /// Packets behind which [`LATER`] others came are lost, unless they went out again since.
    fn find_lost(&mut self) {
        let mut later = 0;
        let mut found = None;
        for (place, sent) in self.sent.iter_mut().enumerate().rev() {
            if sent.has_come {
                later += 1;
            } else if later >= LATER && sent.tries == 1 && !sent.is_lost {
                sent.is_lost = true;
                self.lost += 1;
                self.flying -= 1;
                found = Some(place);
            }
        }
        if let Some(place) = found {
            self.halve(after(self.first, place as u32));
        }
    }

    /// One window's losses count as one.
    fn halve(&mut self, sequence: u32) {
        if distance(sequence, self.halved_at) > 0 {
            return;
        }
        self.threshold = (self.window / 2).max(2);
        (self.window, self.gathered) = (self.threshold, 0);
        self.halved_at = self.next_sequence();
    }

    fn grow(&mut self, news: u32) {
        if self.window < self.threshold {
            self.window = (self.window + news).min(LARGEST_WINDOW);
            return;
        }
        self.gathered += news;
        if self.gathered >= self.window {
            self.gathered -= self.window;
            self.window = (self.window + 1).min(LARGEST_WINDOW);
        }
    }

    /// A packet that goes out again now.
    fn again(&mut self, now: Duration, times_out: bool) -> Result<Option<u32>, ()> {
        if self.lost > 0
            && self.flying < self.window
            && let Some(place) = self.sent.iter().position(|sent| sent.is_lost)
        {
            return self.repeat(place, now).map(Some);
        }
        if !times_out || self.due.is_none_or(|due| now < due) {
            return Ok(None);
        }
        let Some(place) = self.sent.iter().position(|sent| !sent.has_come) else {
            self.due = None;
            return Ok(None);
        };
        self.timing.timed_out();
        self.threshold = (self.flying / 2).max(2);
        (self.window, self.gathered, self.halved_at) = (1, 0, self.next_sequence());
        // All that are under way are held to be lost (RFC 5681, 3.1), and go out again as the window opens.
        for sent in self.sent.iter_mut().filter(|sent| !sent.has_come) {
            self.lost += u32::from(!mem::replace(&mut sent.is_lost, true));
        }
        self.flying = 0;
        self.repeat(place, now).map(Some)
    }

    fn repeat(&mut self, place: usize, now: Duration) -> Result<u32, ()> {
        let sent = &mut self.sent[place];
        // A clock that jumps gives up nothing by itself, nor bad luck with one packet while the peer answers others.
        let silent = now.saturating_sub(sent.begun.max(self.news));
        if sent.tries >= self.tries && silent >= self.patience {
            return Err(());
        }
        self.lost -= u32::from(mem::take(&mut sent.is_lost));
        self.flying += 1;
        (sent.tries, sent.at) = (sent.tries.saturating_add(1), now);
        self.repeated += 1;
        self.due = Some(now + self.timing.timeout());
        Ok(after(self.first, place as u32))
    }
}

#[cfg(test)]
impl<O> Sending<O> {
    pub(super) fn begin_at(&mut self, sequence: u32) {
        self.first = sequence;
    }
}

/// Packets under way before anything is known (RFC 6928).
const FIRST_WINDOW: u32 = 10;
const LARGEST_WINDOW: u32 = REORDER as u32;
/// Later packets that came by which one is held to be lost.
const LATER: u32 = 3;
