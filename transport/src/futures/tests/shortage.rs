//! A process that has no descriptor left, which is one of its own: the limit is for all of it.

use std::fs::File;
use std::os::fd::AsRawFd;

use qpair_fake_ibverbs::process::in_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// Polls of all, far more than a driver makes before it sleeps.
const TURNS: usize = 2000;

#[test]
fn a_driver_goes_on_where_there_is_no_descriptor_left_to_sleep_with() {
    in_process(&[], || {
        let (a, b) = (worker(), worker());
        let others = driven(&[&a, &b]);
        let main = async move {
            let (ep, back) = joined(&a, &b).await;
            let whole = getrlimit(Resource::Nofile);
            let lowest = File::open("/dev/null").unwrap().as_raw_fd();
            setrlimit(Resource::Nofile, Rlimit { current: Some(lowest as u64), ..whole }).unwrap();
            assert!(File::open("/dev/null").is_err());
            for number in 0..3 {
                let mut turns = TURNS;
                std::future::poll_fn(|context| {
                    turns -= 1;
                    context.waker().wake_by_ref();
                    if turns == 0 { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                a.send(ep, Tag(number), &b"on and on"[..]).await.unwrap();
                assert!(b.recv(back, Tag(number)).await.unwrap().1 == *b"on and on");
            }
            setrlimit(Resource::Nofile, whole).unwrap();
        };
        run(main, others);
    });
}
