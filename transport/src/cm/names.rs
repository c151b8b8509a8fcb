//! Host names: looked up by threads, since the system's way to do that blocks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::thread;

/// Names that are looked up, and who wants to know. Each name once at a time, however many want it.
#[derive(Debug)]
pub(super) struct Names<T> {
    look: fn(&str) -> io::Result<Vec<SocketAddr>>,
    wanted: HashMap<Box<str>, Vec<T>>,
    /// Names for which there is no thread yet.
    queue: VecDeque<Box<str>>,
    /// Threads that look.
    looking: usize,
    /// Told of answers.
    waker: Waker,
    answers: (Sender<Answer>, Receiver<Answer>),
}

type Answer = (Box<str>, io::Result<Vec<SocketAddr>>);

/// Who wanted to know an address, and what was found; the ports are zero.
pub(super) type Found<T> = (T, io::Result<Vec<SocketAddr>>);

impl<T> Names<T> {
    /// With the system's resolver.
    pub(super) fn new(waker: &Waker) -> Self {
        Names::with(|host| Ok((host, 0).to_socket_addrs()?.collect()), waker)
    }

    pub(super) fn with(look: fn(&str) -> io::Result<Vec<SocketAddr>>, waker: &Waker) -> Self {
        let waker = waker.clone();
        Names { look, wanted: HashMap::new(), queue: VecDeque::new(), looking: 0, waker, answers: channel() }
    }

    /// Looks up `host` for `who`. The waker is woken with the answer, which is in [`answers`](Names::answers) then.
    pub(super) fn look_up(&mut self, host: &str, who: T) {
        if let Some(others) = self.wanted.get_mut(host) {
            return others.push(who);
        }
        self.wanted.insert(host.into(), vec![who]);
        self.queue.push_back(host.into());
        self.start_threads();
    }

    /// What was found since the last time.
    pub(super) fn answers(&mut self) -> Vec<Found<T>> {
        let mut found = Vec::new();
        while let Ok((host, answer)) = self.answers.1.try_recv() {
            self.looking -= 1;
            for who in self.wanted.remove(&host).unwrap_or_default() {
                let of_this_one = match &answer {
                    Ok(addresses) => Ok(addresses.clone()),
                    Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                };
                found.push((who, of_this_one));
            }
        }
        self.start_threads();
        found
    }

    fn start_threads(&mut self) {
        while self.looking < THREADS
            && let Some(host) = self.queue.pop_front()
        {
            self.looking += 1;
            let (look, tell) = (self.look, self.answers.0.clone());
            let (name, back, awake) = (host.clone(), tell.clone(), self.waker.clone());
            let thread = thread::Builder::new().name("qpair-names".into()).spawn(move || {
                let answer = look(&name);
                announce(&back, &awake, (name, answer));
            });
            if let Err(error) = thread {
                announce(&tell, &self.waker, (host, Err(error)));
            }
        }
    }
}

/// Whoever asked may be gone.
fn announce(tell: &Sender<Answer>, waker: &Waker, answer: Answer) {
    if tell.send(answer).is_ok() {
        waker.wake_by_ref();
    }
}

/// Names that are looked up at once: one that takes long does not hold the others up.
const THREADS: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mio::{Events, Poll, Token};

    use super::*;
    use crate::cm::alarm::alarm;

    fn look(host: &str) -> io::Result<Vec<SocketAddr>> {
        match host {
            "here" => Ok(vec!["10.0.0.1:0".parse().unwrap()]),
            other => Err(io::Error::new(io::ErrorKind::NotFound, format!("who is {other}?"))),
        }
    }

    #[test]
    fn everybody_who_asks_is_answered_and_woken() {
        const TOKEN: Token = Token(7);
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        let mut names = Names::with(look, &alarm(poll.registry(), TOKEN).unwrap());
        let mut asked = 0;
        for round in 0..10 {
            for host in ["here".to_owned(), "nobody".to_owned(), format!("nobody {round}")] {
                names.look_up(&host, (asked, host.clone()));
                asked += 1;
            }
        }
        let mut answered = Vec::new();
        let start = Instant::now();
        while answered.len() < asked {
            poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
            assert!(events.iter().all(|event| event.token() == TOKEN) && !events.is_empty(), "it is woken");
            for ((number, host), found) in names.answers() {
                match found {
                    Ok(addresses) => assert!(host == "here" && addresses.len() == 1),
                    Err(error) => assert_eq!(error.to_string(), format!("who is {host}?")),
                }
                answered.push(number);
            }
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        answered.sort_unstable();
        assert_eq!(answered, (0..asked).collect::<Vec<_>>());
        assert_eq!((names.looking, names.queue.len(), names.wanted.len()), (0, 0, 0));
    }
}
