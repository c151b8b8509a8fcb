//! Calling a peer that may have several addresses, and no room for this side just now. No I/O here.
//!
//! Addresses are tried in the manner of RFC 8305: families in turn, the next when one failed or [`HEAD_START`] after it began,
//! and the first that connects is taken. Who is taken and hangs up before it says anything, or says that it is busy, is
//! called again after a while ([`backoff`](super::backoff)), until the time is over.

use core::mem;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;

use super::backoff;
use super::rdma::RdmaCmError;

/// A call until the peer has shown that it takes it.
#[derive(Debug)]
pub(super) struct Dial {
    /// In the order that they are tried.
    addresses: Vec<SocketAddr>,
    phase: Phase,
    deadline: Duration,
    /// Attempts that ended with the peer having no room.
    rests: u32,
    /// Why it rested last.
    rested: Option<CallError>,
}

#[derive(Debug)]
enum Phase {
    /// The addresses of a name are looked up.
    Naming { host: Box<str>, port: u16 },
    /// Others go first.
    Waiting,
    /// Connections are under way, so many, and from address `next` on there are more to try, at that time.
    Racing { next: usize, open: u32, at: Duration },
    /// The peer at that address is connected, and has said nothing yet.
    Connected(SocketAddr),
    /// The peer has no room until then.
    Resting(Duration),
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing, until something happens or it is [`due`](Dial::due).
    Wait,
    /// It waits for its turn.
    Queue,
    /// Connects to this address.
    Try(SocketAddr),
    /// The call came to nothing.
    Fail(CallError),
}

/// Why a call came to nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The name has no address that is known.
    Name { host: Box<str>, source: io::Error },
    /// Nobody listens there.
    Refused(SocketAddr),
    /// The way there is closed.
    Unreachable { address: SocketAddr, source: io::Error },
    /// This process has no descriptor left.
    Descriptors { address: SocketAddr, source: io::Error },
    /// rdma_cm makes no connection to it.
    RdmaCm { address: SocketAddr, source: RdmaCmError },
    /// It had no room all the time.
    Busy(SocketAddr),
    /// It hung up each time before it said anything.
    HungUp(SocketAddr),
    /// It said nothing in time.
    TimedOut(SocketAddr),
}

impl Dial {
    /// Calls the first of these addresses that connects.
    pub(super) fn to_addresses(addresses: Vec<SocketAddr>, deadline: Duration) -> Self {
        Dial { addresses: interleave(addresses), phase: Phase::Waiting, deadline, rests: 0, rested: None }
    }

    /// Calls a host by its name, which is to be looked up.
    pub(super) fn to_name(host: Box<str>, port: u16, deadline: Duration) -> Self {
        Dial { addresses: Vec::new(), phase: Phase::Naming { host, port }, deadline, rests: 0, rested: None }
    }

    /// When [`tick`](Dial::tick) has something to do.
    pub(super) fn due(&self) -> Duration {
        let next = match self.phase {
            Phase::Racing { next, at, .. } if next < self.addresses.len() => at,
            Phase::Resting(until) => until,
            _ => Duration::MAX,
        };
        next.min(self.deadline)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The peer that is connected.
    pub(super) fn connected_to(&self) -> Option<SocketAddr> {
        match self.phase {
            Phase::Connected(address) => Some(address),
            _ => None,
        }
    }

    /// True while the peer is left alone.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.phase, Phase::Resting(_))
    }

