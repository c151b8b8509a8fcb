//! Each state with each message: the state after it, what is answered, and which event comes.

use std::net::IpAddr;
use std::time::Instant;

use qpair_roce::cm::{
    Accept, CmConfig, CmState, Connect, ConnectionId, ConnectionManager, Event, IdTail, Offered, Timeout,
};
use qpair_roce::wire::cm::{Message, Packet, Pair, Path, Reason, Refused, Reject, Reply, Request, Transport};
use qpair_roce::{Psn, Qpn};

/// A manager with one connection, and what its peer says.
pub struct Fixture {
    pub cm: ConnectionManager,
    pub id: ConnectionId,
    pub now: Instant,
    /// As messages of the peer have them.
    pub ids: Pair,
    drawn: u64,
}

pub const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
pub const PEER_GUID: u64 = 0x0202;
pub const PEER_ID: u32 = 0x77;
const SERVICE: u64 = 7;
const OWN_QPN: Qpn = Qpn(0x11);
const PEER_QPN: Qpn = Qpn(0x22);

impl Fixture {
    /// One that asked for a connection.
    pub fn active() -> Self {
        let mut cm = ConnectionManager::new(CmConfig::new([10, 0, 0, 1].into(), 0x0101));
        cm.listen(SERVICE).unwrap();
        let (now, mut drawn) = (Instant::now(), 1000);
        let connect = Connect::new(PEER, SERVICE, Offered::new(OWN_QPN));
        let entropy = &mut || {
            drawn += 1;
            drawn
        };
        let id = cm.connect(now, &connect, entropy).unwrap();
        let Message::Request(request) = sent(&mut cm)[0] else { panic!("REQ") };
        Fixture { cm, id, now, ids: Pair { local: PEER_ID, remote: request.local_id }, drawn }
    }

    /// One that was asked for a connection; its ID is what it says when it asks for time, or accepts.
    pub fn passive() -> Self {
        let Fixture { cm, id, now, ids, drawn } = Fixture::active();
        let mut fixture = Fixture { cm, id, now, ids, drawn };
        fixture.cm.cancel(id).unwrap();
        sent(&mut fixture.cm);
        fixture.hear(request());
        let Some(Event::Requested { id, .. }) = fixture.cm.poll_event() else { panic!("a request") };
        fixture.id = id;
        fixture.ids.remote = fixture.drawn as u32 - 1;
        fixture
    }

    pub fn hear(&mut self, message: Message) {
        let bytes = Packet { transaction: 5, message }.emit();
        let drawn = &mut self.drawn;
        self.cm.handle(self.now, PEER, &bytes, &mut || {
            *drawn += 1;
            *drawn
        });
    }

    pub fn accept(mut self) -> Self {
        self.cm.accept(self.now, self.id, &Accept::new(Offered::new(OWN_QPN))).unwrap();
        let Message::Reply(reply) = sent(&mut self.cm)[0] else { panic!("REP") };
        assert_eq!(reply.ids, Pair { local: self.ids.remote, remote: PEER_ID });
        self
    }

    /// Hears messages, and forgets what came of them.
    pub fn after(mut self, messages: &[fn(Pair) -> Message]) -> Self {
        for message in messages {
            self.hear(message(self.ids));
        }
        self.forget();
        self
    }

    pub fn ask_for_time(mut self) -> Self {
        self.cm.ask_for_time(self.id, Timeout::from_code(22), &[0; 222]).unwrap();
        self.forget();
        self
    }

    pub fn ready(mut self) -> Self {
        self.cm.ready(self.id, &[0; 224]).unwrap();
        self.forget();
        self
    }

    pub fn disconnect(mut self) -> Self {
        self.cm.disconnect(self.now, self.id, &[0; 220]).unwrap();
        self.forget();
        self
    }

    fn forget(&mut self) {
        sent(&mut self.cm);
        while self.cm.poll_event().is_some() {}
    }

