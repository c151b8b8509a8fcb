//! How many WRITEs and SENDs of 8 bytes a second go from one process to another, each pinned to a core, through the safe
//! API; and what the code of each side costs.
//!
//! ```text
//! cargo bench -p qpair-verbs --bench rate              # all
//! cargo bench -p qpair-verbs --bench rate -- put       # WRITEs, one in 64 signaled, to a peer that sleeps
//! cargo bench -p qpair-verbs --bench rate -- stream    # SENDs to a peer that takes each and posts its receive again
//! cargo bench -p qpair-verbs --bench rate -- cost      # both sides of a SEND on one core: code alone, no waiting
//! ```

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use qpair_verbs::{
    Access, CompletionQueue, Context, ExposedRegion, Local, Prepared, ProtectionDomain, QpAddress, QueuePair,
    RemoteSlice, WcOpcode,
};
use rustix::thread::{CpuSet, sched_setaffinity};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    if env::var_os(PEER).is_some() {
        return serve();
    }
    pin(0)?;
    let named: Vec<String> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    println!("medians of {ROUNDS} rounds, with least and greatest");
    println!("{:<40} {:>8} {:>16} {:>8}", "", "ns each", "spread", "M/s");
    if wanted("put") {
        put()?;
    }
    if wanted("stream") {
        stream()?;
    }
    if wanted("cost") {
        cost()?;
    }
    Ok(())
}

/// What WRITEs take the caller, polling included.
fn put() -> Result {
    let mut peer = Peer::start()?;
    let Peer { side, target, .. } = &mut peer;
    let inline = rounds(|| {
        for number in 1..=COUNT {
            let data = u64::from(number).to_ne_bytes();
            let request = side.qp.write_inline(&data, *target);
            if number % SIGNAL == 0 {
                request.signaled().post()?;
                side.cq.wait()?.ok()?;
            } else {
                request.post()?;
            }
        }
        Ok(())
    })?;
    print("WRITE of 8 B inline", inline);
    let mut free = (0..SIGNAL).map(|_| side.pd.alloc(LEN)).collect::<std::result::Result<Vec<_>, _>>()?;
    let buffers = rounds(|| {
        for number in 1..=COUNT {
            let request = side.qp.write(free.pop().ok_or("no buffer is free")?, *target);
            if number % SIGNAL == 0 {
                request.signaled().post()?;
                let mut done = side.cq.wait()?;
                done.ok()?;
                while let Some(Local::Buffer(buffer)) = done.next_retired() {
                    free.push(buffer);
                }
                free.push(done.into_buffer()?);
            } else {
                request.post()?;
            }
        }
        Ok(())
    })?;
    print("WRITE of a buffer of 8 B", buffers);
    peer.end()
}

/// How long a SEND takes on its way through both processes.
fn stream() -> Result {
    let mut peer = Peer::start()?;
    for take in TAKES {
        let times = rounds(|| {
            peer.say(take.word())?;
            peer.side.send_all(COUNT)?;
            peer.hear()?;
            Ok(())
        })?;
        print(&format!("SEND of 8 B, {}", take.name()), times);
    }
    peer.end()
}

/// What the code of each side of a SEND costs.
fn cost() -> Result {
    let ctx = Context::open("soft0")?;
    let (a, b) = (Side::prepare(&ctx)?, Side::prepare(&ctx)?);
    let (to_a, to_b) = (a.address(), b.address());
    let (mut a, mut b) = (a.connect(&to_b)?, b.connect(&to_a)?);
    for take in TAKES {
        let mut parts = [const { Vec::new() }; 2];
        for round in 0..=ROUNDS {
            let mut sums = [0.0; 2];
            for _ in 0..COUNT / BATCH {
                let start = Instant::now();
                for _ in 0..BATCH {
                    a.send()?;
                }
                let sent = Instant::now();
                for _ in 0..BATCH {
                    while !b.take(take)? {}
                }
                sums[0] += (sent - start).as_secs_f64();
                sums[1] += sent.elapsed().as_secs_f64();
            }
            if round > 0 {
                parts.iter_mut().zip(sums).for_each(|(times, sum)| times.push(sum * 1e9 / f64::from(COUNT)));
            }
        }
        let [send, receive] = parts;
        print("code of a SEND of 8 B", send);
        print(&format!("code of its receive, {}", take.name()), receive);
    }
    Ok(())
}

/// The peer: does what it is told on its input, until that ends.
fn serve() -> Result {
    pin(1)?;
    let mut lines = std::io::stdin().lock().lines();
    let ends = Side::prepare(&Context::open("soft0")?)?;
    println!("{}", serde_json::to_string(&ends.address())?);
    let told = lines.next().ok_or("nobody is there")??;
    let address: Address = serde_json::from_str(&told)?;
    let target = address.1;
    let mut side = ends.connect(&address)?;
    println!("connected");
    for line in lines {
        let line = line?;
        let take = TAKES.into_iter().find(|take| take.word() == line).ok_or("what is that?")?;
        side.take_all(COUNT, take, target)?;
        println!("done");
    }
    Ok(())
}

/// How a receiver takes a message.
#[derive(Clone, Copy)]
enum Take {
    /// Its memory moves out of the completion and into the next receive.
    Out,
    /// It is read in place, and its receive posted again.
    InPlace,
}

const TAKES: [Take; 2] = [Take::Out, Take::InPlace];

impl Take {
    fn word(self) -> &'static str {
        match self {
            Take::Out => "out",
            Take::InPlace => "in-place",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Take::Out => "memory taken and posted",
            Take::InPlace => "posted again in place",
        }
    }
}

