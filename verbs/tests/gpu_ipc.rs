//! Memory of `cuMemAlloc`, of this library and of others, that processes of the host open by CUDA's IPC handles: mapped, so that
//! requests do not take the way through its process, and freed only once nobody has it open. On a CUDA driver in memory.

use std::time::{Duration, Instant};

use qpair_fake_cuda::{code, control};
use qpair_verbs::{Access, CompletionQueue, Gpu, GpuBuffer, GpuRegion, ProtectionDomain, WcStatus};

use support::{Far, hear, introduce, soft, wait_until};

#[path = "support/log.rs"]
mod log;
mod support;

/// Starts a process with [`LEN`] bytes of 7 on the GPU of this ordinal, of that kind.
fn start(pd: &ProtectionDomain, cq: &CompletionQueue, fake: control::Device, kind: &str) -> Far {
    Far::start(pd, cq, &[(GIVEN, &format!("{} {kind}", fake.ordinal())), ("FAKE_CUDA_DEVICES", "16")])
}

impl Far {
    /// Reads its bytes, writes others over some, and reads them.
    fn exchange(&mut self, own: &GpuRegion, cq: &mut CompletionQueue) {
        own.write(LEN, &[9; 100]).unwrap();
        self.qp.read(own.local(0..LEN), self.target).signaled().post().unwrap();
        self.qp.write(own.local(LEN..LEN + 100), self.target.slice(50..150)).signaled().post().unwrap();
        self.qp.read(own.local(LEN..LEN + 200), self.target.slice(0..200)).signaled().post().unwrap();
        for _ in 0..3 {
            cq.wait_for(LIMIT).expect("done in time").ok().expect("a success");
        }
        let (mut before, mut after) = (vec![0; LEN], [0; 200]);
        own.read(0, &mut before).unwrap();
        own.read(LEN, &mut after).unwrap();
        assert_eq!((before, &after[..]), (vec![7; LEN], &[&[7; 50][..], &[9; 100], &[7; 50]].concat()[..]));
        self.change(own, cq);
    }

    /// Changes a word of its bytes and changes it back.
    fn change(&mut self, own: &GpuRegion, cq: &mut CompletionQueue) {
        let at = 200_u64.next_multiple_of(8) + self.target.addr.wrapping_neg() % 8;
        let word = self.target.slice(at..at + 8);
        let was = u64::from_ne_bytes([7; 8]);
        self.qp.fetch_add(own.local(LEN..LEN + 8), word, 1).signaled().post().unwrap();
        self.qp.compare_swap(own.local(LEN + 8..LEN + 16), word, was + 1, was).signaled().post().unwrap();
        self.qp.fetch_add(own.local(LEN + 16..LEN + 24), word, 0).signaled().post().unwrap();
        for _ in 0..3 {
            cq.wait_for(LIMIT).expect("done in time").ok().expect("a success");
        }
        let mut found = [0; 24];
        own.read(LEN, &mut found).unwrap();
        assert_eq!(found[..], [was, was + 1, was].map(u64::to_ne_bytes).concat());
    }

    /// Has it do something, and waits until it has.
    fn ask(&mut self, what: &str) {
        self.tell(what);
        self.wait_for("done");
    }

    fn wait_for(&mut self, what: &str) {
        let said = self.lines.by_ref().map_while(Result::ok).find(|line| line == what);
        assert!(said.is_some(), "it ended before it was {what}");
    }

    /// Both control threads answer: each has a part in a question.
    fn is_heard(&self, pd: &ProtectionDomain, cq: &CompletionQueue) {
        let asked = Instant::now();
        pd.rc(cq).build().unwrap().connect(&self.address).expect("an answer");
        assert!(asked.elapsed() < SOON, "answered after {:?}", asked.elapsed());
    }
}

/// Memory of `cuMemAlloc` with [`LEN`] bytes of 7, or adopted in the middle of such memory.
fn plain(gpu: Gpu, kind: &str) -> GpuBuffer {
    let whole = gpu.alloc(3 * LEN).unwrap();
    let address = whole.address();
    // SAFETY: the owner is or has the memory, and nobody else uses it.
    let adopt = |owner| unsafe { gpu.adopt(address + LEN as u64 + 13, LEN, owner) }.unwrap();
    let mut buffer = match kind {
        "adopted" => adopt(Box::new(whole)),
        "of an owner that waits" => adopt(Box::new(Waits(whole))),
        "of an owner that panics" => adopt(Box::new(Panics(whole))),
        _ => gpu.alloc(LEN).unwrap(),
    };
    buffer.write(0, &[7; LEN]).unwrap();
    buffer
}

