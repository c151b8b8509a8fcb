//! A rank's connection to the store: to meet the others, then to tell and hear of faults.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::alarm::Alarm;
use super::line::{Ear, Hearing, Mouth};
use super::message::{FromStore, Listening, PROTOCOL, ToStore, Whereabouts, encode};
use super::muster::Remnant;
use super::place::Place;
use super::regroup::Spot;
use super::server::Server;
use super::stand_in::StandIns;
use crate::deadline::Deadline;
use crate::error::BootstrapError;
use crate::fault::Fault;
use crate::machine::Known;

/// A rank's connection to the store. A thread listens to it; it sleeps as long as nobody has a fault.
#[derive(Debug)]
pub(crate) struct StoreClient {
    mouth: Mouth,
    alarm: Arc<Alarm>,
    listener: Option<JoinHandle<()>>,
    /// At rank 0.
    server: Option<Server>,
    stand_ins: StandIns,
    /// It asked who is left, and does not go on with them.
    stays_behind: bool,
}

/// A rank that has said who it is.
#[derive(Debug)]
pub(super) struct Joining {
    mouth: Mouth,
    ear: Ear,
    rank: u32,
    size: u32,
    place: Place,
    /// All have come.
    met: bool,
    /// At rank 0.
    server: Option<Server>,
}

/// Where all ranks run.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) token: u64,
    pub(super) members: Vec<Whereabouts>,
    /// The address of this host at which the others reach it.
    pub(super) ip: IpAddr,
    /// What operations cost.
    pub(super) cost: Known,
}

impl Joining {
    /// Connects to the store and says who this is; rank 0 may still have to start.
    pub(super) fn new(
        mut place: Place,
        (rank, size): (u32, u32),
        (whereabouts, cost): (Whereabouts, Option<Known>),
        mut server: Option<Server>,
        limit: Duration,
    ) -> Result<(Self, Roster), BootstrapError> {
        let until = Deadline::after(limit);
        let ticket = place.ticket.clone();
        let cost = cost.map(Box::new);
        let join = encode(&ToStore::Join { protocol: PROTOCOL, size, rank, ticket, whereabouts, cost });
        let (mut attempts, mut again) = (0, PAUSE);
        loop {
            let stream = place.reach(until)?;
            let ip = stream.local_addr().map(|address| address.ip().to_canonical());
            let ip = ip.map_err(system("name the connection to rank 0"))?;
            let (mut mouth, ear) = place.speak(stream)?;
            // If that fails, so does hearing.
            let _ = mouth.say(&join);
            let mut joining = Joining { mouth, ear, rank, size, place, met: false, server };
            match joining.roster(ip, limit) {
                // It may have had too many visitors, and this one was the oldest of those that had not joined.
                Err(Attempt::HungUp) if attempts < ATTEMPTS && !until.is_over() => {
                    attempts += 1;
                    std::thread::sleep(PAUSE);
                    (place, server) = (joining.place, joining.server);
                }
                Err(Attempt::HungUp) => return Err(joining.stranger("it hung up")),
                // It may be a while until rank 0 is done with what was before.
                Err(Attempt::Again) if !until.is_over() => {
                    std::thread::sleep(until.left().map_or(again, |left| again.min(left)));
                    again = (2 * again).min(LONGEST_PAUSE);
                    (place, server) = (joining.place, joining.server);
                }
                Err(Attempt::Again) => {
                    let reason =
                        "rank 0 has a communicator still of the ranks that met there before: drop it at rank 0, too";
                    return Err(BootstrapError::Refused { rank, reason: reason.to_owned() });
                }
                Err(Attempt::Failed(error)) => return Err(error),
                Ok(roster) => return Ok((joining, roster)),
            }
        }
    }

    /// Waits until all ranks have joined.
    fn roster(&mut self, ip: IpAddr, limit: Duration) -> Result<Roster, Attempt> {
        match self.hear(limit)? {
            FromStore::Roster { token, members, reached, cost } => {
                let members =
                    members.unpack(self.size).ok_or_else(|| Attempt::Failed(self.stranger("a roster that is none")))?;
                cost.model.check().map_err(|error| Attempt::Failed(self.stranger(&format!("costs: {error}"))))?;
                if !cost.fastest.is_sound() {
                    return Err(Attempt::Failed(self.stranger("algorithms that can not be")));
                }
                self.met = true;
                let ip = reached.filter(|_| ip.is_loopback()).unwrap_or(ip);
                Ok(Roster { token, members, ip, cost })
            }
            FromStore::Again => Err(Attempt::Again),
            other => Err(Attempt::Failed(self.unexpected(&other))),
        }
    }

