//! perftest's exchange without I/O: bytes of the other side and calls of this one come in, bytes and events go out.
//!
//! All but the farewell are swaps: the client writes first, the server answers. Introduction, addresses, a sync when
//! connected, the addresses again; then runs, with syncs and reports between them; then the farewell.

use super::error::{ExchangeError, Step};
use super::terms::Terms;
use super::wire::{
    BandwidthReport, DONE, HELLO_BYTES, Hello, KEY_BYTES, KEY_GID_BYTES, Key, MTU_BYTES, NUMBER_BYTES, REPORT_NUMBERS,
    emit_mtu, parse_mtu, printable,
};

/// One side of the exchange.
#[derive(Debug)]
pub struct Engine {
    role: Role,
    state: State,
    introduction: Introduction,
    heard: Introduced,
    ours: Vec<Key>,
    theirs: Vec<Key>,
    our_report: [[u8; 8]; REPORT_NUMBERS],
    their_report: [[u8; 8]; REPORT_NUMBERS],
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connected, and writes first.
    Client,
    /// It listened, and answers.
    Server,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A message of the other side.
    Expects(Step),
    /// [`Engine::tell_addresses`].
    Introduced,
    /// [`Engine::tell_connected`].
    Addressed,
    /// A run, [`Engine::sync`], [`Engine::report`] or [`Engine::farewell`].
    Ready,
    /// Nothing.
    Over,
}

/// What this side says of itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// What to run, for another qpair.
    pub terms: Terms,
    /// Bytes of a page: within so many from the start of its memory the other side may be written.
    pub cycle_buffer: u32,
    /// Bytes of a cache line.
    pub cache_line: u32,
    /// Greatest MTU in bytes.
    pub mtu: u32,
}

/// What both sides said of themselves, brought together.
#[derive(Clone, Debug, PartialEq)]
pub struct Introduced {
    /// The other side's terms, if it is a qpair.
    pub terms: Option<Terms>,
    /// The greater page.
    pub cycle_buffer: u32,
    /// The smaller MTU in bytes.
    pub mtu: u32,
    qpair: bool,
}

/// What came about.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Both sides are introduced.
    Introduced(Introduced),
    /// The other side's addresses are known.
    Addresses(Vec<Key>),
    /// Both sides are connected.
    Ready,
    /// Both sides came to a sync.
    Synced,
    /// The other side's report.
    Report(BandwidthReport),
    /// The other side said farewell.
    Over,
}

impl Engine {
    /// A side that begins.
    pub fn new(role: Role, introduction: Introduction) -> Self {
        let heard =
            Introduced { terms: None, cycle_buffer: introduction.cycle_buffer, mtu: introduction.mtu, qpair: false };
        let mut engine = Engine {
            role,
            state: State::Expects(Step::Version),
            introduction,
            heard,
            ours: Vec::new(),
            theirs: Vec::new(),
            our_report: Default::default(),
            their_report: Default::default(),
            input: Vec::new(),
            output: Vec::new(),
        };
        engine.begin(Step::Version);
        engine
    }

    /// What comes next.
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes for the other side, each given once.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes bytes of the other side.
    ///
    /// # Errors
    /// [`ExchangeError::Flood`] if they are more than a side ever has under way.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        let total = self.input.len() + bytes.len();
        if total > MAX_INPUT {
            return Err(ExchangeError::Flood(total));
        }
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes note that the other side closed the connection.
    ///
    /// # Errors
    /// [`ExchangeError::Closed`] if something was expected of it. A side in a hurry may go without farewell.
    pub fn handle_close(&mut self) -> Result<(), ExchangeError> {
        match self.state {
            State::Expects(Step::Farewell) | State::Over => self.state = State::Over,
            State::Expects(step) => return Err(ExchangeError::Closed { step }),
            State::Introduced | State::Addressed => return Err(ExchangeError::Closed { step: Step::Connected }),
            State::Ready => return Err(ExchangeError::Closed { step: Step::Run }),
        }
        Ok(())
    }

    /// Tells where this side's queue pairs are. Then the other side's come as [`Event::Addresses`].
    pub fn tell_addresses(&mut self, keys: Vec<Key>) {
        debug_assert_eq!(self.state, State::Introduced);
        self.ours = keys;
        self.theirs.clear();
        self.begin(Step::Address(0));
    }

