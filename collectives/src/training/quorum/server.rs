//! The server.

use std::time::{Duration, Instant};

use qpair_verbs::calc::Element;

use super::{END, GIVE, JOIN, LEAVE, WAIT, parts, pause};
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;
use crate::training::slot::Slot;

/// A contribution that the server applies.
#[derive(Debug)]
pub struct Contribution<'v, T> {
    /// The step that it is applied in, from 0.
    pub step: u64,
    /// Who gave it.
    pub rank: usize,
    /// How many steps closed since that rank got the parameters that it is for: 0 if none.
    pub behind: u64,
    /// What was given.
    pub vector: &'v [T],
}

/// What a server did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// How many steps it closed.
    pub steps: u64,
    /// How many contributions it applied, by rank.
    pub applied: Vec<u64>,
    /// The greatest [`behind`](Contribution::behind).
    pub behind: u64,
}

/// Serves on this rank, until all others have [ended](super::Worker::end), or dropped their workers: a step closes when `quorum`
/// contributions have come, or one of each worker that is left. Then `apply` is called with each of them, by rank, and those who
/// gave them get the parameters. Meanwhile this rank serves no other purpose.
///
/// The communicator's [`set_timeout`](Communicator::set_timeout) counts for what a rank owes at once: that it joins, the contribution
/// that it has announced, and that it takes the parameters. Between its contributions a worker may compute for as long as it likes.
/// Those that wait for a step hear four times within their own such limit that this rank is there, though not while `apply` runs:
/// one call of it is to take less.
///
/// ```
/// use qpair_collectives::Communicator;
/// use qpair_collectives::training::quorum::{Worker, serve};
///
/// let ranks = Communicator::group(3)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let mut parameters = [0.0_f32; 4];
///             if comm.rank() == 0 {
///                 let served = serve(&comm, &mut parameters, 1, |parameters, given| {
///                     parameters.iter_mut().zip(given.vector).for_each(|(parameter, given)| *parameter += given);
///                 })?;
///                 assert_eq!((parameters, served.applied), ([2.0 * 5.0; 4], vec![0, 5, 5]));
///                 return Ok(());
///             }
///             let mut worker = Worker::new(&comm, 0, 4)?;
///             for _step in 0..5 {
///                 worker.give(&[1.0; 4], &mut parameters)?;
///             }
///             worker.end()
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`CollectiveError`]; [`TimedOut`](CollectiveError::TimedOut) where a rank makes no worker, or stops in the middle of an exchange;
/// [`Aborted`](CollectiveError::Aborted) where another rank sends something else than a [`Worker`](super::Worker)
/// does: the communicator is ended then.
pub fn serve<T: Element>(
    comm: &Communicator,
    parameters: &mut [T],
    quorum: usize,
    mut apply: impl FnMut(&mut [T], Contribution<'_, T>),
) -> Result<Served, CollectiveError> {
    let others = (0..comm.size()).filter(|&rank| rank != comm.rank());
    let mut clients = others.map(|rank| Client::new(comm, rank, parameters.len())).collect::<Result<Vec<_>, _>>()?;
    let mut served = Served { steps: 0, applied: vec![0; comm.size()], behind: 0 };
    let mut idle = 0;
    loop {
        let mut moved = false;
        for client in &mut clients {
            moved |= client.advance()?;
            client.reassure(Due::Later)?;
        }
        let left = clients.iter().filter(|client| !client.gives_no_more()).count();
        let come = clients.iter().filter(|client| client.turn == Turn::Given).count();
        if left == 0 {
            dismiss(&mut clients)?;
            return Ok(served);
        }
        if come >= quorum.clamp(1, left) {
            close(parameters, &mut clients, &mut served, &mut apply)?;
        } else if !moved {
            pause(&mut idle);
            continue;
        }
        idle = 0;
    }
}

/// Applies the contributions that have come, and answers those who gave them.
fn close<T: Element>(
    parameters: &mut [T],
    clients: &mut [Client<'_, T>],
    served: &mut Served,
    apply: &mut impl FnMut(&mut [T], Contribution<'_, T>),
) -> Result<(), CollectiveError> {
    let given: Vec<_> = (0..clients.len()).filter(|&at| clients[at].turn == Turn::Given).collect();
    for &at in &given {
        clients.iter_mut().try_for_each(|client| client.reassure(Due::Now))?;
        let client = &mut clients[at];
        let (step, rank, behind) = (served.steps, client.rank, served.steps - client.since);
        let vector = client.vector.wait()?;
        apply(parameters, Contribution { step, rank, behind, vector });
        served.applied[rank] += 1;
        served.behind = served.behind.max(behind);
    }
    served.steps += 1;
    for at in given {
        clients[at].answer(parameters, served.steps)?;
        clients.iter_mut().try_for_each(|client| client.reassure(Due::Later))?;
    }
    Ok(())
}

/// Answers those who have waited until nobody gives any more.
fn dismiss<T: Element>(clients: &mut [Client<'_, T>]) -> Result<(), CollectiveError> {
    for client in clients.iter_mut().filter(|client| client.turn == Turn::Ended) {
        client.say(END)?;
    }
    clients.iter_mut().try_for_each(|client| client.word.wait().map(drop))
}

/// What the server has of a worker.
struct Client<'a, T: Element> {
    comm: &'a Communicator,
    rank: usize,
    turn: Turn,
    word: Slot<'a, CommBuffer<u64>>,
    vector: Slot<'a, CommBuffer<T>>,
    /// It gives up where it waits and hears nothing for so long.
    limit: Duration,
    /// When it was heard, or told something, last.
    told: Instant,
    /// The steps that were closed when it got its parameters.
    since: u64,
}

/// How far a worker's exchange with the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It is to join.
    Joining,
    /// It is to say what it does next.
    Word,
    /// It gives a contribution, which is to come.
    Giving,
    /// Its contribution has come, and waits for the step to close.
    Given,
    /// The parameters are on their way to it.
    Answering,
    /// It gives no more, and waits until the others do neither.
    Ended,
    /// It gives no more.
    Left,
}

impl<'a, T: Element> Client<'a, T> {
    fn new(comm: &'a Communicator, rank: usize, len: usize) -> Result<Self, CollectiveError> {
        // Workers would wait for it.
        let (word, vector) = (comm.needed(comm.buffer(1))?, comm.needed(comm.buffer(len))?);
        let (word, vector) = (Slot::Here(word), Slot::Here(vector));
        let (limit, told) = (Duration::MAX, Instant::now());
        let mut client = Client { comm, rank, turn: Turn::Joining, word, vector, limit, told, since: 0 };
        client.word.start(|word| comm.start().within(comm.timeout()).recv(word, rank))?;
        Ok(client)
    }

    fn say(&mut self, word: u64) -> Result<(), CollectiveError> {
        let (comm, rank) = (self.comm, self.rank);
        self.word.wait()?[0] = word;
        self.told = Instant::now();
        self.word.start(|word| comm.start().within(comm.timeout()).send(word, rank))
    }

    /// Tells one that waits that the server is there, where that is due.
    fn reassure(&mut self, due: Due) -> Result<(), CollectiveError> {
        let after = match due {
            Due::Now => OFTENEST,
            Due::Later => OFTENEST.max(self.limit / 4),
        };
        let waits = matches!(self.turn, Turn::Given | Turn::Ended);
        if !waits || self.told.elapsed() < after || !self.word.test() {
            return Ok(());
        }
        self.say(WAIT)
    }

    fn listen(&mut self) -> Result<(), CollectiveError> {
        let (comm, rank) = (self.comm, self.rank);
        self.turn = Turn::Word;
        self.word.start(|word| comm.start().recv(word, rank))
    }

    /// Goes on as far as can be at once, by one turn. False if that was nothing.
    fn advance(&mut self) -> Result<bool, CollectiveError> {
        match self.turn {
            Turn::Joining | Turn::Word if self.word.test() => {
                let (word, limit) = parts(self.word.wait()?[0]);
                (self.limit, self.told) = (limit, Instant::now());
                match word {
                    // It waits for its answers then as long as they take.
                    JOIN => {
                        self.say(JOIN)?;
                        self.listen()?;
                    }
                    GIVE => {
                        let (comm, rank) = (self.comm, self.rank);
                        self.vector.start(|vector| comm.start().within(comm.timeout()).recv(vector, rank))?;
                        self.turn = Turn::Giving;
                    }
                    END => self.turn = Turn::Ended,
                    LEAVE => self.turn = Turn::Left,
                    other => return Err(self.refuse(other)),
                }
            }
            Turn::Giving if self.vector.test() => {
                self.vector.wait()?;
                self.turn = Turn::Given;
            }
            Turn::Answering if self.vector.test() => {
                self.vector.wait()?;
                self.listen()?;
            }
            // Not yet; or it is not its turn.
            Turn::Joining | Turn::Word | Turn::Giving | Turn::Answering => return Ok(false),
            Turn::Given | Turn::Ended | Turn::Left => return Ok(false),
        }
        Ok(true)
    }

    fn gives_no_more(&self) -> bool {
        matches!(self.turn, Turn::Ended | Turn::Left)
    }

    /// Ends the communicator, so that nobody waits for a service that is over.
    fn refuse(&self, word: u64) -> CollectiveError {
        let what = format!("rank {} sent {word}, which is no word of a quorum::Worker: use that on each", self.rank);
        self.comm.abort(what.clone());
        CollectiveError::Aborted { rank: self.comm.rank() as u32, reason: what.into() }
    }

    fn answer(&mut self, parameters: &[T], steps: u64) -> Result<(), CollectiveError> {
        self.say(GIVE)?;
        let (comm, rank) = (self.comm, self.rank);
        self.vector.wait()?.copy_from_slice(parameters);
        self.vector.start(|vector| comm.start().within(comm.timeout()).send(vector, rank))?;
        (self.turn, self.since) = (Turn::Answering, steps);
        Ok(())
    }
}

/// When a worker is to hear that the server is there.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// Before something that may take long.
    Now,
    /// While nothing else is done.
    Later,
}

/// How often a worker hears at most that the server is there, whatever it says of its patience.
const OFTENEST: Duration = Duration::from_millis(1);
