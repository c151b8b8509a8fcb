//! Which half of a connection makes the next packet, requester or responder, and where acknowledgments go among requests.
//!
//! Where both have packets, they take turns. Packets of one [departure](crate::Departure) are all as long as the first, and the
//! last may be shorter. An acknowledgment is shorter than any request: nothing goes behind it in a departure, and it goes for
//! nothing as the last. So some requests go before it, as many as take turns at most.

/// Whose turn it is, and what went.
#[derive(Debug)]
pub(super) struct Halves {
    answers_next: bool,
    /// Packets that the half that is next may make yet.
    left: u32,
    /// Requests that went in this turn of answers, before acknowledgments: the next turn of requests is shorter by them.
    ahead: u32,
    /// Requests that went since the acknowledgment that is next was owed, and departures that some of them went in.
    passed: u32,
    skipped: u32,
    departure: Packets,
}

/// Those of the departure that is being made.
#[derive(Debug, Default)]
struct Packets {
    requests: u32,
    longest: usize,
    /// Another request may go with them.
    is_open: bool,
    /// An answer went with them, or went alone: no request goes before an acknowledgment any more.
    has_answer: bool,
    /// The answer was an acknowledgment: nothing goes with them any more.
    is_over: bool,
}

impl Halves {
    pub(super) fn new() -> Self {
        Halves { answers_next: true, left: TURN, ahead: 0, passed: 0, skipped: 0, departure: Packets::default() }
    }

    /// The next departure begins.
    pub(super) fn begin_departure(&mut self) {
        let went = self.passed > 0 && self.departure.requests > 0;
        self.skipped = self.skipped.saturating_add(u32::from(went));
        self.departure = Packets::default();
    }

    /// Whether nothing goes with this departure any more.
    pub(super) fn ends_departure(&self) -> bool {
        self.departure.is_over
    }

    /// Whether answers are next.
    pub(super) fn answers_next(&mut self) -> bool {
        while self.left == 0 {
            self.pass();
        }
        self.answers_next
    }

    /// The half that is next has nothing: the other is, whatever went before.
    pub(super) fn skip(&mut self) {
        self.ahead = 0;
        self.pass();
    }

    fn pass(&mut self) {
        self.answers_next = !self.answers_next;
        self.left = if self.answers_next { TURN } else { TURN - std::mem::take(&mut self.ahead).min(TURN) };
    }

    /// No acknowledgment is owed before all else.
    pub(super) fn owe_nothing(&mut self) {
        (self.passed, self.skipped) = (0, 0);
    }

    /// Whether one more request may go before the acknowledgment that is owed, so that this one still goes with it into so many
    /// bytes, or with others soon. Behind it other answers wait, or none.
    pub(super) fn may_pass(&self, room: usize, longest_packet: usize, others_wait: bool) -> bool {
        let Packets { requests, is_open, has_answer, .. } = self.departure;
        let fits = requests == 0 || is_open && room >= 2 * longest_packet;
        let is_fair = !others_wait || self.ahead < TURN;
        fits && is_fair && !has_answer && self.passed < TURN && self.skipped < MOST_SKIPPED
    }

    /// Whether requests went since the acknowledgment that waits for some was owed, which counts anew then; and whether it goes
    /// with them.
    pub(super) fn take_passed(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.passed) > 0, self.departure.is_open)
    }

    /// A request went, in its turn.
    pub(super) fn asked(&mut self, len: usize) {
        self.left = self.left.saturating_sub(1);
        self.departure.add(len);
    }

    /// A request went before the acknowledgment that is owed, behind which other answers wait, or none.
    pub(super) fn asked_before(&mut self, len: usize, others_wait: bool) {
        self.passed = self.passed.saturating_add(1);
        if !self.answers_next {
            self.left = self.left.saturating_sub(1);
        } else if others_wait {
            self.ahead = self.ahead.saturating_add(1);
        }
        self.departure.add(len);
    }

    /// A request went that the acknowledgment waits for.
    pub(super) fn asked_for(&mut self, len: usize) {
        (self.passed, self.skipped) = (1, 0);
        self.departure.add(len);
    }

    /// An answer went.
    pub(super) fn answered(&mut self, acknowledges: bool) {
        self.left = self.left.saturating_sub(u32::from(self.answers_next));
        self.owe_nothing();
        self.departure = Packets { has_answer: true, is_over: acknowledges, ..Packets::default() };
    }
}

impl Packets {
    fn add(&mut self, len: usize) {
        self.is_open = self.requests == 0 || self.is_open && len == self.longest;
        self.longest = self.longest.max(len);
        self.requests = self.requests.saturating_add(1);
    }
}

/// Packets in a row of requests, or of answers, where there are both, and requests before an acknowledgment: few enough for it to
/// be in time, and enough to be sent at once.
const TURN: u32 = 16;
/// Departures without an acknowledgment that is owed. The first may be that of the first two packets of a WRITE, of which the
/// first is the longest: it goes with those behind.
const MOST_SKIPPED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a half of each kind makes that always has packets, in so many departures of so much room: `r` a request, `a` an
    /// acknowledgment, `d` another answer, which are owed in turn.
    fn departures(count: u32, room: usize, lens: &[usize], owed: &str) -> Vec<String> {
        let others_wait = owed.contains('d');
        let (mut halves, mut lens, mut owed) = (Halves::new(), lens.iter().cycle(), owed.chars().cycle().peekable());
        let longest = *lens.clone().take(100).max().unwrap();
        let departure = |_| {
            let (mut went, mut left) = (String::new(), room);
            halves.begin_departure();
            while left >= longest && !halves.ends_departure() {
                let answer = *owed.peek().unwrap();
                if answer != 'a' {
                    halves.owe_nothing();
                }
                let len = *lens.clone().next().unwrap();
                if answer == 'a' && halves.may_pass(left, longest, others_wait) {
                    halves.asked_before(len, others_wait);
                } else if answer == 'a' || halves.answers_next() {
                    went.push(owed.next().unwrap());
                    halves.answered(answer == 'a');
                    left -= 16;
                    continue;
                } else {
                    halves.asked(len);
                }
                lens.next();
                went.push('r');
                left -= len;
            }
            went
        };
        (0..count).map(departure).collect()
    }

    #[test]
    fn an_acknowledgment_is_the_last_of_a_departure() {
        assert_eq!(departures(2, 5000, &[1000], "a"), ["rrrra"; 2]);
        assert_eq!(departures(2, 100_000, &[1000], "a"), ["rrrrrrrrrrrrrrrra"; 2]);
        // The first packet of a message is longer, as that of a WRITE is.
        assert_eq!(departures(3, 1000, &[1000], "a"), ["r", "r", "a"], "two at most");
    }

    #[test]
    fn both_halves_have_their_share() {
        for owed in ["d", "ad", "addd", "aaaad"] {
            for lens in [&[1000][..], &[1016, 1000], &[1000, 1000, 20]] {
                let all = departures(1000, 10_000, lens, owed).concat();
                let count = |what: char| all.chars().filter(|one| *one == what).count() as f64;
                let share = count('r') / all.len() as f64;
                assert!((0.3..=0.97).contains(&share), "{share:.2} of {owed}, {lens:?}");
                let longest = all.split('a').map(|run| run.chars().filter(|one| *one == 'r').count()).max().unwrap();
                assert!(!owed.contains('a') || longest <= 2 * TURN as usize, "{longest} of {owed}, {lens:?}");
            }
        }
    }
}
