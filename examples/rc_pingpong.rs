//! A ping-pong over a reliable connection between two programs, on any RDMA device.
//!
//! One side listens at a TCP port, the other connects to it; both send the address of their queue pair as one line of
//! JSON, connect, and pass a message to and fro. With `--ibv` they do so as `ibv_rc_pingpong` does, which may be the other
//! side then.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example rc_pingpong                         # both sides here, on the software device
//! cargo run --release --example rc_pingpong -- serve rxe0           # on one host ...
//! cargo run --release --example rc_pingpong -- connect HOST rxe0    # ... and on another
//! cargo run --release --example rc_pingpong -- serve --ibv          # ... where `ibv_rc_pingpong -g INDEX HOST` runs
//! cargo run --release --example rc_pingpong -- connect --ibv HOST   # to a host where `ibv_rc_pingpong -g INDEX` runs
//! ```
//!
//! # Expected output
//!
//! ```text
//! device soft0: shm wire to queue pair 0x5b2c41 of device ...
//! 10000 round trips of 64 B: 0.42 us each way
//! ```
//!
//! # Troubleshooting
//!
//! - `no RDMA device is called ...`: `cargo run --example show_gids` lists the devices, `qpair doctor` says what is missing.
//! - `transport retries exceeded`: packets do not arrive. Both sides need GIDs of the same network: `qpair doctor HOST`.
//! - `... is no address of ibv_rc_pingpong`: `--ibv` is missing at one side.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use qpair::verbs::{Gid, Mtu, Prepared, Psn, QpAddress, QpType, Qpn};
use qpair::{Buffer, CompletionQueue, Context, QueuePair};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let manner = if words.iter().any(|word| word == "--ibv") { IBV } else { OWN };
    words.retain(|word| word != "--ibv");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let listen = || TcpListener::bind(("0.0.0.0", manner.port));
    match words[..] {
        [] => here(manner),
        ["serve"] => serve(listen()?, "soft0", manner),
        ["serve", device] => serve(listen()?, device, manner),
        ["connect", host] => ping(TcpStream::connect((host, manner.port))?, "soft0", manner),
        ["connect", host, device] => ping(TcpStream::connect((host, manner.port))?, device, manner),
        _ => Err("usage: rc_pingpong [--ibv] [serve [DEVICE] | connect HOST [DEVICE]]".into()),
    }
}

/// What both sides must have in common.
#[derive(Clone, Copy)]
struct Manner {
    port: u16,
    round_trips: u32,
    len: usize,
    /// Addresses go as `ibv_rc_pingpong` writes them, and not as JSON.
    is_ibv: bool,
}

const OWN: Manner = Manner { port: 18530, round_trips: 10_000, len: 64, is_ibv: false };
/// The defaults of `ibv_rc_pingpong`.
const IBV: Manner = Manner { port: 18515, round_trips: 1000, len: 4096, is_ibv: true };

/// Both sides in this process.
fn here(manner: Manner) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, "soft0", manner).inspect_err(|error| eprintln!("server: {error}")));
        ping(stream, "soft0", manner).inspect_err(|error| eprintln!("client: {error}"))?;
        server.join().map_err(|_| "the server panicked")?
    })
}

fn serve(listener: TcpListener, device: &str, manner: Manner) -> Result<()> {
    let mut stream = BufReader::new(listener.accept()?.0);
    let (mut side, prepared) = Side::new(&stream, device, manner)?;
    let (ours, theirs) = (prepared.address(), hear(&mut stream, manner)?);
    let mut qp = prepared.connect(&theirs)?;
    // Not before this side is connected: the other one sends as soon as it has the address.
    say(&mut stream, manner, &ours)?;
    stream.read_exact(&mut [0; DONE.len()])?;
    for _ in 0..manner.round_trips {
        side.receive(&mut qp)?;
        side.send(&mut qp)?;
    }
    Ok(())
}

