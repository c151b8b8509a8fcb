//! Messages that the application keeps, or leaves to wait: the memory that they take.

use super::recovery::{to_error, two};
use super::*;

/// A message that is copied leaves its slab posted, whatever the application does with it; of a longer one the slab is lent.
#[test]
fn only_messages_that_are_views_keep_slabs() {
    for shared in [false, true] {
        let (mut worker, ep, _) =
            mirror(if shared { Config::default().shared_receives(4, 8) } else { Config::default() });
        let window = worker.config.window as usize;
        let mut kept = Vec::new();
        for number in 0..10 * window {
            let len = number % 33;
            worker.send_copy(ep, Tag(number as u64), &vec![number as u8; len]).unwrap();
            match worker.wait(Some(PATIENCE)).unwrap().unwrap() {
                Event::Received { message, tag: Tag(tag), .. } => {
                    assert_eq!(tag, number as u64);
                    assert!(message == vec![number as u8; len]);
                    kept.push(message);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(worker.slabs.lent(), 0);
        }
        worker.send_copy(ep, Tag(0), &[1; 33]).unwrap();
        let Some(Event::Received { message, .. }) = worker.wait(Some(PATIENCE)).unwrap() else { panic!("no message") };
        assert!(message == [1; 33] && worker.slabs.lent() == 1);
    }
}

/// A peer that comes again and again fills no memory with messages that nobody receives, and none of them is lost.
#[test]
fn messages_of_connections_that_ended_take_so_much_memory_and_no_more() {
    let mut worker = Worker::new(Config::default().unmatched(Unmatched::Hold).window(4).endpoints(2)).unwrap();
    let (rounds, each) = (40, 4);
    let mut handed_out = Vec::new();
    for round in 0..rounds {
        let (ep, _) = join(&mut worker, |worker, address| worker.connect(address));
        for number in 0..each {
            worker.send(ep, Tag(round * each + number), vec![7; 10]).unwrap();
        }
        worker.close(ep);
        let mut ended = 0;
        while ended < 2 {
            match worker.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
                Event::Received { tag, message, .. } if message == [7; 10] => handed_out.push(tag.0),
                Event::Closed { .. } => ended += 1,
                Event::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let most = worker.config.capacity().1;
    assert!(handed_out.iter().copied().eq(0..rounds * each - most), "the oldest are handed out, in their order");
    for tag in rounds * each - most..rounds * each {
        let receive = worker.recv(Source::Any, Tag(tag)).unwrap();
        match worker.poll().unwrap() {
            Some(Event::Matched { op, message, .. }) => assert!(op == receive && message == [7; 10]),
            other => panic!("{other:?}"),
        }
    }
    worker.reclaim(usize::MAX);
    assert_eq!(worker.slabs.lent(), 0, "nothing is lent of a short message that was taken");
}

/// Another connection's messages never cease, so that the worker is never idle; and the messages go to receives, or do not.
#[test]
fn what_was_dropped_is_posted_again_though_there_is_always_something_to_do() {
    for is_plain in [true, false] {
        let (mut worker, busy, _) = mirror(Config::default().window(8));
        let (other, _) = join(&mut worker, |worker, address| worker.connect(address));
        if !is_plain {
            worker.recv(Source::Any, Tag(99)).unwrap();
        }
        assert_eq!(worker.inbox.is_plain(), is_plain);
        let (start, mut received) = (Instant::now(), 0);
        while received < 100 {
            while worker.send_copy(busy, Tag(1), b"short").is_ok() {}
            let _ = worker.send_copy(other, Tag(2), &[7; 1000]);
            match worker.poll().unwrap() {
                Some(Event::Received { tag, message, .. }) => {
                    received += u32::from(tag == Tag(2) && message == [7; 1000])
                }
                None => {}
                other => panic!("{other:?}"),
            }
            assert!(start.elapsed() < PATIENCE, "only {received} of 100");
        }
    }
}

#[test]
fn short_messages_that_are_lent_and_kept_hold_their_sender_up() {
    let most = 2000;
    for lends in [false, true] {
        let (mut worker, ep, _) = mirror(Config::default().window(8).lend_short(lends));
        let mut kept = Vec::new();
        let send = |worker: &mut Worker, kept: &mut Vec<Message>| {
            let is_sent = worker.send_copy(ep, Tag(1), b"short").is_ok();
            for _ in 0..8 {
                if let Some(Event::Received { message, .. }) = worker.poll().unwrap() {
                    assert!(message == *b"short");
                    kept.push(message);
                }
            }
            is_sent
        };
        let sent = (0..most).filter(|_| send(&mut worker, &mut kept)).count();
        assert_eq!(kept.len(), sent);
        // As many times the slabs of one connection as there may be, where two would have more.
        let slabs = 8 + crate::engine::RESERVED_SLOTS as usize;
        assert!(if lends { (7 * slabs..=8 * slabs).contains(&sent) } else { sent == most }, "{sent}");
        kept.clear();
        assert!((0..most).filter(|_| send(&mut worker, &mut kept)).count() > 0, "it goes on when they are let go");
    }
}

/// Whatever a connection ended with.
#[test]
fn slabs_are_counted_as_long_as_they_are_there() {
    let strange = [7; 40];
    let ends: [&[u8]; 3] = [&[], &[1, 2, 3], &strange];
    for (config, bytes) in [Config::default(), Config::default().shared_receives(4, 8)]
        .into_iter()
        .flat_map(|config| ends.map(|end| (config.clone(), end)))
    {
        let (mut worker, ep, _) = mirror(config.clone());
        for number in 0..3 {
            worker.send_copy(ep, Tag(number), &[1; 100]).unwrap();
            assert!(matches!(worker.wait(Some(PATIENCE)).unwrap(), Some(Event::Received { .. })));
        }
        match bytes {
            [] => worker.close(ep),
            forged => {
                let endpoint = worker.endpoints.get_mut(ep).unwrap();
                endpoint.qp.as_mut().unwrap().send_inline(forged).post().unwrap();
            }
        }
        let mut closed = 0;
        while closed < 2 {
            let event = worker.wait(Some(PATIENCE)).unwrap().expect("both ends are told");
            closed += usize::from(matches!(event, Event::Closed { .. }));
        }
        let start = Instant::now();
        while !worker.slabs.has_all() {
            worker.poll().unwrap();
            worker.reclaim(100);
            assert!(start.elapsed() < PATIENCE, "{bytes:?} {config:?}: {:?}", worker.slabs);
        }
    }
}

/// The peer's window is as if nobody had anything of it, each time another queue pair takes the place of one that failed.
#[test]
fn messages_that_are_kept_while_connections_recover_take_so_much_memory_and_no_more() {
    let window = 8;
    let config = || Config::default().unmatched(Unmatched::Hold).recovery(PATIENCE).window(window);
    let (mut a, at_a, mut b, _) = two(config(), config());
    let most = 10 * (window + crate::engine::RESERVED_SLOTS) as usize;
    let (begin, mut filled, mut recovered) = (Instant::now(), 0, 0);
    let reason = loop {
        assert!(begin.elapsed() < PATIENCE && b.slabs.lent() < most, "{} after {recovered} times", b.slabs.lent());
        a.poll().unwrap();
        match b.poll().unwrap() {
            Some(Event::Closed { reason, .. }) => break reason,
            // Beyond what waits of connections that have ended.
            Some(Event::Received { .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
        if a.counters().recovered.min(b.counters().recovered) < recovered {
            continue;
        }
        // There may be no room for it.
        let _ = a.send_copy(at_a, Tag(1), &[1; 40]);
        if b.slabs.lent() >= filled + window as usize {
            (filled, recovered) = (b.slabs.lent(), recovered + 1);
            to_error(&mut a, at_a);
        }
    };
    assert!(matches!(reason, CloseReason::PeerLost(_)) && recovered > 1, "{reason} after {recovered} times");
}