    /// Says how this rank is reached, and waits until all have said it.
    pub(super) fn listen(
        mut self,
        listening: Listening,
        mut stand_ins: StandIns,
        limit: Duration,
    ) -> Result<(StoreClient, Vec<Listening>), BootstrapError> {
        // If that fails, the store is gone; why, it may have said before.
        let _ = self.mouth.say(&encode(&ToStore::Listening(listening)));
        let all = match self.hear(limit) {
            Ok(FromStore::Listening(all)) => all.unpack(self.size),
            Ok(other) => return Err(self.unexpected(&other)),
            Err(Attempt::HungUp | Attempt::Again) => return Err(BootstrapError::RankGone { rank: 0 }),
            Err(Attempt::Failed(error)) => return Err(error),
        };
        let all = all.ok_or_else(|| self.stranger("a list of ranks that is none"))?;
        stand_ins.meet(&all);
        let alarm = Alarm::new(self.size);
        let heard = alarm.clone();
        let mut ear = self.ear;
        let mut answers = self.mouth.clone();
        let rank = self.rank;
        let listener = std::thread::Builder::new().name("qpair-store-client".into()).stack_size(STACK);
        let listener = listener.spawn(move || listen(rank, &mut ear, &mut answers, &heard));
        let listener = Some(listener.map_err(system("start a thread"))?);
        let client =
            StoreClient { mouth: self.mouth, alarm, listener, server: self.server, stand_ins, stays_behind: false };
        Ok((client, all))
    }

    /// Tells the others that this rank can not be set up.
    pub(super) fn give_up(mut self, error: &BootstrapError) {
        let fault = Fault::Failed { rank: self.rank, reason: error.to_string() };
        // If that fails, they see that the connection ends.
        let _ = self.mouth.say(&encode(&ToStore::Report(fault.to_tell())));
        // At rank 0 the store ends with this, and is to have read it before.
        if self.server.is_some() {
            let _ = self.hear(VERDICT);
        }
    }

    fn hear(&mut self, limit: Duration) -> Result<FromStore, Attempt> {
        // The store waits as long as that from its own start, and says who is missing.
        let deadline = Deadline::after(limit.saturating_add(ANSWER));
        let failed = |error| Err(Attempt::Failed(error));
        let (rank, size) = (self.rank, self.size);
        match self.ear.message(Some(deadline)) {
            Ok(FromStore::Refused { reason }) => failed(BootstrapError::Refused { rank, reason }),
            Ok(FromStore::Absent { missing, limit, .. }) if self.met => {
                failed(BootstrapError::NotSetUp { missing, size, limit })
            }
            Ok(FromStore::Absent { missing, limit, turned_away }) => {
                failed(BootstrapError::Absent { missing, size, limit, turned_away })
            }
            Ok(FromStore::Verdict(Fault::Gone { rank } | Fault::Left { rank })) => {
                failed(BootstrapError::RankGone { rank })
            }
            Ok(FromStore::Verdict(Fault::Failed { rank, reason })) => {
                failed(BootstrapError::RankFailed { rank, reason })
            }
            Ok(other) => Ok(other),
            Err(Hearing::Strange(line)) => failed(self.stranger(&line)),
            Err(Hearing::Handshake(source)) => {
                let (host, port) = self.place.named();
                failed(BootstrapError::Handshake { host, port, source })
            }
            Err(Hearing::Over(source)) if source.kind() == ErrorKind::TimedOut => {
                let (host, port) = self.place.named();
                failed(BootstrapError::NoAnswer { host, port, limit, source })
            }
            // The store ends with rank 0.
            Err(Hearing::Over(_)) if self.met => failed(BootstrapError::RankGone { rank: 0 }),
            Err(Hearing::Over(_)) => Err(Attempt::HungUp),
        }
    }

