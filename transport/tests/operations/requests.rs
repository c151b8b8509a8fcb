//! Active messages, and requests with their answers.

use std::collections::VecDeque;

use super::*;

#[derive(Default)]
struct Served {
    arguments: Vec<(u64, usize)>,
    answered: usize,
}

fn note(served: &mut Served, _worker: &mut Worker, active: qpair_transport::ActiveMessage) {
    served.arguments.push((active.argument, active.message.len()));
}

fn echo(served: &mut Served, worker: &mut Worker, request: Request) {
    served.answered += 1;
    worker.respond(request.reply, request.message.into_bytes()).unwrap();
}

#[test]
fn active_messages_come_to_their_handlers_in_order_whatever_their_length() {
    let mut pair = Pair::new();
    let mut handlers = Handlers::new();
    handlers.on_message(HandlerId(9), note);
    let lengths = [5, LONG, 6, 2 * LONG, 0];
    for (number, len) in lengths.into_iter().enumerate() {
        pair.a.send_active(pair.ep_a, HandlerId(9), number as u64, pattern(len, 1)).unwrap();
    }
    pair.a.send_active(pair.ep_a, HandlerId(10), 7, &b"to nobody"[..]).unwrap();
    let mut served = Served::default();
    let mut other = None;
    let start = std::time::Instant::now();
    while served.arguments.len() < lengths.len() || other.is_none() {
        pair.a.poll().unwrap();
        if let Some(event) = pair.b.poll().unwrap() {
            other = handlers.dispatch(event, &mut served, &mut pair.b).or(other);
        }
        assert!(start.elapsed() < LIMIT, "{:?}", served.arguments);
    }
    assert!(served.arguments.into_iter().eq((0..).zip(lengths)));
    assert!(matches!(other, Some(Event::Active { handler: HandlerId(10), argument: 7, .. })));
}

#[test]
fn requests_that_can_not_be_declined_now_are_given_back() {
    const COUNT: usize = 10;
    let mut pair = Pair::with(Config::default().window(1), Config::default().window(32).queue_limit(1));
    let handlers = Handlers::<()>::new();
    for _ in 0..COUNT {
        pair.a.request(pair.ep_a, HandlerId(2), &b"?"[..]).unwrap();
    }
    // As long as the one does not poll, there is room for few words to it.
    let (mut came, mut again, start) = (0, VecDeque::new(), std::time::Instant::now());
    while came < COUNT {
        if let Some(event @ Event::Request(_)) = pair.b.poll().unwrap() {
            came += 1;
            again.extend(handlers.dispatch(event, &mut (), &mut pair.b));
        }
        assert!(start.elapsed() < LIMIT, "{came} came");
    }
    assert!(!again.is_empty() && again.iter().all(|event| matches!(event, Event::Request(_))));
    let mut declined = 0;
    while declined < COUNT {
        if let Some(event) = pair.a.poll().unwrap() {
            assert!(matches!(event, Event::Failed { error: OpError::Declined(0), .. }), "{}", brief(&event));
            declined += 1;
        }
        // `Sent` among them.
        if let Some(event) = pair.b.poll().unwrap().or_else(|| again.pop_front()) {
            again.extend(
                handlers.dispatch(event, &mut (), &mut pair.b).filter(|event| matches!(event, Event::Request(_))),
            );
        }
        assert!(start.elapsed() < LIMIT, "{declined} were declined");
    }
    assert!(again.is_empty());
}

