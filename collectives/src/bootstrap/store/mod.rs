//! The store: where all ranks meet, and by which they hear of each other's end.

mod ends;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Poll, Token};

use super::meeting::Published;
use super::message::{FromStore, Listeners, Listening, Members, PROTOCOL, ToStore, Whereabouts, encode};
use super::muster::{Remnant, Roll};
use super::server::Terms;
use super::visitor::{Heard, Visitor};
use crate::deadline::Deadline;
use crate::fault::Fault;
use crate::machine::Known;

/// Where all ranks meet.
pub(super) struct Store {
    poll: Poll,
    listener: TcpListener,
    /// Until all have come.
    pub(super) published: Option<Published>,
    backlog: Backlog,
    stop: Arc<AtomicBool>,
    terms: Terms,
    token: u64,
    /// What operations cost, as rank 0 says.
    cost: Known,
    /// How many visitors there may be at once.
    places: usize,
    stage: Stage,
    visitors: Vec<Option<Visitor>>,
    /// The numbers of visitors that are free.
    free: Vec<usize>,
    /// The visitor that each rank is.
    ranks: Vec<Option<usize>>,
    /// All have been here at once.
    have_met: bool,
    /// How many have said how they are reached.
    listening: usize,
    /// By rank.
    left: Vec<bool>,
    /// Those that have left, and of which the others are to be told.
    leaving: Vec<u32>,
    /// Who asks who is left.
    roll: Roll,
    /// What those were told that asked last.
    remnant: Option<Remnant>,
    /// Why somebody was: the last one.
    turned_away: Option<String>,
}

/// Whether somebody may wait at the listener, which does not tell of those again.
enum Backlog {
    Empty,
    /// So many came that others were served first.
    More,
    /// The system has no room.
    Full,
}

/// How far the ranks are.
enum Stage {
    /// Until then all must have come.
    Gathering(Deadline),
    /// All have come, and until then must be ready to be reached.
    SettingUp(Deadline),
    /// All are.
    Complete,
    /// One waited too long, and until then the others say what they wait for.
    Asking { until: Deadline, fault: Fault },
    /// They did not, or a fault ended it: what all are told, also those that come later.
    Over(FromStore),
    /// The store of these ranks is gone: this one takes its place for those that ask who is left.
    StandingIn,
}

impl Store {
    /// One that has just begun to wait. The `token` is what ranks show each other when they connect.
    pub(super) fn new(poll: Poll, listener: TcpListener, terms: Terms, token: u64, stop: Arc<AtomicBool>) -> Self {
        let (size, roll) = (terms.size as usize, Roll::new(terms.size));
        Store {
            poll,
            listener,
            published: None,
            backlog: Backlog::Empty,
            stop,
            token,
            cost: Known::default(),
            places: terms.places.min(2 * size + STRANGERS),
            stage: Stage::Gathering(Deadline::after(terms.limit)),
            terms,
            visitors: Vec::new(),
            free: Vec::new(),
            ranks: vec![None; size],
            have_met: false,
            listening: 0,
            left: vec![false; size],
            leaving: Vec::new(),
            roll,
            remnant: None,
            turned_away: None,
        }
    }

    /// One that takes the place of another, for those that are left to find each other. Those in `gone` can not.
    pub(super) fn standing_in(mut self, gone: &[u32]) -> Self {
        self.stage = Stage::StandingIn;
        gone.iter().for_each(|&rank| self.roll.leave(rank));
        self
    }

