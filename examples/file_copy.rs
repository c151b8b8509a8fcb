//! Copies a file to another host, as fast as the wire goes: pieces of it are offered as they are read, and the receiver reads
//! each straight into memory that it writes from. Nothing is copied between the two files' page caches but once.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example file_copy                              # 256 MiB between two threads of this program
//! cargo run --release --example file_copy -- serve 0.0.0.0:7200 DIR    # or apart: takes files into DIR
//! cargo run --release --example file_copy -- send HOST:7200 FILE
//! ```
//!
//! # Expected output
//!
//! ```text
//! 268423111 bytes in 0.112 s: 2.40 GB/s
//! ```
//!
//! Times depend on the machine. Here the system's reading and writing of files is what takes them: `cp` takes as long.
//!
//! # Troubleshooting
//!
//! - `could not create ...`: the server keeps to file names, and never writes over a file.
//! - `nobody listens at ...`: start the server first, and name its address.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use qpair::transport::{HandlerId, Payload, Reply, Unmatched};
use qpair::verbs::Local;
use qpair::{Buffer, Config, EndpointId, Event, Tag, Worker};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Begins a file: its length, then its name.
const OPEN: HandlerId = HandlerId(1);
/// Ends it: the check sum of its pieces.
const CLOSE: HandlerId = HandlerId(2);
/// Bytes of a piece.
const PIECE: usize = 1 << 20;
/// Pieces under way.
const DEPTH: usize = 8;
const DEMO: usize = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demonstrate(),
        ["serve", address, dir] => {
            let mut receiver = Receiver::new(address, Path::new(dir))?;
            println!("taking files at {}", receiver.address);
            loop {
                match receiver.receive() {
                    Ok((path, len)) => println!("{}: {len} bytes", path.display()),
                    Err(error) => println!("a file did not come: {error}"),
                }
            }
        }
        ["send", address, file] => send(address, Path::new(file), true),
        _ => Err("use: file_copy [serve ADDRESS DIR | send HOST:PORT FILE]".into()),
    }
}

/// Copies a file of random bytes within this program, and compares.
fn demonstrate() -> Outcome {
    // In memory where that is to be had: a disk would be measured instead.
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = parent.join(format!("qpair-file-copy-{}", std::process::id()));
    fs::create_dir_all(dir.join("there"))?;
    let copied = copy_in(&dir);
    fs::remove_dir_all(&dir)?;
    copied
}

fn copy_in(dir: &Path) -> Outcome {
    let mut seed = 7u64;
    let mut word = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    // A length that no piece divides.
    let contents: Vec<u8> = (0..DEMO - 12_345).map(|_| word()).collect();
    let (from, to) = (dir.join("file"), dir.join("there"));
    fs::write(&from, &contents)?;
    let (tell, told) = mpsc::channel();
    let receiver = std::thread::spawn(move || -> Outcome<PathBuf> {
        let mut receiver = Receiver::new("127.0.0.1:0", &to)?;
        tell.send(receiver.address.clone())?;
        Ok(receiver.receive()?.0)
    });
    send(&told.recv()?, &from, false)?;
    let copy = receiver.join().map_err(|_| "the receiver panicked")??;
    if fs::read(copy)? == contents { Ok(()) } else { Err("the copy differs".into()) }
}

/// Sends a file.
fn send(address: &str, path: &Path, show: bool) -> Outcome {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("the file's name can not be sent")?;
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut worker = Worker::new(Config::default())?;
    let ep = worker.connect(address)?;
    while !matches!(event(&mut worker)?, Event::Connected { .. }) {}
    ask(&mut worker, ep, OPEN, &[&len.to_le_bytes()[..], name.as_bytes()].concat())?;

    let bar = if show { progress(len)? } else { ProgressBar::hidden() };
    let begun = Instant::now();
    let mut free: VecDeque<Buffer> = VecDeque::new();
    for _ in 0..DEPTH {
        free.push_back(worker.domain().alloc(PIECE)?);
    }
    // The last piece has memory of its own length: a buffer is sent whole.
    let rest = (len % PIECE as u64) as usize;
    let mut last = if rest > 0 { Some(worker.domain().alloc(rest)?) } else { None };
    let (mut sum, mut under_way) = (0u64, 0);
    for piece in 0..len.div_ceil(PIECE as u64) {
        let at = piece * PIECE as u64;
        let mut buffer = if len - at < PIECE as u64 {
            last.take().ok_or("the file's end came twice")?
        } else {
            while free.is_empty() {
                free.push_back(sent(&mut worker)?);
                under_way -= 1;
            }
            free.pop_front().ok_or("no memory")?
        };
        file.read_exact_at(&mut buffer, at)?;
        sum = add(sum, piece, &buffer);
        bar.inc(buffer.len() as u64);
        worker.send(ep, Tag(piece), buffer).map_err(|refused| refused.error)?;
        under_way += 1;
    }
    for _ in 0..under_way {
        sent(&mut worker)?;
    }
    ask(&mut worker, ep, CLOSE, &sum.to_le_bytes())?;
    let took = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    println!("{len} bytes in {took:.3} s: {:.2} GB/s", len as f64 / took / 1e9);
    worker.close(ep);
    while !matches!(worker.wait(Some(PATIENCE))?, Some(Event::Closed { .. }) | None) {}
    Ok(())
}

/// A buffer that the receiver has read.
fn sent(worker: &mut Worker) -> Outcome<Buffer> {
    match event(worker)? {
        Event::Sent { payload: Payload::Buffer(buffer), .. } => Ok(buffer),
        other => Err(format!("not a buffer, but {other:?}").into()),
    }
}

