//! A message of 8 bytes to and fro between two processes, one under way at a time, by SEND and RECV through the ibverbs
//! crate. `verbs/benches/pingpong.rs` is the same through qpair's safe API; `benches/rxe/run` measures both in turn.
//!
//! ```text
//! ibverbs-pingpong DEVICE ROUND_TRIPS PORT          # serves at a TCP port
//! ibverbs-pingpong DEVICE ROUND_TRIPS PORT HOST     # prints half of the median and mean round trip
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ibverbs::{
    CompletionQueue, Context, MemoryRegion, QueuePair, QueuePairEndpoint, ibv_gid_type, ibv_qp_type, ibv_wc,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [device, round_trips, port] => {
            let stream = TcpListener::bind(("0.0.0.0", port.parse()?))?.accept()?.0;
            on_side(stream, device, |side| side.pong(round_trips.parse()?))
        }
        [device, round_trips, port, host] => {
            let stream = TcpStream::connect((host, port.parse()?))?;
            print(on_side(stream, device, |side| side.ping(round_trips.parse()?))?);
            Ok(())
        }
        _ => Err("usage: ibverbs-pingpong DEVICE ROUND_TRIPS PORT [HOST]".into()),
    }
}

/// One end of the connection.
struct Side<'a> {
    qp: QueuePair<'a>,
    cq: &'a CompletionQueue<'a>,
    outgoing: MemoryRegion<u8>,
    incoming: MemoryRegion<u8>,
    completions: [ibv_wc; DEPTH as usize],
    under_way: bool,
    received: u32,
    stream: BufReader<TcpStream>,
}

/// Connects, and does something at that end.
fn on_side<T>(stream: TcpStream, device: &str, act: impl FnOnce(Side) -> Result<T>) -> Result<T> {
    let devices = ibverbs::devices()?;
    let named = |found: &ibverbs::Device| found.name().is_some_and(|name| name.to_bytes() == device.as_bytes());
    let ctx = devices.iter().find(named).ok_or("no such device")?.open()?;
    let pd = ctx.alloc_pd()?;
    let cq = ctx.create_cq(DEPTH as i32, 0)?;
    let prepared = pd
        .create_qp(&cq, &cq, ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid_index(&ctx).ok_or("the device has no RoCEv2 GID of an IPv4 network")?)
        .set_max_send_wr(DEPTH)
        .set_max_recv_wr(DEPTH)
        .set_timeout(ACK_TIMEOUT)
        .build()?;
    let (outgoing, incoming) = (pd.allocate(LEN)?, pd.allocate(LEN)?);
    let mut stream = BufReader::new(stream);
    let peer = exchange(&mut stream, &serde_json::to_string(&prepared.endpoint())?)?;
    let qp = prepared.handshake(serde_json::from_str::<QueuePairEndpoint>(&peer)?)?;
    let completions = [ibv_wc::default(); DEPTH as usize];
    let mut side = Side { qp, cq: &cq, outgoing, incoming, completions, under_way: false, received: 0, stream };
    side.post_receive()?;
    // Nobody sends before both are connected.
    exchange(&mut side.stream, "connected")?;
    act(side)
}

impl Side<'_> {
    /// The times of all round trips.
    fn ping(mut self, round_trips: u32) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(round_trips as usize);
        for number in 1..=round_trips {
            let start = Instant::now();
            self.send()?;
            self.wait(number)?;
            times.push(start.elapsed());
        }
        exchange(&mut self.stream, "done")?;
        Ok(times)
    }

    fn pong(mut self, round_trips: u32) -> Result<()> {
        for number in 1..=round_trips {
            self.wait(number)?;
            self.send()?;
        }
        self.wait(round_trips)?;
        exchange(&mut self.stream, "done")?;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        self.under_way = true;
        // SAFETY: nothing touches the region until `wait` has seen the completion.
        Ok(unsafe { self.qp.post_send(&mut self.outgoing, .., SEND) }?)
    }

    fn post_receive(&mut self) -> Result<()> {
        // SAFETY: nothing reads the region, and it is given to one receive at a time.
        Ok(unsafe { self.qp.post_receive(&mut self.incoming, .., RECEIVE) }?)
    }

    /// Polls until so many messages came and the last that was sent has left. A receive is posted again at once.
    fn wait(&mut self, received: u32) -> Result<()> {
        while self.received < received || self.under_way {
            let count = self.cq.poll(&mut self.completions)?.len();
            for index in 0..count {
                let done = &self.completions[index];
                if let Some((status, vendor)) = done.error() {
                    return Err(format!("a completion failed: status {status}, {vendor}").into());
                }
                if done.wr_id() == SEND {
                    self.under_way = false;
                } else {
                    self.received += 1;
                    self.post_receive()?;
                }
            }
        }
        Ok(())
    }
}

/// The row of the device's GID that is an IPv4 address, for RoCEv2.
fn gid_index(ctx: &Context) -> Option<u32> {
    let ipv4 = |raw: ibverbs::Gid| raw.subnet_prefix() == 0 && raw.interface_id() >> 32 == 0xffff;
    let mut rows = ctx.gid_table().iter();
    rows.find(|row| row.gid_type == ROCE_V2 && ipv4(row.gid)).map(|row| row.gid_index)
}

/// Sends a line and takes the other side's.
fn exchange(stream: &mut BufReader<TcpStream>, ours: &str) -> Result<String> {
    stream.get_mut().write_all(format!("{ours}\n").as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if line.is_empty() { Err("the other side is gone".into()) } else { Ok(line) }
}

fn print(mut times: Vec<Duration>) {
    times.sort_unstable();
    let half = |time: Duration| time.as_secs_f64() * 1e6 / 2.0;
    let (Some(median), count) = (times.get(times.len() / 2), times.len() as u32) else { return };
    let mean = times.iter().sum::<Duration>() / count;
    println!("{count} round trips of {LEN} B: median {:.3} us, mean {:.3} us one way", half(*median), half(mean));
}

const LEN: usize = 8;
const DEPTH: u32 = 16;
/// 4.096 us x 2^14, as perftest has it: far above a round trip, so that nothing is sent again for waiting.
const ACK_TIMEOUT: u8 = 14;
/// As `enum ibv_gid_type` has it; the crate names the type only.
const ROCE_V2: ibv_gid_type = 2;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
