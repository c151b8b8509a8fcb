//! Two queue pairs on the network of this host's loopback interface.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use qpair_verbs::{
    Access, CompletionQueue, Context, ExposedRegion, Gid, Prepared, ProtectionDomain, QpAddress, QueuePair, WcStatus,
};

/// Within this time something happens that is waited for.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A device with a completion queue.
pub struct Device {
    pub ctx: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
}

/// A connection: its near end and its far end, each on a device of its own.
pub struct Pair {
    pub near: Device,
    pub far: Device,
    pub qp: QueuePair,
    pub far_qp: QueuePair,
    pub region: ExposedRegion,
}

impl Device {
    pub fn open() -> Self {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(1024).unwrap();
        Device { ctx, pd, cq }
    }

    /// The row of the GID table of an address.
    pub fn row(&self, address: [u8; 4]) -> u32 {
        let gid = Gid::from(IpAddr::from(address));
        let port = self.ctx.port(1).unwrap();
        port.gids.iter().find(|row| row.gid == gid).expect("loopback is up").index
    }

    /// A queue pair that gives up soon.
    pub fn prepare(&self) -> Prepared {
        let builder = self.pd.rc(&self.cq).gid_index(self.row([127, 0, 0, 1]));
        builder.retry_count(3).ack_timeout(Duration::from_millis(100)).build().unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.ctx.counters(1);
        counters.iter().find(|counter| counter.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
    }

    /// The status of the next completion.
    pub fn status(&mut self) -> WcStatus {
        self.cq.wait_for(LIMIT).expect("a completion").status()
    }
}

/// An address as a peer on another host sees it.
pub fn afar(address: QpAddress) -> QpAddress {
    QpAddress { soft: None, ..address }
}

impl Pair {
    pub fn new(bytes: usize) -> Self {
        let (near, far) = (Device::open(), Device::open());
        let (a, b) = (near.prepare(), far.prepare());
        let (to_a, to_b) = (afar(a.address()), afar(b.address()));
        let (qp, far_qp) = (a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap());
        let region = far.pd.expose(bytes, Access::REMOTE_ALL).unwrap();
        Pair { near, far, qp, far_qp, region }
    }

    /// Writes bytes and reads them back.
    pub fn works(&mut self, seed: u8) {
        let len = self.region.len();
        let mut data = self.near.pd.alloc(len).unwrap();
        data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u8).wrapping_mul(7).wrapping_add(seed));
        let wanted = data.to_vec();
        let remote = self.region.remote(0..len);
        self.qp.write(data, remote).signaled().post().unwrap();
        assert_eq!(self.near.status(), WcStatus::SUCCESS);
        let room = self.near.pd.alloc(len).unwrap();
        self.qp.read(room, remote).signaled().post().unwrap();
        let done = self.near.cq.wait_for(LIMIT).unwrap();
        assert_eq!(done.status(), WcStatus::SUCCESS);
        assert!(done.into_buffer().unwrap()[..] == wanted[..], "other bytes than were written");
    }
}

/// Waits until `done`.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}
