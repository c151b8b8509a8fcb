//! The engine against bytes that perftest 4.5 sent, against itself, and against sides that lie, flood or vanish.

use super::*;
use crate::perf::test::Test;

/// The client's and the server's messages of `ib_write_bw -n 100` over Soft-RoCE, in their order.
const CLIENT: [&[u8]; 14] = [
    b"6.06\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\0\0\x10\0",
    b"\0\0\0@",
    b"3\0",
    CLIENT_KEY,
    CLIENT_KEY,
    CLIENT_KEY,
    CLIENT_KEY,
    b"\0\0\0\0\0\x01\0\0",
    b"\0\0\0\0\0\0\0d",
    b"@<\xc2\xa8Gz\x86b",
    b"@<R\x18\xd7W\x06\xd6",
    b"?=\xb2G\x1a\x96U\xb7",
    CLIENT_KEY,
];
const CLIENT_KEY: &[u8] = b"0000:0001:000012:cc1c11:000003df:0000557195bac000:\
    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:0b:00000000:\0";
const SERVER: [&[u8]; 14] = [
    b"6.06\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\0\0\x10\0",
    b"\0\0\0@",
    b"3\0",
    SERVER_KEY,
    SERVER_KEY,
    SERVER_KEY,
    SERVER_KEY,
    b"\0\0\x7f\xfca\xc8\xbe\xf4",
    b"\0\0\x7f\xe5\xd6\xb2!\x1a",
    b"\0\0\0\0\0\0\0\x06",
    b"\0\0\x7f\xe5\xd6\xb1s@",
    b"\0\0\x7f\xfca\xc8\xbe\xf4",
    SERVER_KEY,
];
const SERVER_KEY: &[u8] = b"0000:0001:000011:f63167:000002d0:0000556161ac9000:\
    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:0b:00000000:\0";

fn engine(role: Role) -> Engine {
    let introduction =
        Introduction { terms: Terms::example(Test::WriteBw), cycle_buffer: 4096, cache_line: 64, mtu: 1024 };
    Engine::new(role, introduction)
}

fn key(bytes: &[u8]) -> Key {
    Key::parse(bytes).expect("recorded")
}

fn report() -> BandwidthReport {
    BandwidthReport::parse(&std::array::from_fn(|number| CLIENT[8 + number].try_into().expect("8 bytes")))
}

/// What the application does at an event, for a write-bw run of one queue pair.
fn answer(engine: &mut Engine, ours: Key, event: &Event, steps: &mut u32) {
    match event {
        Event::Introduced(_) => engine.tell_addresses(vec![ours]),
        Event::Addresses(_) => engine.tell_connected(),
        Event::Ready => engine.sync(),
        Event::Synced if *steps == 0 => {
            *steps = 1;
            engine.report(&report());
        }
        Event::Report(_) => engine.sync(),
        Event::Synced => engine.farewell(),
        Event::Over => {}
    }
}

/// Plays a recorded side to the end against an engine; gives all that the engine wrote, and its events.
fn play(role: Role, ours: Key, recorded: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Event>) {
    let mut engine = engine(role);
    let (mut written, mut events, mut steps) = (Vec::new(), Vec::new(), 0);
    let mut messages = recorded.iter();
    loop {
        if let Some(event) = engine.poll_event().expect("all is well") {
            answer(&mut engine, ours, &event, &mut steps);
            events.push(event);
            if engine.state() == State::Over {
                break;
            }
            continue;
        }
        let output = engine.take_output();
        if !output.is_empty() {
            written.push(output);
        }
        let Some(message) = messages.next() else { break };
        // In two parts: a stream has no borders.
        let (first, second) = message.split_at(message.len() / 2);
        engine.handle_input(first).expect("no flood");
        assert_eq!(engine.poll_event(), Ok(None));
        engine.handle_input(second).expect("no flood");
    }
    let output = engine.take_output();
    if !output.is_empty() {
        written.push(output);
    }
    (written, events)
}

fn expected_events(theirs: Key) -> Vec<Event> {
    let introduced = Introduced { terms: None, cycle_buffer: 4096, mtu: 1024, qpair: false };
    vec![Event::Introduced(introduced), Event::Addresses(vec![theirs]), Event::Ready, Event::Synced]
}

