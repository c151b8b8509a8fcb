//! Where a system runs short: descriptors, connections that wait, mappings that pile up.

use std::time::{Duration, Instant};

use qpair_verbs::{Access, QpAddress, WcOpcode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::harness::{Command, Env, LIMIT, Mem, Promise, QpId, QpSpec, Side, Work, connect_pair};
use crate::loss::sockets;

two_processes! {
    memory_that_is_gone_is_unmapped_by_peers,
    connecting_to_a_stopped_process_with_a_full_door_times_out,
    a_connection_that_could_not_be_accepted_is_not_forgotten,
    a_bell_that_can_not_be_taken_is_an_error,
    a_peer_without_descriptors_says_so,
}

fn pid(far: &mut Side) -> u32 {
    far.peer().expect("a process").pid()
}

/// Memory files that the process has mapped.
fn mapped(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn memory_that_is_gone_is_unmapped_by_peers(env: &Env) {
    if !env.on_host("looking at mappings of memory") {
        return;
    }
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    let mut pair = env.rc();
    let pid = pid(&mut pair.far);
    let before = mapped(pid);
    // Each of a size that has memory of its own, which goes back to the system.
    let regions: Vec<_> = (0..20).map(|_| pair.near.expose(1 << 20, Access::REMOTE_WRITE)).collect();
    for region in &regions {
        pair.far.post(Work::write(Mem::seeded(8, 1), region.part(0, 8)).signaled());
        pair.far.done().assert_success(WcOpcode::RDMA_WRITE);
    }
    assert!(mapped(pid) >= before + 20, "the device does without mappings");
    regions.iter().for_each(|region| drop(pair.near.revoke(region).expect("nobody uses it")));
    wait_until("memory that is gone stays mapped", || mapped(pid) < before + 5);
}

/// Fills the queue of connections that wait to be accepted.
fn fill_door(pid: u32) -> Vec<std::os::fd::OwnedFd> {
    let mut waiting = Vec::new();
    for (kind, name) in sockets(pid) {
        loop {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None);
            let socket = socket.expect("a socket");
            let door = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
            if kind != SocketType::SEQPACKET || rustix::net::connect(&socket, &door).is_err() {
                break;
            }
            waiting.push(socket);
        }
    }
    waiting
}

fn connecting_to_a_stopped_process_with_a_full_door_times_out(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    let (mut near, mut far) = (Side::open(env.device()), env.far());
    let address = far.new_qp(&QpSpec::rc()).address;
    far.peer().expect("a process").stop(true);
    let waiting = fill_door(pid(&mut far));
    if !env.able("being found under an abstract name", !waiting.is_empty()) {
        return;
    }
    let (made, start) = (near.new_qp(&QpSpec::rc()), Instant::now());
    assert_eq!(near.try_connect(made.qp, address), Err("TimedOut".to_owned()));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    drop(waiting);
    far.peer().expect("a process").stop(false);
    let late = near.new_qp(&QpSpec::rc());
    near.connect(late.qp, address);
}

/// How often threads of the process that serve its devices went to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let of = |task: std::path::PathBuf| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with("qpair").then(|| line.trim().parse::<u64>().ok()).flatten()
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum()
}

fn connect_in_the_background(near: &mut Side, address: QpAddress, meanwhile: impl FnOnce()) -> Result<(), String> {
    let made = near.new_qp(&QpSpec::rc());
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| near.try_connect(made.qp, address));
        meanwhile();
        connecting.join().expect("connecting")
    })
}

fn a_connection_that_could_not_be_accepted_is_not_forgotten(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    let (mut near, mut far) = (Side::open(env.device()), env.far());
    let address = far.new_qp(&QpSpec::rc()).address;
    let pid = pid(&mut far);
    far.ask::<()>(Command::Descriptors { spare: Some(0) });
    let before = sleeps(pid);
    let connected = connect_in_the_background(&mut near, address, || {
        // Its device has looked at the door, in vain, and sleeps again.
        wait_until("nobody looks at the door", || sleeps(pid) > before);
        far.ask::<()>(Command::Descriptors { spare: None });
    });
    assert_eq!(connected, Ok(()));
}

fn a_bell_that_can_not_be_taken_is_an_error(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    let mut pair = env.rc();
    let (a, b) = (pair.near.new_qp(&QpSpec::rc()), pair.far.new_qp(&QpSpec::rc()));
    pair.far.ask::<()>(Command::Descriptors { spare: Some(0) });
    assert_eq!(pair.far.try_connect(b.qp, a.address), Err("System".to_owned()));
    pair.far.ask::<()>(Command::Descriptors { spare: None });
    connect_pair(&mut pair.near, &QpSpec::rc(), &mut pair.far, &QpSpec::rc());
    pair.far.recv_on(QpId(2), Mem::blank(8), 1);
}

fn a_peer_without_descriptors_says_so(env: &Env) {
    if !env.promises(Promise::ServedByProcesses) {
        return;
    }
    let (mut near, mut far) = (Side::open(env.device()), env.far());
    let made = [near.new_qp(&QpSpec::rc()), near.new_qp(&QpSpec::rc())];
    let address = far.new_qp(&QpSpec::rc()).address;
    // Room for the connection itself, not for the mappings that come over it.
    far.ask::<()>(Command::Descriptors { spare: Some(1) });
    assert_eq!(near.try_connect(made[0].qp, address), Err("BadAnswer".to_owned()));
    far.ask::<()>(Command::Descriptors { spare: None });
    near.connect(made[1].qp, address);
}