    /// What comes of a message: the state, the answers, the events.
    fn outcome(mut self, message: Message) -> String {
        self.hear(message);
        let state = match self.cm.state(self.id) {
            None => "-".to_owned(),
            Some(state) => format!("{state:?}").replace("(false)", "").replace("(true)", "+"),
        };
        let answers: Vec<_> = sent(&mut self.cm).iter().map(name).collect();
        let events: Vec<_> = std::iter::from_fn(|| self.cm.poll_event())
            .map(|event| format!("{event:?}").split(' ').next().unwrap_or_default().to_owned())
            .collect();
        format!("{state}/{}/{}", answers.join(","), events.join(","))
    }
}

pub fn sent(cm: &mut ConnectionManager) -> Vec<Message> {
    std::iter::from_fn(|| cm.poll_transmit()).map(|transmit| Packet::parse(&transmit.bytes).unwrap().message).collect()
}

fn name(message: &Message) -> String {
    match message {
        Message::Request(_) => "REQ".to_owned(),
        Message::Wait { .. } => "MRA".to_owned(),
        Message::Reject(reject) => format!("REJ{}", reject.reason.0),
        Message::Reply(_) => "REP".to_owned(),
        Message::ReadyToUse { .. } => "RTU".to_owned(),
        Message::Disconnect { .. } => "DREQ".to_owned(),
        Message::Disconnected { .. } => "DREP".to_owned(),
    }
}

pub fn request() -> Message {
    Message::Request(Request {
        local_id: PEER_ID,
        service_id: SERVICE,
        ca_guid: PEER_GUID,
        qkey: 0,
        qpn: PEER_QPN,
        responder_resources: 4,
        initiator_depth: 4,
        remote_response_timeout: 20,
        transport: Transport::Rc,
        flow_control: false,
        starting_psn: Psn::new(9),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 3,
        shared_receives: false,
        primary: Path { ack_timeout: 17, ..Path::default() },
        alternate: Path::default(),
        private: [0; Request::PRIVATE],
    })
}

pub fn reply(ids: Pair) -> Message {
    Message::Reply(Reply {
        ids,
        qkey: 0,
        qpn: PEER_QPN,
        starting_psn: Psn::new(9),
        responder_resources: 4,
        initiator_depth: 4,
        ack_delay: 0,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        shared_receives: false,
        ca_guid: PEER_GUID,
        private: [0; Reply::PRIVATE],
    })
}

pub fn wait_request(ids: Pair) -> Message {
    Message::Wait { ids, message: Refused::Request, timeout: 22, private: [0; 222] }
}

fn wait_reply(ids: Pair) -> Message {
    Message::Wait { ids, message: Refused::Reply, timeout: 22, private: [0; 222] }
}

pub fn reject(ids: Pair, refused: Refused, reason: Reason) -> Message {
    let (info, private) = ([0; Reject::INFO], [0; Reject::PRIVATE]);
    Message::Reject(Reject { ids, refused, reason, info_len: 0, info, private })
}

fn consumer(ids: Pair) -> Message {
    reject(ids, Refused::Other, Reason::CONSUMER)
}

pub fn ready_to_use(ids: Pair) -> Message {
    Message::ReadyToUse { ids, private: [0; 224] }
}

pub fn disconnect(ids: Pair) -> Message {
    Message::Disconnect { ids, qpn: OWN_QPN, private: [0; 220] }
}

fn disconnected(ids: Pair) -> Message {
    Message::Disconnected { ids, private: [0; 224] }
}

type Reach = fn() -> Fixture;