#[test]
fn a_recorded_server_is_answered_as_perftest_did() {
    let recorded: Vec<&[u8]> = SERVER.into_iter().chain([&DONE[..]]).collect();
    let (written, events) = play(Role::Client, key(CLIENT_KEY), &recorded);
    assert_eq!(written[0][..5], CLIENT[0][..5]);
    let expected: Vec<&[u8]> = CLIENT.into_iter().chain([&DONE[..]]).collect();
    assert_eq!(written[1..], expected[1..]);
    assert_eq!(events[..4], expected_events(key(SERVER_KEY)));
    assert_eq!(events.last(), Some(&Event::Over));
}

#[test]
fn a_recorded_client_is_answered_as_perftest_did() {
    let recorded: Vec<&[u8]> = CLIENT.into_iter().chain([&DONE[..]]).collect();
    let (written, events) = play(Role::Server, key(SERVER_KEY), &recorded);
    assert_eq!(written[0][..5], SERVER[0][..5]);
    assert_eq!(written[1..8], SERVER[1..8]);
    assert_eq!(written[8..13], CLIENT[8..13], "this server has a report of its own");
    // The last answer and the farewell leave together.
    assert_eq!(written[13], [SERVER_KEY, DONE].concat());
    assert_eq!(events[..4], expected_events(key(CLIENT_KEY)));
    assert_eq!(events[4], Event::Report(report()));
}