fn ping(stream: TcpStream, device: &str, manner: Manner) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut side, prepared) = Side::new(&stream, device, manner)?;
    say(&mut stream, manner, &prepared.address())?;
    let mut qp = prepared.connect(&hear(&mut stream, manner)?)?;
    stream.get_mut().write_all(DONE)?;
    println!("device {device}: {}", qp.explain());
    let start = Instant::now();
    for _ in 0..manner.round_trips {
        side.send(&mut qp)?;
        side.receive(&mut qp)?;
    }
    let Manner { round_trips, len, .. } = manner;
    let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(round_trips) / 2.0;
    println!("{round_trips} round trips of {len} B: {micros:.2} us each way");
    Ok(())
}

/// What one end of the connection needs beside its queue pair. A buffer is with the device while it is posted, and here in
/// between.
struct Side {
    sends: CompletionQueue,
    receives: CompletionQueue,
    outgoing: Option<Buffer>,
}

impl Side {
    fn new(stream: &BufReader<TcpStream>, device: &str, manner: Manner) -> Result<(Side, Prepared)> {
        let ctx = Context::open(device)?;
        let pd = ctx.alloc_pd()?;
        let (sends, receives) = (ctx.create_cq(4)?, ctx.create_cq(4)?);
        let mut builder = pd.rc(&sends).recv_cq(&receives);
        // The address of the network that leads to the other side.
        let towards = Gid::from(stream.get_ref().peer_addr()?.ip());
        if let Some(row) = ctx.port(1).and_then(|port| port.preferred_gid(Some(towards)).cloned()) {
            builder = builder.gid_index(row.index);
        }
        let mut prepared = builder.build()?;
        // Posted before the peer can send: the first ping finds a receive.
        prepared.recv(pd.alloc(manner.len)?).post()?;
        Ok((Side { sends, receives, outgoing: Some(pd.alloc(manner.len)?) }, prepared))
    }

    fn send(&mut self, qp: &mut QueuePair) -> Result<()> {
        let Some(buffer) = self.outgoing.take() else { return Err("the buffer is with the device".into()) };
        qp.send(buffer).signaled().post()?;
        let done = self.sends.wait()?;
        done.ok()?;
        self.outgoing = Some(done.into_buffer()?);
        Ok(())
    }

    fn receive(&mut self, qp: &mut QueuePair) -> Result<()> {
        let done = self.receives.wait()?;
        done.ok()?;
        let buffer = done.into_buffer()?;
        qp.recv(buffer).post()?;
        Ok(())
    }
}

/// Sends this side's address.
fn say(stream: &mut BufReader<TcpStream>, manner: Manner, ours: &QpAddress) -> Result<()> {
    let line = if manner.is_ibv {
        let QpAddress { lid, qpn, psn, gid, .. } = ours;
        format!("{lid:04x}:{:06x}:{:06x}:{:032x}\0", qpn.0, psn.get(), u128::from_be_bytes(gid.0))
    } else {
        format!("{}\n", serde_json::to_string(ours)?)
    };
    Ok(stream.get_mut().write_all(line.as_bytes())?)
}

/// Takes the other side's address.
fn hear(stream: &mut BufReader<TcpStream>, manner: Manner) -> Result<QpAddress> {
    let mut line = Vec::new();
    if !manner.is_ibv {
        stream.read_until(b'\n', &mut line)?;
        return Ok(serde_json::from_slice(&line)?);
    }
    stream.read_until(0, &mut line)?;
    let line = String::from_utf8_lossy(&line);
    address(line.trim_end_matches('\0')).ok_or_else(|| format!("{line:?} is no address of ibv_rc_pingpong").into())
}

/// LID, queue pair number, PSN and GID in hexadecimal, as `ibv_rc_pingpong` tells them. It takes an MTU of 1024 by default.
fn address(line: &str) -> Option<QpAddress> {
    let mut fields = line.split(':');
    let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
    let (lid, qpn, psn) = (u16::try_from(number()?).ok()?, Qpn(number()?), Psn::new(number()?));
    let gid = Gid(u128::from_str_radix(fields.next()?, 16).ok()?.to_be_bytes());
    let (qp_type, mtu) = (QpType::Rc, Mtu::B1024);
    Some(QpAddress { qp_type, qpn, psn, gid, lid, mtu, qkey: 0, max_rd_atomic: 0, ece: None, soft: None })
}

/// What the connecting side says once it has all.
const DONE: &[u8] = b"done\0";
