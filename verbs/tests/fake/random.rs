//! Random calls against random failures: nothing is done wrong, nothing is left, and each buffer comes back once.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use qpair_fake_ibverbs::control::{Completion, Device};
use qpair_verbs::{Access, Buffer, ExposedRegion, Local, QueuePair};

use crate::ground::{Ground, NAME, in_fake};

/// What a program may do, and what may happen to it.
#[derive(Clone, Debug)]
enum Step {
    Write {
        signaled: bool,
    },
    Read,
    Send {
        inline: bool,
    },
    Receive {
        far: bool,
    },
    List,
    Atomic,
    Poll,
    /// Closes both queue pairs, and connects others.
    Reconnect,
    Expose,
    Revoke,
    /// Lets the n-th call of a function fail.
    Fail {
        symbol: usize,
        nth: u32,
        errno: usize,
    },
    /// Changes the n-th completion.
    Forge {
        nth: u32,
        status: u32,
        twice: bool,
    },
    Inject {
        wr_id: u64,
        status: u32,
    },
    Exaggerate(i32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<bool>().prop_map(|signaled| Step::Write { signaled }),
        1 => Just(Step::Read),
        3 => any::<bool>().prop_map(|inline| Step::Send { inline }),
        3 => any::<bool>().prop_map(|far| Step::Receive { far }),
        1 => Just(Step::List),
        1 => Just(Step::Atomic),
        6 => Just(Step::Poll),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Expose),
        1 => Just(Step::Revoke),
        3 => (0..FAILING.len(), 1u32..4, 0..ERRNOS.len())
            .prop_map(|(symbol, nth, errno)| Step::Fail { symbol, nth, errno }),
        1 => (1u32..4, 0u32..30, any::<bool>()).prop_map(|(nth, status, twice)| Step::Forge { nth, status, twice }),
        // With the highest bits of a number that no queue pair has.
        1 => (any::<u64>(), 0u32..30).prop_map(|(wr_id, status)| Step::Inject { wr_id: wr_id | 1 << 62, status }),
        1 => (17i32..2000).prop_map(Step::Exaggerate),
    ]
}

const FAILING: [&str; 14] = [
    "ibv_create_qp_ex",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_reg_mr",
    "ibv_wr_complete",
    "ibv_post_send",
    "post_send_wr",
    "post_recv_wr",
    "ibv_poll_cq",
    "ibv_dereg_mr",
    "ibv_query_port",
    "ibv_create_ah",
    "ibv_set_ece",
    "ibv_req_notify_cq",
];
const ERRNOS: [i32; 5] = [libc::ENOMEM, libc::EINVAL, libc::EIO, libc::EBUSY, libc::EPERM];

/// A program, and the addresses of the buffers that it posted and did not get back.
struct World {
    ground: Ground,
    pair: Option<(QueuePair, QueuePair)>,
    region: Option<ExposedRegion>,
    posted: HashSet<usize>,
}

impl World {
    fn new(extended: bool) -> World {
        let mut ground = Ground::with(&[("qp_ex", extended.into())]);
        // Room for all that is posted.
        ground.cq = ground.ctx.create_cq(512).unwrap();
        let pair = Some(ground.pair());
        let region = Some(ground.exposed(64));
        World { ground, pair, region, posted: HashSet::new() }
    }

    fn take(&mut self, step: &Step) {
        let fake = &self.ground.fake;
        match step {
            Step::Poll => self.poll(),
            Step::Reconnect => self.reconnect(),
            Step::Expose => self.region = self.ground.pd.expose(64, Access::REMOTE_ALL).ok(),
            // One that the device does not give back is refused, and dropped then.
            Step::Revoke => drop(self.region.take().map(ExposedRegion::try_revoke)),
            Step::Fail { symbol, nth, errno } => fake.fail(FAILING[*symbol], *nth, ERRNOS[*errno]).unwrap(),
            Step::Forge { nth, status, twice } => {
                let forged = Completion::new().status(*status);
                fake.forge(*nth, if *twice { forged.twice() } else { forged }).unwrap();
            }
            Step::Inject { wr_id, status } => {
                fake.inject(0, Completion::new().wr_id(*wr_id).status(*status)).unwrap();
            }
            Step::Exaggerate(count) => fake.poll_returns(*count).unwrap(),
            _ => self.post(step),
        }
    }

