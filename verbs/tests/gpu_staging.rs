//! GPU memory on the network wire of the software device: its bytes come and go by pinned slots, many packets at a time. On a
//! CUDA driver in memory, over this host's loopback interface; each test has GPUs of its own.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use qpair_fake_cuda::code;
use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{
    Access, Completion, CompletionQueue, Context, Gid, Gpu, GpuRegion, Local, Prepared, ProtectionDomain, QpAddress,
    QpState, QueuePair, RemoteSlice, WcStatus,
};

use support::gpu;

mod support;

/// One end of a connection, on a device of its own.
struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

/// A prepared end.
fn prepare() -> (ProtectionDomain, CompletionQueue, Prepared) {
    let ctx = Context::open("soft0").expect("the software device");
    let (pd, cq) = (ctx.alloc_pd().expect("a domain"), ctx.create_cq(64).expect("a queue"));
    let gid = Gid::from(IpAddr::from([127, 0, 0, 1]));
    let row = ctx.port(1).expect("a port").gids.iter().find(|row| row.gid == gid).expect("loopback is up").index;
    let qp = pd.rc(&cq).gid_index(row).retry_count(3).ack_timeout(Duration::from_millis(200)).build();
    (pd, cq, qp.expect("a queue pair"))
}

/// Two ends that are connected as over the network.
fn pair() -> (End, End) {
    let [(a_pd, a_cq, a), (b_pd, b_cq, b)] = [prepare(), prepare()];
    let afar = |qp: &Prepared| QpAddress { soft: None, ..qp.address() };
    let (to_a, to_b) = (afar(&a), afar(&b));
    let (a, b) = (a.connect(&to_b).expect("connected"), b.connect(&to_a).expect("connected"));
    (End { pd: a_pd, cq: a_cq, qp: a }, End { pd: b_pd, cq: b_cq, qp: b })
}

impl End {
    fn region(&self, gpu: Gpu, bytes: &[u8], access: Access) -> GpuRegion {
        let mut buffer = gpu.alloc(bytes.len()).expect("memory");
        buffer.write(0, bytes).expect("its own memory");
        self.pd.register_gpu(buffer, access).expect("registered")
    }

    fn write(&mut self, from: impl Into<Local>, to: RemoteSlice) -> WcStatus {
        self.qp.write(from, to).signaled().post().expect("posted");
        self.done().status()
    }

    fn read(&mut self, into: impl Into<Local>, from: RemoteSlice) -> WcStatus {
        self.qp.read(into, from).signaled().post().expect("posted");
        self.done().status()
    }

    fn done(&mut self) -> Completion<'_> {
        self.cq.wait_for(LIMIT).expect("done in time")
    }
}

/// Bytes that differ from place to place, and by the seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(7).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

fn contents(region: &GpuRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).expect("its own memory");
    bytes
}

