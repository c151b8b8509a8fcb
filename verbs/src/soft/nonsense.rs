//! A linked peer that writes nonsense wherever it may write: nothing of it stops this process, or makes it hand out memory
//! twice or not at all.

use std::collections::HashSet;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use super::home::Home;
use super::layout::{KEY_SLOTS, KEYS_OFFSET, KeyEntry, PUBLIC_BLOCKS, QpPublic};
use crate::memory::Segment;
use crate::sync::Ordering;
use crate::{
    Access, CompletionQueue, Context, ProtectionDomain, QpBuilder, QpState, Qpn, QueuePair, RemoteSlice, RevokeBlocked,
    SharedReceiveQueue, WcStatus,
};

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % limit as u64) as usize
    }
}

/// Writes a word into a segment, as a process would that does not care.
fn scribble(segment: &Segment, offset: usize, random: &mut Random) {
    // SAFETY: words have no invalid pattern. That nobody else minds is what is tested.
    let word = unsafe { segment.at::<u64>(offset / 8 * 8) }.expect("within the segment").as_ptr();
    // SAFETY: mapped as long as `segment` lives.
    let old = unsafe { word.read_volatile() };
    // All of the word, or one half.
    let mask = [u64::MAX, u64::MAX >> 32, u64::MAX << 32][random.below(3)];
    let new = match random.below(10) {
        0 => 0,
        1 | 2 => u64::MAX,
        3 => 1 << 31 | 1 << 63,
        4 => old.wrapping_add(1 | 1 << 32),
        5 => old.wrapping_sub(1 | 1 << 32),
        6 => old ^ (1 << 31 | 1 << 63),
        7 => random.below(300) as u64 * (1 | 1 << 32),
        _ => random.below(usize::MAX) as u64,
    };
    // SAFETY: as above.
    unsafe { word.write_volatile(old & !mask | new & mask) };
}

/// Two devices, linked as if by two processes. One of them lies.
struct Ground {
    honest: ProtectionDomain,
    liar: ProtectionDomain,
}

fn home(pd: &ProtectionDomain) -> &Home {
    pd.node().home()
}

impl Ground {
    fn new() -> Self {
        let open = || Context::open("soft0").unwrap().alloc_pd().unwrap();
        let (honest, liar) = (open(), open());
        let link = honest.node().link_by_socket(home(&liar).id()).unwrap();
        // The liar's addresses are this process's own: the system would carry nonsense out.
        link.vm_refused();
        // Nor would its own thread be safe from what is scribbled into its queues here.
        home(&liar).start_lying();
        Ground { honest, liar }
    }

    /// The offset of a word that the liar may write, and that means something.
    fn place<'a>(&'a self, spots: &[usize], random: &mut Random) -> (&'a Segment, usize) {
        let (honest, liar) = (home(&self.honest), home(&self.liar));
        match random.below(4) {
            0 => (honest.shared(), random.below(4 << 10)), // ring, claims
            1 => (honest.shared(), random.below(256 << 10)),
            2 => (liar.public(), PUBLIC_BLOCKS + random.below(8 << 10)), // gates, counters, receives
            _ => (liar.public(), spots[random.below(spots.len())] + random.below(64)),
        }
    }
}

/// What the honest side has posted, and takes back.
struct Posted {
    next: u64,
    open: HashSet<u64>,
}

impl Posted {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next);
        self.next
    }

    /// Takes completions until none comes for a while, at most `most`.
    fn poll(&mut self, cq: &mut CompletionQueue, most: usize) {
        for _ in 0..most {
            let Some(done) = cq.poll().unwrap() else { return };
            let wr_id = done.wr_id();
            assert!(self.open.remove(&wr_id), "request {wr_id} completes twice");
        }
    }
}

