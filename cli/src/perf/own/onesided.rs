//! RDMA READ and FETCH_ADD, one after another; the other side does nothing.

use qpair::verbs::{Buffer, Local, RemoteSlice};

use super::exchange::Exchange;
use super::latency::Operation;
use super::session::Session;
use crate::perf::error::PerfError;

/// READs of one size.
#[derive(Debug)]
pub struct Read<'a> {
    session: &'a mut Session,
    source: RemoteSlice,
    local: Local,
}

/// FETCH_ADDs of 1 to one word.
#[derive(Debug)]
pub struct FetchAdd<'a> {
    session: &'a mut Session,
    word: RemoteSlice,
    local: Option<Buffer>,
    expected: u64,
}

impl<'a> Read<'a> {
    /// READs of `size` bytes.
    ///
    /// # Errors
    /// [`PerfError::Memory`].
    pub fn new(session: &'a mut Session, size: usize) -> Result<Self, PerfError> {
        let local =
            if session.on_gpu.is_some() { session.outgoing(size).into() } else { session.pd.alloc(size)?.into() };
        let source = session.data.slice(0..size as u64);
        Ok(Read { session, source, local })
    }
}

impl Operation for Read<'_> {
    #[inline]
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        self.session.qp.read(std::mem::take(&mut self.local), self.source).signaled().post()?;
        self.local = self.session.wait_sent(exchange)?;
        Ok(())
    }

    fn ways(&self) -> f64 {
        1.0
    }
}

impl<'a> FetchAdd<'a> {
    /// FETCH_ADDs to the other side's atomic word, which nobody else changes.
    ///
    /// # Errors
    /// [`PerfError::Memory`].
    pub fn new(session: &'a mut Session) -> Result<Self, PerfError> {
        let local = Some(session.pd.alloc(8)?);
        let word = session.remote_at(session.atomic_at(), 8);
        Ok(FetchAdd { session, word, local, expected: 0 })
    }
}

impl Operation for FetchAdd<'_> {
    #[inline]
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        let local = self.local.take().map_or(Local::None, Local::Buffer);
        self.session.qp.fetch_add(local, self.word, 1).signaled().post()?;
        let Local::Buffer(local) = self.session.wait_sent(exchange)? else {
            return Err(PerfError::WrongValue { found: 0, expected: self.expected });
        };
        let mut value = [0; 8];
        value.copy_from_slice(&local);
        self.local = Some(local);
        let found = u64::from_ne_bytes(value);
        if found != self.expected {
            return Err(PerfError::WrongValue { found, expected: self.expected });
        }
        self.expected += 1;
        Ok(())
    }

    fn ways(&self) -> f64 {
        1.0
    }
}
