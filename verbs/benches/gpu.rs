//! GPU memory: what the kernels of reductions and the software device's wire reach of the speed of the GPU's own copies.
//!
//! ```text
//! cargo bench -p qpair-verbs --features cuda --bench gpu             # a table
//! cargo bench -p qpair-verbs --features cuda --bench gpu -- --json   # the same as JSON
//! cargo bench -p qpair-verbs --features cuda --bench gpu -- staged   # a part of it, or several: see `PARTS`
//! cargo bench -p qpair-verbs --features cuda --bench gpu -- --test   # each once, of little memory
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
    if let Ok(len) = env::var(PEER) {
        return serve(len.parse()?);
    }
    // Cargo says `--bench`.
    let named: Vec<_> = env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = named.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        return Err(format!("nothing is called {unknown}: there are {}", PARTS.map(|(part, _)| part).join(", ")).into());
    }
    let gpu = Gpu::open(0).map_err(|error| format!("nothing is measured: {error}"))?;
    let (extent, mut table) = (Extent::asked_for(), Table::default());
    for (name, part) in PARTS {
        if named.is_empty() || named.iter().any(|asked| asked == name) {
            part(gpu, extent, &mut table)?;
        }
    }
    let rounds = extent.rounds;
    if env::args().any(|argument| argument == "--json") {
        println!("{}", json!({ "gpu": gpu.attributes().name, "rounds": rounds, "rows": table.json() }));
    } else {
        if named.is_empty() {
            println!("{:#?}", gpu.attributes());
        }
        println!("{}: medians of {rounds} rounds, with least and greatest", gpu.attributes().name);
        table.print();
    }
    Ok(())
}

type Part = fn(Gpu, Extent, &mut Table) -> Result;

/// What can be asked for by name.
const PARTS: [(&str, Part); 5] =
    [("kernels", kernels), ("wire", wire), ("pinned", pinned), ("network", network), ("staged", staged)];

/// How much is measured.
#[derive(Clone, Copy)]
struct Extent {
    /// After one that is not counted.
    rounds: usize,
    /// In a round.
    repeats: u32,
    /// The same of 8 bytes.
    shorts: u32,
    large: usize,
    medium: usize,
}

impl Extent {
    fn asked_for() -> Self {
        if env::args().any(|argument| argument == "--test") { Self::TEST } else { Self::WHOLE }
    }

    const WHOLE: Self = Self { rounds: 9, repeats: 5, shorts: 200, large: 512 << 20, medium: 64 << 20 };
    const TEST: Self = Self { rounds: 1, repeats: 1, shorts: 2, large: 8 << 20, medium: 8 << 20 };
}

/// A length, as rows name it.
fn sized(len: usize) -> String {
    if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) }
}

/// Sums of each type against a copy of as many bytes.
fn kernels(gpu: Gpu, extent: Extent, table: &mut Table) -> Result {
    let Extent { rounds, repeats, large, .. } = extent;
    let (mut into, from) = (gpu.alloc(large)?, gpu.alloc(large)?);
    let calcs: Vec<_> =
        DataType::ALL.iter().map(|&kind| Calc::new(kind, ReduceOp::Sum)).collect::<std::result::Result<_, _>>()?;
    for round in 0..=rounds {
        let counted = round > 0; // the first loads the kernels
        let copy = timed(repeats, || Ok(into.copy_from(0, &from, 0, large)?))?;
        table.note(counted, &format!("copy on the GPU, {}", sized(large)), 2 * large, copy);
        for &calc in &calcs {
            let sum = timed(repeats, || Ok(into.combine_from((0, &from, 0), large, calc)?))?;
            table.note(counted, &format!("{calc}, {}", sized(large)), 3 * large, sum);
        }
    }
    Ok(())
}

