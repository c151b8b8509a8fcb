//! Connections that are over, and waits that run out.

use std::time::Duration;

use qpair_roce::Qpn;
use qpair_roce::cm::{Awaited, CmState, Connect, Event, Offered, OpenError, Timeout};
use qpair_roce::wire::cm::{Message, Pair, Reason, Refused};

use super::states::{Fixture, PEER, PEER_ID, disconnect, ready_to_use, reject, reply, request, sent, wait_request};

#[test]
fn a_closed_connection_is_forgotten_after_timewait() {
    let mut fixture = Fixture::passive().accept().after(&[ready_to_use, disconnect]);
    let id = fixture.id;
    let until = fixture.cm.timeout().expect("it lingers");
    assert_eq!(until - fixture.now, Timeout::from_code(17).duration(), "as the request said");
    fixture.cm.handle_timeout(until - Duration::from_nanos(1));
    assert_eq!((fixture.cm.poll_event(), fixture.cm.state(id)), (None, Some(CmState::TimeWait)));
    fixture.cm.handle_timeout(until);
    assert_eq!(fixture.cm.poll_event(), Some(Event::Released { id }));
    assert_eq!((fixture.cm.state(id), fixture.cm.connections(), fixture.cm.timeout()), (None, 0, None));
}

#[test]
fn a_peer_may_use_its_id_and_queue_pair_again_once_they_are_forgotten() {
    let mut fixture = Fixture::passive().accept().after(&[ready_to_use, disconnect]);
    fixture.hear(request());
    let [Message::Reject(reject)] = sent(&mut fixture.cm)[..] else { panic!("REJ") };
    assert_eq!((reject.reason, fixture.cm.poll_event()), (Reason::STALE_CONNECTION, None));
    fixture.cm.handle_timeout(fixture.cm.timeout().expect("it lingers"));
    assert_eq!(fixture.cm.poll_event(), Some(Event::Released { id: fixture.id }));
    fixture.hear(request());
    assert!(matches!(fixture.cm.poll_event(), Some(Event::Requested { .. })));
}

#[test]
fn a_queue_pair_that_the_peer_holds_for_connected_lingers() {
    let mut fixture = Fixture::active();
    let id = fixture.id;
    fixture.hear(reject(Pair { local: 0, ..fixture.ids }, Refused::Request, Reason::STALE_CONNECTION));
    let Some(Event::Rejected { reason, .. }) = fixture.cm.poll_event() else { panic!("rejected") };
    assert_eq!((reason, fixture.cm.state(id)), (Reason::STALE_CONNECTION, Some(CmState::TimeWait)));
}

