//! The server: changes its table as clients ask, and polls. After set-up it neither allocates nor sleeps.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use qpair::transport::{CloseReason, Event, Handlers, Request, SendCopyError};
use qpair::{Access, Config, ExposedRegion, Worker};

use crate::counting::allocations_here;
use crate::table::{BUCKET, BUCKETS, Bucket, KEY, VALUE, place};
use crate::{Outcome, handlers};

pub struct Server {
    worker: Worker,
    address: SocketAddr,
    handlers: Handlers<Table>,
    table: Table,
}

/// The table, and what went wrong with it.
struct Table {
    region: ExposedRegion,
    puts: u64,
    /// Allocations when set-up was over, and at the last PUT.
    allocations: (u64, u64),
    /// How often it had blocked when set-up was over.
    blocked: u64,
}

impl Server {
    pub fn new(address: &str) -> Outcome<Server> {
        let mut worker = Worker::new(Config::default())?;
        let region = worker.domain().expose(BUCKETS * BUCKET, Access::REMOTE_READ)?;
        let mut empty = Bucket::empty();
        // One value nobody asks for, so that the check sum is that of an empty bucket.
        empty.put(b"", b"");
        for bucket in 0..BUCKETS {
            region.write(bucket * BUCKET, empty.bytes())?;
        }
        let mut handlers = Handlers::new();
        handlers.on_request(handlers::WHERE, tell_where).on_request(handlers::PUT, put);
        let address = worker.listen(address)?.local_addr();
        Ok(Server { worker, address, handlers, table: Table { region, puts: 0, allocations: (0, 0), blocked: 0 } })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves while `running`. Allocations up to the last PUT since set-up was over, and how often it blocked.
    pub fn serve(&mut self, running: &AtomicBool) -> Outcome<(u64, u64)> {
        self.table.blocked = voluntary_switches()?;
        let mut idle = 0u32;
        while running.load(Ordering::Relaxed) {
            match self.worker.poll()? {
                Some(event) => {
                    idle = 0;
                    let other = self.handlers.dispatch(event, &mut self.table, &mut self.worker);
                    if let Some(Event::Closed { reason, .. }) = other
                        && !matches!(reason, CloseReason::Remote)
                    {
                        println!("a client is gone: {reason}");
                    }
                }
                None => {
                    idle = idle.wrapping_add(1);
                    // So that it runs beside others on one core too; where nobody waits for the core, it goes on at once.
                    if idle.is_multiple_of(SPINS) { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
            }
        }
        let (first, last) = self.table.allocations;
        let allocated = last - first;
        Ok((allocated, voluntary_switches()? - self.table.blocked))
    }
}

/// Tells a client where to read.
fn tell_where(table: &mut Table, worker: &mut Worker, request: Request) {
    let remote = table.region.remote(0..table.region.len());
    let words = [remote.addr, remote.len, u64::from(remote.rkey.0)];
    answer(worker, request, &words.map(u64::to_le_bytes).concat());
}

/// Puts a value: one byte with the key's length, the key, the value.
fn put(table: &mut Table, worker: &mut Worker, request: Request) {
    let done = request.message.split_first().and_then(|(len, rest)| rest.split_at_checked(usize::from(*len)));
    let done = done.is_some_and(|(key, value)| table.put(key, value));
    answer(worker, request, &[u8::from(done)]);
    table.puts += 1;
    if table.puts == WARM {
        table.blocked = voluntary_switches().unwrap_or_default();
    }
    table.allocations.1 = allocations_here();
    if table.puts <= WARM {
        table.allocations.0 = table.allocations.1;
    }
}

impl Table {
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        if key.is_empty() || key.len() > KEY || value.len() > VALUE {
            return false;
        }
        let at = place(key).start;
        let mut bytes = [0; BUCKET];
        let Ok(()) = self.region.read(at, &mut bytes) else { return false };
        let Some(mut bucket) = Bucket::read(&bytes) else { return false };
        let changing = bucket.changing();
        bucket.put(key, value)
            && self.region.store(at, changing).is_ok()
            && self.region.write(at + 8, &bucket.bytes()[8..]).is_ok()
            && self.region.write(at, &bucket.bytes()[..8]).is_ok()
    }
}

fn answer(worker: &mut Worker, request: Request, data: &[u8]) {
    // A client has one request under way, so that there is always room for its answer, unless it lies: others shall not wait
    // for it. That its connection may have ended is no harm.
    if let Err((SendCopyError::WouldBlock, reply)) = worker.respond_copy(request.reply, data) {
        worker.abort(reply.endpoint());
    }
}

/// How often this thread went to sleep so far.
fn voluntary_switches() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.ok_or("the kernel does not count context switches")?.trim().parse()?)
}

/// PUTs that still count as set-up: the last words of the handshake may come after the first of them, and the pages of a
/// connection's rings come with their first use, for which a thread may wait.
const WARM: u64 = 1000;
/// Empty polls between two offers of the core to others.
const SPINS: u32 = 128;