/// Requests to another process against copies within this one.
fn wire(gpu: Gpu, extent: Extent, table: &mut Table) -> Result {
    let Extent { rounds, repeats, shorts, medium, .. } = extent;
    let mut peer = Peer::start(gpu, medium)?;
    let (mut near, far) = (gpu.alloc(medium)?, gpu.alloc(medium)?);
    let sum = Calc::of::<f32>(ReduceOp::Sum);
    for round in 0..=rounds {
        let counted = round > 0; // the first maps the memory
        let copy = timed(repeats, || Ok(near.copy_from(0, &far, 0, medium)?))?;
        table.note(counted, &format!("copy on the GPU, {}", sized(medium)), 2 * medium, copy);
        let copy = timed(shorts, || Ok(near.copy_from(0, &far, 0, 8)?))?;
        table.note(counted, "copy on the GPU, 8 B", 16, copy);
        let write = timed(repeats, || peer.write(medium))?;
        table.note(counted, &format!("WRITE to another process, {}", sized(medium)), 2 * medium, write);
        let read = timed(repeats, || peer.read(medium, None))?;
        table.note(counted, &format!("READ from another process, {}", sized(medium)), 2 * medium, read);
        let reduce = timed(repeats, || peer.read(medium, Some(sum)))?;
        table.note(counted, &format!("READ with sum of f32, {}", sized(medium)), 3 * medium, reduce);
        let write = timed(shorts, || peer.write(8))?;
        table.note(counted, "WRITE to another process, 8 B", 16, write);
        let write = timed(shorts, || peer.write_from_host(8))?;
        table.note(counted, "WRITE from the processor's memory, 8 B", 8, write);
        let add = timed(shorts, || peer.add())?;
        table.note(counted, "FETCH_ADD to another process, 8 B", 16, add);
        let write = timed(repeats, || peer.write_from_host(medium))?;
        table.note(counted, &format!("WRITE from the processor's memory, {}", sized(medium)), medium, write);
    }
    Ok(())
}

/// Requests between pinned memory of the processor and the peer's on the GPU, against copies of as much memory.
fn pinned(gpu: Gpu, extent: Extent, table: &mut Table) -> Result {
    let Extent { rounds, repeats, medium, .. } = extent;
    let mut peer = Peer::start(gpu, medium)?;
    let mut near = gpu.alloc(medium)?;
    let mut host = peer.side.pd.alloc_pinned(medium, gpu)?;
    let mut other = Some(peer.side.pd.alloc_pinned(medium, gpu)?);
    for round in 0..=rounds {
        let counted = round > 0; // the first maps the memory
        let copy = timed(repeats, || Ok(near.write(0, &host)?))?;
        table.note(counted, &format!("copy from pinned memory, {}", sized(medium)), medium, copy);
        peer.long = Some(host);
        let write = timed(repeats, || peer.write_from_host(medium))?;
        table.note(counted, &format!("WRITE from pinned memory, {}", sized(medium)), medium, write);
        host = peer.long.take().ok_or("the buffer is under way")?;
        let copy = timed(repeats, || Ok(near.read(0, &mut host)?))?;
        table.note(counted, &format!("copy to pinned memory, {}", sized(medium)), medium, copy);
        let read = timed(repeats, || {
            let buffer = other.take().ok_or("the buffer is under way")?;
            other = Some(peer.read_to_host(buffer)?);
            Ok(())
        })?;
        table.note(counted, &format!("READ to pinned memory, {}", sized(medium)), medium, read);
    }
    Ok(())
}

/// WRITEs over the network wire, on this host's loopback interface: between memories of the GPU, which are staged, and between
/// those of the processor.
fn network(gpu: Gpu, extent: Extent, table: &mut Table) -> Result {
    let Extent { rounds, medium, .. } = extent;
    let (mut near, far) = (Side::new(gpu, medium)?, Side::new(gpu, medium)?);
    let (a, b) = (near.on_loopback()?, far.on_loopback()?);
    let afar = |address: QpAddress| QpAddress { soft: None, ..address };
    let (to_a, to_b) = (afar(a.address()), afar(b.address()));
    let (mut qp, _far_qp) = (a.connect(&to_b)?, b.connect(&to_a)?);
    let (on_host, target) = (near.pd.expose(medium, Access::NONE)?, far.pd.expose(medium, Access::REMOTE_WRITE)?);
    for round in 0..=rounds {
        let ways = [
            ("WRITE over the network wire, GPU to GPU", near.region.local(0..medium), far.region.remote(0..medium)),
            ("WRITE over the network wire, host to host", on_host.local(0..medium), target.remote(0..medium)),
        ];
        for (what, from, to) in ways {
            let write = timed(1, || {
                qp.write(from.clone(), to).signaled().post()?;
                Ok(near.cq.wait()?.ok()?)
            })?;
            table.note(round > 0, what, medium, write);
        }
    }
    Ok(())
}