/// Ways to states, and what comes there of REQ, MRA of a REQ, MRA of a REP, REJ, REP, RTU, DREQ, DREP.
#[rustfmt::skip]
const TABLE: [(Reach, [&str; 8]); 13] = [
    (|| Fixture::active(), [
        "RequestSent//Requested", "RequestSent+//", "RequestSent//", "-//Rejected",
        "ReplyReceived//Accepted", "RequestSent//", "RequestSent/DREP/", "RequestSent//"]),
    (|| Fixture::active().after(&[wait_request]), [
        "RequestSent+//Requested", "RequestSent+//", "RequestSent+//", "-//Rejected",
        "ReplyReceived//Accepted", "RequestSent+//", "RequestSent+/DREP/", "RequestSent+//"]),
    (|| Fixture::active().after(&[reply]), [
        "ReplyReceived/REJ10/", "ReplyReceived//", "ReplyReceived//", "TimeWait//Rejected",
        "ReplyReceived//", "ReplyReceived//", "TimeWait/DREP/Disconnected", "ReplyReceived//"]),
    (|| Fixture::active().after(&[reply]).ask_for_time(), [
        "ReplyReceived+/REJ10/", "ReplyReceived+//", "ReplyReceived+//", "TimeWait//Rejected",
        "ReplyReceived+/MRA/", "ReplyReceived+//", "TimeWait/DREP/Disconnected", "ReplyReceived+//"]),
    (|| Fixture::active().after(&[reply]).ready(), [
        "DisconnectSent/REJ10,DREQ/", "Established//", "Established//", "TimeWait//Rejected",
        "Established/RTU/", "Established//", "TimeWait/DREP/Disconnected", "Established//"]),
    (|| Fixture::active().after(&[reply]).ready().disconnect(), [
        "DisconnectSent/REJ10/", "DisconnectSent//", "DisconnectSent//", "TimeWait//Disconnected",
        "DisconnectSent//", "DisconnectSent//", "TimeWait/DREP/Disconnected", "TimeWait//Disconnected"]),
    (|| Fixture::active().after(&[reply]).ready().after(&[disconnect]), [
        "TimeWait/REJ10/", "TimeWait//", "TimeWait//", "TimeWait//",
        "TimeWait//", "TimeWait//", "TimeWait/DREP/", "TimeWait//"]),
    (|| Fixture::passive(), [
        "RequestReceived//", "RequestReceived//", "RequestReceived//", "-//Rejected",
        "RequestReceived//", "RequestReceived//", "RequestReceived//", "RequestReceived//"]),
    (|| Fixture::passive().ask_for_time(), [
        "RequestReceived+/MRA/", "RequestReceived+//", "RequestReceived+//", "-//Rejected",
        "RequestReceived+//", "RequestReceived+//", "RequestReceived+//", "RequestReceived+//"]),
    (|| Fixture::passive().accept(), [
        "ReplySent/REP/", "ReplySent//", "ReplySent+//", "-//Rejected",
        "ReplySent//", "Established//Established", "TimeWait/DREP/Disconnected", "ReplySent//"]),
    (|| Fixture::passive().accept().after(&[wait_reply]), [
        "ReplySent+/REP/", "ReplySent+//", "ReplySent+//", "-//Rejected",
        "ReplySent+//", "Established//Established", "TimeWait/DREP/Disconnected", "ReplySent+//"]),
    (|| Fixture::passive().accept().after(&[ready_to_use]), [
        "Established//", "Established//", "Established//", "TimeWait//Rejected",
        "Established//", "Established//", "TimeWait/DREP/Disconnected", "Established//"]),
    (|| Fixture::passive().accept().after(&[ready_to_use, disconnect]), [
        "TimeWait/REJ10/", "TimeWait//", "TimeWait//", "TimeWait//",
        "TimeWait//", "TimeWait//", "TimeWait/DREP/", "TimeWait//"]),
];

#[test]
fn each_message_in_each_state() {
    let messages: [fn(Pair) -> Message; 8] =
        [|_| request(), wait_request, wait_reply, consumer, reply, ready_to_use, disconnect, disconnected];
    for (row, (reach, wanted)) in TABLE.into_iter().enumerate() {
        for (column, (message, wanted)) in messages.iter().zip(wanted).enumerate() {
            let fixture = reach();
            let message = message(fixture.ids);
            assert_eq!(fixture.outcome(message), wanted, "row {row}, column {column}");
        }
    }
}

#[test]
fn messages_of_others_change_nothing() {
    let messages = [wait_request, wait_reply, consumer, ready_to_use, disconnect, disconnected];
    for (row, (reach, _)) in TABLE.into_iter().enumerate() {
        for (column, message) in messages.iter().enumerate() {
            let mut fixture = reach();
            let before = fixture.cm.state(fixture.id);
            // The right IDs from another host; then wrong ones from the peer. The first ID is that of the sender, which this
            // end may not know yet.
            let bytes = Packet { transaction: 5, message: message(fixture.ids) }.emit();
            fixture.cm.handle(fixture.now, [10, 0, 0, 3].into(), &bytes, &mut || panic!("nothing is drawn"));
            fixture.hear(message(Pair { remote: fixture.ids.remote ^ 1 << 20, ..fixture.ids }));
            if !matches!(before, Some(CmState::RequestSent(_))) {
                fixture.hear(message(Pair { local: fixture.ids.local ^ 1, ..fixture.ids }));
            }
            assert_eq!(fixture.cm.state(fixture.id), before, "row {row}, column {column}");
            assert_eq!(fixture.cm.poll_event(), None, "row {row}, column {column}");
        }
    }
}