#[test]
fn each_request_gets_its_own_answer() {
    let mut pair = Pair::new();
    let mut handlers = Handlers::new();
    handlers.on_request(HandlerId(1), echo);
    let mut expected = Vec::new();
    for (number, len) in [3, LONG, 40, 0, 2 * LONG, 9000].into_iter().enumerate() {
        let data = pattern(len, number);
        expected.push((pair.a.request(pair.ep_a, HandlerId(1), data.clone()).unwrap(), data));
    }
    let unknown = pair.a.request(pair.ep_a, HandlerId(2), &b"?"[..]).unwrap();
    let mut served = Served::default();
    let mut of_a = Vec::new();
    let start = std::time::Instant::now();
    while of_a.len() < expected.len() + 1 {
        of_a.extend(pair.a.poll().unwrap());
        if let Some(event) = pair.b.poll().unwrap() {
            handlers.dispatch(event, &mut served, &mut pair.b);
        }
        assert!(start.elapsed() < LIMIT, "{} answers", of_a.len());
    }
    assert_eq!(served.answered, expected.len());
    for event in of_a {
        match event {
            Event::Response { op, ep, message, returned: Returned::Payload(Payload::Bytes(sent)) } => {
                let (_, data) = expected.iter().find(|(asked, _)| *asked == op).unwrap();
                assert!(ep == pair.ep_a && message == data && sent == data);
            }
            Event::Failed { op, error: OpError::Declined(why), .. } => {
                assert_eq!((op, why), (unknown, Handlers::<()>::UNKNOWN));
            }
            other => panic!("{}", brief(&other)),
        }
    }
    assert_eq!(pair.a.metrics().requests, 0);
}

#[test]
fn a_request_ends_with_its_connection_or_its_deadline_and_a_late_answer_is_nobodys() {
    let mut pair = Pair::new();
    let late = pair.a.request(pair.ep_a, HandlerId(1), &b"slow"[..]).unwrap();
    pair.a.set_deadline(late, SOON);
    let (of_a, of_b) = pair.until(|a, b| is_failed(a, late) && !b.is_empty());
    let (error, returned) = failed(of_a, late).unwrap();
    assert_eq!(error, OpError::TimedOut);
    assert!(matches!(returned, Returned::Payload(Payload::Bytes(bytes)) if bytes == b"slow"[..]));
    let Some(Event::Request(request)) = of_b.into_iter().next() else { panic!("no request") };
    pair.b.respond(request.reply, &b"too late"[..]).unwrap();
    pair.until(|_, _| true);
    let never = pair.a.request(pair.ep_a, HandlerId(1), pattern(LONG, 2)).unwrap();
    pair.until(|_, b| b.iter().any(|event| matches!(event, Event::Request(_))));
    let start = std::time::Instant::now();
    while pair.a.counters().late_answers == 0 {
        assert!(pair.a.poll().unwrap().is_none() && pair.b.poll().unwrap().is_none());
        assert!(start.elapsed() < LIMIT, "the late answer did not come");
    }
    pair.b.abort(pair.ep_b);
    let (of_a, _) = pair.until(|a, _| a.iter().any(is_closed));
    let (error, returned) = failed(of_a, never).unwrap();
    assert_eq!(error, OpError::Closed);
    assert!(matches!(returned, Returned::Payload(Payload::Bytes(bytes)) if bytes.len() == LONG));
    let refused = pair.a.request(pair.ep_a, HandlerId(1), &b"gone"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::Unknown(_)));
    assert_eq!(pair.a.metrics().requests, 0);
}

#[test]
fn whatever_number_a_request_is_declined_with_comes_back() {
    let mut pair = Pair::new();
    for why in [0, 1, u16::MAX - 1, u16::MAX] {
        let asked = pair.a.request(pair.ep_a, HandlerId(1), &b"please"[..]).unwrap();
        let (_, of_b) = pair.until(|_, b| b.iter().any(|event| matches!(event, Event::Request(_))));
        let request = of_b.into_iter().find_map(|event| match event {
            Event::Request(request) => Some(request),
            _ => None,
        });
        pair.b.decline(request.unwrap().reply, why).unwrap();
        let (of_a, _) = pair.until(|a, _| is_failed(a, asked));
        assert_eq!(failed(of_a, asked).unwrap().0, OpError::Declined(why));
    }
}
