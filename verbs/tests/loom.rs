//! The lock-free parts of the devices under loom, which tries every order of their memory accesses.
//!
//! The models stand at the end of each file. Only these files are compiled with loom's atomics; the rest of the crate
//! keeps the standard ones, since it runs on memory that is shared between processes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p qpair-verbs --release --test loom`
#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of each file")]

#[path = "../src/soft/arming.rs"]
mod arming;
#[path = "../src/soft/claims.rs"]
mod claims;
#[path = "../src/soft/entry.rs"]
mod entry;
#[path = "../src/soft/filling.rs"]
mod filling;
#[path = "../src/soft/hazard.rs"]
mod hazard;
#[path = "../src/ibv/recv_slots.rs"]
mod recv_slots;
#[path = "../src/soft/rest.rs"]
mod rest;
#[path = "../src/soft/ring.rs"]
mod ring;
#[path = "../src/ibv/send_queue.rs"]
mod send_queue;
#[path = "../src/sync.rs"]
mod sync;

/// What the rest of the crate is to these files.
mod barrier {
    pub fn registered() -> bool {
        false
    }

    pub fn light(_asymmetric: bool) {
        loom::sync::atomic::fence(super::sync::Ordering::SeqCst);
    }

    pub fn heavy() {
        light(false);
    }
}

mod aside {
    pub fn drop_each<A, T>(all: &mut A, next: impl Fn(&mut A) -> Option<T>, after: impl Fn(&mut A)) {
        while next(all).is_some() {}
        after(all);
    }
}

mod memory {
    /// Memory of a request: what it is does not matter to the models, but which it is.
    #[derive(Debug, Default)]
    pub enum Local {
        #[default]
        None,
        Memory(u64),
    }
}

mod status {
    #[derive(Clone, Copy, Debug, Default)]
    pub struct WcOpcode(u32);
}

mod types {
    #[derive(Clone, Copy, Debug)]
    pub struct Rkey(u32);
}

mod ah {
    #[derive(Debug)]
    pub struct Ah;
}

mod hub {
    pub struct Hub;

    impl Hub {
        pub fn window_gone(&self, _rkey: super::types::Rkey) {}
    }
}

mod mw {
    #[derive(Debug)]
    pub struct Mw;

    impl Mw {
        pub fn bind_ended(&self, _rkey: super::types::Rkey, _success: bool) {}
    }
}
