//! The protocol of `rping`, which comes with rdma-core, in both roles: a connection by rdma_cm, on which a server reads each
//! ping from the client's memory and writes it back.
//!
//! The client sends where a buffer is (address, key, length). The server READs it and says so; the client sends where another
//! one is, the server WRITEs what it read there and says so; the client compares. The peer may be `rping` itself, on any
//! device that Linux has.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example rping                          # both sides here
//! cargo run --release --example rping -- serve                 # on one host (rping -s) ...
//! cargo run --release --example rping -- connect 10.0.0.1 5    # ... and five pings from another (rping -c -a 10.0.0.1 -C 5)
//! ```
//!
//! # Expected output
//!
//! ```text
//! connected: roce wire to queue pair 0x000011 at 10.0.0.1, from 10.0.0.2 on eth0: the connection was made by rdma_cm; ...
//! ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqr
//! ```
//!
//! # Troubleshooting
//!
//! - `... refused: invalid service ID`: nobody listens there. Start the server; with `rping -s -a ADDRESS` it listens at that
//!   address alone.
//! - `... does not answer`: a firewall may keep UDP port 4791. On the server's side, `qpair doctor` looks at its device.
//! - `UDP port 4791 is taken`: the kernel's rdma_rxe has it on this host. Take another host, or unload it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use qpair::verbs::{Connecting, Established, Listener, Prepared, RemoteSlice, Rkey, WcStatus};
use qpair::{Access, CompletionQueue, Context, ProtectionDomain};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    run().map_or_else(
        |error| {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => here(),
        ["serve"] => {
            let ctx = Context::open("soft0")?;
            serve(&ctx, &ctx.listen(PORT)?)
        }
        ["connect", host] => ping((host.parse::<IpAddr>()?, PORT).into(), 1),
        ["connect", host, count] => ping((host.parse::<IpAddr>()?, PORT).into(), count.parse()?),
        _ => Err("usage: rping [serve | connect ADDRESS [PINGS]]".into()),
    }
}

/// Both sides in this process.
fn here() -> Result<()> {
    let ctx = Context::open("soft0")?;
    let listener = ctx.listen(0)?;
    let peer = (Ipv4Addr::LOCALHOST, listener.port()).into();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&ctx, &listener).inspect_err(|error| eprintln!("server: {error}")));
        ping(peer, 3).inspect_err(|error| eprintln!("client: {error}"))?;
        server.join().map_err(|_| "the server panicked")?
    })
}

/// Serves one client.
fn serve(ctx: &Context, listener: &Listener) -> Result<()> {
    let request = listener.wait(Duration::MAX)?;
    let (mut side, prepared) = Side::new(ctx)?;
    side.establish(request.accept(prepared, b"")?)?;
    while let Some(source) = side.receive()? {
        let mut data = side.pd.alloc(usize::try_from(source.len)?.min(LONGEST))?;
        side.connected()?.queue_pair.read(data, source.slice(0..source.len.min(LONGEST as u64))).signaled().post()?;
        data = side.sent()?.ok_or("a READ has a buffer")?;
        println!("ping data: {}", text_of(&data));
        side.go_ahead()?;
        let sink = side.receive()?.ok_or("the client ended a ping in the middle")?;
        let sink = RemoteSlice { len: data.len() as u64, ..sink };
        side.connected()?.queue_pair.write(data, sink).signaled().post()?;
        side.sent()?;
        side.go_ahead()?;
    }
    Ok(())
}

fn ping(server: SocketAddr, count: u32) -> Result<()> {
    let ctx = Context::open("soft0")?;
    let (mut side, prepared) = Side::new(&ctx)?;
    let (source, sink) = (side.pd.expose(LEN, Access::REMOTE_READ)?, side.pd.expose(LEN, Access::REMOTE_WRITE)?);
    side.establish(ctx.connect_to(server, prepared, b"")?)?;
    for number in 0..count {
        let (ping, mut pong) = (ping_data(number), [0; LEN]);
        source.write(0, &ping)?;
        for region in [&source, &sink] {
            side.send(region.remote(0..LEN))?;
            side.receive()?.ok_or("the server ended a ping in the middle")?;
        }
        sink.read(0, &mut pong)?;
        if pong != ping {
            return Err(format!("ping {number} came back as {}", text_of(&pong)).into());
        }
        println!("ping data: {}", text_of(&pong));
    }
    Ok(())
}

