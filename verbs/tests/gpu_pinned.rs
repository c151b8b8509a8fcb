//! Memory of the processor that is pinned for GPUs: by who allocates it, and by peers that map it. On a CUDA driver in memory,
//! which finds what is unmapped while it is pinned; each test has GPUs of its own.

use std::time::Duration;

use qpair_fake_cuda::{code, control};
use qpair_verbs::{Access, CompletionQueue, Gpu, GpuError, GpuRegion, MemoryError, ProtectionDomain};

use support::{Far, gpu, hear, introduce, soft, wait_until};

mod support;

/// Registrations that there are on a GPU.
fn registrations(fake: control::Device) -> usize {
    fake.live().matches("registration").count()
}

/// Looks until there are as many registrations.
fn wait_for_registrations(fake: control::Device, count: usize) {
    wait_until(fake, &format!("{count} registrations"), || registrations(fake) == count);
}

#[test]
fn pinned_memory_is_pinned_as_long_as_it_is_mapped() {
    let (gpu, fake) = gpu();
    let (_ctx, pd) = soft();
    let mut buffer = pd.alloc_pinned(LONG, gpu).unwrap();
    assert!(buffer.is_pinned() && !pd.alloc(LONG).unwrap().is_pinned());
    assert_eq!(registrations(fake), 1, "{}", fake.live());
    buffer.fill(7);
    // It is what any buffer is, and stays pinned while a peer may reach it.
    let region = buffer.expose(Access::REMOTE_WRITE).unwrap();
    let slice = region.local(0..LONG);
    drop(pd);
    assert_eq!(registrations(fake), 1);
    let target = soft().1.register_gpu(gpu.alloc(LONG).unwrap(), Access::NONE).unwrap();
    target.local(0..LONG).copy_from(&slice).unwrap();
    drop(slice);
    let buffer = region.revoke().unwrap();
    assert!(buffer.is_pinned());
    drop(buffer);
    assert_eq!(registrations(fake), 0, "{}", fake.live());
    let mut byte = [0];
    target.read(LONG - 1, &mut byte).unwrap();
    assert_eq!((byte, fake.violations()), ([7], String::new()));
}

#[test]
fn small_buffers_share_what_is_pinned() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let [one, other] = [100, 5000].map(|len| pd.alloc_pinned(len, gpu).unwrap());
    assert!(one.is_pinned() && other.is_pinned() && !pd.alloc(100).unwrap().is_pinned());
    assert_eq!((registrations(fake), fake.count("cuMemHostRegister").unwrap()), (1, 1));
    drop((one, pd, ctx));
    assert!(other.is_pinned() && registrations(fake) == 1);
    drop(other);
    assert_eq!((registrations(fake), fake.violations()), (0, String::new()));
}

#[test]
fn what_is_not_pinned_is_told_and_nothing_is_left() {
    let (gpu, fake) = gpu();
    let (_ctx, pd) = soft();
    fake.fail("cuMemHostRegister_v2", 1, code::OUT_OF_MEMORY).unwrap();
    let error = pd.alloc_pinned(LONG, gpu).unwrap_err();
    let MemoryError::Gpu(why) = &error else { panic!("{error}") };
    assert!(matches!(**why, GpuError::NotPinned { len: LONG, .. }), "{why}");
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    assert_eq!(registrations(fake), 0);
    assert!(pd.alloc_pinned(LONG, gpu).unwrap().is_pinned());
    fake.set_attribute(99, 0).unwrap();
    assert!(pd.alloc_pinned(LONG, gpu).unwrap_err().to_string().contains("CUDA_ERROR_NOT_SUPPORTED"));
    assert_eq!(fake.violations(), "");
}

