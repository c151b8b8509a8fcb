//! GPU memory: what the kernels of reductions and the software device's wire reach of the speed of the GPU's own copies.
//!
//! ```text
//! cargo bench -p qpair-verbs --features cuda --bench gpu             # a table
//! cargo bench -p qpair-verbs --features cuda --bench gpu -- --json   # the same as JSON
//! ```
//!
//! The peer is a process of its own on the same GPU, whose memory this one maps. All is measured in turn, round by round;
//! medians with least and greatest. A copy reads and writes each byte, a reduction reads two for each that it writes: GB/s
//! count all of them, in memory of the GPU; what comes from the processor's memory is only written there. Copies between pinned
//! memory of the processor and the GPU's are what requests between the two are held against, and, both ways at once, what goes by
//! slots as collectives have them.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use qpair_verbs::calc::{Calc, DataType, ReduceOp};
use qpair_verbs::{
    Access, Buffer, CompletionQueue, Context, Gid, Gpu, GpuBuffer, GpuRegion, GpuStage, Local, Prepared,
    ProtectionDomain, QpAddress, QueuePair, RegionSlice, RemoteSlice,
};
use serde_json::json;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    if env::var_os(PEER).is_some() {
        return serve();
    }
    let gpu = Gpu::open(0).map_err(|error| format!("nothing is measured: {error}"))?;
    let mut table = Table::default();
    kernels(gpu, &mut table)?;
    wire(gpu, &mut table)?;
    pinned(gpu, &mut table)?;
    network(gpu, &mut table)?;
    staged(gpu, &mut table)?;
    if env::args().any(|argument| argument == "--json") {
        println!("{}", json!({ "gpu": gpu.attributes().name, "rounds": ROUNDS, "rows": table.json() }));
    } else {
        println!("{:#?}", gpu.attributes());
        println!("medians of {ROUNDS} rounds, with least and greatest");
        table.print();
    }
    Ok(())
}

/// Sums of each type against a copy of as many bytes.
fn kernels(gpu: Gpu, table: &mut Table) -> Result {
    let (mut into, from) = (gpu.alloc(LARGE)?, gpu.alloc(LARGE)?);
    let calcs: Vec<_> =
        DataType::ALL.iter().map(|&kind| Calc::new(kind, ReduceOp::Sum)).collect::<std::result::Result<_, _>>()?;
    for round in 0..=ROUNDS {
        let counted = round > 0; // the first loads the kernels
        let copy = timed(REPEATS, || Ok(into.copy_from(0, &from, 0, LARGE)?))?;
        table.note(counted, "copy on the GPU, 512 MiB", 2 * LARGE, copy);
        for &calc in &calcs {
            let sum = timed(REPEATS, || Ok(into.combine_from((0, &from, 0), LARGE, calc)?))?;
            table.note(counted, &format!("{calc}, 512 MiB"), 3 * LARGE, sum);
        }
    }
    Ok(())
}

/// Requests to another process against copies within this one.
fn wire(gpu: Gpu, table: &mut Table) -> Result {
    let mut peer = Peer::start(gpu)?;
    let (mut near, far) = (gpu.alloc(MEDIUM)?, gpu.alloc(MEDIUM)?);
    let sum = Calc::of::<f32>(ReduceOp::Sum);
    for round in 0..=ROUNDS {
        let counted = round > 0; // the first maps the memory
        let copy = timed(REPEATS, || Ok(near.copy_from(0, &far, 0, MEDIUM)?))?;
        table.note(counted, "copy on the GPU, 64 MiB", 2 * MEDIUM, copy);
        let copy = timed(SHORTS, || Ok(near.copy_from(0, &far, 0, 8)?))?;
        table.note(counted, "copy on the GPU, 8 B", 16, copy);
        let write = timed(REPEATS, || peer.write(MEDIUM))?;
        table.note(counted, "WRITE to another process, 64 MiB", 2 * MEDIUM, write);
        let read = timed(REPEATS, || peer.read(MEDIUM, None))?;
        table.note(counted, "READ from another process, 64 MiB", 2 * MEDIUM, read);
        let reduce = timed(REPEATS, || peer.read(MEDIUM, Some(sum)))?;
        table.note(counted, "READ with sum of f32, 64 MiB", 3 * MEDIUM, reduce);
        let write = timed(SHORTS, || peer.write(8))?;
        table.note(counted, "WRITE to another process, 8 B", 16, write);
        let write = timed(SHORTS, || peer.write_from_host(8))?;
        table.note(counted, "WRITE from the processor's memory, 8 B", 8, write);
        let add = timed(SHORTS, || peer.add())?;
        table.note(counted, "FETCH_ADD to another process, 8 B", 16, add);
        let write = timed(REPEATS, || peer.write_from_host(MEDIUM))?;
        table.note(counted, "WRITE from the processor's memory, 64 MiB", MEDIUM, write);
    }
    Ok(())
}

