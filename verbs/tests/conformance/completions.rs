//! What a completion lends and gives back, whatever is done with it.

use qpair_verbs::{Access, CompletionQueue, ExposedRegion, Local, ProtectionDomain, QueuePair};

use crate::harness::{Env, take};

one_sided! {
    a_forgotten_completion_frees_its_memory_once,
    a_full_queue_that_retires_memory_has_not_run_over,
}

/// A queue pair that writes, what it writes to, and its protection domain.
struct Writer {
    pd: ProtectionDomain,
    qp: QueuePair,
    _far: QueuePair,
    target: ExposedRegion,
}

impl Writer {
    fn new(env: &Env, cq: &CompletionQueue, depth: u32) -> Self {
        let pd = env.ctx().alloc_pd().unwrap();
        let (near, far) = (pd.rc(cq).send_depth(depth).build().unwrap(), pd.rc(cq).build().unwrap());
        let (here, there) = (near.address(), far.address());
        let (qp, _far) = (near.connect(&there).unwrap(), far.connect(&here).unwrap());
        let target = pd.expose(4096, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        Writer { pd, qp, _far, target }
    }

    fn write_inline(&mut self, id: u64) {
        self.qp.write_inline(&[1; 8], self.target.remote(0..8)).id(id).signaled().post().unwrap();
    }

    fn write_buffer(&mut self, fill: u8) {
        let mut buf = self.pd.alloc(4096).unwrap();
        buf.fill(fill);
        self.qp.write(buf, self.target.remote(0..4096)).post().unwrap();
    }
}

fn a_forgotten_completion_frees_its_memory_once(env: &Env) {
    let mut cq = env.ctx().create_cq(64).unwrap();
    let mut writer = Writer::new(env, &cq, 4);
    writer.write_buffer(1);
    writer.write_inline(7);
    let mut done = take(&mut cq);
    assert_eq!(done.wr_id(), 7);
    assert!(matches!(done.next_retired(), Some(Local::Buffer(_))));
    std::mem::forget(done);
    assert!(cq.poll().unwrap().is_none(), "the same completion comes twice");
    // All slots are free again, and give each its own memory.
    for fill in 2..5 {
        writer.write_buffer(fill);
    }
    writer.write_inline(8);
    let mut done = take(&mut cq);
    assert_eq!(done.wr_id(), 8);
    for fill in 2..5 {
        let Some(Local::Buffer(buf)) = done.next_retired() else { panic!("buffer {fill} does not come back") };
        assert!(buf.iter().all(|&byte| byte == fill));
    }
    assert!(done.next_retired().is_none());
}

fn a_full_queue_that_retires_memory_has_not_run_over(env: &Env) {
    let mut cq = env.ctx().create_cq(16).unwrap();
    let depth = cq.depth();
    let mut writer = Writer::new(env, &cq, 4 * depth);
    for turn in 0..3 {
        writer.write_buffer(turn);
        for id in 0..depth {
            writer.write_inline(id.into());
        }
        for id in 0..depth {
            let done = take(&mut cq);
            assert_eq!((done.wr_id(), done.status().is_success()), (id.into(), true), "turn {turn}");
        }
        assert!(cq.poll().unwrap().is_none());
    }
}
