//! What tests on the CUDA driver in memory share: GPUs and devices of their own, and a process beside this one.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use qpair_fake_cuda::control;
use qpair_verbs::{
    CompletionQueue, Context, Gpu, GpuBuffer, Prepared, ProtectionDomain, QpAddress, QueuePair, RemoteSlice,
};

/// One more GPU.
pub fn gpu() -> (Gpu, control::Device) {
    let fake = control::add_device().expect("the library is built beside the tests");
    (Gpu::open(fake.ordinal() as usize).expect("a GPU"), fake)
}

/// The bytes of a GPU's memory.
pub fn contents(buffer: &GpuBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).expect("its own memory");
    bytes
}

/// The software device, and a domain of it.
pub fn soft() -> (Context, ProtectionDomain) {
    let ctx = Context::open("soft0").expect("the software device");
    let pd = ctx.alloc_pd().expect("a domain");
    (ctx, pd)
}

/// Looks until it is so. What a GPU still has is told if that takes too long.
pub fn wait_until(fake: control::Device, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}: {}", fake.live());
        std::thread::yield_now();
    }
}

/// A process of its own with memory, and this one's queue pair to it.
pub struct Far {
    pub process: Child,
    /// What it prints after it has told of its memory.
    pub lines: Lines<BufReader<ChildStdout>>,
    pub qp: QueuePair,
    pub address: QpAddress,
    pub target: RemoteSlice,
}

impl Far {
    /// Runs the test `far_process` of this program, with these variables; it [tells](introduce) of its memory.
    pub fn start(pd: &ProtectionDomain, cq: &CompletionQueue, variables: &[(&str, &str)]) -> Far {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["far_process", "--exact", "--ignored", "--nocapture"]).envs(variables.iter().copied());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let qp = pd.rc(cq).build().unwrap();
        writeln!(process.stdin.as_mut().unwrap(), "{}", serde_json::to_string(&qp.address()).unwrap()).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let told = lines.by_ref().map_while(Result::ok).find_map(|line| serde_json::from_str(&line).ok());
        let (address, target): (QpAddress, RemoteSlice) = told.expect("it tells");
        Far { process, lines, qp: qp.connect(&address).unwrap(), address, target }
    }

    /// Says a line to it.
    pub fn tell(&mut self, what: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In that process: tells of its memory, and connects; `None` if no test has started it.
pub fn introduce(qp: Prepared, target: RemoteSlice) -> Option<QueuePair> {
    println!("\n{}", serde_json::to_string(&(qp.address(), target)).unwrap());
    let near = hear()?;
    Some(qp.connect(&serde_json::from_str(&near).unwrap()).unwrap())
}

/// In that process: what it is told next; `None` once nothing is any more. The input is not kept locked.
pub fn hear() -> Option<String> {
    std::io::stdin().lines().next()?.ok()
}

const LIMIT: Duration = Duration::from_secs(20);