/// One end.
struct Side {
    pd: ProtectionDomain,
    sends: CompletionQueue,
    receives: CompletionQueue,
    connected: Option<Established>,
}

impl Side {
    fn new(ctx: &Context) -> Result<(Side, Prepared)> {
        let (pd, sends, receives) = (ctx.alloc_pd()?, ctx.create_cq(16)?, ctx.create_cq(4)?);
        let mut prepared = pd.rc(&sends).recv_cq(&receives).build()?;
        // Before the peer can send: the first message finds it.
        prepared.recv(pd.alloc(MESSAGE)?).post()?;
        Ok((Side { pd, sends, receives, connected: None }, prepared))
    }

    fn establish(&mut self, mut connecting: Connecting) -> Result<()> {
        let connected = self.connected.insert(connecting.wait(LIMIT)?);
        println!("connected: {}", connected.queue_pair.explain());
        Ok(())
    }

    fn connected(&mut self) -> Result<&mut Established> {
        self.connected.as_mut().ok_or_else(|| "there is no connection".into())
    }

    /// Tells the peer where memory is.
    fn send(&mut self, memory: RemoteSlice) -> Result<()> {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&memory.addr.to_be_bytes());
        message[8..12].copy_from_slice(&memory.rkey.0.to_be_bytes());
        message[12..].copy_from_slice(&u32::try_from(memory.len)?.to_be_bytes());
        self.connected()?.queue_pair.send_inline(&message).signaled().post()?;
        self.sent()?;
        Ok(())
    }

    /// Tells the client that a step is done. What the message says does not matter.
    fn go_ahead(&mut self) -> Result<()> {
        self.send(RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) })
    }

    /// Waits until what was posted is done; its buffer, if it had one.
    fn sent(&mut self) -> Result<Option<qpair::Buffer>> {
        let done = self.sends.wait_for(LIMIT)?;
        done.ok()?;
        Ok(done.into_buffer().ok())
    }

    /// Where the peer's memory is, by its next message; `None` if it disconnected.
    fn receive(&mut self) -> Result<Option<RemoteSlice>> {
        let done = self.receives.wait_for(LIMIT)?;
        let connected = self.connected.as_mut().ok_or("there is no connection")?;
        if done.status() == WcStatus::WR_FLUSH_ERR && connected.connection.poll().is_some() {
            return Ok(None);
        }
        done.ok()?;
        let buffer = done.into_buffer()?;
        let (addr, rkey, len) = (number(&buffer[..8]), number(&buffer[8..12]) as u32, number(&buffer[12..16]));
        connected.queue_pair.recv(buffer).post()?;
        Ok(Some(RemoteSlice { addr, len, rkey: Rkey(rkey) }))
    }
}

/// What rping sends: a text that begins with the ping's number, and ends with a zero.
fn ping_data(number: u32) -> [u8; LEN] {
    let mut data = [0; LEN];
    let letters = (b'A'..=b'z').cycle().skip((number % 58) as usize);
    let text = format!("rdma-ping-{number}: ").into_bytes().into_iter().chain(letters);
    data[..LEN - 1].iter_mut().zip(text).for_each(|(to, from)| *to = from);
    data
}

fn text_of(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Where rping listens.
const PORT: u16 = 7174;
/// Bytes of a ping, as rping has them; it takes more, up to this.
const LEN: usize = 64;
const LONGEST: usize = 64 << 10;
/// Address, key and length.
const MESSAGE: usize = 16;
/// How long the peer may take for a step.
const LIMIT: Duration = Duration::from_secs(30);
