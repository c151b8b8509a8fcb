//! What a device takes for the end of a peer, and so for that of its accesses.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::control::{Message, Reach, Socket, listen};
use super::home::Home;
use super::node::Node;
use super::random;
use super::visited::Member;
use crate::address::{NodeId, SoftAddress};
use crate::companion::Companion;
use crate::sync::Ordering;
use crate::{Context, ProtectionDomain};

/// A device that a test speaks for.
pub(super) struct Spoken {
    home: Arc<Home>,
    _door: OwnedFd,
}

impl Spoken {
    pub(super) fn new() -> Self {
        let home = Home::new().unwrap();
        let door = listen(home.id()).unwrap();
        Spoken { home, _door: door }
    }

    pub(super) fn id(&self) -> NodeId {
        self.home.id()
    }

    /// A link of it to `node`, which has greeted.
    pub(super) fn link_to(&self, node: &Node) -> Socket {
        greeted(&self.home, node.home().id())
    }
}

fn greeted(home: &Home, to: NodeId) -> Socket {
    let socket = Socket::connect(to, LIMIT).unwrap();
    socket.send(&Message::hello(home.id()), &home.mappings()).unwrap();
    assert!(matches!(socket.recv().unwrap().expect("it is open").message, Message::Hello { .. }));
    socket
}

/// Returns once the control thread of `node` has handled whatever it was sent before, and what comes of that.
pub(super) fn has_looked(node: &Node) {
    let stranger = Spoken::new();
    (0..2).for_each(|_| drop(stranger.link_to(node)));
}

/// Waits for what the control thread does.
pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

fn domain() -> ProtectionDomain {
    Context::open("soft0").unwrap().alloc_pd().unwrap()
}

#[test]
fn a_peer_that_makes_no_sense_hears_of_the_end_after_that_of_accesses() {
    let (pd, peer) = (domain(), Spoken::new());
    let cq = crate::CompletionQueue::soft(pd.node().home(), 16, None).unwrap();
    let qp = pd.rc(&cq).build().unwrap();
    let hazard = qp.soft().unwrap().hazard();
    let socket = peer.link_to(pd.node());
    hazard.store(1, Ordering::SeqCst);
    send(&socket, b"nonsense", SendFlags::empty()).unwrap();
    has_looked(pd.node());
    assert!(!socket.is_hung_up(), "an initiator may be in its memory");
    hazard.store(2, Ordering::SeqCst);
    wait_until("it is hung up", || socket.is_hung_up());
}

/// This process was out of descriptors when it came.
#[test]
fn memory_of_a_gpu_that_comes_without_its_descriptor_is_not_waited_for() {
    let (pd, peer) = (domain(), Spoken::new());
    let socket = peer.link_to(pd.node());
    has_looked(pd.node());
    let link = pd.node().link_to(&SoftAddress { node: peer.id(), ..pd.node().home().address() }).unwrap();
    let is_pending = || matches!(link.reach(1, 0, 8, 0), Reach::Pending);
    assert!(is_pending());
    let question = socket.recv().unwrap().expect("it is open").message;
    assert!(matches!(question, Message::MapArena { arena: 1 }), "{question:?}");
    socket.send(&Message::GpuArena { arena: 1, len: 8, gpu: [7; 16] }, &[]).unwrap();
    wait_until("the memory is known not to be mapped", || !is_pending());
}

/// What another process does: it links to a device, and has the first process hold its end of the link open.
#[test]
#[ignore = "needs another test to start it, as its other process"]
fn process() {
    let Ok(named) = std::env::var(NODES) else { return };
    let nodes: Vec<_> = named.split(' ').map(|node| NodeId(node.parse::<u128>().unwrap().to_be_bytes())).collect();
    let peer = Spoken::new();
    let link = greeted(&peer.home, nodes[0]);
    let other = Socket::connect(nodes[1], LIMIT).unwrap();
    other.send(&Message::hello(peer.id()), &[link.as_fd()]).unwrap();
    println!("\n!linked");
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

#[test]
fn a_peer_has_ended_though_another_process_has_its_socket() {
    let pd = domain();
    let (node, other) = (pd.node(), NodeId(random::bytes()));
    let door = listen(other).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.env(NODES, [node.home().id(), other].map(|node| u128::from_be_bytes(node.0).to_string()).join(" "));
    let companion = Companion::start(command, "soft::ends::process");
    assert_eq!(companion.line(), "linked");
    let socket = super::control::accept(door.as_fd()).unwrap().expect("it is connected");
    let packet = socket.recv().unwrap().expect("it has sent something");
    let Message::Hello { node: peer, .. } = packet.message else { panic!("{:?}", packet.message) };
    // Its greeting was answered before its link was entered.
    has_looked(node);
    let link = node.link_to(&SoftAddress { node: peer, ..node.home().address() }).unwrap();
    assert!(!link.is_over());
    drop(companion);
    wait_until("the link is over", || link.is_dead());
    assert_eq!(packet.fds.len(), 1, "its end is open here");
}

const NODES: &str = "QPAIR_TEST_NODES";
const LIMIT: Duration = Duration::from_secs(60);