/// Requests between pinned memory of the processor and the peer's on the GPU, against copies of as much memory.
fn pinned(gpu: Gpu, table: &mut Table) -> Result {
    let mut peer = Peer::start(gpu)?;
    let mut near = gpu.alloc(MEDIUM)?;
    let mut host = peer.side.pd.alloc_pinned(MEDIUM, gpu)?;
    let mut other = Some(peer.side.pd.alloc_pinned(MEDIUM, gpu)?);
    for round in 0..=ROUNDS {
        let counted = round > 0; // the first maps the memory
        let copy = timed(REPEATS, || Ok(near.write(0, &host)?))?;
        table.note(counted, "copy from pinned memory, 64 MiB", MEDIUM, copy);
        peer.long = Some(host);
        let write = timed(REPEATS, || peer.write_from_host(MEDIUM))?;
        table.note(counted, "WRITE from pinned memory, 64 MiB", MEDIUM, write);
        host = peer.long.take().ok_or("the buffer is under way")?;
        let copy = timed(REPEATS, || Ok(near.read(0, &mut host)?))?;
        table.note(counted, "copy to pinned memory, 64 MiB", MEDIUM, copy);
        let read = timed(REPEATS, || {
            let buffer = other.take().ok_or("the buffer is under way")?;
            other = Some(peer.read_to_host(buffer)?);
            Ok(())
        })?;
        table.note(counted, "READ to pinned memory, 64 MiB", MEDIUM, read);
    }
    Ok(())
}

/// WRITEs over the network wire, on this host's loopback interface: between memories of the GPU, which are staged, and between
/// those of the processor.
fn network(gpu: Gpu, table: &mut Table) -> Result {
    let (mut near, far) = (Side::new(gpu)?, Side::new(gpu)?);
    let (a, b) = (near.on_loopback()?, far.on_loopback()?);
    let afar = |address: QpAddress| QpAddress { soft: None, ..address };
    let (to_a, to_b) = (afar(a.address()), afar(b.address()));
    let (mut qp, _far_qp) = (a.connect(&to_b)?, b.connect(&to_a)?);
    let (on_host, target) = (near.pd.expose(MEDIUM, Access::NONE)?, far.pd.expose(MEDIUM, Access::REMOTE_WRITE)?);
    for round in 0..=ROUNDS {
        let ways = [
            ("WRITE over the network wire, GPU to GPU", near.region.local(0..MEDIUM), far.region.remote(0..MEDIUM)),
            ("WRITE over the network wire, host to host", on_host.local(0..MEDIUM), target.remote(0..MEDIUM)),
        ];
        for (what, from, to) in ways {
            let write = timed(1, || {
                qp.write(from.clone(), to).signaled().post()?;
                Ok(near.cq.wait()?.ok()?)
            })?;
            table.note(round > 0, what, MEDIUM, write);
        }
    }
    Ok(())
}