    /// The name was looked up. Its ports do not count.
    pub(super) fn found(&mut self, found: io::Result<Vec<SocketAddr>>) -> Step {
        let Phase::Naming { host, port } = &mut self.phase else { return Step::Wait };
        let (host, port) = (mem::take(host), *port);
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                let with_port = addresses.into_iter().map(|mut address| {
                    address.set_port(port);
                    address
                });
                self.addresses = interleave(with_port.collect());
                self.phase = Phase::Waiting;
                Step::Queue
            }
            Ok(_) => {
                let source = io::Error::new(io::ErrorKind::NotFound, "it has no address");
                Step::Fail(CallError::Name { host, source })
            }
            Err(source) => Step::Fail(CallError::Name { host, source }),
        }
    }

    /// It is this call's turn.
    pub(super) fn turn(&mut self, now: Duration) -> Step {
        let (Phase::Waiting, Some(&first)) = (&self.phase, self.addresses.first()) else { return Step::Wait };
        self.phase = Phase::Racing { next: 1, open: 1, at: now.saturating_add(HEAD_START) };
        Step::Try(first)
    }

    /// An address could not be connected to.
    pub(super) fn failed(&mut self, error: CallError, now: Duration, dice: u64) -> Step {
        let Phase::Racing { next, open, .. } = &mut self.phase else { return Step::Wait };
        *open = open.saturating_sub(1);
        match error {
            _ if *next < self.addresses.len() => self.try_next(now),
            _ if *open > 0 => Step::Wait,
            // It was in the backlog of one that is overloaded.
            CallError::HungUp(_) => self.rest(error, Duration::ZERO, now, dice),
            last => Step::Fail(last),
        }
    }

    /// An address connected first. The others are to be closed.
    pub(super) fn connected(&mut self, address: SocketAddr) {
        self.phase = Phase::Connected(address);
        // The next time it begins with this one.
        if let Some(place) = self.addresses.iter().position(|&other| other == address) {
            self.addresses.swap(0, place);
        }
    }

    /// The peer hung up before it said anything, or asked to be left alone for a time.
    pub(super) fn turned_away(&mut self, asked: Option<Duration>, now: Duration, dice: u64) -> Step {
        let Phase::Connected(address) = self.phase else { return Step::Wait };
        let error = if asked.is_some() { CallError::Busy(address) } else { CallError::HungUp(address) };
        self.rest(error, asked.unwrap_or_default(), now, dice)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Duration) -> Step {
        if now >= self.deadline {
            return Step::Fail(self.too_late());
        }
        match self.phase {
            Phase::Racing { next, at, .. } if next < self.addresses.len() && now >= at => self.try_next(now),
            Phase::Resting(until) if now >= until => {
                self.phase = Phase::Waiting;
                Step::Queue
            }
            _ => Step::Wait,
        }
    }

    fn try_next(&mut self, now: Duration) -> Step {
        let Phase::Racing { next, open, at } = &mut self.phase else { return Step::Wait };
        let Some(&address) = self.addresses.get(*next) else { return Step::Wait };
        *next += 1;
        *open += 1;
        *at = now.saturating_add(HEAD_START);
        Step::Try(address)
    }

    fn rest(&mut self, error: CallError, asked: Duration, now: Duration, dice: u64) -> Step {
        self.rested = Some(error);
        self.phase = Phase::Resting(now.saturating_add(backoff::delay(self.rests, asked, dice)));
        self.rests = self.rests.saturating_add(1);
        Step::Wait
    }

    /// What to say when the time is over: why it rested last, or that nothing happened.
    fn too_late(&mut self) -> CallError {
        if let Phase::Naming { host, .. } = &mut self.phase {
            let source = io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
            return CallError::Name { host: mem::take(host), source };
        }
        let tried = match self.phase {
            Phase::Connected(address) => Some(address),
            Phase::Racing { next, .. } => self.addresses.get(next - 1).copied(),
            _ => self.addresses.first().copied(),
        };
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        self.rested.take().unwrap_or(CallError::TimedOut(tried.unwrap_or(nowhere)))
    }
}

/// The addresses once each, families in turn, in the order that they came otherwise.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(|address| address.is_ipv6());
    let (mut same, mut other) = (VecDeque::new(), VecDeque::new());
    for address in addresses {
        let family = if address.is_ipv6() == first { &mut same } else { &mut other };
        if !family.contains(&address) {
            family.push_back(address);
        }
    }
    let mut all = Vec::with_capacity(same.len() + other.len());
    while !same.is_empty() || !other.is_empty() {
        all.extend(same.pop_front());
        all.extend(other.pop_front());
    }
    all
}