#[test]
fn a_mebibyte_takes_few_calls_of_the_driver() {
    let ((here, fake), (there, far_fake)) = (gpu(), gpu());
    let (mut near, mut far) = pair();
    let (sent, zeros) = (pattern(WHOLE, 1), vec![0; WHOLE]);
    let own = near.region(here, &sent, Access::NONE);
    let target = far.region(there, &zeros, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let into = near.region(here, &zeros, Access::NONE);
    let reset = || [fake, far_fake].iter().for_each(|fake| fake.reset().expect("it is there"));
    let check = |what: &str| {
        for (end, fake) in [("poster", fake), ("peer", far_fake)] {
            let calls = fake.calls().lines().count() / (WHOLE >> 20);
            eprintln!("{what}: {calls} calls of the driver per MiB at the {end}");
            // A copy of each packet of 4 KiB would take 768: one that starts it and two around it.
            assert!(calls < 768 / 2, "{what}, at the {end}: {calls} calls per MiB\n{}", fake.calls());
        }
        reset();
    };
    reset();
    assert_eq!(near.write(own.local(0..WHOLE), target.remote(0..WHOLE)), WcStatus::SUCCESS);
    check("WRITE");
    assert_eq!(near.read(into.local(0..WHOLE), target.remote(0..WHOLE)), WcStatus::SUCCESS);
    check("READ");
    far.qp.recv(target.local(0..WHOLE)).post().unwrap();
    near.qp.send(own.local(0..WHOLE)).signaled().post().unwrap();
    assert_eq!((near.done().status(), far.done().status()), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    check("SEND");
    assert!(contents(&into) == sent && contents(&target) == sent);
}

#[test]
fn bytes_of_any_length_and_place_arrive() {
    let ((here, fake), (there, far_fake)) = (gpu(), gpu());
    let (mut near, mut far) = pair();
    for (turn, len) in [1, 4095, 4096, 4097, SLOT - 1, SLOT + 1, 3 * SLOT + 77].into_iter().enumerate() {
        let sent = pattern(len + 10, turn as u8);
        let own = near.region(here, &sent, Access::NONE);
        let target = far.region(there, &vec![0xee; len + 10], Access::REMOTE_WRITE | Access::REMOTE_READ);
        assert_eq!(near.write(own.local(3..3 + len), target.remote(5..5 + len)), WcStatus::SUCCESS);
        let there_now = contents(&target);
        assert!(there_now[5..5 + len] == sent[3..3 + len], "{len} bytes");
        assert_eq!((&there_now[..5], &there_now[5 + len..]), (&[0xee; 5][..], &[0xee; 5][..]), "around {len} bytes");
        // To memory of the processor and from there.
        let room = near.pd.alloc(len).unwrap();
        assert_eq!(near.read(room, target.remote(5..5 + len)), WcStatus::SUCCESS);
        let mut bytes = near.pd.alloc(len).unwrap();
        bytes.fill(turn as u8);
        assert_eq!(near.write(bytes, target.remote(1..1 + len)), WcStatus::SUCCESS);
        assert!(contents(&target)[1..1 + len].iter().all(|byte| *byte == turn as u8));
        far.qp.recv(target.local(2..2 + len)).post().unwrap();
        near.qp.send(own.local(7..7 + len)).signaled().post().unwrap();
        assert_eq!((near.done().status(), far.done().status()), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        assert!(contents(&target)[2..2 + len] == sent[7..7 + len], "{len} bytes");
    }
    assert_eq!((fake.violations(), far_fake.violations()), (String::new(), String::new()));
}

/// What is read ahead is of one answer, and of no later one.
#[test]
fn a_read_sees_what_was_written_before_it() {
    let ((here, _), (there, _)) = (gpu(), gpu());
    let (mut near, far) = pair();
    let len = 3 * SLOT;
    let target = far.region(there, &vec![0; len], Access::REMOTE_READ);
    let into = near.region(here, &vec![0; len], Access::NONE);
    for seed in 1..5 {
        let whole = pattern(len, seed);
        target.write(0, &whole).unwrap();
        assert_eq!(near.read(into.local(0..len), target.remote(0..len)), WcStatus::SUCCESS);
        assert!(contents(&into) == whole, "in turn {seed}");
        // A part, and then what lies behind it.
        assert_eq!(near.read(into.local(0..100), target.remote(0..100)), WcStatus::SUCCESS);
        target.write(100, &[seed; 5000]).unwrap();
        assert_eq!(near.read(into.local(100..len), target.remote(100..len)), WcStatus::SUCCESS);
        assert_eq!(contents(&into)[100..5100], [seed; 5000]);
    }
}

#[test]
fn requests_that_follow_each_other_keep_their_order() {
    let ((here, _), (there, _)) = (gpu(), gpu());
    let (mut near, far) = pair();
    let len = SLOT + 500;
    let target = far.region(there, &vec![0; len], Access::REMOTE_WRITE | Access::REMOTE_READ);
    let own: Vec<_> = (0..8).map(|seed| near.region(here, &pattern(len, seed), Access::NONE)).collect();
    let into = near.region(here, &vec![0; len], Access::NONE);
    for region in &own {
        near.qp.write(region.local(0..len), target.remote(0..len)).post().unwrap();
        // Over a part of it, in other steps.
        near.qp.write(region.local(1..300), target.remote(100..399)).post().unwrap();
    }
    near.qp.read(into.local(0..len), target.remote(0..len)).signaled().post().unwrap();
    assert_eq!(near.done().status(), WcStatus::SUCCESS);
    let mut wanted = pattern(len, 7);
    wanted[100..399].copy_from_slice(&pattern(len, 7)[1..300]);
    assert!(contents(&into) == wanted && contents(&target) == wanted);
}

#[test]
fn what_is_read_is_combined_many_packets_at_once() {
    let ((here, fake), (there, _)) = (gpu(), gpu());
    let (mut near, far) = pair();
    let (len, sum) = (5 * SLOT + 40, Calc::of::<u32>(ReduceOp::Sum));
    let [ones, twos] = [1_u32, 2].map(|value| value.to_ne_bytes().repeat(len / 4));
    let target = far.region(there, &twos, Access::REMOTE_READ);
    let into = near.region(here, &ones, Access::NONE);
    fake.reset().unwrap();
    for _ in 0..2 {
        near.qp.read_reduce(into.local(0..len), target.remote(0..len), sum).post().unwrap();
    }
    near.qp.read_reduce(into.local(4..len), target.remote(0..len - 4), sum).signaled().post().unwrap();
    assert_eq!(near.done().status(), WcStatus::SUCCESS);
    let words: Vec<u32> = contents(&into).as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    assert!(words[0] == 5 && words[1..].iter().all(|word| *word == 7));
    let launches = fake.count("cuLaunchKernel").unwrap() as usize;
    assert!(launches < 3 * len / 4096 / 2, "{launches} kernels for {} packets", 3 * len / 4096);
    assert_eq!(fake.violations(), "");
}

#[test]
fn more_connections_than_slots_share_them() {
    let ((here, fake), (there, far_fake)) = (gpu(), gpu());
    let mut pairs: Vec<_> = (0..24_u8).map(|seed| (seed, pair())).collect();
    let len = 2 * SLOT + 9;
    let regions: Vec<_> = pairs
        .iter_mut()
        .map(|(seed, (near, far))| {
            let own = near.region(here, &pattern(len, *seed), Access::NONE);
            let target = far.region(there, &vec![0; len], Access::REMOTE_WRITE);
            near.qp.write(own.local(0..len), target.remote(0..len)).signaled().post().unwrap();
            (own, target)
        })
        .collect();
    for ((seed, (near, _)), (_, target)) in pairs.iter_mut().zip(&regions) {
        assert_eq!(near.done().status(), WcStatus::SUCCESS);
        assert!(contents(target) == pattern(len, *seed), "of connection {seed}");
    }
    assert_eq!((fake.violations(), far_fake.violations()), (String::new(), String::new()));
}

#[test]
fn nobody_is_told_before_the_bytes_are_there() {
    let ((here, _), (there, far_fake)) = (gpu(), gpu());
    let (mut near, mut far) = pair();
    let own = near.region(here, &pattern(5000, 3), Access::NONE);
    let target = far.region(there, &[0; 5000], Access::REMOTE_WRITE);
    far.qp.recv(far.pd.alloc(8).unwrap()).post().unwrap();
    // Its slots are there once something came.
    assert_eq!(near.write(own.local(0..1), target.remote(0..1)), WcStatus::SUCCESS);
    far_fake.reset().unwrap();
    far_fake.hold().unwrap();
    near.qp.write(own.local(0..5000), target.remote(0..5000)).signaled().post().unwrap();
    near.qp.send_inline(b"there").signaled().post().unwrap();
    let deadline = Instant::now() + LIMIT;
    // The device of the far end waits for its copy, on a thread of its own: nobody polls there.
    while far_fake.count("cuEventSynchronize").unwrap() == 0 {
        assert!(Instant::now() < deadline, "no copy is waited for: {}", far_fake.calls());
        assert!(near.cq.poll().unwrap().is_none());
    }
    assert!(near.cq.poll().unwrap().is_none());
    far_fake.let_go().unwrap();
    (0..2).for_each(|_| assert_eq!(near.done().status(), WcStatus::SUCCESS));
    assert_eq!(far.done().status(), WcStatus::SUCCESS);
    assert_eq!(contents(&target), pattern(5000, 3));
}

#[test]
fn bytes_that_are_lost_are_not_acknowledged() {
    for symbol in ["cuMemcpyAsync", "cuEventSynchronize"] {
        let ((here, _), (there, far_fake)) = (gpu(), gpu());
        let (mut near, mut far) = pair();
        let own = near.region(here, &pattern(5000, 3), Access::NONE);
        let target = far.region(there, &[0; 5000], Access::REMOTE_WRITE);
        assert_eq!(near.write(own.local(0..1), target.remote(0..1)), WcStatus::SUCCESS);
        far_fake.fail(symbol, 1, code::ECC_UNCORRECTABLE).unwrap();
        far.qp.recv(far.pd.alloc(8).unwrap()).post().unwrap();
        near.qp.write(own.local(0..5000), target.remote(0..5000)).signaled().post().unwrap();
        assert_eq!(near.done().status(), WcStatus::RETRY_EXC_ERR, "{symbol}");
        assert_eq!(far.done().status(), WcStatus::WR_FLUSH_ERR, "{symbol}");
        assert_eq!((near.qp.state(), far.qp.state()), (QpState::Err, QpState::Err), "{symbol}");
        target.revoke().unwrap();
        assert_eq!(far_fake.violations(), "");
    }
}

#[test]
fn a_message_that_is_lost_fails_its_receive() {
    let ((here, _), (there, far_fake)) = (gpu(), gpu());
    let (mut near, mut far) = pair();
    let own = near.region(here, &pattern(5000, 3), Access::NONE);
    let target = far.region(there, &[0; 5000], Access::REMOTE_WRITE);
    assert_eq!(near.write(own.local(0..1), target.remote(0..1)), WcStatus::SUCCESS);
    far_fake.fail("cuEventSynchronize", 1, code::ECC_UNCORRECTABLE).unwrap();
    far.qp.recv(target.local(0..5000)).post().unwrap();
    near.qp.send(own.local(0..5000)).signaled().post().unwrap();
    assert!(!far.done().status().is_success());
    assert_eq!(near.done().status(), WcStatus::RETRY_EXC_ERR);
}

#[test]
fn reads_that_fail_at_either_end_are_told() {
    let ((here, fake), (there, far_fake)) = (gpu(), gpu());
    for (at, symbol, expected) in [
        (far_fake, "cuMemcpyAsync", WcStatus::REM_OP_ERR),
        (far_fake, "cuEventSynchronize", WcStatus::REM_OP_ERR),
        (fake, "cuMemcpyAsync", WcStatus::LOC_QP_OP_ERR),
        (fake, "cuEventSynchronize", WcStatus::LOC_QP_OP_ERR),
    ] {
        let (mut near, far) = pair();
        let into = near.region(here, &[0; 5000], Access::NONE);
        let target = far.region(there, &pattern(5000, 4), Access::REMOTE_READ);
        assert_eq!(near.read(into.local(0..1), target.remote(0..1)), WcStatus::SUCCESS);
        at.reset().unwrap();
        at.fail(symbol, 1, code::ECC_UNCORRECTABLE).unwrap();
        assert_eq!(near.read(into.local(0..5000), target.remote(0..5000)), expected, "{symbol}: {}", at.calls());
        assert_eq!(near.qp.state(), QpState::Err);
        into.revoke().unwrap();
        target.revoke().unwrap();
    }
    assert_eq!((fake.violations(), far_fake.violations()), (String::new(), String::new()));
}

#[test]
fn an_atomic_that_fails_is_told() {
    let (there, far_fake) = gpu();
    let (mut near, far) = pair();
    let target = far.region(there, &[0; 64], Access::REMOTE_ATOMIC);
    let mut add = || {
        near.qp.fetch_add(near.pd.alloc(8).unwrap(), target.remote(8..16), 1).signaled().post().unwrap();
        near.done().status()
    };
    assert_eq!(add(), WcStatus::SUCCESS);
    far_fake.fault(1, code::LAUNCH_FAILED).unwrap();
    assert_eq!(add(), WcStatus::REM_OP_ERR);
    assert_eq!(near.qp.state(), QpState::Err);
    assert_eq!(far_fake.violations(), "");
}

/// A counter that tells of data does not count data that is not there.
#[test]
fn an_atomic_behind_bytes_that_are_lost_is_not_done() {
    let (there, far_fake) = gpu();
    for symbol in ["cuMemcpyAsync", "cuEventSynchronize"] {
        let (mut near, far) = pair();
        let data = far.region(there, &[0; 5000], Access::REMOTE_WRITE);
        let counter = far.pd.expose(8, Access::REMOTE_ATOMIC).unwrap();
        let bytes = near.region(there, &pattern(5000, 1), Access::NONE);
        assert_eq!(near.write(bytes.local(0..8), data.remote(0..8)), WcStatus::SUCCESS);
        far_fake.reset().unwrap();
        // The first copy is that of the sender, on the same GPU.
        far_fake.fail(symbol, 2, code::ECC_UNCORRECTABLE).unwrap();
        near.qp.write(bytes.local(0..5000), data.remote(0..5000)).post().unwrap();
        near.qp.fetch_add(near.pd.alloc(8).unwrap(), counter.remote(0..8), 1).signaled().post().unwrap();
        let status = near.done().status();
        assert_ne!(status, WcStatus::SUCCESS, "{symbol}: {}", far_fake.calls());
        assert_eq!(counter.load(0).unwrap(), 0, "{symbol}");
    }
}

#[test]
fn memory_is_given_back_while_connections_end() {
    let ((here, fake), (there, far_fake)) = (gpu(), gpu());
    for turn in 0..8 {
        let (mut near, far) = pair();
        let own = near.region(here, &pattern(WHOLE, turn), Access::NONE);
        let target = far.region(there, &vec![0; WHOLE], Access::REMOTE_WRITE);
        near.qp.write(own.local(0..WHOLE), target.remote(0..WHOLE)).signaled().post().unwrap();
        match turn % 4 {
            0 => near.qp.to_error().unwrap(),
            // Bytes of the peer are under way.
            1 => drop(target.revoke().unwrap()),
            2 => drop(far),
            _ => drop(near.cq.poll().unwrap()),
        }
        drop(near);
        drop(own);
    }
    for fake in [fake, far_fake] {
        let live = fake.live();
        assert!(!live.contains("registration") && !live.contains("event"), "{live}");
        assert!(!live.contains("mapping"), "{live}");
        assert_eq!(fake.violations(), "");
    }
}

#[test]
fn without_pinned_slots_it_works_and_without_any_too() {
    for symbol in ["cuMemHostRegister_v2", "cuEventCreate"] {
        let ((here, fake), (there, far_fake)) = (gpu(), gpu());
        for fake in [fake, far_fake] {
            fake.fail_times(symbol, 1, 0, code::OUT_OF_MEMORY).unwrap();
        }
        let (mut near, far) = pair();
        let sent = pattern(SLOT + 5, 9);
        let own = near.region(here, &sent, Access::NONE);
        let target = far.region(there, &vec![0; SLOT + 5], Access::REMOTE_WRITE | Access::REMOTE_READ);
        let into = near.region(here, &vec![0; SLOT + 5], Access::NONE);
        assert_eq!(near.write(own.local(0..SLOT + 5), target.remote(0..SLOT + 5)), WcStatus::SUCCESS);
        assert_eq!(near.read(into.local(0..SLOT + 5), target.remote(0..SLOT + 5)), WcStatus::SUCCESS);
        assert!(contents(&into) == sent && contents(&target) == sent);
        // Tried once for what is sent and once for what comes, and not with each packet.
        assert!(fake.count(symbol).unwrap() <= 2, "{symbol}");
        drop((near, far));
        assert_eq!((fake.violations(), far_fake.violations()), (String::new(), String::new()));
    }
}

/// What the wire has in a slot.
const SLOT: usize = 128 << 10;
const WHOLE: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(20);
