//! A ping-pong over a reliable connection between two programs, on any RDMA device.
//!
//! One side listens at a TCP port, the other connects to it; both send the address of their queue pair as one line of
//! JSON, connect, and pass a message to and fro.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example rc_pingpong                         # both sides here, on the software device
//! cargo run --release --example rc_pingpong -- serve rxe0           # on one host ...
//! cargo run --release --example rc_pingpong -- connect HOST rxe0    # ... and on another
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

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use qpair::verbs::QpAddress;
use qpair::{Buffer, CompletionQueue, Context, QueuePair};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => here(),
        ["serve"] => serve(TcpListener::bind(("0.0.0.0", PORT))?, "soft0"),
        ["serve", device] => serve(TcpListener::bind(("0.0.0.0", PORT))?, device),
        ["connect", host] => ping(TcpStream::connect((host, PORT))?, "soft0"),
        ["connect", host, device] => ping(TcpStream::connect((host, PORT))?, device),
        _ => Err("usage: rc_pingpong [serve [DEVICE] | connect HOST [DEVICE]]".into()),
    }
}

/// Both sides in this process.
fn here() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, "soft0").inspect_err(|error| eprintln!("server: {error}")));
        ping(stream, "soft0").inspect_err(|error| eprintln!("client: {error}"))?;
        server.join().map_err(|_| "the server panicked")?
    })
}

fn serve(listener: TcpListener, device: &str) -> Result<()> {
    let mut side = Side::connect(listener.accept()?.0, device)?;
    for _ in 0..ROUND_TRIPS {
        side.receive()?;
        side.send()?;
    }
    Ok(())
}

fn ping(stream: TcpStream, device: &str) -> Result<()> {
    let mut side = Side::connect(stream, device)?;
    println!("device {device}: {}", side.qp.explain());
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        side.send()?;
        side.receive()?;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS) / 2.0;
    println!("{ROUND_TRIPS} round trips of {LEN} B: {micros:.2} us each way");
    Ok(())
}

/// One end of the connection. A buffer is with the device while it is posted, and here in between.
struct Side {
    qp: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    outgoing: Option<Buffer>,
}

impl Side {
    fn connect(stream: TcpStream, device: &str) -> Result<Side> {
        let ctx = Context::open(device)?;
        let pd = ctx.alloc_pd()?;
        let (sends, receives) = (ctx.create_cq(4)?, ctx.create_cq(4)?);
        let mut prepared = pd.rc(&sends).recv_cq(&receives).build()?;
        // Posted before the peer can send: the first ping finds a receive.
        prepared.recv(pd.alloc(LEN)?).post()?;
        let mut stream = BufReader::new(stream);
        let peer = exchange(&mut stream, &prepared.address())?;
        let qp = prepared.connect(&peer)?;
        // Nobody sends before both are connected.
        exchange(&mut stream, &qp.address())?;
        Ok(Side { qp, sends, receives, outgoing: Some(pd.alloc(LEN)?) })
    }

    fn send(&mut self) -> Result<()> {
        let Some(buffer) = self.outgoing.take() else { return Err("the buffer is with the device".into()) };
        self.qp.send(buffer).signaled().post()?;
        let done = self.sends.wait()?;
        done.ok()?;
        self.outgoing = Some(done.into_buffer()?);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let done = self.receives.wait()?;
        done.ok()?;
        let buffer = done.into_buffer()?;
        self.qp.recv(buffer).post()?;
        Ok(())
    }
}

/// Sends this side's address and takes the other's.
fn exchange(stream: &mut BufReader<TcpStream>, ours: &QpAddress) -> Result<QpAddress> {
    stream.get_mut().write_all(format!("{}\n", serde_json::to_string(ours)?).as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

const PORT: u16 = 18530;
const ROUND_TRIPS: u32 = 10_000;
const LEN: usize = 64;