    fn post(&mut self, step: &Step) {
        let len = if matches!(step, Step::Atomic) { 8 } else { 64 };
        let Ok(buffer) = self.ground.pd.alloc(len) else { return };
        let address = buffer.as_ptr().addr();
        assert!(!self.posted.contains(&address), "memory that is posted was given out again");
        let (Some((a, b)), Some(region)) = (&mut self.pair, &self.region) else { return };
        let remote = region.remote(0..len);
        let result = match step {
            Step::Write { signaled: true } => a.write(buffer, remote).signaled().post(),
            Step::Write { signaled: false } => a.write(buffer, remote).post(),
            Step::Read => a.read(buffer, remote).signaled().post(),
            Step::Send { inline: true } => return drop(a.send_inline(&buffer[..8]).signaled().post()),
            Step::Send { inline: false } => a.send(buffer).signaled().post(),
            Step::Receive { far: true } => b.recv(buffer).post(),
            Step::Receive { far: false } => a.recv(buffer).post(),
            Step::List => a.write(vec![buffer], remote).signaled().post(),
            _ => a.fetch_add(buffer, remote, 1).signaled().post(),
        };
        match result {
            Ok(()) => assert!(self.posted.insert(address)),
            Err(rejected) => assert_eq!(address_of(&rejected.memory), Some(address), "{}", rejected.error),
        }
    }

    /// Polls until there is nothing; each buffer that comes back was posted, and comes once.
    fn poll(&mut self) {
        for _ in 0..10_000 {
            match self.ground.cq.poll() {
                Ok(Some(mut done)) => {
                    let mut back = Vec::new();
                    while let Some(memory) = done.next_retired() {
                        back.push(memory);
                    }
                    back.push(done.into_memory());
                    for address in back.iter().filter_map(address_of) {
                        assert!(self.posted.remove(&address), "memory that was not posted, or came before");
                    }
                }
                Ok(None) => return,
                Err(_) => {}
            }
        }
        panic!("completions without end");
    }

    fn reconnect(&mut self) {
        self.pair = None;
        // What was posted to them is free once the queue was polled.
        self.poll();
        self.posted.clear();
        let prepare = || self.ground.pd.rc(&self.ground.cq).build().ok();
        let (Some(a), Some(b)) = (prepare(), prepare()) else { return };
        let (addr_a, addr_b) = (a.address(), b.address());
        self.pair = a.connect(&addr_b).ok().zip(b.connect(&addr_a).ok());
    }
}

fn address_of(memory: &Local) -> Option<usize> {
    let buffer: &Buffer = match memory {
        Local::Buffer(buffer) => buffer,
        Local::List(list) => list.first()?,
        _ => return None,
    };
    Some(buffer.as_ptr().addr())
}

#[test]
fn random_calls_with_random_failures_do_nothing_wrong_and_leave_nothing() {
    in_fake(|| {
        let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let fake = Device::new(NAME).unwrap();
        let steps = (any::<bool>(), prop::collection::vec(step(), 1..80));
        let outcome = runner.run(&steps, |(extended, steps)| {
            fake.reset().unwrap();
            // What the device did not give back in cases before.
            let before = fake.live();
            let mut world = World::new(extended);
            steps.iter().for_each(|step| world.take(step));
            let World { ground, pair, region, .. } = world;
            drop((pair, region));
            drop(ground);
            prop_assert_eq!(fake.violations(), "");
            let kept = |step: &Step| matches!(step, Step::Fail { symbol, .. } if FAILING[*symbol] == "ibv_dereg_mr");
            if !steps.iter().any(kept) {
                prop_assert_eq!(fake.live(), before, "{}", fake.calls());
            }
            Ok(())
        });
        // It tells the least steps that fail.
        outcome.unwrap_or_else(|error| panic!("{error}"));
    });
}
