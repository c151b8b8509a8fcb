//! A message of 8 bytes to and fro between two processes, one under way at a time, by SEND and RECV through the safe API.
//! `benches/rxe/ibverbs-pingpong` is the same through the ibverbs crate; `benches/rxe/run` measures both in turn.
//!
//! ```text
//! pingpong DEVICE ROUND_TRIPS PORT          # serves at a TCP port
//! pingpong DEVICE ROUND_TRIPS PORT HOST     # prints half of the median and mean round trip
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use qpair_verbs::{Buffer, CompletionQueue, Context, QpAddress, QueuePair};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [device, round_trips, port] => {
            let stream = TcpListener::bind(("0.0.0.0", port.parse()?))?.accept()?.0;
            Side::connect(stream, device)?.pong(round_trips.parse()?)
        }
        [device, round_trips, port, host] => {
            let stream = TcpStream::connect((host, port.parse()?))?;
            let times = Side::connect(stream, device)?.ping(round_trips.parse()?)?;
            print(times);
            Ok(())
        }
        _ => {
            println!("skipped: benches/rxe/run measures with this program");
            Ok(())
        }
    }
}

/// One end of the connection. Its buffers are with the device while they are posted.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    outgoing: Option<Buffer>,
    received: u32,
    stream: BufReader<TcpStream>,
}

impl Side {
    fn connect(stream: TcpStream, device: &str) -> Result<Side> {
        let ctx = Context::open(device)?;
        let pd = ctx.alloc_pd()?;
        let cq = ctx.create_cq(DEPTH)?;
        let mut prepared = pd.rc(&cq).send_depth(DEPTH).recv_depth(DEPTH).ack_timeout(ACK_TIMEOUT).build()?;
        prepared.recv(pd.alloc(LEN)?).id(RECEIVE).post()?;
        let outgoing = Some(pd.alloc(LEN)?);
        let mut stream = BufReader::new(stream);
        let peer = exchange(&mut stream, &serde_json::to_string(&prepared.address())?)?;
        let qp = prepared.connect(&serde_json::from_str::<QpAddress>(&peer)?)?;
        // Nobody sends before both are connected.
        exchange(&mut stream, "connected")?;
        Ok(Side { qp, cq, outgoing, received: 0, stream })
    }

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
        let Some(buffer) = self.outgoing.take() else { return Err("the last message is still under way".into()) };
        Ok(self.qp.send(buffer).id(SEND).signaled().post()?)
    }

    /// Polls until so many messages came and the last that was sent has left. A receive is posted again at once.
    fn wait(&mut self, received: u32) -> Result<()> {
        while self.received < received || self.outgoing.is_none() {
            let Some(done) = self.cq.poll()? else { continue };
            done.ok()?;
            let id = done.wr_id();
            let buffer = done.into_buffer()?;
            if id == SEND {
                self.outgoing = Some(buffer);
            } else {
                self.received += 1;
                self.qp.recv(buffer).id(RECEIVE).post()?;
            }
        }
        Ok(())
    }
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
const ACK_TIMEOUT: Duration = Duration::from_micros(67_109);
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
