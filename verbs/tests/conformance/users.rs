//! Processes of other users, which are refused, and of other namespaces, which are not.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use qpair_verbs::{Access, WcOpcode};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SocketType, recvmsg};
use rustix::process::{Uid, geteuid};

use crate::harness::{Env, Fill, LIMIT, Mem, Origin, Peer, Piece, Promise, QpSpec, Side, Work, connect_pair};
use crate::loss::{knock, sockets};

two_processes! {
    another_user_is_refused_by_both_sides,
    another_user_is_refused_at_the_door,
    a_process_that_can_not_be_seen_is_reached,
}

/// The user that owns nothing.
const NOBODY: u32 = 65534;

fn another_user_is_refused_by_both_sides(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    if !env.able("starting a process of another user", geteuid().is_root()) {
        return;
    }
    let peer = Peer::start_as(env.device(), NOBODY).expect("root may start it");
    let (mut near, mut far) = (env.near(), Side::There(peer));
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    assert_eq!(near.try_connect(a.qp, b.address), Err("OtherUser".to_owned()));
    assert_eq!(far.try_connect(b.qp, a.address), Err("OtherUser".to_owned()));
    let mut friend = Side::There(Peer::start_as(env.device(), NOBODY).expect("root may start it"));
    connect_pair(&mut friend, &QpSpec::rc(), &mut far, &QpSpec::rc());
}

/// What the other end of a socket sends first; empty if it hangs up.
fn first_words(socket: &OwnedFd) -> Vec<u8> {
    set_socket_timeout(socket, Timeout::Recv, Some(LIMIT)).expect("a time limit");
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut descriptors = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, parts, &mut descriptors, RecvFlags::empty()).expect("an answer");
    assert_eq!(descriptors.drain().count(), 0, "a stranger was given descriptors");
    bytes.truncate(got.bytes);
    bytes
}

fn another_user_is_refused_at_the_door(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    if !env.able("being another user", geteuid().is_root()) {
        return;
    }
    let (mut near, mut far) = (env.near(), env.far());
    far.abilities(); // it is up
    let mut doors = sockets(far.peer().expect("a process").pid());
    // Names beside the network's UDP port are of datagram sockets: nobody is let in there.
    doors.retain(|(kind, _)| *kind != SocketType::DGRAM);
    if !env.able("being found under an abstract name", !doors.is_empty()) {
        return;
    }
    // More than a device lets in before they have said who they are; none of them says anything.
    let strangers = std::thread::spawn(move || {
        // Of this thread alone.
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may become another user");
        (0..300).map(|turn| knock(doors[turn % doors.len()].0, &doors[turn % doors.len()].1)).collect::<Vec<_>>()
    });
    let strangers = strangers.join().expect("the strangers");
    for socket in strangers.iter().flatten() {
        let words = String::from_utf8(first_words(socket)).expect("text");
        assert!(words.contains("Refused") && words.contains("65534"), "{words:?}");
    }
    assert!(strangers.iter().flatten().count() > 0);
    connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec::rc());
}

/// The peer's kernel tells it no process number of ours, so it can name no address of ours to the system.
fn a_process_that_can_not_be_seen_is_reached(env: &Env) {
    if !env.on_host("being reached in a user namespace") {
        return;
    }
    if !env.far_is_near() {
        return;
    }
    let peer = Peer::start_apart(env.device());
    if !env.able("starting a process that does not see this one", peer.is_some()) {
        return;
    }
    let (mut near, mut far) = (env.near(), Side::There(peer.expect("just looked")));
    connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec::rc());
    for origin in Origin::ALL {
        for len in [8, 5000, 300_000] {
            let target = near.expose_piece(Piece { origin, len, fill: Fill::Byte(0) }, Access::REMOTE_ALL);
            far.post(Work::write(Mem::seeded(len, 1), target.remote).signaled());
            far.done().assert_success(WcOpcode::RDMA_WRITE);
            near.look(&target).assert_is(&Fill::Seed(1).bytes(len));
            far.post(Work::read(target.remote).signaled());
            far.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(1).bytes(len));
            near.recv(Mem::from(origin, len, Fill::Byte(0)), 1);
            far.post(Work::send(Mem::seeded(len, 2)).signaled());
            far.done().assert_success(WcOpcode::SEND);
            near.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(2).bytes(len));
        }
    }
    let counter = near.expose_piece(Piece { origin: Origin::Vector, len: 64, fill: Fill::Byte(0) }, Access::REMOTE_ALL);
    let word = counter.part(0, 64);
    let word = word.slice(word.addr.wrapping_neg() % 8..word.addr.wrapping_neg() % 8 + 8);
    far.post(Work::fetch_add(word, 5).signaled());
    far.done().assert_success(WcOpcode::FETCH_ADD);
    assert!(near.look(&counter).head.contains(&5), "the sum is not there");
    // The other way round.
    far.recv(Mem::from(Origin::Vector, 5000, Fill::Byte(0)), 3);
    near.post(Work::send(Mem::seeded(5000, 4)).signaled());
    assert!(far.try_done(crate::harness::CqId(0), LIMIT + Duration::from_secs(1)).is_some());
    near.done().assert_success(WcOpcode::SEND);
}