/// Sends a request, and waits for the receiver's consent.
fn ask(worker: &mut Worker, ep: EndpointId, what: HandlerId, data: &[u8]) -> Outcome {
    worker.request_copy(ep, what, data)?;
    match event(worker)? {
        Event::Response { message, .. } if message.is_empty() => Ok(()),
        Event::Response { message, .. } => Err(String::from_utf8_lossy(&message).into()),
        other => Err(format!("no answer, but {other:?}").into()),
    }
}

/// Takes files, one after the other.
struct Receiver {
    worker: Worker,
    address: String,
    dir: PathBuf,
}

impl Receiver {
    fn new(address: &str, dir: &Path) -> Outcome<Receiver> {
        let mut worker = Worker::new(Config::default().unmatched(Unmatched::HoldLong))?;
        let address = worker.listen(address)?.local_addr().to_string();
        Ok(Receiver { worker, address, dir: dir.to_owned() })
    }

    /// Takes the next file. Its path and length.
    fn receive(&mut self) -> Outcome<(PathBuf, u64)> {
        let (ep, reply, len, path) = loop {
            match self.worker.wait(None)? {
                Some(Event::Request(request)) if request.handler == OPEN => {
                    match self.open(&request.message) {
                        Ok((len, path)) => break (request.ep, request.reply, len, path),
                        Err(error) => self.answer(request.reply, &error.to_string()),
                    };
                }
                _ => {}
            }
        };
        let file = File::create_new(&path).map_err(|error| format!("could not create {}: {error}", path.display()));
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                self.answer(reply, &error);
                return Err(error.into());
            }
        };
        let taken = self.pieces(ep, reply, &file, len);
        if taken.is_err() {
            // Nor is anything more to come of it, nor to be written into its memory.
            self.worker.abort(ep);
            fs::remove_file(&path)?;
        }
        taken.map(|()| (path, len))
    }

    /// What a request to begin says.
    fn open(&self, message: &[u8]) -> Outcome<(u64, PathBuf)> {
        let (len, name) = message.split_first_chunk::<8>().ok_or("the request is too short")?;
        let name = std::str::from_utf8(name)?;
        // No way out of the folder.
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(format!("{name} is no file name").into());
        }
        Ok((u64::from_le_bytes(*len), self.dir.join(name)))
    }

    fn pieces(&mut self, ep: EndpointId, reply: Reply, file: &File, len: u64) -> Outcome {
        let pieces = len.div_ceil(PIECE as u64);
        let mut next = 0;
        while next < pieces.min(DEPTH as u64) {
            let buffer = self.worker.domain().alloc(PIECE)?;
            self.post(ep, next, buffer)?;
            next += 1;
        }
        self.answer(reply, "");
        let (mut sum, mut taken, mut bytes) = (0, 0, 0);
        loop {
            match self.event_of(ep)? {
                Event::ReceivedInto { tag: Tag(piece), memory: Local::Buffer(buffer), len, .. } => {
                    file.write_all_at(&buffer[..len], piece * PIECE as u64)?;
                    sum = add(sum, piece, &buffer[..len]);
                    taken += 1;
                    bytes += len as u64;
                    if next < pieces {
                        self.post(ep, next, buffer)?;
                        next += 1;
                    }
                }
                Event::Request(request) if request.handler == CLOSE => {
                    let right = (taken, bytes) == (pieces, len) && request.message == sum.to_le_bytes();
                    let answer = if right { "" } else { "what came is not what was sent; send it again" };
                    self.answer(request.reply, answer);
                    return if right { Ok(()) } else { Err(answer.into()) };
                }
                _ => {}
            }
        }
    }

    /// The next event of the sender whose file it is. What others do is no end of it.
    fn event_of(&mut self, sender: EndpointId) -> Outcome<Event> {
        let start = Instant::now();
        loop {
            match self.worker.wait(Some(PATIENCE.saturating_sub(start.elapsed())))? {
                Some(Event::Closed { ep, reason }) if ep == sender => return Err(reason.into()),
                Some(Event::Failed { ep, error, .. }) if ep == Some(sender) => return Err(error.into()),
                Some(Event::Request(request)) if request.ep != sender => {
                    self.answer(request.reply, "another file is on its way; try again");
                }
                Some(event @ (Event::Request(_) | Event::ReceivedInto { .. })) => return Ok(event),
                None if start.elapsed() >= PATIENCE => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the sender does not go on").into());
                }
                _ => {}
            }
        }
    }

    /// Answers a sender; one that is gone needs no answer, and one that takes none is hung up on.
    fn answer(&mut self, reply: Reply, text: &str) {
        if let Err((_, reply)) = self.worker.respond(reply, text.as_bytes().to_vec()) {
            self.worker.abort(reply.endpoint());
        }
    }

    fn post(&mut self, ep: EndpointId, piece: u64, buffer: Buffer) -> Outcome {
        self.worker.recv_into(ep, Tag(piece), buffer, None).map_err(|refused| refused.error)?;
        Ok(())
    }
}

/// Adds a piece to a check sum that does not depend on the order of pieces.
fn add(sum: u64, piece: u64, bytes: &[u8]) -> u64 {
    sum.wrapping_add(u64::from(crc32fast::hash(bytes)).wrapping_mul(2 * piece + 1))
}

/// The next event, unless the peer is gone or takes too long.
fn event(worker: &mut Worker) -> Outcome<Event> {
    match worker.wait(Some(PATIENCE))? {
        Some(Event::Closed { reason, .. }) => Err(reason.into()),
        Some(Event::Failed { error, .. }) => Err(error.into()),
        Some(event) => Ok(event),
        None => Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not go on").into()),
    }
}

fn progress(len: u64) -> Outcome<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:40} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}")?;
    Ok(ProgressBar::new(len).with_style(style))
}
