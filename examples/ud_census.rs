//! Datagrams: one queue pair that many peers answer to, without a connection to any of them.
//!
//! A counter sends a question to each peer through an address handle, and notes who answers; what is lost is asked again.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example ud_census             # on the software device
//! cargo run --release --example ud_census -- rxe0     # on another
//! ```
//!
//! # Expected output
//!
//! ```text
//! 8 of 8 peers answered, after 1 round
//! ```
//!
//! # Troubleshooting
//!
//! - `no peer answers`: the device drops datagrams to itself; give its port a GID with an IP address (`show_gids`).

use std::time::Duration;

use qpair::verbs::{AddressHandle, CqError, DatagramQueuePair, GRH_BYTES};
use qpair::{Buffer, CompletionQueue, Context, ProtectionDomain};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "soft0".to_owned());
    let ctx = Context::open(&device)?;
    let pd = ctx.alloc_pd()?;
    let mut counter = Member::new(&ctx, &pd)?;
    let mut peers = (0..PEERS).map(|_| Member::new(&ctx, &pd)).collect::<Result<Vec<_>>>()?;
    let handles =
        peers.iter().map(|peer| Ok(counter.qp.address_handle(&peer.qp.address())?)).collect::<Result<Vec<_>>>()?;
    let back = counter.qp.address_handle(&counter.qp.address())?;

    let mut answered = [false; PEERS as usize];
    let mut rounds = 0;
    while !answered.iter().all(|&seen| seen) {
        rounds += 1;
        for (number, handle) in (0..PEERS).zip(&handles).filter(|(number, _)| !answered[*number as usize]) {
            counter.send(number, handle)?;
        }
        for peer in &mut peers {
            while let Some(question) = peer.receive()? {
                peer.send(question, &back)?;
            }
        }
        while let Some(number) = counter.receive()? {
            if let Some(seen) = answered.get_mut(number as usize) {
                *seen = true;
            }
        }
        if rounds == ROUNDS {
            return Err("no peer answers".into());
        }
    }
    println!("{PEERS} of {PEERS} peers answered, after {rounds} round{}", if rounds == 1 { "" } else { "s" });
    Ok(())
}

/// A queue pair for datagrams, with its receives posted.
struct Member {
    qp: DatagramQueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
}

impl Member {
    fn new(ctx: &Context, pd: &ProtectionDomain) -> Result<Member> {
        let (sends, receives) = (ctx.create_cq(DEPTH)?, ctx.create_cq(DEPTH)?);
        let builder = pd.ud(&sends).recv_cq(&receives).send_depth(DEPTH).recv_depth(DEPTH);
        let mut qp = builder.qkey(0x1234_5678).build()?.activate()?;
        for _ in 0..DEPTH {
            qp.recv(pd.alloc(GRH_BYTES + 4)?).post()?;
        }
        Ok(Member { qp, sends, receives })
    }

    fn send(&mut self, number: u32, to: &AddressHandle) -> Result<()> {
        self.qp.send_inline(&number.to_be_bytes(), to).signaled().post()?;
        Ok(self.sends.wait()?.ok()?)
    }

    /// The number in the next datagram, if one comes.
    fn receive(&mut self) -> Result<Option<u32>> {
        let done = match self.receives.wait_for(PATIENCE) {
            Ok(done) => done,
            Err(CqError::TimedOut(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        done.ok()?;
        let buffer: Buffer = done.into_buffer()?;
        // The route header comes first, whether the datagram had one or not.
        let number = buffer[GRH_BYTES..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        self.qp.recv(buffer).post()?;
        Ok(number)
    }
}

const PEERS: u32 = 8;
const DEPTH: u32 = 16;
const ROUNDS: u32 = 50;
const PATIENCE: Duration = Duration::from_millis(5);