/// Where a queue pair says whether it is inside an access.
fn hazard(home: &Home, number: Qpn) -> *mut u32 {
    let offset = home.member(number.0).expect("it is there").info().public + offset_of!(QpPublic, hazard);
    // SAFETY: words have no invalid pattern.
    unsafe { home.public().at::<u32>(offset) }.expect("within the segment").as_ptr()
}

fn cq(pd: &ProtectionDomain, depth: u32) -> CompletionQueue {
    CompletionQueue::soft(pd.node().home(), depth, None).unwrap()
}

fn builder(pd: &ProtectionDomain, cq: &CompletionQueue) -> QpBuilder {
    pd.rc(cq).send_depth(64).recv_depth(64).retry_count(0).rnr_retry(0).ack_timeout(Duration::from_millis(1))
}

fn post(
    random: &mut Random,
    posted: &mut Posted,
    (pd, qp, srq): (&ProtectionDomain, &mut QueuePair, Option<&mut SharedReceiveQueue>),
    remote: RemoteSlice,
) {
    let memory = |len| pd.alloc(len).unwrap();
    let len = [8, 200, 300, 5000][random.below(4)];
    let wr_id = posted.id();
    let start = 8 * random.below(100) as u64;
    let (part, word) = (remote.slice(start..start + len as u64), remote.slice(start..start + 8));
    let result = match (random.below(7), srq) {
        (0 | 1, Some(srq)) => srq.post(memory(len), wr_id),
        (0 | 1, None) => qp.recv(memory(len)).id(wr_id).post(),
        (2, _) => qp.send(memory(len)).id(wr_id).signaled().post(),
        (3, _) => qp.send_inline(&[1; 100]).id(wr_id).signaled().post(),
        (4, _) => qp.write(memory(len), part).id(wr_id).signaled().post(),
        (5, _) => qp.read(memory(len), part).id(wr_id).signaled().post(),
        _ => qp.fetch_add(memory(8), word, 1).id(wr_id).signaled().post(),
    };
    if let Err(refused) = result {
        assert!(refused.error.is_retryable(), "{refused}");
        posted.open.remove(&wr_id);
    }
}

fn run(seed: u64, ground: &Ground, shared: bool) {
    eprintln!("seed {seed}");
    let Ground { honest, liar } = ground;
    let mut random = Random(seed);
    let (mut cq, liars_cq) = (cq(honest, 4096), cq(liar, 64));

    let mut srq = shared.then(|| honest.create_srq(64).unwrap());
    let ours = match &srq {
        Some(srq) => builder(honest, &cq).srq(srq),
        None => builder(honest, &cq),
    };
    let (ours, theirs) = (ours.build().unwrap(), builder(liar, &liars_cq).build().unwrap());
    let (address, number) = (ours.address(), theirs.number());
    let mut qp = ours.connect(&theirs.address()).unwrap();
    let mut theirs = theirs.connect(&address).unwrap();
    for _ in 0..32 {
        theirs.recv(liar.alloc(5000).unwrap()).post().unwrap();
    }
    let region = liar.expose(8192, Access::REMOTE_ALL).unwrap();
    let remote = region.remote(0..8192);
    let info = home(liar).member(number.0).expect("it is there").info();
    let key = KEYS_OFFSET + (remote.rkey.0 & 0xffff) as usize * size_of::<KeyEntry>();
    let spots = [key, info.wqes, info.wqes + 64, info.receives, info.public, info.cq];
    let mut posted = Posted { next: 0, open: HashSet::new() };
    for _ in 0..20 {
        if random.below(2) == 0 {
            let (segment, offset) = ground.place(&spots, &mut random);
            scribble(segment, offset, &mut random);
        }
        post(&mut random, &mut posted, (honest, &mut qp, srq.as_mut()), remote);
        posted.poll(&mut cq, random.below(20));
    }
    // A peer that stays inside an access would be waited for.
    // SAFETY: mapped as long as its device lives, and the liar is idle.
    unsafe { hazard(home(liar), number).write_volatile(0) };
    qp.to_error().unwrap();
    if !shared {
        let start = Instant::now();
        while !posted.open.is_empty() {
            posted.poll(&mut cq, 100);
            assert!(start.elapsed() < Duration::from_secs(10), "{:?} do not come back", posted.open);
        }
    }
    posted.poll(&mut cq, 1000);
    drop((qp, theirs));
}