#[test]
fn a_request_is_taken_back() {
    let mut fixture = Fixture::active();
    fixture.cm.cancel(fixture.id).unwrap();
    let [Message::Reject(reject)] = sent(&mut fixture.cm)[..] else { panic!("REJ") };
    assert_eq!((reject.reason, reject.ids), (Reason::TIMEOUT, Pair { local: fixture.ids.remote, remote: 0 }));
    assert_eq!(reject.info[..8], [0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!((fixture.cm.connections(), fixture.cm.timeout()), (0, None));
}

#[test]
fn forgotten_connections_are_answered_where_the_peer_would_go_on() {
    let mut fixture = Fixture::passive().accept().after(&[ready_to_use, disconnect]);
    fixture.cm.handle_timeout(fixture.cm.timeout().expect("it lingers"));
    let ids = fixture.ids;
    fixture.hear(disconnect(ids));
    let swapped = Pair { local: ids.remote, remote: ids.local };
    assert_eq!(sent(&mut fixture.cm), [Message::Disconnected { ids: swapped, private: [0; 224] }]);
    fixture.hear(reply(ids));
    let unknown = reject(swapped, Refused::Reply, Reason::INVALID_COMMUNICATION_ID);
    assert_eq!(sent(&mut fixture.cm), [unknown]);
    for message in [ready_to_use(ids), wait_request(ids), unknown] {
        fixture.hear(message);
        assert_eq!(sent(&mut fixture.cm), [], "{message:?}");
    }
    assert_eq!(fixture.cm.counters().unknown, 5);
}

#[test]
fn the_id_of_a_closed_connection_is_not_used_again() {
    let mut fixture = Fixture::active().after(&[reply]).ready().after(&[disconnect]);
    let connect = Connect::new(PEER, 7, Offered::new(Qpn(1)));
    let drawn = u64::from(fixture.ids.remote);
    let id = fixture.cm.connect(fixture.now, &connect, &mut || drawn).unwrap();
    let Message::Request(asked) = sent(&mut fixture.cm)[0] else { panic!("REQ") };
    assert!(id != fixture.id && asked.local_id != fixture.ids.remote);
}

#[test]
fn a_request_is_sent_so_often_and_no_more() {
    let mut fixture = Fixture::active();
    let (start, id) = (fixture.now, fixture.id);
    let mut resent = 0;
    let ended = loop {
        let due = fixture.cm.timeout().expect("something is due");
        fixture.cm.handle_timeout(due);
        let [message] = sent(&mut fixture.cm)[..] else { panic!("one message each time") };
        match message {
            Message::Request(_) => resent += 1,
            Message::Reject(reject) => {
                assert_eq!(
                    (reject.reason, reject.info_len, reject.info[..8].to_vec()),
                    (Reason::TIMEOUT, 8, vec![0, 0, 0, 0, 0, 0, 1, 1])
                );
                break due;
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(resent, 15);
    assert_eq!(ended - start, 16 * Timeout::from_code(20).duration());
    assert_eq!(fixture.cm.poll_event(), Some(Event::TimedOut { id, awaited: Awaited::Reply }));
    assert_eq!((fixture.cm.state(id), fixture.cm.timeout(), fixture.cm.poll_event()), (None, None, None));
}

#[test]
fn an_acceptance_is_sent_as_often_as_the_request_says() {
    let mut fixture = Fixture::passive().accept();
    let (start, id) = (fixture.now, fixture.id);
    let mut names = Vec::new();
    while fixture.cm.state(id) != Some(CmState::TimeWait) {
        let due = fixture.cm.timeout().expect("something is due");
        fixture.cm.handle_timeout(due);
        names.extend(sent(&mut fixture.cm).iter().map(|message| matches!(message, Message::Reply(_))));
        fixture.now = due;
    }
    assert_eq!(names, [true, true, true, false], "3 times REP, then REJ");
    assert_eq!(fixture.now - start, 4 * Timeout::from_code(20).duration());
    assert_eq!(fixture.cm.poll_event(), Some(Event::TimedOut { id, awaited: Awaited::ReadyToUse }));
}

#[test]
fn a_disconnect_without_an_answer_ends_nevertheless() {
    let mut fixture = Fixture::active();
    // What the request needed is not taken from what the end may need.
    fixture.cm.handle_timeout(fixture.cm.timeout().expect("an answer is due"));
    let mut fixture = fixture.after(&[reply]).ready().disconnect();
    let id = fixture.id;
    let mut resent = 0;
    while fixture.cm.state(id) == Some(CmState::DisconnectSent) {
        fixture.cm.handle_timeout(fixture.cm.timeout().expect("something is due"));
        resent += sent(&mut fixture.cm).len();
    }
    assert_eq!(resent, 15);
    assert_eq!(fixture.cm.poll_event(), Some(Event::TimedOut { id, awaited: Awaited::Disconnected }));
    fixture.cm.handle_timeout(fixture.cm.timeout().expect("it lingers"));
    assert_eq!(fixture.cm.poll_event(), Some(Event::Released { id }));
}

#[test]
fn a_peer_that_asks_for_time_gets_it_once_per_message() {
    let mut fixture = Fixture::active();
    let (wait, more) = (Timeout::from_code(20).duration(), Timeout::from_code(22).duration());
    assert_eq!(fixture.cm.timeout(), Some(fixture.now + wait));
    fixture.hear(wait_request(fixture.ids));
    let until = fixture.now + wait + more;
    assert_eq!(fixture.cm.timeout(), Some(until));
    fixture.now += wait;
    fixture.hear(wait_request(fixture.ids));
    assert_eq!(fixture.cm.timeout(), Some(until), "not longer");
    fixture.cm.handle_timeout(until);
    assert!(matches!(sent(&mut fixture.cm)[..], [Message::Request(_)]));
    fixture.now = until;
    fixture.hear(wait_request(fixture.ids));
    assert_eq!(fixture.cm.timeout(), Some(until + wait + more), "the message was sent again");
}

#[test]
fn a_peer_can_not_have_this_end_wait_for_hours() {
    let mut fixture = Fixture::active();
    fixture.hear(Message::Wait { ids: fixture.ids, message: Refused::Request, timeout: 31, private: [0; 222] });
    let until = fixture.cm.timeout().expect("an answer is due") - fixture.now;
    assert_eq!(until, Timeout::from_code(20).duration() + Timeout::from_code(24).duration());
}

#[test]
fn a_service_is_offered_once() {
    let mut fixture = Fixture::active();
    assert_eq!(fixture.cm.listen(7), Err(OpenError::ServiceTaken { service_id: 7 }));
    assert!(fixture.cm.unlisten(7) && !fixture.cm.unlisten(7));
    fixture.hear(request());
    let Message::Reject(reject) = sent(&mut fixture.cm)[0] else { panic!("REJ") };
    assert_eq!((reject.reason, reject.ids.remote), (Reason::INVALID_SERVICE_ID, PEER_ID));
}