/// Bytes that leave by slots while as many come, against copies of pinned memory both ways at once.
fn staged(gpu: Gpu, table: &mut Table) -> Result {
    let pd = Context::open("soft0")?.alloc_pd()?;
    let (mut to, from) = (gpu.alloc(MEDIUM)?, gpu.alloc(MEDIUM)?);
    let (given, mut got) = (pd.alloc_pinned(MEDIUM, gpu)?, pd.alloc_pinned(MEDIUM, gpu)?);
    let stage = || GpuStage::new(&pd, gpu, SLOTS, SLOT);
    let (mut out, mut into) = (stage()?, stage()?);
    for round in 0..=ROUNDS {
        let both = timed(REPEATS, || {
            // A thread has a stream of its own.
            let came = thread::scope(|scope| {
                let coming = scope.spawn(|| to.write(0, &given));
                from.read(0, &mut got)?;
                coming.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
            });
            Ok(came?)
        })?;
        table.note(round > 0, "copy both ways, pinned memory, 64 MiB each", 2 * MEDIUM, both);
        let by_slots = timed(REPEATS, || {
            for (part, start) in (0..MEDIUM).step_by(SLOT).enumerate() {
                let slot = part % SLOTS;
                out.wait(slot)?;
                out.fill(slot, &from, start..start + SLOT)?;
                into.wait(slot)?;
                into.drain(slot, &mut to, start..start + SLOT, None)?;
            }
            for slot in 0..SLOTS {
                out.wait(slot)?;
                into.wait(slot)?;
            }
            Ok(())
        })?;
        table.note(round > 0, "both ways by slots, 64 MiB each", 2 * MEDIUM, by_slots);
    }
    Ok(())
}

/// Seconds of each of `repeats`.
fn timed(repeats: u32, mut work: impl FnMut() -> Result) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..repeats {
        work()?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(repeats))
}

/// What was measured, in the order in which it came up.
#[derive(Default)]
struct Table(Vec<(String, usize, Vec<f64>)>);

impl Table {
    fn note(&mut self, counted: bool, what: &str, bytes: usize, seconds: f64) {
        let at = self.0.iter().position(|(name, ..)| name == what).unwrap_or_else(|| {
            self.0.push((what.to_owned(), bytes, Vec::new()));
            self.0.len() - 1
        });
        if counted {
            self.0[at].2.push(seconds);
        }
    }

    /// Name, bytes, and the median, least and greatest seconds.
    fn rows(&self) -> impl Iterator<Item = (&str, usize, [f64; 3])> {
        self.0.iter().map(|(name, bytes, seconds)| {
            let mut sorted = seconds.clone();
            sorted.sort_by(f64::total_cmp);
            (name.as_str(), *bytes, [sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1]])
        })
    }

    fn json(&self) -> Vec<serde_json::Value> {
        self.rows()
            .map(|(name, bytes, [median, least, greatest])| {
                json!({ "what": name, "bytes": bytes, "seconds": median, "least": least, "greatest": greatest })
            })
            .collect()
    }

    /// With the share that each has of the copy before it of the same length.
    fn print(&self) {
        println!("{:<44} {:>10} {:>21} {:>10} {:>6}", "", "us", "spread", "GB/s", "share");
        let mut copy = 0.0;
        for (name, bytes, [median, least, greatest]) in self.rows() {
            let rate = bytes as f64 / median / 1e9;
            if name.starts_with("copy") && bytes > 16 {
                copy = rate;
            }
            let spread = format!("{:.2} to {:.2}", least * 1e6, greatest * 1e6);
            let share = if bytes > 16 { format!("{:.2}", rate / copy) } else { String::new() };
            println!("{name:<44} {:>10.2} {spread:>21} {rate:>10.1} {share:>6}", median * 1e6);
        }
    }
}

/// What a queue pair is made of, and memory of the GPU to use with it.
struct Side {
    ctx: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: GpuRegion,
}

impl Side {
    fn new(gpu: Gpu) -> Result<Side> {
        let ctx = Context::open("soft0")?;
        let pd = ctx.alloc_pd()?;
        let cq = ctx.create_cq(16)?;
        let buffer: GpuBuffer = gpu.alloc(MEDIUM)?;
        let region = pd.register_gpu(buffer, Access::REMOTE_ALL)?;
        Ok(Side { ctx, pd, cq, region })
    }

