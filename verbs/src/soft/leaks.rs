//! What a peer sits in is leaked, and never another's: also where what logs that for the program panics.

use std::collections::HashSet;

use bytes::Bytes;
use qpair_fake_ibverbs::process::in_process;

use crate::bomb::where_errors_panic;
use crate::sync::Ordering;
use crate::{Access, Context, ProtectionDomain};

/// Bytes of each piece of memory.
const LEN: usize = 4096;

/// Drops a value where errors that are logged panic; true if one was.
fn panics<T>(value: T) -> bool {
    where_errors_panic(|| drop(value)).is_err()
}

/// Where memory lies that is allocated from now on: many times as much as these tests drop.
fn given_out(pd: &ProtectionDomain) -> HashSet<*const u8> {
    let all: Vec<_> = (0..64).map(|_| pd.alloc(LEN).unwrap()).collect();
    all.iter().map(|buffer| buffer.as_ptr()).collect()
}

#[test]
fn memory_that_a_peer_sits_in_is_leaked_whatever_the_log_does() {
    // Memory of other devices of a process waits for those who sit in accesses too.
    in_process(&[], || {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let (a, b) = (pd.rc(&cq).build().unwrap(), pd.rc(&cq).build().unwrap());
        let (at_a, at_b) = (a.address(), b.address());
        let (mut a, b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
        let region = pd.expose(LEN, Access::REMOTE_ALL).unwrap();
        let (posted, bytes) = (pd.alloc(LEN).unwrap(), Bytes::from(vec![7; LEN]));
        let of_bytes = pd.expose_bytes(bytes.clone()).unwrap();
        let taken = [region.remote(0..1).addr as usize, posted.as_ptr().addr()];
        a.recv(posted).post().unwrap();
        // It shows that it is inside an access, and goes on with nothing.
        pd.node().home().member(b.number().0).unwrap().hazard().store(1, Ordering::SeqCst);

        assert!(panics(region), "it is reached still");
        assert!(panics(of_bytes), "they are reached still");
        assert!(!bytes.is_unique());
        // The queue pair goes with the last who holds it.
        assert!(panics((a, cq)), "its receive may be written still");
        let given_out = given_out(&pd);
        assert!(taken.iter().all(|taken| given_out.iter().all(|given| given.addr() != *taken)));
    });
}