/// Bytes that leave by slots of some lengths while as many come, against copies of pinned memory both ways at once.
fn staged(gpu: Gpu, extent: Extent, table: &mut Table) -> Result {
    let Extent { rounds, repeats, medium, .. } = extent;
    let pd = Context::open("soft0")?.alloc_pd()?;
    let (mut to, from) = (gpu.alloc(medium)?, gpu.alloc(medium)?);
    let (given, mut got) = (pd.alloc_pinned(medium, gpu)?, pd.alloc_pinned(medium, gpu)?);
    let mut stages = Vec::new();
    for slot in SLOT_LENS {
        let stage = || GpuStage::new(&pd, gpu, SLOTS, slot);
        stages.push([stage()?, stage()?]);
    }
    let each = sized(medium);
    for round in 0..=rounds {
        let both = timed(repeats, || {
            // A thread has a stream of its own.
            let came = thread::scope(|scope| {
                let coming = scope.spawn(|| to.write(0, &given));
                from.read(0, &mut got)?;
                coming.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
            });
            Ok(came?)
        })?;
        table.note(round > 0, &format!("copy both ways, pinned memory, {each} each"), 2 * medium, both);
        for [out, into] in &mut stages {
            let by_slots = timed(repeats, || both_ways(out, into, (&from, &mut to)))?;
            let what = format!("both ways by {SLOTS} slots of {}, {each} each", sized(out.slot_len()));
            table.note(round > 0, &what, 2 * medium, by_slots);
        }
    }
    Ok(())
}

/// All of one buffer leaves by slots, while all of another comes.
fn both_ways(out: &mut GpuStage, into: &mut GpuStage, (from, to): (&GpuBuffer, &mut GpuBuffer)) -> Result {
    let len = out.slot_len();
    for (part, start) in (0..from.len()).step_by(len).enumerate() {
        let slot = part % SLOTS;
        out.wait(slot)?;
        out.fill(slot, from, start..start + len)?;
        into.wait(slot)?;
        into.drain(slot, to, start..start + len, None)?;
    }
    for slot in 0..SLOTS {
        out.wait(slot)?;
        into.wait(slot)?;
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
        println!("{:<52} {:>10} {:>21} {:>10} {:>6}", "", "us", "spread", "GB/s", "share");
        let mut copy = 0.0;
        for (name, bytes, [median, least, greatest]) in self.rows() {
            let rate = bytes as f64 / median / 1e9;
            if name.starts_with("copy") && bytes > 16 {
                copy = rate;
            }
            let spread = format!("{:.2} to {:.2}", least * 1e6, greatest * 1e6);
            let share = if bytes > 16 && copy > 0.0 { format!("{:.2}", rate / copy) } else { String::new() };
            println!("{name:<52} {:>10.2} {spread:>21} {rate:>10.1} {share:>6}", median * 1e6);
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
    fn new(gpu: Gpu, len: usize) -> Result<Side> {
        let ctx = Context::open("soft0")?;
        let pd = ctx.alloc_pd()?;
        let cq = ctx.create_cq(16)?;
        let buffer: GpuBuffer = gpu.alloc(len)?;
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
    fn start(gpu: Gpu, len: usize) -> Result<Peer> {
        let mut command = Command::new(env::current_exe()?);
        let mut process = command.env(PEER, len.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let side = Side::new(gpu, len)?;
        let qp = side.pd.rc(&side.cq).build()?;
        let mut to = process.stdin.take().ok_or("no way to the peer")?;
        writeln!(to, "{}", serde_json::to_string(&qp.address())?)?;
        process.stdin = Some(to);
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no way from the peer")?).read_line(&mut line)?;
        let (address, target): (QpAddress, RemoteSlice) = serde_json::from_str(&line)?;
        let qp = qp.connect(&address)?;
        let (long, short) = (Some(side.pd.alloc(len)?), Some(side.pd.alloc(8)?));
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

/// The other process: its memory, of so many bytes, is there until its input ends.
fn serve(len: usize) -> Result {
    let side = Side::new(Gpu::open(0)?, len)?;
    let qp = side.pd.rc(&side.cq).build()?;
    println!("{}", serde_json::to_string(&(qp.address(), side.region.remote(0..len)))?);
    let mut lines = std::io::stdin().lines();
    let address: QpAddress = serde_json::from_str(&lines.next().ok_or("no address came")??)?;
    let _qp = qp.connect(&address)?;
    lines.for_each(drop);
    Ok(())
}

/// With the bytes of its memory.
const PEER: &str = "QPAIR_BENCH_GPU_PEER";
// As collectives and messages have them.
const SLOTS: usize = 8;
/// The first is theirs.
const SLOT_LENS: [usize; 4] = [512 << 10, 1 << 20, 2 << 20, 4 << 20];