/// How long an address is tried before the next one is, too: as RFC 8305 recommends.
pub(super) const HEAD_START: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const DEADLINE: Duration = Duration::from_secs(105);
    /// What the dice show.
    const DICE: u64 = u64::MAX;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn dial(addresses: &[&str]) -> Dial {
        Dial::to_addresses(addresses.iter().map(|text| at(text)).collect(), DEADLINE)
    }

    fn tries(step: Step) -> SocketAddr {
        match step {
            Step::Try(address) => address,
            other => panic!("{other:?}"),
        }
    }

    fn waits(step: Step) {
        assert!(matches!(step, Step::Wait), "{step:?}");
    }

    fn closed_way(address: SocketAddr) -> CallError {
        CallError::Unreachable { address, source: io::Error::other("no way") }
    }

    const V6: [&str; 3] = ["[::1]:7", "[::2]:7", "[::3]:7"];
    const V4: [&str; 2] = ["10.0.0.1:7", "10.0.0.2:7"];

    #[test]
    fn families_take_turns_and_no_address_is_tried_twice() {
        let [a, b, c] = V6;
        let [d, e] = V4;
        for (given, expected) in [
            (vec![a, b, c, d, e], vec![a, d, b, e, c]),
            (vec![d, a, b, a, d, e, c], vec![d, a, e, b, c]),
            (vec![b], vec![b]),
            (vec![], vec![]),
        ] {
            let expected: Vec<_> = expected.iter().map(|text| at(text)).collect();
            assert_eq!(dial(&given).addresses, expected);
        }
    }

    #[test]
    fn the_next_address_has_its_turn_when_one_failed_or_after_its_head_start() {
        let mut dial = dial(&[V6[0], V6[1], V4[0]]);
        assert_eq!(dial.due(), DEADLINE);
        waits(dial.tick(NOW));
        assert_eq!(tries(dial.turn(NOW)), at(V6[0]));
        assert_eq!(dial.due(), NOW + HEAD_START);
        waits(dial.tick(NOW + HEAD_START / 2));
        assert_eq!(tries(dial.tick(NOW + HEAD_START)), at(V4[0]));
        // A failure does not wait for the next one's time.
        assert_eq!(tries(dial.failed(CallError::Refused(at(V6[0])), NOW + HEAD_START, DICE)), at(V6[1]));
        assert_eq!(dial.due(), DEADLINE, "there is no other");
        waits(dial.failed(CallError::Refused(at(V6[1])), NOW + HEAD_START, DICE));
        let last = dial.failed(closed_way(at(V4[0])), NOW + HEAD_START, DICE);
        assert!(matches!(last, Step::Fail(CallError::Unreachable { address, .. }) if address == at(V4[0])), "{last:?}");
    }

    #[test]
    fn who_is_busy_or_hangs_up_is_called_again_and_later_each_time() {
        let mut dial = dial(&[V6[0], V4[0]]);
        let mut now = NOW;
        tries(dial.turn(now));
        tries(dial.tick(now + HEAD_START));
        dial.connected(at(V4[0]));
        let mut rests = Vec::new();
        for asked in [None, Some(Duration::ZERO), Some(Duration::from_millis(300)), None] {
            assert_eq!(dial.connected_to(), Some(at(V4[0])));
            waits(dial.turned_away(asked, now, DICE));
            rests.push((dial.due() - now).as_millis());
            waits(dial.tick(dial.due() - Duration::from_nanos(1)));
            now = dial.due();
            assert!(matches!(dial.tick(now), Step::Queue));
            assert_eq!(tries(dial.turn(now)), at(V4[0]), "the one that was there goes first");
            dial.connected(at(V4[0]));
        }
        assert_eq!(rests, [19, 39, 379, 159]);
        waits(dial.turned_away(Some(Duration::ZERO), DEADLINE - Duration::from_millis(1), DICE));
        assert_eq!(dial.due(), DEADLINE);
        let late = dial.tick(DEADLINE);
        assert!(matches!(late, Step::Fail(CallError::Busy(address)) if address == at(V4[0])), "{late:?}");
    }

    #[test]
    fn a_jump_of_the_clock_lets_nothing_be_caught_up_with() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut dial = Dial::to_addresses([V6[0], V6[1], V4[0]].map(at).into(), 10 * HOUR);
        tries(dial.turn(NOW));
        // One address for all the head starts that went by, and the next after its own.
        tries(dial.tick(HOUR));
        waits(dial.tick(HOUR));
        assert_eq!(dial.due(), HOUR + HEAD_START);
        dial.connected(at(V6[0]));
        waits(dial.turned_away(None, HOUR, DICE));
        // One call for all the rests, and the next rest counts from when it begins.
        assert!(matches!(dial.tick(2 * HOUR), Step::Queue));
        waits(dial.tick(2 * HOUR));
        tries(dial.turn(2 * HOUR));
        dial.connected(at(V6[0]));
        waits(dial.turned_away(None, 2 * HOUR, DICE));
        assert!(dial.due() > 2 * HOUR && dial.is_resting());
        // A clock that stands still, or goes back, makes nothing due.
        for now in [2 * HOUR, HOUR, NOW] {
            waits(dial.tick(now));
        }
        let late = dial.tick(99 * HOUR);
        assert!(matches!(late, Step::Fail(CallError::HungUp(_))), "{late:?}");
    }

    #[test]
    fn a_reset_in_the_backlog_is_no_refusal() {
        let mut reset = dial(&[V4[0]]);
        tries(reset.turn(NOW));
        waits(reset.failed(CallError::HungUp(at(V4[0])), NOW, 0));
        assert_eq!(reset.due(), NOW + Duration::from_millis(10));
        let mut refused = dial(&[V4[0]]);
        tries(refused.turn(NOW));
        let step = refused.failed(CallError::Refused(at(V4[0])), NOW, 0);
        assert!(matches!(step, Step::Fail(CallError::Refused(_))), "{step:?}");
    }

    #[test]
    fn who_says_nothing_is_named_when_the_time_is_over() {
        let mut silent = dial(&[V6[0], V4[0]]);
        tries(silent.turn(NOW));
        tries(silent.failed(CallError::Refused(at(V6[0])), NOW, 0));
        let under_way = silent.tick(DEADLINE);
        assert!(matches!(under_way, Step::Fail(CallError::TimedOut(address)) if address == at(V4[0])), "{under_way:?}");
        silent.connected(at(V4[0]));
        let connected = silent.tick(DEADLINE);
        assert!(matches!(connected, Step::Fail(CallError::TimedOut(address)) if address == at(V4[0])), "{connected:?}");
    }

    #[test]
    fn a_name_is_looked_up_first_and_named_if_it_has_no_address() {
        let named = || Dial::to_name("far".into(), 7, DEADLINE);
        let mut found = named();
        waits(found.tick(NOW));
        assert!(matches!(found.found(Ok(vec![at("[::1]:0"), at("10.0.0.1:0")])), Step::Queue));
        assert_eq!(tries(found.turn(NOW)), at("[::1]:7"));
        let failures =
            [named().found(Ok(vec![])), named().found(Err(io::Error::other("no such name"))), named().tick(DEADLINE)];
        for step in failures {
            assert!(matches!(&step, Step::Fail(CallError::Name { host, .. }) if &**host == "far"), "{step:?}");
        }
    }

    #[test]
    fn what_comes_too_late_or_twice_changes_nothing() {
        let mut dial = dial(&[V4[0]]);
        waits(dial.failed(CallError::Refused(at(V4[0])), NOW, 0));
        waits(dial.turned_away(None, NOW, 0));
        waits(dial.found(Ok(vec![])));
        tries(dial.turn(NOW));
        waits(dial.turn(NOW));
        dial.connected(at(V4[0]));
        waits(dial.failed(CallError::Refused(at(V4[0])), NOW, 0));
        assert_eq!(dial.connected_to(), Some(at(V4[0])));
    }
}