/// Where a side is found: its queue pair, and memory that the other may write.
type Address = (QpAddress, RemoteSlice);

/// One end of a connection.
struct Side {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    /// Where the other side writes, also how many messages it has taken.
    inbox: ExposedRegion,
    sent: u64,
    taken: u64,
}

/// The same before it is connected.
struct Ends {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: Prepared,
    inbox: ExposedRegion,
}

impl Side {
    fn prepare(ctx: &Context) -> Result<Ends> {
        let pd = ctx.alloc_pd()?;
        let cq = ctx.create_cq(4 * WINDOW)?;
        let mut qp = pd.rc(&cq).recv_depth(WINDOW).send_depth(2 * SIGNAL).build()?;
        for _ in 0..WINDOW {
            qp.recv(pd.alloc(SLAB)?.into_slab()).post()?;
        }
        let inbox = pd.expose(LEN, Access::REMOTE_WRITE)?;
        Ok(Ends { pd, cq, qp, inbox })
    }

    /// Sends so many, no more ahead of the other side than it has receives.
    fn send_all(&mut self, count: u32) -> Result {
        for _ in 0..count {
            while self.sent - self.inbox.load(0)? >= u64::from(WINDOW) {}
            self.send()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self) -> Result {
        self.sent += 1;
        let data = self.sent.to_ne_bytes();
        let request = self.qp.send_inline(&data);
        if self.sent.is_multiple_of(SIGNAL.into()) {
            request.signaled().post()?;
            self.cq.wait()?.ok()?;
        } else {
            request.post()?;
        }
        Ok(())
    }

    /// Takes so many, and says now and then how many it has.
    fn take_all(&mut self, count: u32, take: Take, tell: RemoteSlice) -> Result {
        let end = self.taken + u64::from(count);
        while self.taken < end {
            if self.take(take)? && self.taken.is_multiple_of(SIGNAL.into()) {
                self.qp.write_inline(&self.taken.to_ne_bytes(), tell).signaled().post()?;
            }
        }
        Ok(())
    }

    /// Takes the next message, if one is there.
    #[inline(always)]
    fn take(&mut self, take: Take) -> Result<bool> {
        let Some(done) = self.cq.poll()? else { return Ok(false) };
        done.ok()?;
        if done.opcode() != WcOpcode::RECV {
            return Ok(false);
        }
        self.taken += 1;
        let number = match take {
            Take::Out => {
                let slab = done.into_slab()?;
                let number = slab.first_chunk().copied();
                self.qp.recv(slab).post()?;
                number
            }
            Take::InPlace => {
                let number = done.message().and_then(<[u8]>::first_chunk).copied();
                self.qp.repost(done)?;
                number
            }
        };
        if number.map(u64::from_ne_bytes) == Some(self.taken) { Ok(true) } else { Err("not the next message".into()) }
    }
}

impl Ends {
    fn address(&self) -> Address {
        (self.qp.address(), self.inbox.remote(0..LEN))
    }

    fn connect(self, address: &Address) -> Result<Side> {
        let Ends { pd, cq, qp, inbox } = self;
        Ok(Side { pd, cq, qp: qp.connect(&address.0)?, inbox, sent: 0, taken: 0 })
    }
}

/// The peer's process, and this end of the connection to it.
struct Peer {
    side: Side,
    /// Memory of the peer.
    target: RemoteSlice,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start() -> Result<Self> {
        let mut child =
            Command::new(env::current_exe()?).env(PEER, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().ok_or("no input")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let ends = Side::prepare(&Context::open("soft0")?)?;
        writeln!(input, "{}", serde_json::to_string(&ends.address())?)?;
        let address: Address = serde_json::from_str(&output.next().ok_or("the peer is gone")??)?;
        let side = ends.connect(&address)?;
        let mut peer = Peer { side, target: address.1, child, input, output };
        peer.hear()?;
        Ok(peer)
    }

    fn say(&mut self, word: &str) -> Result {
        Ok(writeln!(self.input, "{word}")?)
    }

    /// Waits until the peer says something.
    fn hear(&mut self) -> Result {
        self.output.next().ok_or("the peer is gone")??;
        Ok(())
    }

    fn end(self) -> Result {
        let Peer { mut child, input, .. } = self;
        drop(input);
        child.wait()?;
        Ok(())
    }
}

/// Nanoseconds that each of [`COUNT`] operations takes, by rounds after one to warm up.
fn rounds(mut round: impl FnMut() -> Result) -> Result<Vec<f64>> {
    round()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(COUNT));
    }
    Ok(times)
}

fn print(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let (median, spread) = (times[ROUNDS / 2], format!("{:.1} .. {:.1}", times[0], times[ROUNDS - 1]));
    println!("{what:<40} {median:>8.1} {spread:>16} {:>8.2}", 1e3 / median);
}

fn pin(core: usize) -> Result {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

const PEER: &str = "QPAIR_RATE_PEER";
const ROUNDS: usize = 9;
/// Operations of a round: some 50 ms.
const COUNT: u32 = 1 << 20;
/// One request in so many is signaled; so often a receiver says how far it is.
const SIGNAL: u32 = 64;
/// Receives that are posted.
const WINDOW: u32 = 256;
/// Operations between two looks at the clock.
const BATCH: u32 = 16;
/// Bytes of a WRITE.
const LEN: usize = 8;
/// Bytes of a receive: as much as a small message may have.
const SLAB: usize = 8192;