    /// A queue pair on this host's loopback interface.
    fn on_loopback(&self) -> Result<Prepared> {
        let gid = Gid::from(IpAddr::from([127, 0, 0, 1]));
        let gids = self.ctx.port(1).ok_or("the device has no port")?.gids;
        let row = gids.iter().find(|row| row.gid == gid).ok_or("the loopback interface is down")?;
        Ok(self.pd.rc(&self.cq).gid_index(row.index).build()?)
    }
}

/// The other process, and this side of the connection to it.
struct Peer {
    process: Child,
    side: Side,
    qp: QueuePair,
    target: RemoteSlice,
    /// Memory of the processor.
    long: Option<Buffer>,
    short: Option<Buffer>,
}

impl Peer {
    fn start(gpu: Gpu) -> Result<Peer> {
        let mut command = Command::new(env::current_exe()?);
        let mut process = command.env(PEER, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let side = Side::new(gpu)?;
        let qp = side.pd.rc(&side.cq).build()?;
        let mut to = process.stdin.take().ok_or("no way to the peer")?;
        writeln!(to, "{}", serde_json::to_string(&qp.address())?)?;
        process.stdin = Some(to);
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no way from the peer")?).read_line(&mut line)?;
        let (address, target): (QpAddress, RemoteSlice) = serde_json::from_str(&line)?;
        let qp = qp.connect(&address)?;
        let (long, short) = (Some(side.pd.alloc(MEDIUM)?), Some(side.pd.alloc(8)?));
        Ok(Peer { process, side, qp, target, long, short })
    }

    fn write(&mut self, len: usize) -> Result {
        let local: RegionSlice = self.side.region.local(0..len);
        self.qp.write(local, self.target.slice(0..len as u64)).signaled().post()?;
        self.done().map(drop)
    }

    fn add(&mut self) -> Result {
        self.qp.fetch_add(self.side.region.local(0..8), self.target.slice(8..16), 1).signaled().post()?;
        self.done().map(drop)
    }

    fn read(&mut self, len: usize, calc: Option<Calc>) -> Result {
        let (local, remote) = (self.side.region.local(0..len), self.target.slice(0..len as u64));
        match calc {
            Some(calc) => self.qp.read_reduce(local, remote, calc),
            None => self.qp.read(local, remote),
        }
        .signaled()
        .post()?;
        self.done().map(drop)
    }

    fn write_from_host(&mut self, len: usize) -> Result {
        let place = if len == 8 { &mut self.short } else { &mut self.long };
        let buffer = place.take().ok_or("the buffer is under way")?;
        self.qp.write(buffer, self.target.slice(0..len as u64)).signaled().post()?;
        let Local::Buffer(buffer) = self.done()? else { return Err("another memory came back".into()) };
        *(if len == 8 { &mut self.short } else { &mut self.long }) = Some(buffer);
        Ok(())
    }

    fn read_to_host(&mut self, buffer: Buffer) -> Result<Buffer> {
        let remote = self.target.slice(0..buffer.len() as u64);
        self.qp.read(buffer, remote).signaled().post()?;
        let Local::Buffer(buffer) = self.done()? else { return Err("another memory came back".into()) };
        Ok(buffer)
    }

    fn done(&mut self) -> Result<Local> {
        let done = self.side.cq.wait()?;
        done.ok()?;
        Ok(done.into_memory())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The other process: its memory is there until its input ends.
fn serve() -> Result {
    let side = Side::new(Gpu::open(0)?)?;
    let qp = side.pd.rc(&side.cq).build()?;
    println!("{}", serde_json::to_string(&(qp.address(), side.region.remote(0..MEDIUM)))?);
    let mut lines = std::io::stdin().lines();
    let address: QpAddress = serde_json::from_str(&lines.next().ok_or("no address came")??)?;
    let _qp = qp.connect(&address)?;
    lines.for_each(drop);
    Ok(())
}

const PEER: &str = "QPAIR_BENCH_GPU_PEER";
const ROUNDS: usize = 9;
const REPEATS: u32 = 5;
const SHORTS: u32 = 200;
const LARGE: usize = 512 << 20;
const MEDIUM: usize = 64 << 20;
// As collectives have them.
const SLOTS: usize = 8;
const SLOT: usize = 512 << 10;
