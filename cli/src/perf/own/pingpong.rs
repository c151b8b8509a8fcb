//! Ping-pong by RDMA WRITE, each side polling its memory, and by SEND.

use qpair::verbs::RemoteSlice;

use super::exchange::{Exchange, Round};
use super::latency::Operation;
use super::session::{INLINE, PING_SIGNAL, Session};
use super::watch::Watch;
use crate::perf::error::PerfError;

/// WRITE ping-pong: the last 8 bytes of a message are its number, which the other side waits for.
#[derive(Debug)]
pub struct WritePingPong<'a> {
    session: &'a mut Session,
    /// Where a message starts, so that its end is a multiple of 8.
    start: usize,
    size: usize,
    target: RemoteSlice,
    inline: [u8; INLINE],
}

/// SEND ping-pong.
#[derive(Debug)]
pub struct SendPingPong<'a> {
    session: &'a mut Session,
    size: usize,
    inline: [u8; INLINE],
}

impl<'a> WritePingPong<'a> {
    /// Messages of `size` bytes, at least 8 and no longer than the session's room.
    ///
    /// # Errors
    /// [`PerfError::Garbled`] if the size is another.
    pub fn new(session: &'a mut Session, size: usize) -> Result<Self, PerfError> {
        if size < 8 || size > session.room {
            return Err(PerfError::Garbled { why: format!("a ping-pong of {size} bytes was not prepared for") });
        }
        let start = size.next_multiple_of(8) - size;
        let target = session.remote_at(start, size);
        Ok(WritePingPong { session, start, size, target, inline: [0; INLINE] })
    }

    /// Does the server's part.
    ///
    /// # Errors
    /// What the device says, or that the client is gone.
    pub fn answer(&mut self, exchange: &Exchange, count: u64) -> Result<(), PerfError> {
        for _ in 0..count {
            let number = self.session.counters().pings + 1;
            self.wait_for(exchange, number)?;
            self.write(exchange, number)?;
        }
        Ok(())
    }

    #[inline]
    fn write(&mut self, exchange: &Exchange, number: u64) -> Result<(), PerfError> {
        let (end, flag) = (self.start + self.size, self.start + self.size - 8);
        let session = &mut *self.session;
        session.counters().pings = number;
        let request = if self.size <= INLINE {
            self.inline[self.size - 8..self.size].copy_from_slice(&number.to_ne_bytes());
            session.qp.write_inline(&self.inline[..self.size], self.target)
        } else {
            session.outbox.store(flag, number)?;
            session.qp.write(session.outbox.local(self.start..end), self.target)
        };
        if number.is_multiple_of(PING_SIGNAL) {
            request.signaled().post()?;
            session.wait_sent(exchange)?;
        } else {
            request.post()?;
        }
        Ok(())
    }

    #[inline]
    fn wait_for(&self, exchange: &Exchange, number: u64) -> Result<(), PerfError> {
        let flag = self.start + self.size - 8;
        let mut watch = Watch::new(exchange);
        while self.session.inbox.load(flag)? != number {
            watch.idle(Some(&self.session.qp))?;
        }
        Ok(())
    }
}

impl Operation for WritePingPong<'_> {
    #[inline]
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        let number = self.session.counters().pings + 1;
        self.write(exchange, number)?;
        self.wait_for(exchange, number)
    }

    fn ways(&self) -> f64 {
        2.0
    }
}

impl<'a> SendPingPong<'a> {
    /// Messages of `size` bytes, no longer than the session's room.
    ///
    /// # Errors
    /// [`PerfError::Garbled`] if the size is another.
    pub fn new(session: &'a mut Session, size: usize) -> Result<Self, PerfError> {
        if size > session.room {
            return Err(PerfError::Garbled { why: format!("a ping-pong of {size} bytes was not prepared for") });
        }
        Ok(SendPingPong { session, size, inline: [0; INLINE] })
    }

    /// Does the server's part.
    ///
    /// # Errors
    /// What the device says, or that the client is gone.
    pub fn answer(&mut self, exchange: &Exchange, count: u64) -> Result<(), PerfError> {
        for _ in 0..count {
            self.receive(exchange)?;
            self.send(exchange)?;
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        let session = &mut *self.session;
        session.counters().pings += 1;
        let signaled = session.counters().pings.is_multiple_of(PING_SIGNAL);
        let request = if session.is_inline(self.size) {
            session.qp.send_inline(&self.inline[..self.size])
        } else {
            session.qp.send(session.outgoing(self.size))
        };
        if signaled {
            request.signaled().post()?;
            session.wait_sent(exchange)?;
        } else {
            request.post()?;
        }
        Ok(())
    }

    /// Takes one message, and posts its receive again.
    #[inline]
    fn receive(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        let session = &mut *self.session;
        let mut watch = Watch::new(exchange);
        loop {
            if let Some(done) = session.recv_cq.poll()? {
                done.ok()?;
                session.qp.recv(done.into_memory()).post()?;
                return Ok(());
            }
            watch.idle(Some(&session.qp))?;
        }
    }
}

impl Operation for SendPingPong<'_> {
    #[inline]
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError> {
        self.send(exchange)?;
        self.receive(exchange)
    }

    fn ways(&self) -> f64 {
        2.0
    }
}

/// The server's part of a ping-pong round.
///
/// # Errors
/// What the device says, or that the client is gone.
pub fn answer(session: &mut Session, exchange: &Exchange, round: Round, by_write: bool) -> Result<(), PerfError> {
    if by_write {
        WritePingPong::new(session, round.size)?.answer(exchange, round.count)
    } else {
        SendPingPong::new(session, round.size)?.answer(exchange, round.count)
    }
}