    fn unexpected(&self, said: &FromStore) -> BootstrapError {
        self.stranger(&format!("{said:?}"))
    }

    fn stranger(&self, what: &str) -> BootstrapError {
        let ((host, port), what) = (self.place.named(), what.chars().take(80).collect());
        BootstrapError::Stranger { host, port, what }
    }
}

/// Why a rank was not let in.
enum Attempt {
    /// The store said nothing, and hung up.
    HungUp,
    /// It is the one of before.
    Again,
    Failed(BootstrapError),
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> BootstrapError {
    move |source| BootstrapError::System { what, source }
}

impl StoreClient {
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Tells the store, and waits for its verdict for a short time.
    pub(super) fn report(&mut self, fault: Fault) -> Fault {
        if let Some(first) = self.alarm.fault() {
            return first;
        }
        // If that fails, the listener has seen, or will see, that the store is gone.
        let _ = self.mouth.say(&encode(&ToStore::Report(fault.to_tell())));
        match self.alarm.wait(VERDICT) {
            Some(first) => first,
            None => self.unanswered(fault),
        }
    }

    /// The store has not said a word. It is a thread of rank 0's, which answers whatever that rank does: it is stopped, or not reached.
    fn unanswered(&mut self, fault: Fault) -> Fault {
        let Fault::TimedOut { by, ref place, limit, .. } = fault else { return self.alarm.raise(fault) };
        if self.alarm.has_left(0) {
            return self.alarm.raise(fault);
        }
        match self.alarm.wait(SILENCE) {
            Some(first) => first,
            None if self.alarm.has_left(0) => self.alarm.raise(fault),
            None => {
                let silent = (VERDICT + SILENCE).as_secs_f32();
                let reason = format!(
                    "it has not answered rank {by} for {silent} s, which waited for rank {} for {limit:?} at {place}: see whether its \
                     process is stopped, or its host not reached",
                    place.rank
                );
                self.alarm.raise(Fault::Failed { rank: 0, reason })
            }
        }
    }

    pub(super) fn ask_who_is_left(&mut self, spot: Spot, limit: Duration) {
        if !self.stand_ins.is_served() {
            // If that fails, the listener has seen, or will see, that the store is gone.
            let _ = self.mouth.say(&encode(&ToStore::Shrink { spot, limit }));
        }
    }

    /// Waits for the answer: the store's, or where that is gone or does not answer, that of who stands in for it, who is asked then.
    ///
    /// # Errors
    /// [`BootstrapError::RankZeroGone`], [`BootstrapError::TooFewLeft`].
    pub(super) fn who_is_left(&mut self, spot: Spot, limit: Duration) -> Result<Remnant, BootstrapError> {
        if !self.stand_ins.is_served()
            && let Some(remnant) = self.alarm.wait_for_remnant(limit.saturating_add(ANSWER))
        {
            return Ok(remnant);
        }
        let ended = match self.alarm.fault() {
            Some(Fault::Gone { rank }) => rank,
            _ => 0,
        };
        // Should rank 0 go on after all, it is to know that this rank does so without it.
        let _ = self.mouth.say(&encode(&ToStore::Leave { goes_on: true }));
        self.hang_up();
        self.stand_ins.who_is_left(spot, limit, &[0, ended])
    }

    pub(super) fn stay_behind(&mut self) {
        self.stays_behind = true;
    }

    pub(super) fn leave(&mut self) {
        // Nobody is left to be told if that fails.
        let _ = self.mouth.say(&encode(&ToStore::Leave { goes_on: !self.stays_behind }));
        // It tells the others.
        self.server = None;
        self.hang_up();
    }

