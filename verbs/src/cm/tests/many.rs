//! Many connections, and many at once.

use super::ground::{LIMIT, accept, assert_fails, at, sides, soon};
use crate::{CmError, Ended, RejectReason};

#[test]
fn a_hundred_connections_are_made_at_once() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking: Vec<_> = (0..100)
        .map(|rank: u8| {
            let options = soon().private(&[rank]);
            a.ctx.connect_with(at(listener.port()), a.rc(), &options).unwrap()
        })
        .collect();
    let mut seen = [false; 100];
    let mut accepting: Vec<_> = (0..100)
        .map(|_| {
            let request = listener.wait(LIMIT).unwrap();
            let rank = request.private_data()[0];
            assert!(!std::mem::replace(&mut seen[usize::from(rank)], true), "{rank} came twice");
            request.accept(b.rc(), &[rank]).unwrap()
        })
        .collect();
    let near: Vec<_> = asking.iter_mut().map(|asking| asking.wait(LIMIT).unwrap()).collect();
    let far: Vec<_> = accepting.iter_mut().map(|accepting| accepting.wait(LIMIT).unwrap()).collect();
    for (rank, end) in (0..).zip(&near) {
        assert_eq!(end.private_data[0], rank);
    }
    drop(far);
    for end in &near {
        assert_eq!(end.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
        assert_fails(end);
    }
}

#[test]
fn requests_that_wait_are_refused_with_their_listener() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking: Vec<_> = (0..10).map(|_| a.ask(listener.port())).collect();
    let taken = listener.wait(LIMIT).unwrap();
    drop(listener);
    // The one that was taken is another's by now. Which one came first the network decides.
    let mut accepting = taken.accept(b.rc(), b"").unwrap();
    let mut near = Vec::new();
    for asking in &mut asking {
        match asking.wait(LIMIT) {
            Ok(end) => near.push(end),
            Err(CmError::Rejected { reason, .. }) => {
                assert!([RejectReason::CONSUMER, RejectReason::INVALID_SERVICE_ID].contains(&reason), "{reason}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(near.len(), 1);
    drop(accepting.wait(LIMIT).unwrap());
}

#[test]
fn threads_wait_at_one_listener() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    drop(accept(&b, &listener).wait(LIMIT).unwrap());
                }
            });
        }
        for _ in 0..20 {
            drop(a.ask(listener.port()).wait(LIMIT).unwrap());
        }
    });
}