#[test]
fn a_disconnect_names_the_queue_pair() {
    let mut fixture = Fixture::passive().accept().after(&[ready_to_use]);
    fixture.hear(Message::Disconnect { ids: fixture.ids, qpn: Qpn(0x12), private: [0; 220] });
    assert_eq!((sent(&mut fixture.cm).len(), fixture.cm.poll_event()), (0, None));
    assert_eq!(fixture.cm.counters().unexpected, 1);
}

#[test]
fn a_request_that_can_not_be_taken_is_rejected() {
    type Change = fn(&mut Request);
    let cases: [(Change, Reason); 4] = [
        (|request| request.service_id = 8, Reason::INVALID_SERVICE_ID),
        (|request| request.transport = Transport::Other(2, 0), Reason::INVALID_TRANSPORT),
        (|request| request.mtu = 0, Reason::INVALID_MTU),
        (|request| request.mtu = 6, Reason::INVALID_MTU),
    ];
    for (change, reason) in cases {
        let mut fixture = Fixture::active();
        let Message::Request(mut wrong) = request() else { unreachable!() };
        change(&mut wrong);
        fixture.hear(Message::Request(wrong));
        let Message::Reject(reject) = sent(&mut fixture.cm)[0] else { panic!("REJ") };
        assert_eq!((reject.reason, reject.refused, reject.ids.remote), (reason, Refused::Request, PEER_ID));
        assert_eq!((fixture.cm.poll_event(), fixture.cm.connections()), (None, 1));
    }
}

#[test]
fn a_peer_that_gave_up_is_known_by_its_guid() {
    for accepts in [false, true] {
        let fixture = Fixture::passive();
        let mut fixture = if accepts { fixture.accept() } else { fixture };
        let ids = Pair { local: PEER_ID, remote: 0 };
        let Message::Reject(mut gave_up) = reject(ids, Refused::Other, Reason::TIMEOUT) else { unreachable!() };
        fixture.hear(Message::Reject(gave_up));
        assert_eq!(fixture.cm.poll_event(), None, "no GUID");
        gave_up.info_len = 8;
        gave_up.info[..8].copy_from_slice(&PEER_GUID.to_be_bytes());
        fixture.hear(Message::Reject(gave_up));
        let Some(Event::Rejected { id, reason, .. }) = fixture.cm.poll_event() else { panic!("it gave up") };
        assert_eq!((id, reason, fixture.cm.state(id)), (fixture.id, Reason::TIMEOUT, None));
    }
}

#[test]
fn data_shows_that_the_peer_is_ready() {
    let mut fixture = Fixture::passive().accept();
    let id = fixture.id;
    fixture.cm.heard(id).unwrap();
    assert_eq!(fixture.cm.poll_event(), Some(Event::Established { id }));
    fixture.hear(ready_to_use(fixture.ids));
    fixture.cm.heard(id).unwrap();
    assert_eq!((fixture.cm.poll_event(), fixture.cm.timeout()), (None, None));
}

#[test]
fn the_delay_of_the_peers_device_is_added_to_the_ways() {
    let mut fixture = Fixture::active();
    let Message::Reply(slow) = reply(fixture.ids) else { panic!("REP") };
    fixture.hear(Message::Reply(Reply { ack_delay: 16, ..slow }));
    let Some(Event::Accepted { terms, .. }) = fixture.cm.poll_event() else { panic!("accepted") };
    // 17 is asked for: Linux' rdma_cm has 16 and one more.
    assert_eq!(terms.ack_timeout, Timeout::from_code(18));
}

