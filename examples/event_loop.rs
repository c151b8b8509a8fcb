//! An event loop with mio: one thread that sleeps until something completes, the device reports something, or a line comes
//! in on standard input.
//!
//! A completion channel and the device's asynchronous events are mio sources like any socket. Each completion queue is
//! armed, polled once more, and only then slept upon: what came in between would ring no bell.
//!
//! # Run
//!
//! ```text
//! printf 'hello\nworld\n' | cargo run --release --example event_loop             # on the software device
//! printf 'hello\nworld\n' | cargo run --release --example event_loop -- rxe0     # on another
//! ```
//!
//! # Expected output
//!
//! ```text
//! sent "hello"
//! received "hello"
//! sent "world"
//! received "world"
//! end of input
//! ```
//!
//! # Troubleshooting
//!
//! - Nothing is printed: nothing is read. Lines come from standard input, to its end.

use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use mio::{Events, Interest, Poll, Token, Waker};
use qpair::verbs::{Arm, AsyncEvent, WcOpcode};
use qpair::{CompletionQueue, Context, ProtectionDomain, QueuePair};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "soft0".to_owned());
    let ctx = Context::open(&device)?;
    let (pd, mut poll) = (ctx.alloc_pd()?, Poll::new()?);

    let (mut completions, mut failures) = (ctx.create_channel()?, ctx.events()?);
    poll.registry().register(&mut completions, COMPLETIONS, Interest::READABLE)?;
    poll.registry().register(&mut failures, FAILURES, Interest::READABLE)?;
    // Kept here: a waker that is dropped takes what it has rung with it.
    let waker = Arc::new(Waker::new(poll.registry(), LINES)?);
    let lines = lines(waker.clone());

    let mut cq = ctx.create_cq_on(ROOM, &completions)?;
    let mut side = Side::new(&pd, &cq)?;
    let mut events = Events::with_capacity(16);
    loop {
        // Until no more fit, or there are none: nothing else wakes this for what is left.
        while side.take_lines(&lines)? {
            side.work_off(&mut cq)?;
        }
        side.work_off(&mut cq)?;
        if side.ended && side.under_way == 0 {
            println!("end of input");
            return Ok(());
        }
        poll.poll(&mut events, None).or_else(|error| match error.kind() {
            std::io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        })?;
        for event in &events {
            match event.token() {
                COMPLETIONS => completions.clear(),
                FAILURES => {
                    while let Some(event) = failures.next_event() {
                        report(event)?
                    }
                }
                // Taken above, as many as there is room for.
                _ => {}
            }
        }
    }
}

/// Two queue pairs that are connected to each other: one sends lines, the other receives them.
struct Side {
    pd: ProtectionDomain,
    from: QueuePair,
    to: QueuePair,
    under_way: u32,
    ended: bool,
}

impl Side {
    fn new(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<Side> {
        let (from, to) = (pd.rc(cq).build()?, pd.rc(cq).build()?);
        let (at_from, at_to) = (from.address(), to.address());
        let (from, to) = (from.connect(&at_to)?, to.connect(&at_from)?);
        Ok(Side { pd: pd.clone(), from, to, under_way: 0, ended: false })
    }

    /// Takes as many lines as there is room for; whether any.
    fn take_lines(&mut self, lines: &Receiver<Option<String>>) -> Result<bool> {
        let before = self.under_way;
        // Each is sent and received.
        while self.under_way + 2 <= ROOM
            && let Ok(line) = lines.try_recv()
        {
            let Some(line) = line else {
                self.ended = true;
                break;
            };
            let mut buffer = self.pd.alloc(line.len().max(1))?;
            buffer[..line.len()].copy_from_slice(line.as_bytes());
            self.to.recv(self.pd.alloc(line.len().max(1))?).post()?;
            self.from.send(buffer).range(0..line.len()).signaled().post()?;
            self.under_way += 2;
        }
        Ok(self.under_way > before)
    }

    /// Takes what has completed, arms the queue, and looks again.
    fn work_off(&mut self, cq: &mut CompletionQueue) -> Result<()> {
        for armed in [false, true] {
            while let Some(done) = cq.poll()? {
                done.ok()?;
                let (opcode, len) = (done.opcode(), done.byte_len());
                let buffer = done.into_buffer()?;
                let line = String::from_utf8_lossy(&buffer[..len.min(buffer.len())]);
                println!("{} {line:?}", if opcode == WcOpcode::RECV { "received" } else { "sent" });
                self.under_way -= 1;
            }
            if !armed {
                cq.arm(Arm::Any);
            }
        }
        Ok(())
    }
}

fn report(event: AsyncEvent) -> Result<()> {
    match event {
        AsyncEvent::DeviceFatal | AsyncEvent::QpFatal(_) | AsyncEvent::CqError => Err(format!("{event:?}").into()),
        other => {
            eprintln!("the device says: {other:?}");
            Ok(())
        }
    }
}

/// Standard input, line by line; `None` at its end. Files can not be polled, so that a thread reads it.
fn lines(waker: Arc<Waker>) -> Receiver<Option<String>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = stdin().lock().lines().map_while(std::result::Result::ok).map(Some).chain([None]);
        for line in lines {
            if sender.send(line).is_err() || waker.wake().is_err() {
                return;
            }
        }
    });
    receiver
}

/// Completions that may wait, and so requests under way.
const ROOM: u32 = 64;
const COMPLETIONS: Token = Token(0);
const FAILURES: Token = Token(1);
const LINES: Token = Token(2);
