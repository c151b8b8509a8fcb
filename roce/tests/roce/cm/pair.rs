//! Two managers and their applications, driven until nothing happens any more.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use qpair_roce::Qpn;
use qpair_roce::cm::{
    Accept, CmConfig, CmState, Connect, ConnectionId, ConnectionManager, Event, Offered, Terms, Timeout,
};
use qpair_roce::wire::cm::Reason;

use crate::network::{Faults, Network, Random};

/// What an application does when it is asked, or when it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Agrees at once.
    Agree,
    /// Asks for time, and agrees later.
    AskForTime,
    /// Says nothing for a while, and agrees then.
    Dawdle,
    /// Refuses.
    Refuse,
}

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Who asks.
    pub asker: usize,
    /// What the asked does, and the asker when it is accepted.
    pub acts: [Act; 2],
}

/// What an application knows of a connection.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub plan: usize,
    pub is_asker: bool,
    pub terms: Option<Terms>,
    pub was_established: bool,
    /// Its last event; also that it refused.
    pub end: Option<&'static str>,
    pub released: bool,
}

pub struct End {
    pub cm: ConnectionManager,
    pub known: BTreeMap<ConnectionId, Known>,
    address: IpAddr,
    entropy: Random,
    /// When the application goes on with which connection.
    later: Vec<(Instant, ConnectionId)>,
}

pub struct Pair {
    pub ends: [End; 2],
    pub now: Instant,
    plans: Vec<Plan>,
    network: Network,
}

impl Pair {
    pub fn new(seed: u64, faults: Faults, plans: Vec<Plan>) -> Self {
        let end = |own: u8| {
            let address = IpAddr::from([10, 0, 0, own]);
            let mut cm = ConnectionManager::new(CmConfig::new(address, own.into()));
            cm.listen(SERVICE).unwrap();
            End { cm, known: BTreeMap::new(), address, entropy: Random(seed ^ u64::from(own)), later: vec![] }
        };
        let mut pair = Pair { ends: [end(1), end(2)], now: Instant::now(), plans, network: Network::new(seed, faults) };
        for number in 0..pair.plans.len() {
            pair.connect(number);
        }
        pair
    }

    fn connect(&mut self, number: usize) {
        let asker = self.plans[number].asker;
        let to = self.ends[1 - asker].address;
        let End { cm, known, entropy, .. } = &mut self.ends[asker];
        let mut connect = Connect {
            peer_answers_within: Timeout::from_code(9),
            answers_within: Timeout::from_code(9),
            ack_timeout: Timeout::from_code(12),
            ..Connect::new(to, SERVICE, Offered { reads_answered: 3, ..Offered::new(qpn(number, true)) })
        };
        connect.private[0] = number as u8;
        let id = cm.connect(self.now, &connect, &mut || entropy.next()).unwrap();
        known.insert(id, Known { plan: number, is_asker: true, ..Known::default() });
    }

    /// Runs until nothing is under way and nothing is due.
    pub fn drive(&mut self) {
        for _ in 0..STEPS {
            for end in 0..2 {
                while let Some(event) = self.ends[end].cm.poll_event() {
                    self.ends[end].take(self.now, event, &self.plans);
                }
                while let Some(transmit) = self.ends[end].cm.poll_transmit() {
                    assert_eq!(transmit.to, self.ends[1 - end].address);
                    self.network.send(self.now, 1 - end, &transmit.bytes, ());
                }
            }
            let dues =
                self.ends.iter().flat_map(|end| end.cm.timeout().into_iter().chain(end.later.iter().map(|at| at.0)));
            let Some(next) = dues.chain(self.network.next_arrival()).min() else { return };
            self.now = self.now.max(next);
            while let Some((to, bytes, ())) = self.network.arrived(self.now) {
                let from = self.ends[1 - to].address;
                let End { cm, entropy, .. } = &mut self.ends[to];
                cm.handle(self.now, from, &bytes, &mut || entropy.next());
            }
            for end in &mut self.ends {
                end.cm.handle_timeout(self.now);
                end.go_on(self.now);
            }
        }
        panic!("no end after {STEPS} steps");
    }

    /// Connections of an end that are established.
    pub fn established(&self, end: usize) -> Vec<ConnectionId> {
        let End { cm, known, .. } = &self.ends[end];
        known.keys().copied().filter(|id| cm.state(*id) == Some(CmState::Established)).collect()
    }

    pub fn disconnect(&mut self, end: usize, id: ConnectionId) {
        self.ends[end].cm.disconnect(self.now, id, &[0; 220]).unwrap();
    }
}

impl End {
    fn take(&mut self, now: Instant, event: Event, plans: &[Plan]) {
        match event {
            Event::Requested { id, offer } => {
                let plan = usize::from(offer.private[0]);
                let known = Known { plan, terms: Some(offer.terms), ..Known::default() };
                assert!(self.known.insert(id, known).is_none());
                self.act(now, id, plans[plan].acts[0]);
            }
            Event::Accepted { id, terms, .. } => {
                let known = self.known(id);
                known.terms = Some(terms);
                let act = plans[known.plan].acts[1];
                self.act(now, id, act);
            }
            Event::Established { id } => self.known(id).was_established = true,
            Event::Rejected { id, .. } => self.ends_as(id, "rejected"),
            Event::Stale { id } => self.ends_as(id, "stale"),
            Event::Disconnected { id } => self.ends_as(id, "disconnected"),
            Event::TimedOut { id, .. } => self.ends_as(id, "timed out"),
            Event::Released { id } => assert!(!std::mem::replace(&mut self.known(id).released, true)),
        }
    }

    fn known(&mut self, id: ConnectionId) -> &mut Known {
        self.known.get_mut(&id).expect("a connection that is known")
    }

    fn ends_as(&mut self, id: ConnectionId, end: &'static str) {
        assert_eq!(self.known(id).end.replace(end), None, "{id:?} ended before");
    }

    fn act(&mut self, now: Instant, id: ConnectionId, act: Act) {
        match act {
            Act::Agree => self.agree(now, id),
            Act::AskForTime => {
                // The peer may have given up since.
                let _ = self.cm.ask_for_time(id, Timeout::from_code(12), &[0; 222]);
                self.later.push((now + SLOW, id));
            }
            Act::Dawdle => self.later.push((now + SLOW, id)),
            Act::Refuse => {
                if self.cm.reject(now, id, Reason::CONSUMER, &[0; 148]).is_ok() {
                    self.ends_as(id, "refused");
                }
            }
        }
    }

    fn agree(&mut self, now: Instant, id: ConnectionId) {
        let known = self.known.get_mut(&id).expect("a connection that is known");
        if known.is_asker {
            known.was_established |= self.cm.ready(id, &[0; 224]).is_ok();
        } else if let Ok(terms) = self.cm.accept(now, id, &Accept::new(Offered::new(qpn(known.plan, false)))) {
            known.terms = Some(terms);
        }
    }

    fn go_on(&mut self, now: Instant) {
        let due: Vec<_> = self.later.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, id) in due {
            self.agree(now, id);
        }
    }
}

fn qpn(plan: usize, is_asker: bool) -> Qpn {
    Qpn(0x100 + plan as u32 * 2 + u32::from(is_asker))
}

const SERVICE: u64 = 7;
/// Longer than the managers wait for an answer.
const SLOW: Duration = Duration::from_millis(5);
/// Far more than any test takes.
const STEPS: u32 = 100_000;