    /// Tells that this side's queue pairs are connected. [`Event::Ready`] follows.
    pub fn tell_connected(&mut self) {
        debug_assert_eq!(self.state, State::Addressed);
        self.begin(Step::Connected);
    }

    /// Waits for the other side to come here too. [`Event::Synced`] follows.
    pub fn sync(&mut self) {
        debug_assert_eq!(self.state, State::Ready);
        self.begin(Step::Sync);
    }

    /// Tells what this side measured. [`Event::Report`] follows.
    pub fn report(&mut self, report: &BandwidthReport) {
        debug_assert_eq!(self.state, State::Ready);
        self.our_report = report.emit();
        self.begin(Step::Report(0));
    }

    /// Says that this was all. [`Event::Over`] follows.
    pub fn farewell(&mut self) {
        debug_assert_eq!(self.state, State::Ready);
        self.output.extend_from_slice(DONE);
        self.state = State::Expects(Step::Farewell);
    }

    /// Goes on with the bytes there are, up to the next event; none where more bytes or a call are needed.
    ///
    /// # Errors
    /// [`ExchangeError`] if the other side sent what has no place here.
    pub fn poll_event(&mut self) -> Result<Option<Event>, ExchangeError> {
        while let State::Expects(step) = self.state {
            if step == Step::Farewell {
                return self.hear_farewell();
            }
            if !self.hear(step)? {
                return Ok(None);
            }
            if self.role == Role::Server {
                self.say(step);
            }
            if let Some(event) = self.after(step) {
                return Ok(Some(event));
            }
        }
        Ok(if self.state == State::Over { Some(Event::Over) } else { None })
    }

    fn begin(&mut self, step: Step) {
        self.state = State::Expects(step);
        if self.role == Role::Client {
            self.say(step);
        }
    }

    /// This side's part of a swap.
    fn say(&mut self, step: Step) {
        let Introduction { terms, cycle_buffer, cache_line, mtu } = &self.introduction;
        let message = match step {
            Step::Version => Hello::emit().to_vec(),
            Step::Terms => terms.emit(),
            Step::CycleBuffer => cycle_buffer.to_be_bytes().to_vec(),
            Step::CacheLine => cache_line.to_be_bytes().to_vec(),
            Step::Mtu => emit_mtu(*mtu).to_vec(),
            Step::Address(qp) | Step::Confirmation(qp) => self.ours.get(qp).map(Key::emit).unwrap_or_default(),
            Step::Connected | Step::Sync => self.ours.first().map(Key::emit).unwrap_or_default(),
            Step::Report(number) => self.our_report[number].to_vec(),
            Step::Farewell | Step::Run => Vec::new(),
        };
        self.output.extend_from_slice(&message);
    }

    /// The other side's part of a swap; false if it is not there yet.
    fn hear(&mut self, step: Step) -> Result<bool, ExchangeError> {
        match step {
            Step::Version => {
                let Some(bytes) = self.take::<HELLO_BYTES>() else { return self.early_garbage() };
                self.heard.qpair = Hello::parse(&bytes)?.qpair;
            }
            Step::Terms => {
                let Some((theirs, len)) = Terms::parse(&self.input)? else { return Ok(false) };
                self.input.drain(..len);
                self.introduction.terms.check_same_test(&theirs)?;
                self.heard.terms = Some(theirs);
            }
            Step::CycleBuffer => {
                let Some(bytes) = self.take::<NUMBER_BYTES>() else { return Ok(false) };
                let theirs = u32::from_be_bytes(bytes);
                if theirs > MAX_PAGE {
                    return Err(ExchangeError::PageSize(theirs));
                }
                self.heard.cycle_buffer = self.heard.cycle_buffer.max(theirs);
            }
            Step::CacheLine => return Ok(self.take::<NUMBER_BYTES>().is_some()),
            Step::Mtu => {
                let Some(bytes) = self.take::<MTU_BYTES>() else { return Ok(false) };
                self.heard.mtu = self.heard.mtu.min(parse_mtu(bytes)?);
            }
            Step::Address(_) => {
                let Some(key) = self.hear_key()? else { return Ok(false) };
                self.theirs.push(key);
            }
            Step::Connected | Step::Confirmation(_) | Step::Sync => return Ok(self.hear_key()?.is_some()),
            Step::Report(number) => {
                let Some(bytes) = self.take::<8>() else { return Ok(false) };
                self.their_report[number] = bytes;
            }
            Step::Farewell | Step::Run => {}
        }
        Ok(true)
    }