    /// Serves until it is told to stop, or can not go on.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(AT_ONCE);
        while !self.stop.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.left()) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the store can not go on");
                    return;
                }
            }
            let backlog = !matches!(std::mem::replace(&mut self.backlog, Backlog::Empty), Backlog::Empty);
            if backlog || events.iter().any(|event| event.token() == LISTENER) {
                self.accept();
            }
            for event in &events {
                if let Some(at) = event.token().0.checked_sub(FIRST_VISITOR) {
                    self.serve(at);
                }
            }
            self.tell_who_left();
            self.send_home();
            self.tell_waits(false);
            self.tell_who_is_left();
            if self.deadline().is_some_and(Deadline::is_over) {
                let missing = (0..self.terms.size).filter(|&rank| !self.is_ready(rank)).collect();
                let (limit, turned_away) = (self.terms.limit, self.turned_away.clone());
                self.end(FromStore::Absent { missing, limit, turned_away });
            }
        }
        self.published = None;
        match &self.stage {
            Stage::Asking { fault, .. } => self.end(FromStore::Verdict(fault.clone())),
            _ if self.deadline().is_some() => self.end(FromStore::Verdict(Fault::Gone { rank: 0 })),
            _ => {}
        }
        self.leave(0);
        self.tell_who_left();
        self.drain();
    }

    /// Until when the ranks must be so far.
    fn deadline(&self) -> Option<Deadline> {
        match self.stage {
            Stage::Gathering(deadline) | Stage::SettingUp(deadline) => Some(deadline),
            Stage::Complete | Stage::Asking { .. } | Stage::Over(_) | Stage::StandingIn => None,
        }
    }

    /// How long there is nothing to do unless something comes.
    fn left(&self) -> Option<Duration> {
        let deadline = self.deadline().and_then(Deadline::left);
        let again = match self.backlog {
            Backlog::Empty => None,
            Backlog::More => Some(Duration::ZERO),
            Backlog::Full => Some(ACCEPT_PAUSE),
        };
        let patience = self.visitors.iter().flatten().filter_map(|visitor| visitor.until?.left()).min();
        let asking = if let Stage::Asking { until, .. } = &self.stage { until.left() } else { None };
        deadline.into_iter().chain(asking).chain(self.roll.left()).chain(again).chain(patience).min()
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(error) => {
                    // No descriptor is left, for example.
                    tracing::warn!(%error, "the store can let nobody in now");
                    self.backlog = Backlog::Full;
                    return;
                }
            };
            if self.visitors.len() - self.free.len() >= self.places && !self.make_room() {
                continue;
            }
            let at = self.free.pop().unwrap_or(self.visitors.len());
            let token = Token(FIRST_VISITOR + at);
            let visitor = Visitor::new(stream, self.terms.key.as_ref(), self.poll.registry(), token);
            if at == self.visitors.len() {
                self.visitors.push(None);
            }
            let Ok(visitor) = visitor else {
                self.free.push(at);
                continue;
            };
            self.visitors[at] = Some(visitor);
            self.serve(at);
        }
        self.backlog = Backlog::More;
    }

    /// Sends the visitor home that has been here longest without joining: a rank joins at once, and comes again if it could not.
    fn make_room(&mut self) -> bool {
        let waiting = self.visitors.iter().enumerate().filter_map(|(at, visitor)| {
            let until = visitor.as_ref()?.until?;
            Some((until.left().unwrap_or(Duration::MAX), at))
        });
        let Some((_, oldest)) = waiting.min() else { return false };
        self.turned_away.get_or_insert_with(|| "too many came that did not join".to_owned());
        self.hang_up(oldest);
        true
    }

    /// Sends those home that had time enough.
    fn send_home(&mut self) {
        for at in 0..self.visitors.len() {
            let until = self.visitors[at].as_ref().and_then(|visitor| visitor.until);
            if until.is_some_and(Deadline::is_over) {
                self.hang_up(at);
            }
        }
    }

    /// Hears and tells a visitor what is possible.
    fn serve(&mut self, at: usize) {
        let ended = loop {
            let Some(Some(visitor)) = self.visitors.get_mut(at) else { return };
            match visitor.hear() {
                Heard::Line(line) => match serde_json::from_slice(&line) {
                    Ok(message) => self.handle(at, message),
                    Err(_) => self.refuse(at, "it does not speak this release's language: use one release for all"),
                },
                Heard::TooMuch => self.refuse(at, "it says more than any rank has to"),
                Heard::Stranger(error) => {
                    tracing::warn!(%error, "the store turned somebody away");
                    self.turned_away = Some(error.to_string());
                    visitor.dismiss();
                }
                Heard::Nothing => break false,
                Heard::End => break true,
            }
        };
        if ended || !self.flush(at) {
            self.hang_up(at);
        }
    }

    fn handle(&mut self, at: usize, message: ToStore) {
        let Some(Some(visitor)) = self.visitors.get(at) else { return };
        let rank = visitor.joined.as_ref().map(|(rank, _)| *rank);
        match (message, rank) {
            (ToStore::Join { protocol, size, rank, ticket, whereabouts, cost }, None) => {
                let reason = self.objection(protocol, size, rank, ticket);
                if let (None, Some(Some(before))) = (&reason, self.ranks.get(rank as usize)) {
                    // It may have ended that connection a moment ago.
                    self.serve(*before);
                }
                match (reason, &self.stage) {
                    (Some(reason), _) => self.refuse(at, &reason),
                    (None, _) if self.meets_again(rank) => self.dismiss(at, &FromStore::Again),
                    (None, Stage::Over(verdict)) => self.dismiss(at, &verdict.clone()),
                    (None, _) => self.join(at, rank, whereabouts, cost.map(|cost| *cost)),
                }
            }
            (ToStore::Listening(listening), Some(_))
                if matches!(self.stage, Stage::SettingUp(_)) && visitor.listening.is_none() =>
            {
                self.ready(at, listening);
            }
            // It was ready too late, or while a fault ended it: it is told of that.
            (ToStore::Listening(_), Some(_)) if matches!(self.stage, Stage::Over(_)) => {}
            (ToStore::Report(fault @ Fault::TimedOut { .. }), Some(_)) if matches!(self.stage, Stage::Complete) => {
                self.ask(fault);
            }
            // Another gave up meanwhile.
            (ToStore::Report(Fault::TimedOut { .. }), Some(_)) if matches!(self.stage, Stage::Asking { .. }) => {}
            (ToStore::Report(fault), Some(_)) if !self.stands_in() => self.raise(fault),
            (ToStore::Waits(place), Some(rank)) => self.hear_waits(rank, place),
            // The others count on it.
            (ToStore::Leave { .. }, Some(rank)) if self.deadline().is_some() => self.raise(Fault::Gone { rank }),
            (ToStore::Leave { goes_on }, Some(rank)) => self.part(rank, goes_on),
            (ToStore::Shrink { spot, limit }, Some(rank)) if self.deadline().is_none() => {
                self.count_in(at, rank, spot, limit);
            }
            _ => self.refuse(at, "it said what it should not"),
        }
    }

    /// Why it can not be a rank.
    fn objection(&self, protocol: u32, size: u32, rank: u32, ticket: Option<String>) -> Option<String> {
        if protocol != PROTOCOL {
            return Some(format!(
                "rank 0 speaks version {PROTOCOL}, this rank {protocol}: use one release for all ranks"
            ));
        }
        if ticket != self.terms.ticket {
            return Some("it is of another job: let each job have a port of its own".to_owned());
        }
        if size != self.terms.size {
            return Some(format!(
                "the number of ranks is {} at rank 0, and {size} at this rank: give all ranks the same",
                self.terms.size
            ));
        }
        (rank >= size).then(|| format!("there is no rank {rank} among {size}"))
    }

    /// Whether a rank that was here with all others has ended that, and would meet them once more.
    fn meets_again(&self, rank: u32) -> bool {
        self.have_met && self.ranks.get(rank as usize) == Some(&None)
    }

    fn join(&mut self, at: usize, rank: u32, whereabouts: Whereabouts, cost: Option<Known>) {
        let is_gathering = matches!(self.stage, Stage::Gathering(_));
        let is_open = is_gathering || self.stands_in();
        match self.ranks.get_mut(rank as usize) {
            Some(here @ None) if is_open => *here = Some(at),
            _ => {
                let reason = format!("there is another rank {rank} already: give each process its own RANK");
                return self.refuse(at, &reason);
            }
        }
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.joined = Some((rank, whereabouts));
            visitor.until = None;
        }
        // Those that were told who is left go by that.
        if self.stands_in() && self.remnant.is_none() {
            self.roll.come(rank);
        }
        if let (0, Some(cost)) = (rank, cost) {
            self.cost = cost;
        }
        if is_gathering && self.ranks.iter().all(Option::is_some) {
            // Before anybody can meet the same ranks again, and would find this.
            self.published = None;
            self.have_met = true;
            let all = self.by_rank(|visitor| Some(visitor.joined.as_ref()?.1.clone()));
            let members = Members::pack(&all);
            let reached = self.by_rank(|visitor| visitor.reached).into_iter().find(|ip: &IpAddr| !ip.is_loopback());
            self.stage = Stage::SettingUp(Deadline::after(self.terms.limit));
            let cost = self.cost.clone();
            self.tell_all(&FromStore::Roster { token: self.token, members, reached, cost });
        }
    }

    fn ready(&mut self, at: usize, listening: Listening) {
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.listening = Some(listening);
            self.listening += 1;
        }
        if self.listening == self.ranks.len() {
            let all = Listeners::pack(&self.by_rank(|visitor| visitor.listening.clone()));
            self.stage = Stage::Complete;
            self.tell_all(&FromStore::Listening(all));
        }
    }

    fn visitor_of(&self, rank: usize) -> Option<&Visitor> {
        self.visitors.get((*self.ranks.get(rank)?)?)?.as_ref()
    }

    /// What those ranks that said it have said, in order.
    fn by_rank<T>(&self, said: impl Fn(&Visitor) -> Option<T>) -> Vec<T> {
        (0..self.ranks.len()).filter_map(|rank| said(self.visitor_of(rank)?)).collect()
    }

    /// A connection ended: without a word before, that is the end of the rank.
    fn hang_up(&mut self, at: usize) {
        let Some(visitor) = self.visitors.get_mut(at).and_then(Option::take) else { return };
        self.free.push(at);
        let Some((rank, _)) = visitor.joined else { return };
        self.ranks[rank as usize] = None;
        self.roll.leave(rank);
        if !self.has_left(rank) && !self.stands_in() {
            self.raise(Fault::Gone { rank });
        }
    }

    fn stands_in(&self) -> bool {
        matches!(self.stage, Stage::StandingIn)
    }

    fn refuse(&mut self, at: usize, reason: &str) {
        self.turned_away = Some(reason.to_owned());
        self.dismiss(at, &FromStore::Refused { reason: reason.to_owned() });
    }

    fn dismiss(&mut self, at: usize, message: &FromStore) {
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.tell(&encode(message));
            visitor.dismiss();
        }
    }

    /// True of a rank that is as far as all have to be.
    fn is_ready(&self, rank: u32) -> bool {
        let gathering = matches!(self.stage, Stage::Gathering(_));
        self.visitor_of(rank as usize).is_some_and(|visitor| gathering || visitor.listening.is_some())
    }

    fn has_left(&self, rank: u32) -> bool {
        self.left.get(rank as usize) == Some(&true)
    }

    fn tell_all(&mut self, message: &FromStore) {
        let line = encode(message);
        for at in self.ranks.iter().flatten() {
            if let Some(Some(visitor)) = self.visitors.get_mut(*at) {
                visitor.tell(&line);
                // One that can not be written to is found out when it is read.
                visitor.flush();
            }
        }
    }

    fn flush(&mut self, at: usize) -> bool {
        self.visitors.get_mut(at).and_then(Option::as_mut).is_none_or(Visitor::flush)
    }

    /// Writes what is left, for a bounded time.
    fn drain(&mut self) {
        for _ in 0..DRAIN_ATTEMPTS {
            let mut behind = false;
            for visitor in self.visitors.iter_mut().flatten() {
                behind |= visitor.flush() && visitor.is_behind();
            }
            if !behind {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }
}

pub(super) const LISTENER: Token = Token(0);
pub(super) const WAKER: Token = Token(1);
const FIRST_VISITOR: usize = 2;
/// Events and new visitors between which the store looks at all that it has to do.
const AT_ONCE: usize = 256;
/// Visitors beside the ranks, which may all come twice.
const STRANGERS: usize = 256;
/// Between attempts to let somebody in where the system has no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const DRAIN_ATTEMPTS: u32 = 50;
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
