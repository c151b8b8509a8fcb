//! The loop whose instructions `run` counts: RDMA WRITEs, or receives, posted and polled through the safe API, a window at
//! a time, with buffers from a free list. `loop.c` is the same in C.
//!
//! ```text
//! instructions DEVICE plain|extended|receive WINDOWS WINDOW
//! ```

use std::error::Error;

use qpair_fake_ibverbs::control;
use qpair_verbs::{Access, Context};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [name, way, windows, window] = &arguments[..] else {
        println!("skipped: verbs/benches/instructions/run counts the instructions of this program");
        return Ok(());
    };
    let device = control::Device::new(name)?;
    device.set("qp_ex", u64::from(way == "extended"))?;
    let (windows, window) = (windows.parse()?, window.parse()?);
    if way == "receive" { repeat::<true>(name, windows, window) } else { repeat::<false>(name, windows, window) }
}

fn repeat<const RECEIVE: bool>(name: &str, windows: u32, window: usize) -> Result<(), Box<dyn Error>> {
    let ctx = Context::open(name)?;
    let pd = ctx.alloc_pd()?;
    let mut cq = ctx.create_cq(256)?;
    let (a, b) = (pd.rc(&cq).build()?, pd.rc(&cq).build()?);
    let (addr_a, addr_b) = (a.address(), b.address());
    let (mut a, _b) = (a.connect(&addr_b)?, b.connect(&addr_a)?);
    let target = pd.expose(LEN, Access::REMOTE_WRITE)?;
    let remote = target.remote(0..LEN);
    let mut buffers = (0..window).map(|_| pd.alloc(LEN).map(Some)).collect::<Result<Vec<_>, _>>()?;
    let mut posted = 0;
    for _ in 0..windows {
        for buffer in &mut buffers {
            posted += 1;
            if let Some(buffer) = buffer.take() {
                if RECEIVE {
                    a.recv(buffer).id(posted).post()?;
                } else {
                    a.write(buffer, remote).id(posted).signaled().post()?;
                }
            }
        }
        for place in &mut buffers {
            *place = loop {
                if let Some(done) = cq.poll()? {
                    done.ok()?;
                    break Some(done.into_buffer()?);
                }
            };
        }
    }
    println!("{posted} posted: {}", a.explain());
    Ok(())
}

const LEN: usize = 64;
