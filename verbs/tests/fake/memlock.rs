//! The limit on locked memory is told where it may be the reason, with what to do, and nowhere else.

use qpair_verbs::{CreateError, MemoryError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::ground::{Ground, in_fake};

#[test]
fn too_little_lockable_memory_is_told_with_both_numbers() {
    in_fake(|| {
        let ground = Ground::new();
        limit_locked_memory(4 << 20);
        ground.fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        let error = ground.pd.register(vec![0; 5 << 20]).unwrap_err();
        let MemoryError::Memlock { len, needed, limit } = error else { panic!("{error}") };
        assert_eq!((len, limit), (5 << 20, 4 << 20));
        assert!(needed >= len as u64, "{needed}");
        for part in [limit.to_string(), needed.to_string(), "ulimit -l".to_owned(), "LimitMEMLOCK".to_owned()] {
            assert!(error.to_string().contains(&part), "{part} in {error}");
        }
        // With room enough it is another reason.
        ground.fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        let error = ground.pd.register(vec![0; 4096]).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { .. }), "{error}");
        ground.close();
    });
}

type Make<'a> = &'a dyn Fn() -> Result<(), CreateError>;

#[test]
fn the_limit_on_lockable_memory_is_told_where_queues_are_refused() {
    in_fake(|| {
        let ground = Ground::with(&[("qp_ex", 0)]);
        let queues: [(&str, &str, Make<'_>); 3] = [
            ("ibv_create_qp", "queue pair", &|| ground.pd.rc(&ground.cq).max_inline(0).build().map(drop)),
            ("ibv_create_cq", "completion queue", &|| ground.ctx.create_cq(4).map(drop)),
            ("ibv_create_srq", "shared receive queue", &|| ground.pd.create_srq(4).map(drop)),
        ];
        limit_locked_memory(64 << 10);
        for (symbol, named, make) in queues {
            ground.fake.fail(symbol, 1, libc::ENOMEM).unwrap();
            let error = make().unwrap_err();
            let CreateError::Memlock { what, limit, .. } = error else { panic!("{error}") };
            assert_eq!((what, limit), (named, 64 << 10));
            for part in ["65536", "ulimit -l", "LimitMEMLOCK"] {
                assert!(error.to_string().contains(part), "{part} in {error}");
            }
            ground.fake.fail(symbol, 1, libc::EINVAL).unwrap();
            let error = make().unwrap_err();
            assert!(matches!(error, CreateError::System { .. }), "{error}");
        }
        ground.close();
    });
}

/// The limit does not hold for those who may lock as much as they like, whoever else it is set for.
#[test]
fn the_limit_on_lockable_memory_is_not_told_where_it_does_not_hold() {
    in_fake(|| {
        let effective = capabilities(None).unwrap().effective;
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        if !effective.contains(CapabilitySet::IPC_LOCK) || users.split_whitespace().ne(["0", "0", "4294967295"]) {
            return eprintln!("skipped: the limit holds for this user");
        }
        let ground = Ground::new();
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: getrlimit(Resource::Memlock).maximum })
            .unwrap();
        ground.fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        let error = ground.pd.register(vec![0; 5 << 20]).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { .. }), "{error}");
        ground.fake.fail("ibv_create_cq", 1, libc::ENOMEM).unwrap();
        let error = ground.ctx.create_cq(4).unwrap_err();
        assert!(matches!(error, CreateError::System { .. }), "{error}");
        ground.close();
    });
}

/// Limits what this process may lock, and gives up the right of this thread to lock more.
fn limit_locked_memory(bytes: u64) {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: getrlimit(Resource::Memlock).maximum })
        .unwrap();
}