    /// Where a swap leads.
    fn after(&mut self, step: Step) -> Option<Event> {
        let (next, event) = match step {
            Step::Version if self.heard.qpair => (Step::Terms, None),
            Step::Version | Step::Terms => (Step::CycleBuffer, None),
            Step::CycleBuffer => (Step::CacheLine, None),
            Step::CacheLine => (Step::Mtu, None),
            Step::Address(qp) if qp + 1 < self.ours.len() => (Step::Address(qp + 1), None),
            Step::Connected => (Step::Confirmation(0), None),
            Step::Confirmation(qp) if qp + 1 < self.ours.len() => (Step::Confirmation(qp + 1), None),
            Step::Report(number) if number + 1 < REPORT_NUMBERS => (Step::Report(number + 1), None),
            Step::Mtu => (step, Some((State::Introduced, Event::Introduced(self.heard.clone())))),
            Step::Address(_) => (step, Some((State::Addressed, Event::Addresses(self.theirs.clone())))),
            Step::Confirmation(_) => (step, Some((State::Ready, Event::Ready))),
            Step::Report(_) => (step, Some((State::Ready, Event::Report(BandwidthReport::parse(&self.their_report))))),
            Step::Sync | Step::Farewell | Step::Run => (step, Some((State::Ready, Event::Synced))),
        };
        match event {
            Some((state, event)) => {
                self.state = state;
                Some(event)
            }
            None => {
                self.begin(next);
                None
            }
        }
    }

    fn hear_farewell(&mut self) -> Result<Option<Event>, ExchangeError> {
        let Some(bytes) = self.take::<{ DONE.len() }>() else { return Ok(None) };
        if bytes != *DONE {
            return Err(ExchangeError::Garbled { what: "farewell", got: printable(&bytes) });
        }
        self.state = State::Over;
        Ok(Some(Event::Over))
    }

    fn hear_key(&mut self) -> Result<Option<Key>, ExchangeError> {
        // A test that is not this one sends a report where a key is due; half a key would be waited for without end.
        let Some(last_of_short) = self.input.get(KEY_BYTES - 1) else {
            return match self.input.first() {
                Some(byte) if !byte.is_ascii_hexdigit() => Err(self.garbled("address of a queue pair")),
                _ => Ok(None),
            };
        };
        let with_gid = self.ours.first().is_some_and(|key| key.gid.is_some());
        match (with_gid, *last_of_short == 0) {
            (true, true) if Key::parse(&self.input[..KEY_BYTES]).is_ok() => {
                Err(ExchangeError::GidForm { theirs: false })
            }
            (true, true) => Err(self.garbled("address of a queue pair")),
            (false, false) if self.input.len() >= KEY_GID_BYTES && Key::parse(&self.input[..KEY_GID_BYTES]).is_ok() => {
                Err(ExchangeError::GidForm { theirs: true })
            }
            (false, false) if self.input.len() < KEY_GID_BYTES => Ok(None),
            (true, false) => Ok(self.take::<KEY_GID_BYTES>().map(|bytes| Key::parse(&bytes)).transpose()?),
            (false, _) => Ok(self.take::<KEY_BYTES>().map(|bytes| Key::parse(&bytes)).transpose()?),
        }
    }

    /// What is no version from its first byte on needs no second one.
    fn early_garbage(&self) -> Result<bool, ExchangeError> {
        match self.input.first() {
            Some(byte) if !byte.is_ascii_digit() => Err(ExchangeError::NotPerftest { got: printable(&self.input) }),
            _ => Ok(false),
        }
    }

    fn garbled(&self, what: &'static str) -> ExchangeError {
        let shown = self.input.len().min(KEY_GID_BYTES);
        ExchangeError::Garbled { what, got: printable(&self.input[..shown]) }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.input.first_chunk::<N>()?;
        self.input.drain(..N);
        Some(bytes)
    }
}

/// Bytes that a side may be ahead. One that follows the exchange has one message under way.
const MAX_INPUT: usize = 8192;
/// Above every page size there is, huge pages of 2 MiB included.
const MAX_PAGE: u32 = 4 << 20;

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