    fn hang_up(&mut self) {
        self.mouth.hang_up();
        if let Some(listener) = self.listener.take() {
            // It can not panic; and if it did, all that it did is over.
            let _ = listener.join();
        }
    }
}

impl Drop for StoreClient {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Listens until the connection ends.
fn listen(rank: u32, ear: &mut Ear, answers: &mut Mouth, alarm: &Alarm) {
    loop {
        match ear.message(None) {
            Ok(FromStore::Verdict(fault)) => drop(alarm.raise(fault)),
            // If it can not be said, the store is gone.
            Ok(FromStore::Ask) => drop(answers.say(&encode(&ToStore::Waits(alarm.place_of(rank))))),
            Ok(FromStore::Left { ranks }) => ranks.into_iter().for_each(|rank| alarm.leave(rank)),
            Ok(FromStore::Remain(remnant)) => alarm.remains(remnant),
            Ok(other) => tracing::warn!(?other, "the store said what it should not"),
            Err(Hearing::Strange(line)) => tracing::warn!(line, "the store said what is no message"),
            Err(Hearing::Over(_) | Hearing::Handshake(_)) => {
                // The store ends with rank 0, which says so before if it is no fault.
                if !alarm.has_left(0) {
                    alarm.raise(Fault::Gone { rank: 0 });
                }
                alarm.go_deaf();
                return;
            }
        }
    }
}

/// How much longer than the store a rank waits for what the store has to say.
const ANSWER: Duration = Duration::from_secs(2);

/// How often a rank comes again that the store hung up on, and how long it waits before: two seconds of bad luck.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// And where rank 0 may be long in coming: ranks that ask again and again keep it from that.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a rank waits for the verdict on a fault. The store answers within a millisecond if it runs.
const VERDICT: Duration = Duration::from_millis(500);
/// And how much longer until rank 0 is taken for stopped.
const SILENCE: Duration = Duration::from_millis(1500);

/// The listener only reads lines.
const STACK: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};

    use qpair_transport::Guarded;
    use rustix::net::sockopt;

    use super::*;
    use crate::algorithms::Algorithm;
    use crate::bootstrap::line::speak;
    use crate::bootstrap::message::{LINE_LIMIT, PURPOSE};
    use crate::execute::Call;
    use crate::fault;
    use crate::plan::{Collective, PlanHash};

    /// Both ends of a rank's stream, and the store's.
    fn linked() -> (Mouth, Ear, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mouth, ear) = speak(stream, None).unwrap();
        (mouth, ear, listener.accept().unwrap().0)
    }

    #[test]
    fn a_host_that_is_gone_is_found_within_seconds() {
        let (mouth, _ear, _store) = linked();
        let stream = mouth.stream();
        assert!(sockopt::socket_keepalive(stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(stream).unwrap(), 20_000);
    }

    #[test]
    fn a_verdict_names_what_thousands_of_ranks_wait_for() {
        let (mut answers, mut ear, mut store) = linked();
        let alarm = Alarm::new(4096);
        let call = Call {
            collective: Collective::AllReduce,
            data_type: None,
            op: None,
            elements: 1 << 20,
            in_place: true,
            on_gpu: false,
            algorithm: Algorithm::Ring,
            hash: PlanHash(u64::MAX),
        };
        let place = |rank| fault::Place { rank, step: 7, call };
        let verdict = Fault::TimedOut {
            by: 0,
            place: place(1),
            limit: Duration::from_secs(1),
            waits: (1..4096).map(|rank| (rank, Some(place((rank + 1) % 4096)))).collect(),
        };
        let line = encode(&FromStore::Verdict(verdict.clone()));
        assert!(line.len() > LINE_LIMIT);
        std::thread::scope(|scope| {
            scope.spawn(|| listen(0, &mut ear, &mut answers, &alarm));
            store.write_all(&[&Guarded::caller(PURPOSE, None).output()[..], &line].concat()).unwrap();
            // The listener ends with the stream.
            store.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(alarm.fault(), Some(verdict));
    }

    /// Each question is answered, until there is no room for answers.
    #[test]
    fn a_store_that_asks_and_does_not_read_is_given_up() {
        let (mut answers, mut ear, mut store) = linked();
        let alarm = Alarm::new(2);
        std::thread::scope(|scope| {
            let mut mouth = answers.clone();
            scope.spawn(|| listen(1, &mut ear, &mut answers, &alarm));
            store.write_all(Guarded::caller(PURPOSE, None).output()).unwrap();
            let questions = encode(&FromStore::Ask).repeat(1000);
            while store.write_all(&questions).is_ok() {}
            // It ends, and so does what says something meanwhile.
            while mouth.say(&encode(&ToStore::Leave { goes_on: true })).is_ok() {}
        });
        assert_eq!(alarm.fault(), Some(Fault::Gone { rank: 0 }));
    }
}