#[test]
fn a_peer_that_lies_does_no_harm() {
    let ground = Ground::new();
    for seed in 0..2000 {
        run(seed, &ground, false);
    }
}

#[test]
fn a_peer_that_lies_does_no_harm_to_a_shared_receive_queue() {
    let ground = Ground::new();
    for seed in 10_000..12_000 {
        run(seed, &ground, true);
    }
}

#[test]
fn a_peer_that_talks_nonsense_is_waited_for_as_any_other() {
    let ground = Ground::new();
    let (cq, liars_cq) = (cq(&ground.honest, 16), cq(&ground.liar, 16));
    let (ours, theirs) =
        (builder(&ground.honest, &cq).build().unwrap(), builder(&ground.liar, &liars_cq).build().unwrap());
    let (address, liars_number) = (ours.address(), theirs.number());
    let region = ground.honest.expose(64, Access::REMOTE_ALL).unwrap();
    let qp = ours.connect(&theirs.address()).unwrap();
    let link = ground.liar.node().link_to(&address.soft.unwrap()).unwrap();
    let hazard = hazard(home(&ground.liar), liars_number);
    // SAFETY: mapped as long as its device lives, and the liar is idle.
    unsafe { hazard.write_volatile(1) };
    rustix::io::write(link.socket().expect("it leads to another process"), b"nonsense").unwrap();
    let start = Instant::now();
    while qp.state() != QpState::Err {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody listens");
        std::thread::yield_now();
    }
    let failed = region.try_revoke().unwrap_err();
    assert_eq!(failed.why, RevokeBlocked::PeerAccess);
    // SAFETY: as above.
    unsafe { hazard.write_volatile(2) };
    failed.region.try_revoke().expect("the peer has left");
}

/// An atomic there would tear, or kill this process on some machines.
#[test]
fn a_word_that_a_liar_has_lie_across_two_is_refused() {
    let [(near_ctx, honest), (far_ctx, liar)] = [(); 2].map(|()| {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        (ctx, pd)
    });
    honest.node().link_by_socket(home(&liar).id()).unwrap();
    let (mut near_cq, far_cq) = (near_ctx.create_cq(16).unwrap(), far_ctx.create_cq(16).unwrap());
    let prepared =
        (honest.rc(&near_cq).build().unwrap(), liar.rc(&far_cq).access(Access::REMOTE_ATOMIC).build().unwrap());
    let (at, at_liar) = (prepared.0.address(), prepared.1.address());
    let (mut qp, _peer) = (prepared.0.connect(&at_liar).unwrap(), prepared.1.connect(&at).unwrap());
    let region = liar.expose(64, Access::REMOTE_ATOMIC).unwrap();
    for slot in 0..KEY_SLOTS {
        // SAFETY: the entry is made of atomics.
        let entry = unsafe { home(&liar).public().at::<KeyEntry>(KEYS_OFFSET + slot * size_of::<KeyEntry>()) }.unwrap();
        // SAFETY: mapped as long as the device is open.
        let entry = unsafe { entry.as_ref() };
        if entry.tag.load(Ordering::SeqCst) != 0 {
            entry.arena_offset.fetch_add(4, Ordering::SeqCst);
        }
    }
    let word = honest.alloc(8).unwrap();
    qp.fetch_add(word, region.remote(8..16), 1).signaled().post().unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing completes");
        if let Some(done) = near_cq.poll().unwrap() {
            break assert_eq!(done.status(), WcStatus::REM_ACCESS_ERR);
        }
    }
}
