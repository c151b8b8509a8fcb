//! Each test runs in a process of its own, which has the library in memory for its libibverbs and librdmacm.

use std::time::{Duration, Instant};

use qpair_fake_ibverbs::control::{Device, library_path};
pub use qpair_fake_ibverbs::process::in_process;
use qpair_verbs::{Access, CompletionQueue, Context, ExposedRegion, ProtectionDomain, QueuePair, WorkCompletion};

pub use crate::log::Log;

/// Runs the calling test in a process of its own: `case` is a closure that stands in the test, whose name it tells by.
#[track_caller]
pub fn in_fake<F: FnOnce()>(case: F) {
    in_fake_with(&[], case);
}

/// The same with other variables in the environment.
#[track_caller]
pub fn in_fake_with<F: FnOnce()>(variables: &[(&str, &str)], case: F) {
    let library = library_path().expect("the library is built beside the tests");
    let library = library.to_str().expect("a plain path");
    let libraries = [("QPAIR_LIBIBVERBS", library), ("QPAIR_LIBRDMACM", library)];
    in_process(&[&libraries, variables].concat(), case);
}

/// An opened device.
pub struct Ground {
    pub fake: Device,
    pub ctx: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
}

impl Ground {
    pub fn new() -> Ground {
        Ground::with(&[])
    }

    /// One of a device with these settings.
    pub fn with(settings: &[(&str, u64)]) -> Ground {
        let fake = Device::new(NAME).expect("the library is there");
        for (setting, value) in settings {
            fake.set(setting, *value).expect("a setting");
        }
        let ctx = Context::open(NAME).expect("it opens");
        let pd = ctx.alloc_pd().expect("a domain");
        let cq = ctx.create_cq(64).expect("a queue");
        Ground { fake, ctx, pd, cq }
    }

    /// Two connected RC queue pairs.
    pub fn pair(&self) -> (QueuePair, QueuePair) {
        let prepare = || self.pd.rc(&self.cq).build().expect("a queue pair");
        connect(prepare(), prepare())
    }

    /// Memory that peers may do everything with.
    pub fn exposed(&self, len: usize) -> ExposedRegion {
        self.pd.expose(len, Access::REMOTE_ALL).expect("a region")
    }

    /// A buffer of 64 bytes, all of that value.
    pub fn filled(&self, value: u8) -> qpair_verbs::Buffer {
        let mut buffer = self.pd.alloc(64).expect("memory");
        buffer.fill(value);
        buffer
    }

    /// The values of the next completion, which is there.
    #[track_caller]
    pub fn done(&mut self) -> WorkCompletion {
        self.cq.poll().expect("a queue that works").expect("a completion").values()
    }

    /// Asserts that there is no completion.
    #[track_caller]
    pub fn nothing(&mut self) {
        let done = self.cq.poll().expect("a queue that works").map(|done| done.values());
        assert_eq!(done, None);
    }

    /// Closes everything, and asserts that nothing is left and nothing was done wrong.
    #[track_caller]
    pub fn close(self) -> Device {
        let Ground { fake, ctx, pd, cq } = self;
        drop((cq, pd, ctx));
        settled(&fake);
        fake.assert_clean();
        fake
    }
}

/// Waits until nothing is left of a device: its event thread may be the last to let go.
pub fn settled(fake: &Device) {
    wait_until(|| fake.live().is_empty());
}

/// Waits for what another thread does, for ten seconds at most; true if it came.
pub fn wait_until(mut there: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !there() {
        if begin.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

pub fn connect(a: qpair_verbs::Prepared, b: qpair_verbs::Prepared) -> (QueuePair, QueuePair) {
    let (addr_a, addr_b) = (a.address(), b.address());
    (a.connect(&addr_b).expect("a connects"), b.connect(&addr_a).expect("b connects"))
}

/// Positions of lines of a record that begin so, in order; each is there.
#[track_caller]
pub fn places<const N: usize>(calls: &str, beginnings: [&str; N]) -> [usize; N] {
    beginnings.map(|beginning| {
        let place = calls.lines().position(|line| line.starts_with(beginning));
        place.unwrap_or_else(|| panic!("no {beginning} in\n{calls}"))
    })
}

pub const NAME: &str = "test0";
