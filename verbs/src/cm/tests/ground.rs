//! Devices for tests, connections between them, and messages that are lost.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{
    CmError, CompletionQueue, ConnectOptions, Connecting, Context, Established, Listener, Prepared, ProtectionDomain,
    QpState,
};

/// A device of its own.
pub(super) struct Side {
    pub(super) ctx: Context,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
}

impl Side {
    pub(super) fn new() -> Self {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(4096).unwrap());
        Side { ctx, pd, cq }
    }

    pub(super) fn rc(&self) -> Prepared {
        self.pd.rc(&self.cq).build().unwrap()
    }

    /// Asks for a connection, and repeats what is lost soon.
    pub(super) fn ask(&self, port: u16) -> Connecting {
        self.ask_with(port, &soon())
    }

    pub(super) fn ask_with(&self, port: u16, options: &ConnectOptions) -> Connecting {
        self.ctx.connect_with(at(port), self.rc(), options).unwrap()
    }

    /// Counts messages of a kind that are lost; the first `count` of them are.
    pub(super) fn lose(&self, kind: Kind, count: u32) -> Arc<AtomicU32> {
        let lost = Arc::new(AtomicU32::new(0));
        let counter = lost.clone();
        self.ctx.soft().unwrap().network().unwrap().lose_messages(move |message| {
            let is_lost = Kind::of(message) == kind && counter.load(Ordering::Relaxed) < count;
            counter.fetch_add(u32::from(is_lost), Ordering::Relaxed);
            is_lost
        });
        lost
    }
}

/// Two devices; `None` where the network can not be used here.
pub(super) fn sides() -> Option<(Side, Side)> {
    let (a, b) = (Side::new(), Side::new());
    match a.ctx.listen(0) {
        Err(CmError::Network(error)) => {
            println!("skipped: {error}");
            None
        }
        listener => listener.map(|_| (a, b)).map_err(|error| panic!("{error}")).ok(),
    }
}

/// A connection between two devices: the end of `a`, which asked, and that of `b`.
pub(super) fn connect(a: &Side, b: &Side) -> (Established, Established) {
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    let mut accepting = accept(b, &listener);
    let near = asking.wait(LIMIT).unwrap();
    (near, accepting.wait(LIMIT).unwrap())
}

pub(super) fn accept(side: &Side, listener: &Listener) -> Connecting {
    listener.wait(LIMIT).unwrap().accept(side.rc(), b"").unwrap()
}

/// A port of the loopback.
pub(super) fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The loopbacks of this machine.
pub(super) fn loopbacks() -> Vec<IpAddr> {
    let mut found = vec![Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 1, 2, 3).into()];
    match std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => found.push(Ipv6Addr::LOCALHOST.into()),
        Err(error) => println!("skipped for IPv6: {error}"),
    }
    found
}

/// Messages are repeated after 134 ms. All of them together last longer than it takes until another process has the socket
/// of one that was killed.
pub(super) fn soon() -> ConnectOptions {
    ConnectOptions::new().answer_within(Duration::from_millis(100))
}

/// Sends a message each way.
pub(super) fn talk((near, a): (&mut Established, &mut Side), (far, b): (&mut Established, &mut Side)) {
    far.queue_pair.recv(b.pd.alloc(64).unwrap()).post().unwrap();
    near.queue_pair.recv(a.pd.alloc(64).unwrap()).post().unwrap();
    near.queue_pair.send_inline(b"there").post().unwrap();
    assert_eq!(received(b), b"there");
    far.queue_pair.send_inline(b"and back").post().unwrap();
    assert_eq!(received(a), b"and back");
}

fn received(side: &mut Side) -> Vec<u8> {
    let done = side.cq.wait_for(LIMIT).unwrap();
    assert!(done.status().is_success(), "{:?}", done.status());
    let len = done.byte_len();
    done.into_buffer().unwrap()[..len].to_vec()
}

/// Waits until a queue pair has failed.
pub(super) fn assert_fails(end: &Established) {
    let begin = std::time::Instant::now();
    while end.queue_pair.state() != QpState::Err {
        assert!(begin.elapsed() < LIMIT, "the queue pair is in {:?} still", end.queue_pair.state());
        std::thread::yield_now();
    }
}

/// A message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Reply,
    Ready,
    Reject,
    Disconnect,
    Disconnected,
    Other,
}

impl Kind {
    pub(super) fn of(message: &[u8]) -> Self {
        match u16::from_be_bytes([message[16], message[17]]) {
            0x10 => Kind::Request,
            0x12 => Kind::Reject,
            0x13 => Kind::Reply,
            0x14 => Kind::Ready,
            0x15 => Kind::Disconnect,
            0x16 => Kind::Disconnected,
            _ => Kind::Other,
        }
    }
}

/// How long a busy machine may take.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
