//! Streams of the connection manager over the loopback, in time that the test tells.

mod calls;
mod listeners;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use qpair_verbs::Context;

use super::hello::tests::hello;
use super::preface::Preface;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Where time stands where it does not matter.
const NOW: Duration = SECOND;
const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    let keepalive = Keepalive::new(SECOND, SECOND, Duration::ZERO);
    Settings { connect: 100 * SECOND, guest: 50 * SECOND, hello: SECOND, key: None, keepalive, seed: 7 }
}

fn context() -> Context {
    Context::open("soft0").unwrap()
}

fn listening() -> (Sockets, u32, SocketAddr) {
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let (id, address) = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    (sockets, id, address)
}

/// Looks what the sockets have to say, for so long.
fn look(sockets: &mut Sockets, limit: Duration, now: Duration) {
    sockets.sleep(Some(limit)).unwrap();
    sockets.see_to_events(now);
}

/// Polls until `count` notices are there, and takes them.
fn notices(sockets: &mut Sockets, count: usize, now: Duration) -> Vec<Notice> {
    let start = Instant::now();
    while sockets.notices().len() < count {
        look(sockets, Duration::from_millis(1), now);
        assert!(start.elapsed() < PATIENCE, "{:?}", sockets.notices());
    }
    std::mem::take(sockets.notices())
}

fn incoming(sockets: &mut Sockets) -> SocketId {
    match &notices(sockets, 1, NOW)[..] {
        &[Notice::Incoming { socket, .. }] => socket,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn record(message: &Message) -> Vec<u8> {
    let contents = message.encode();
    [&(contents.len() as u16).to_le_bytes()[..], &contents].concat()
}

/// What a caller says first: a preface and a hello.
fn first_words() -> Vec<u8> {
    [&preface()[..], &record(&Message::Hello(hello()))].concat()
}

pub(crate) fn preface() -> Vec<u8> {
    Preface::ours(false).encode().to_vec()
}

/// The next record of what a peer reads.
pub(crate) fn read_record(stream: &mut TcpStream) -> Message {
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut contents = vec![0; usize::from(u16::from_le_bytes(len))];
    stream.read_exact(&mut contents).unwrap();
    Message::decode(&contents).unwrap()
}

pub(crate) fn read_preface(stream: &mut TcpStream) -> Preface {
    let mut bytes = [0; preface::PREFACE_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    Preface::decode(&bytes).unwrap().unwrap()
}
