//! An embedded-style service: after set-up it neither allocates nor blocks, and proves both.
//!
//! A client sends requests over a queue pair: "add this to that counter". The service polls its completion queue, works
//! off a bounded batch, answers from a fixed table, and posts each receive again with the buffer that came back. An
//! allocator that counts, and the kernel's count of voluntary context switches, show that nothing else happens.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example poll_loop              # a million requests
//! cargo run --release --example poll_loop -- 100000    # so many
//! ```
//!
//! # Expected output
//!
//! ```text
//! served 1000000 requests in 0.59 s
//! round trip: median 3.9 us, 99 % 6.1 us, worst 1480.2 us
//! after set-up: 0 allocations in the process, service blocked 0 times
//! ```
//!
//! Times depend on the machine. It ends with status 1 if anything was allocated, or the service blocked more than once in
//! ten thousand requests: the kernel lets a thread sleep too, where it moves or takes back a page of its memory. Between
//! polls that find nothing it spins, and after a while offers its core to others by `yield_now`, a system call that
//! returns at once where nobody waits: so the example runs on one core too. A service with a core of its own would only
//! spin.
//!
//! # Troubleshooting
//!
//! - `no answer within 10 s`: the service failed, and has printed its own error before.
//! - Round trips of milliseconds: both threads share one core, where each must yield to the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use counting::allocations;
use qpair::{CompletionQueue, Context, QueuePair};

#[path = "../benches/counting/mod.rs"]
mod counting;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One end of the connection: the queue pair and the completion queue that its owner polls.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
}

fn main() -> Result<()> {
    let requests = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let (service, mut client) = connected()?; // the client is dropped after the last count
    let start = Instant::now();
    let running = AtomicBool::new(true);
    let (served, asked) = std::thread::scope(|scope| {
        let service = scope.spawn(|| serve(service, &running).inspect_err(|error| eprintln!("service: {error}")));
        let stop = Stop(&running); // also if the client fails or panics
        let asked = ask(&mut client, requests);
        drop(stop);
        (service.join(), asked)
    });
    let (mut round_trips, (allocations, blocked)) = (asked?, served.map_err(|_| "the service panicked")??);
    println!("served {requests} requests in {:.2} s", start.elapsed().as_secs_f64());
    round_trips.sort_unstable();
    let [median, p99, worst] = [50, 99, 100].map(|percent| {
        let rank = (round_trips.len() * percent / 100).min(round_trips.len().saturating_sub(1));
        round_trips.get(rank).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    });
    println!("round trip: median {median:.1} us, 99 % {p99:.1} us, worst {worst:.1} us");
    println!("after set-up: {allocations} allocations in the process, service blocked {blocked} times");
    let allowed = requests as u64 / 10_000;
    if allocations > 0 || blocked > allowed { Err("the service allocated or blocked".into()) } else { Ok(()) }
}

/// Two connected sides, each with receives posted.
fn connected() -> Result<(Side, Side)> {
    let ctx = Context::open("soft0")?;
    let pd = ctx.alloc_pd()?;
    let (cq_a, cq_b) = (ctx.create_cq(4 * RECEIVES)?, ctx.create_cq(4 * RECEIVES)?);
    let (mut a, mut b) = (pd.rc(&cq_a).build()?, pd.rc(&cq_b).build()?);
    for _ in 0..RECEIVES {
        a.recv(pd.alloc(size_of::<Request>())?).post()?;
        b.recv(pd.alloc(size_of::<Request>())?).post()?;
    }
    let (at_a, at_b) = (a.address(), b.address());
    Ok((Side { qp: a.connect(&at_b)?, cq: cq_a }, Side { qp: b.connect(&at_a)?, cq: cq_b }))
}

/// Tells the service to end, on the way out.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The service, for as long as `running` is true: counts of allocations and of blocking, from the first request to the
/// last.
fn serve(mut side: Side, running: &AtomicBool) -> Result<(u64, u64)> {
    let mut counters = [0; COUNTERS];
    let blocked = voluntary_switches()?;
    let mut first = None; // allocations at the first request: set-up is over on both sides
    let mut idle = 0u32;
    while running.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let Some(done) = side.cq.poll()? else {
                idle += 1;
                if idle.is_multiple_of(SPINS) {
                    std::thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
                break;
            };
            idle = 0;
            done.ok()?;
            if !done.opcode().is_receive() {
                continue; // an answer that has gone out
            }
            first.get_or_insert_with(allocations);
            let len = done.byte_len();
            let buffer = done.into_buffer()?;
            let answer = answer(&mut counters, &buffer[..len]);
            side.qp.recv(buffer).post()?;
            side.qp.send_inline(&answer.to_le_bytes()).signaled().post()?;
        }
        // Here a service looks at the rest of its world: timers, other queues.
    }
    let allocated = first.map_or(0, |first| allocations() - first);
    Ok((allocated, voluntary_switches()? - blocked))
}

/// Adds to a counter; its new value, or `u64::MAX` for a request that makes no sense.
fn answer(counters: &mut [u64; COUNTERS], request: &[u8]) -> u64 {
    let &[counter, ref add @ ..] = request else { return u64::MAX };
    let (Some(value), Ok(add)) = (counters.get_mut(usize::from(counter)), add.try_into()) else { return u64::MAX };
    *value = value.wrapping_add(u64::from_le_bytes(add));
    *value
}

/// The client: keeps some requests under way and checks each answer. How long each took.
fn ask(side: &mut Side, requests: usize) -> Result<Vec<Duration>> {
    let (mut totals, mut since) = ([0; COUNTERS], [Instant::now(); WINDOW]);
    let mut round_trips = Vec::with_capacity(requests);
    let mut sent = 0;
    while round_trips.len() < requests {
        while sent < requests.min(round_trips.len() + WINDOW) {
            since[sent % WINDOW] = Instant::now();
            side.qp.send_inline(&request(sent)).signaled().post()?;
            sent += 1;
        }
        let number = round_trips.len();
        let Some(done) = side.cq.poll()? else {
            if since[number % WINDOW].elapsed() > Duration::from_secs(10) {
                return Err("no answer within 10 s".into());
            }
            std::thread::yield_now();
            continue;
        };
        done.ok()?;
        if done.opcode().is_receive() {
            let buffer = done.into_buffer()?;
            let expected = answer(&mut totals, &request(number));
            assert_eq!(buffer[..8], expected.to_le_bytes(), "answer to request {number}");
            round_trips.push(since[number % WINDOW].elapsed());
            side.qp.recv(buffer).post()?;
        }
    }
    Ok(round_trips)
}

/// Counter, one byte, and what to add to it, eight bytes, little-endian.
type Request = [u8; 9];

fn request(number: usize) -> Request {
    let [a, b, c, d, e, f, g, h] = (number as u64 * 3).to_le_bytes();
    [(number % COUNTERS) as u8, a, b, c, d, e, f, g, h]
}

/// How often this thread went to sleep so far.
fn voluntary_switches() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.ok_or("the kernel does not count context switches")?.trim().parse()?)
}

const COUNTERS: usize = 100;
/// Empty polls between two offers of the core to others: some microseconds.
const SPINS: u32 = 128;
/// Completions between two looks at the rest of the world.
const BATCH: usize = 16;
/// Requests under way.
const WINDOW: usize = 8;
/// Receives posted on each side; more than requests under way, so that no message finds none.
const RECEIVES: u32 = 32;
