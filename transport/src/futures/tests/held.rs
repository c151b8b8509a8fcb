//! Peers whose events nobody takes.

use super::*;

/// Of any kind that comes without being asked for.
#[test]
fn a_peer_whose_events_nobody_takes_is_held_up() {
    let few = || Config::default().window(4);
    for kind in 0..3 {
        let (a, b) = (AsyncWorker::new(Worker::new(few()).unwrap()), AsyncWorker::new(Worker::new(few()).unwrap()));
        let others = driven(&[&a, &b]);
        let address = b.listen("127.0.0.1:0").unwrap().local_addr();
        let main = async move {
            let ep = a.connect(address).await.unwrap();
            b.accept().await.unwrap();
            let send = |number: u64| {
                let sent = a.with(|worker| match kind {
                    0 => worker.notify(ep, Notice::Value(number)),
                    1 => worker.send_copy(ep, Tag(number), b""),
                    _ => worker.send_active_copy(ep, HandlerId(1), number, b"few"),
                });
                for side in [&a, &b] {
                    shared::with(side.shared(), shared::Shared::advance).unwrap();
                }
                match sent {
                    Ok(()) => 1,
                    Err(SendCopyError::WouldBlock) => 0,
                    Err(error) => panic!("{error}"),
                }
            };
            let sent = (0..3000).fold(0, |sent, _| sent + send(sent));
            assert!((1024..1300).contains(&sent), "{sent}");
            // Another connection's go all the way.
            let other = a.connect(address).await.unwrap();
            let back = b.accept().await.unwrap();
            let mut receive = Box::pin(b.recv(back, Tag(0)));
            begin(receive.as_mut(), Waker::noop());
            a.send(other, Tag(0), &b"other"[..]).await.unwrap();
            assert!(receive.await.unwrap().1 == *b"other");
            for number in 0..sent {
                match b.next_event().await.unwrap() {
                    Event::Notified { value, .. } => assert_eq!((kind, value), (0, number)),
                    Event::Received { tag, .. } => assert_eq!((kind, tag.0), (1, number)),
                    Event::Active { argument, .. } => assert_eq!((kind, argument), (2, number)),
                    other => panic!("{other:?}"),
                }
            }
            assert!((0..1000).any(|_| send(sent) > 0), "it goes on when they are taken");
        };
        run(main, others);
    }
}

/// Each is opened and over with one message that has nothing for the application.
#[test]
fn a_peer_whose_streams_nobody_takes_is_held_up() {
    let few = || AsyncWorker::new(Worker::new(Config::default().window(4)).unwrap());
    for is_reset in [false, true] {
        let (a, b) = (few(), few());
        let others = driven(&[&a, &b]);
        let address = b.listen("127.0.0.1:0").unwrap().local_addr();
        let main = async move {
            let ep = a.connect(address).await.unwrap();
            b.accept().await.unwrap();
            let mut sent = 0;
            for _ in 0..3000 {
                let over = a.with(|worker| {
                    let stream = worker.open_one_way_stream(ep).unwrap();
                    if is_reset {
                        worker.stream_reset(stream, 7).map(drop)
                    } else {
                        worker.stream_finish(stream, &b""[..]).map(drop)
                    }
                });
                sent += u32::from(over.is_ok());
                for side in [&a, &b] {
                    shared::with(side.shared(), shared::Shared::advance).unwrap();
                }
            }
            let next = || shared::with(b.shared(), shared::Shared::next_event);
            let held = std::iter::from_fn(next).count();
            assert!(sent > 1000 && (1024..1300).contains(&held), "{sent} sent, {held} held");
        };
        run(main, others);
    }
}