#[test]
fn all_ids_end_with_the_managers_tail() {
    let id_tail = IdTail { bits: 6, value: 0x2a };
    let config = CmConfig { id_tail, ..CmConfig::new([10, 0, 0, 1].into(), 0x0101) };
    let mut cm = ConnectionManager::new(config);
    // The same number is drawn each time.
    let connect = Connect::new(PEER, SERVICE, Offered::new(OWN_QPN));
    for number in [u64::MAX, 7] {
        (0..3).for_each(|_| assert!(cm.connect(Instant::now(), &connect, &mut || number).is_ok()));
    }
    let mut ids: Vec<_> = sent(&mut cm)
        .iter()
        .map(|message| if let Message::Request(request) = message { request.local_id } else { panic!("REQ") })
        .collect();
    assert!(ids.iter().all(|id| id & 0x3f == 0x2a), "{ids:x?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}

#[test]
fn a_path_mtu_beyond_the_own_is_rejected_and_told_it() {
    let config = CmConfig { largest_mtu: qpair_roce::Mtu::B512, ..CmConfig::new([10, 0, 0, 1].into(), 0x0101) };
    let mut cm = ConnectionManager::new(config);
    cm.listen(SERVICE).unwrap();
    let bytes = Packet { transaction: 5, message: request() }.emit();
    cm.handle(Instant::now(), PEER, &bytes, &mut || 1);
    let Message::Reject(reject) = sent(&mut cm)[0] else { panic!("REJ") };
    assert_eq!((reject.reason, reject.info_len, reject.info[0]), (Reason::INVALID_MTU, 1, 2));
}

#[test]
fn a_second_acceptance_of_a_queue_pair_is_refused() {
    let mut fixture = Fixture::active().after(&[reply]).ready();
    let (older, connect) = (fixture.id, Connect::new(PEER, SERVICE, Offered::new(Qpn(0x12))));
    let newer = fixture.cm.connect(fixture.now, &connect, &mut || 5).unwrap();
    sent(&mut fixture.cm);
    fixture.hear(reply(Pair { local: PEER_ID + 1, remote: 5 }));
    assert_eq!(fixture.cm.poll_event(), Some(Event::Stale { id: newer }));
    let names: Vec<_> = sent(&mut fixture.cm).iter().map(name).collect();
    assert_eq!(names, ["REJ10", "DREQ"]);
    assert_eq!((fixture.cm.state(newer), fixture.cm.state(older)), (None, Some(CmState::DisconnectSent)));
}

#[test]
fn the_application_can_not_do_what_the_state_forbids() {
    for (reach, _) in TABLE {
        let state = reach().cm.state(reach().id);
        let refused: [(&str, bool); 7] = [
            ("accept", reach().try_to(|f| f.cm.accept(f.now, f.id, &Accept::new(Offered::new(OWN_QPN))).is_err())),
            ("ready", reach().try_to(|f| f.cm.ready(f.id, &[0; 224]).is_err())),
            ("heard", reach().try_to(|f| f.cm.heard(f.id).is_err())),
            ("wait", reach().try_to(|f| f.cm.ask_for_time(f.id, Timeout::from_code(1), &[0; 222]).is_err())),
            ("reject", reach().try_to(|f| f.cm.reject(f.now, f.id, Reason::CONSUMER, &[0; 148]).is_err())),
            ("cancel", reach().try_to(|f| f.cm.cancel(f.id).is_err())),
            ("disconnect", reach().try_to(|f| f.cm.disconnect(f.now, f.id, &[0; 220]).is_err())),
        ];
        let allowed: Vec<_> = refused.into_iter().filter(|(_, refused)| !refused).map(|(name, _)| name).collect();
        let wanted: &[&str] = match state {
            Some(CmState::RequestSent(_)) => &["cancel"],
            Some(CmState::RequestReceived(_)) => &["accept", "wait", "reject"],
            Some(CmState::ReplySent(_)) => &["heard", "reject"],
            Some(CmState::ReplyReceived(_)) => &["ready", "wait", "reject"],
            Some(CmState::Established) => &["heard", "disconnect"],
            Some(CmState::DisconnectSent | CmState::TimeWait) | None => &[],
        };
        assert_eq!(allowed, wanted, "{state:?}");
    }
}

impl Fixture {
    fn try_to(mut self, act: impl Fn(&mut Self) -> bool) -> bool {
        act(&mut self)
    }
}