#[test]
fn memory_that_stays_pinned_stays_mapped() {
    let (gpu, fake) = gpu();
    let (_ctx, pd) = soft();
    let buffer = pd.alloc_pinned(LONG, gpu).unwrap();
    let address = buffer.as_ptr() as usize;
    fake.fail("cuMemHostUnregister", 1, code::CONTEXT_IS_DESTROYED).unwrap();
    drop(buffer);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&format!("{address:x}-")), "unmapped, and nothing else may be mapped there");
    assert_eq!(registrations(fake), 1);
}

impl Far {
    /// Writes from a GPU's memory into its first bytes, and reads them back.
    fn exchange(&mut self, own: &GpuRegion, cq: &mut CompletionQueue, len: usize) {
        let target = self.target.slice(0..len as u64);
        self.qp.write(own.local(0..len), target).signaled().post().unwrap();
        self.qp.read(own.local(LONG..LONG + len), target).signaled().post().unwrap();
        for _ in 0..2 {
            cq.wait_for(LIMIT).expect("done in time").ok().expect("a success");
        }
        let mut bytes = [vec![0; len], vec![1; len]];
        own.read(0, &mut bytes[0]).unwrap();
        own.read(LONG, &mut bytes[1]).unwrap();
        assert_eq!(bytes[0], bytes[1]);
    }

    /// Sends from a GPU's memory into its receive.
    fn send(&mut self, own: &GpuRegion, cq: &mut CompletionQueue) {
        self.qp.send(own.local(0..LONG)).signaled().post().unwrap();
        cq.wait_for(LIMIT).expect("done in time").ok().expect("a success");
    }
}

#[test]
#[ignore = "needs a test to start it, as its peer process"]
fn far_process() {
    let (ctx, pd) = soft();
    let cq = ctx.create_cq(8).unwrap();
    let region = pd.expose(LONG, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let mut qp = pd.rc(&cq).build().unwrap();
    qp.recv(pd.alloc(LONG).unwrap()).post().unwrap();
    let Some(_qp) = introduce(qp, region.remote(0..LONG)) else { return };
    while hear().is_some() {}
}

/// Memory of this GPU, in halves.
fn halves(pd: &ProtectionDomain, gpu: Gpu) -> GpuRegion {
    let mut buffer = gpu.alloc(2 * LONG).unwrap();
    buffer.write(0, &[9; LONG]).unwrap();
    pd.register_gpu(buffer, Access::NONE).unwrap()
}

#[test]
fn a_peers_memory_is_pinned_at_the_first_long_copy_and_until_it_is_unmapped() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).unwrap();
    let own = halves(&pd, gpu);
    let mut far = Far::start(&pd, &cq, &[]);
    far.exchange(&own, &mut cq, 100);
    assert_eq!(fake.count("cuMemHostRegister").unwrap(), 0, "short ones go as they are");
    far.exchange(&own, &mut cq, LONG);
    wait_for_registrations(fake, 1);
    far.exchange(&own, &mut cq, LONG);
    assert_eq!(fake.count("cuMemHostRegister").unwrap(), 1);
    far.send(&own, &mut cq);
    wait_for_registrations(fake, 2);
    drop(far);
    wait_until(fake, "unpinned", || {
        // A queue lets go of queue pairs when it is polled.
        let _ = cq.poll().unwrap();
        registrations(fake) == 0
    });
    assert_eq!(fake.violations(), "");
}

#[test]
fn where_a_peers_memory_is_not_pinned_copies_go_on_and_it_is_tried_once() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).unwrap();
    let own = halves(&pd, gpu);
    fake.fail_times("cuMemHostRegister_v2", 1, 0, code::OUT_OF_MEMORY).unwrap();
    let mut far = Far::start(&pd, &cq, &[]);
    far.exchange(&own, &mut cq, LONG);
    wait_until(fake, "tried", || fake.count("cuMemHostRegister").unwrap() > 0);
    far.exchange(&own, &mut cq, LONG);
    assert_eq!((fake.count("cuMemHostRegister").unwrap(), registrations(fake)), (1, 0));
    assert_eq!(fake.violations(), "");
}

/// More than what small buffers share, and more than a page.
const LONG: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);