/// Two engines, each fed what the other writes, until neither has anything to say.
fn converse(mut client: Engine, mut server: Engine, qps: usize) -> Result<[Vec<Event>; 2], ExchangeError> {
    let mut events = [Vec::new(), Vec::new()];
    let mut steps = [0, 0];
    loop {
        let mut moved = false;
        for (side, engine) in [&mut client, &mut server].into_iter().enumerate() {
            while let Some(event) = engine.poll_event()? {
                moved = true;
                if let Event::Introduced(_) = event {
                    engine.tell_addresses((0..qps).map(|qp| Key { qpn: qp as u32, ..key(CLIENT_KEY) }).collect());
                } else {
                    answer(engine, key(CLIENT_KEY), &event, &mut steps[side]);
                }
                events[side].push(event);
                if engine.state() == State::Over {
                    break;
                }
            }
        }
        for (from, to) in [(true, false), (false, true)] {
            let (writer, reader) = if from { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let output = writer.take_output();
            moved |= !output.is_empty();
            reader.handle_input(&output)?;
            debug_assert!(from != to);
        }
        if !moved || (client.state() == State::Over && server.state() == State::Over) {
            return Ok(events);
        }
    }
}

#[test]
fn two_qpairs_with_several_queue_pairs_tell_their_terms() {
    let [client, server] = converse(engine(Role::Client), engine(Role::Server), 3).expect("all is well");
    for events in [client, server] {
        let Event::Introduced(introduced) = &events[0] else { panic!("{events:?}") };
        assert_eq!(introduced.terms, Some(Terms::example(Test::WriteBw)));
        let Event::Addresses(keys) = &events[1] else { panic!("{events:?}") };
        assert_eq!(keys.iter().map(|key| key.qpn).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(events.last(), Some(&Event::Over));
    }
}

#[test]
fn two_qpairs_with_different_tests_say_what_differs() {
    let introduction =
        Introduction { terms: Terms::example(Test::SendBw), cycle_buffer: 4096, cache_line: 64, mtu: 1024 };
    let error = converse(engine(Role::Client), Engine::new(Role::Server, introduction), 1).expect_err("they differ");
    assert!(matches!(error, ExchangeError::Differs { .. }), "{error:?}");
}

#[test]
fn the_greater_page_and_the_smaller_mtu_count() {
    let mut client = engine(Role::Client);
    client.handle_input(b"6.12\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\x805\0").expect("no flood");
    let Ok(Some(Event::Introduced(introduced))) = client.poll_event() else { panic!("{client:?}") };
    assert_eq!((introduced.cycle_buffer, introduced.mtu), (65536, 1024));
    let mut client = engine(Role::Client);
    client.handle_input(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x402\0").expect("no flood");
    let Ok(Some(Event::Introduced(introduced))) = client.poll_event() else { panic!("{client:?}") };
    assert_eq!((introduced.cycle_buffer, introduced.mtu), (4096, 512));
}

/// An engine that has heard the first `count` messages of a recorded server.
fn after(count: usize) -> (Engine, Result<Option<Event>, ExchangeError>) {
    let mut engine = engine(Role::Client);
    let mut steps = 0;
    for message in &SERVER[..count] {
        engine.handle_input(message).expect("no flood");
        while let Ok(Some(event)) = engine.poll_event() {
            answer(&mut engine, key(CLIENT_KEY), &event, &mut steps);
        }
    }
    let next = engine.poll_event();
    (engine, next)
}

#[test]
fn a_side_that_vanishes_at_any_step_is_told_with_the_step() {
    let steps = [
        Step::Version,
        Step::CycleBuffer,
        Step::CacheLine,
        Step::Mtu,
        Step::Address(0),
        Step::Connected,
        Step::Confirmation(0),
        Step::Sync,
        Step::Report(0),
        Step::Report(1),
        Step::Report(2),
        Step::Report(3),
        Step::Report(4),
        Step::Sync,
    ];
    for (count, step) in steps.into_iter().enumerate() {
        let (mut engine, next) = after(count);
        assert_eq!(next, Ok(None));
        assert_eq!(engine.state(), State::Expects(step));
        // Half a message does not help.
        engine.handle_input(&SERVER[count][..1]).expect("no flood");
        assert_eq!(engine.handle_close(), Err(ExchangeError::Closed { step }));
    }
    let (mut engine, _) = after(14);
    assert_eq!(engine.state(), State::Expects(Step::Farewell));
    engine.handle_close().expect("who has all may go");
    assert_eq!(engine.poll_event(), Ok(Some(Event::Over)));
}

#[test]
fn garbage_at_any_step_is_an_error_or_waits_and_never_panics() {
    for count in 0..SERVER.len() {
        for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 200], &[0; 200], b"ffffffffffffffffffff"] {
            let (mut engine, _) = after(count);
            engine.handle_input(garbage).expect("no flood");
            let result = engine.poll_event();
            let numbers_go_unjudged = matches!(count, 2 | 8..=12);
            assert!(result.is_err() || result == Ok(None) || numbers_go_unjudged, "{count}: {result:?}");
        }
    }
}

#[test]
fn what_can_be_no_version_or_key_is_refused_at_its_first_byte() {
    let mut client = engine(Role::Client);
    client.handle_input(b"G").expect("no flood");
    assert!(matches!(client.poll_event(), Err(ExchangeError::NotPerftest { .. })));
    let (mut client, _) = after(4);
    client.handle_input(b"\0").expect("no flood");
    assert!(matches!(client.poll_event(), Err(ExchangeError::Garbled { .. })));
}

#[test]
fn a_flood_is_cut_off() {
    for count in 0..SERVER.len() {
        let (mut engine, _) = after(count);
        let mut taken = 0;
        let error = loop {
            match engine.handle_input(&[b'0'; 1000]) {
                Ok(()) => taken += 1000,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ExchangeError::Flood(_)) && taken <= MAX_INPUT, "{error:?}");
    }
}

#[test]
fn a_page_size_that_no_machine_has_is_refused() {
    let (mut client, _) = after(1);
    client.handle_input(&0x7fff_ffff_u32.to_be_bytes()).expect("no flood");
    assert_eq!(client.poll_event(), Err(ExchangeError::PageSize(0x7fff_ffff)));
}

#[test]
fn a_gid_on_one_side_only_is_told() {
    let (mut client, _) = after(4);
    client.handle_input(&Key { gid: None, ..key(SERVER_KEY) }.emit()).expect("no flood");
    assert_eq!(client.poll_event(), Err(ExchangeError::GidForm { theirs: false }));

    let mut client = engine(Role::Client);
    for message in &SERVER[..4] {
        client.handle_input(message).expect("no flood");
    }
    assert!(matches!(client.poll_event(), Ok(Some(Event::Introduced(_)))));
    client.tell_addresses(vec![Key { gid: None, ..key(CLIENT_KEY) }]);
    client.handle_input(SERVER_KEY).expect("no flood");
    assert_eq!(client.poll_event(), Err(ExchangeError::GidForm { theirs: true }));
}