/// An owner that lets memory go only once it is told on the standard input.
struct Waits(#[expect(dead_code, reason = "kept to be dropped")] GpuBuffer);

impl Drop for Waits {
    fn drop(&mut self) {
        println!("\nwaiting");
        hear();
    }
}

struct Panics(#[expect(dead_code, reason = "kept to be dropped")] GpuBuffer);

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

#[test]
#[ignore = "needs a test to start it, as its peer process"]
fn far_process() {
    let Ok(given) = std::env::var(GIVEN) else { return eprintln!("nothing to do: no test started this process") };
    let (ordinal, kind) = given.split_once(' ').unwrap();
    control::load().unwrap();
    let fake = control::Device::of(ordinal.parse().unwrap());
    // No virtual memory.
    fake.set_attribute(102, 0).unwrap();
    if kind == "refused" {
        fake.fail_times("cuIpcGetMemHandle", 1, 0, code::NOT_SUPPORTED).unwrap();
    }
    let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
    let (ctx, pd) = soft();
    let cq = ctx.create_cq(8).unwrap();
    let region = pd.register_gpu(plain(gpu, kind), Access::REMOTE_ALL).unwrap();
    let qp = pd.rc(&cq).build().unwrap();
    let Some(qp) = introduce(qp, region.remote(0..LEN)) else { return };
    let freed = || {
        wait_until(fake, "freed", || !fake.live().contains("allocation"));
        assert_eq!(fake.violations(), "");
        println!("\ndone");
    };
    match hear().as_deref() {
        Some("free") => {
            drop(region.revoke().unwrap());
            freed();
        }
        Some("close the device, and free") => {
            let buffer = region.revoke().unwrap();
            drop((qp, cq, pd, ctx));
            drop(buffer);
            return freed();
        }
        Some("fail") => {
            fake.fail("cuMemcpyAsync", 1, code::ECC_UNCORRECTABLE).unwrap();
            fake.fault(1, code::LAUNCH_FAILED).unwrap();
            println!("\ndone");
        }
        _ => {}
    }
    while hear().is_some() {}
}

/// This process's side: a GPU of its own, and memory for two times what the peer has.
fn near() -> (control::Device, ProtectionDomain, CompletionQueue, GpuRegion) {
    let fake = control::add_device().expect("the library is built beside the tests");
    let (ctx, pd) = soft();
    let own = Gpu::open(fake.ordinal() as usize).unwrap().alloc(2 * LEN).unwrap();
    let own = pd.register_gpu(own, Access::NONE).unwrap();
    (fake, pd.clone(), ctx.create_cq(8).unwrap(), own)
}

fn openings(fake: control::Device) -> usize {
    fake.live().matches("opening").count()
}

#[test]
fn memory_without_a_descriptor_is_opened_by_its_handle_and_closed_before_it_is_freed() {
    for kind in ["plain", "adopted"] {
        for ending in ["free", "close the device, and free"] {
            let (fake, pd, mut cq, own) = near();
            let mut far = start(&pd, &cq, fake, kind);
            far.exchange(&own, &mut cq);
            assert_eq!((fake.count("cuIpcOpenMemHandle").unwrap(), openings(fake)), (1, 1), "{kind}");
            far.ask(ending);
            if ending == "free" {
                assert_eq!(openings(fake), 0, "{kind}: freed while it was open");
            }
            assert_eq!(fake.violations(), "");
        }
    }
}

#[test]
fn where_there_is_no_handle_or_it_is_not_opened_its_process_copies() {
    let (fake, pd, mut cq, own) = near();
    start(&pd, &cq, fake, "refused").exchange(&own, &mut cq);
    assert_eq!(fake.count("cuIpcOpenMemHandle").unwrap(), 0);
    fake.fail("cuIpcOpenMemHandle_v2", 1, code::MAP_FAILED).unwrap();
    start(&pd, &cq, fake, "plain").exchange(&own, &mut cq);
    assert_eq!((fake.count("cuIpcOpenMemHandle").unwrap(), openings(fake)), (1, 0));
    assert_eq!(fake.violations(), "");
}

#[test]
fn what_the_gpu_of_the_process_that_copies_does_not_do_is_told_as_the_peers() {
    for request in ["write", "read", "fetch_add"] {
        let (fake, pd, mut cq, own) = near();
        let mut far = start(&pd, &cq, fake, "refused");
        far.exchange(&own, &mut cq);
        far.ask("fail");
        let word = far.target.slice(far.target.addr.wrapping_neg() % 8..LEN as u64).slice(0..8);
        match request {
            "write" => far.qp.write(own.local(0..LEN), far.target).signaled().post().unwrap(),
            "read" => far.qp.read(own.local(0..LEN), far.target).signaled().post().unwrap(),
            _ => far.qp.fetch_add(own.local(0..8), word, 1).signaled().post().unwrap(),
        }
        assert_eq!(cq.wait_for(LIMIT).unwrap().status(), WcStatus::REM_OP_ERR, "{request}");
    }
}

#[test]
fn a_gpu_that_this_process_does_not_see_is_reached_by_its_own_and_it_is_said_what_to_do() {
    let log = log::Log::start();
    let (_, pd, mut cq, own) = near();
    // That there is another is no news.
    for _ in 0..2 {
        let mut far = Far::start(&pd, &cq, &[(GIVEN, "63 plain"), ("FAKE_CUDA_DEVICES", "64")]);
        far.exchange(&own, &mut cq);
    }
    let told = || log.text().lines().filter(|line| line.contains("WARN") && line.contains("is not mapped")).count();
    wait_until(control::Device::of(0), "said", || told() > 0);
    assert!(told() == 1 && log.text().contains("CUDA_VISIBLE_DEVICES"), "{}", log.text());
}

#[test]
fn memory_of_a_process_that_died_is_closed() {
    let (fake, pd, mut cq, own) = near();
    let mut far = start(&pd, &cq, fake, "plain");
    far.exchange(&own, &mut cq);
    far.kill();
    far.qp.recv(pd.alloc(8).unwrap()).post().unwrap();
    assert!(!cq.wait_for(LIMIT).unwrap().status().is_success());
    far.qp.read(own.local(0..LEN), far.target).signaled().post().unwrap();
    assert!(!cq.wait_for(LIMIT).unwrap().status().is_success());
    drop(far);
    wait_until(fake, "closed", || {
        // A queue lets go of queue pairs when it is polled.
        let _ = cq.poll().unwrap();
        openings(fake) == 0
    });
    assert_eq!(fake.violations(), "");
}

#[test]
fn an_owner_that_waits_or_panics_when_it_lets_memory_go_holds_up_no_peer() {
    for kind in ["of an owner that waits", "of an owner that panics"] {
        let (fake, pd, mut cq, own) = near();
        let mut far = start(&pd, &cq, fake, kind);
        far.exchange(&own, &mut cq);
        far.tell("free");
        if kind.ends_with("waits") {
            far.wait_for("waiting");
            far.is_heard(&pd, &cq);
            far.tell("go on");
        }
        far.wait_for("done");
        assert_eq!(openings(fake), 0, "{kind}: freed while it was open");
        far.is_heard(&pd, &cq);
        assert_eq!(fake.violations(), "");
    }
}

#[test]
fn memory_that_goes_during_a_long_access_is_freed_after_it_and_the_peers_are_heard_meanwhile() {
    let (fake, pd, mut cq, own) = near();
    let [mut busy, mut far] = ["plain"; 2].map(|kind| start(&pd, &cq, fake, kind));
    busy.exchange(&own, &mut cq);
    far.exchange(&own, &mut cq);
    fake.hold().unwrap();
    let _busy = std::thread::scope(|scope| {
        let access = scope.spawn(|| {
            let target = busy.target;
            busy.qp.write(own.local(0..LEN), target).signaled().post().unwrap();
            busy
        });
        // Until it waits for its copy, whose way there no number tells.
        std::thread::sleep(SOON / 10);
        far.tell("free");
        let begun = Instant::now();
        while begun.elapsed() < LONGER_THAN_ANYBODY_WAITS {
            far.is_heard(&pd, &cq);
            std::thread::sleep(SOON / 10);
        }
        assert_eq!(openings(fake), 2);
        assert!(!access.is_finished(), "the access is not held");
        fake.let_go().unwrap();
        far.wait_for("done");
        assert_eq!(openings(fake), 1);
        access.join().unwrap()
    });
    cq.wait_for(LIMIT).expect("done in time").ok().expect("a success");
    assert_eq!(fake.violations(), "");
}

const GIVEN: &str = "QPAIR_TEST_FAR";
const LEN: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(20);
/// What nobody who is heard takes.
const SOON: Duration = Duration::from_secs(2);
/// For an access to be over.
const LONGER_THAN_ANYBODY_WAITS: Duration = Duration::from_millis(3500);
