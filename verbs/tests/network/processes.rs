//! Processes that share the host's UDP port: each gets its packets, while others come and go.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use qpair_verbs::{Access, Prepared, QpAddress, QueuePair, RemoteSlice, WcStatus};

use crate::ground::{Device, afar};

/// Set for a process that plays a peer.
const ROLE: &str = "QPAIR_NETWORK_PEER";

/// What a peer says of itself: its queue pair, and memory there.
type Introduction = (QpAddress, RemoteSlice);

/// A peer process. Killed when dropped.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::as_a_peer", "--nocapture", "--ignored"]).env(ROLE, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Peer { child, to, from }
    }

    fn connect(&mut self, device: &Device) -> (QueuePair, RemoteSlice) {
        let prepared = device.prepare();
        writeln!(self.to, "{}", serde_json::to_string(&afar(prepared.address())).unwrap()).unwrap();
        let line = loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the peer has ended");
            // The test harness says something too.
            if let Some(at) = line.find('[') {
                break line.split_off(at);
            }
        };
        let (address, remote): Introduction = serde_json::from_str(&line).unwrap();
        (prepared.connect(&address).unwrap(), remote)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves one connection: its memory is written and read by the other side, without its help.
#[test]
#[ignore = "needs another test to start it, as its other process"]
fn as_a_peer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let device = Device::open();
    let prepared: Prepared = device.prepare();
    let region = device.pd.expose(64 << 10, Access::REMOTE_ALL).unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let theirs: QpAddress = serde_json::from_str(&line).unwrap();
    let ours: Introduction = (afar(prepared.address()), region.remote(0..64 << 10));
    let _qp = prepared.connect(&theirs).unwrap();
    println!("{}", serde_json::to_string(&ours).unwrap());
    // Until the other side closes the pipe, or kills.
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
fn eight_processes_share_the_port_while_others_come_and_go() {
    let mut device = Device::open();
    let mut peers: Vec<_> = (0..8).map(|_| Peer::start()).collect();
    let mut connections: Vec<_> = peers.iter_mut().map(|peer| peer.connect(&device)).collect();
    for round in 0..6u8 {
        for (index, (qp, remote)) in connections.iter_mut().enumerate() {
            let mut data = device.pd.alloc(64 << 10).unwrap();
            data.fill(round.wrapping_mul(31).wrapping_add(index as u8));
            qp.write(data, *remote).signaled().post().unwrap();
        }
        for _ in 0..8 {
            assert_eq!(device.status(), WcStatus::SUCCESS, "round {round}");
        }
        for (index, (qp, remote)) in connections.iter_mut().enumerate() {
            qp.read(device.pd.alloc(64 << 10).unwrap(), *remote).id(index as u64).signaled().post().unwrap();
        }
        for _ in 0..8 {
            let done = device.cq.wait_for(crate::ground::LIMIT).unwrap();
            let (index, status) = (done.wr_id(), done.status());
            assert_eq!(status, WcStatus::SUCCESS, "round {round}");
            let bytes = done.into_buffer().unwrap();
            assert!(bytes.iter().all(|byte| *byte == round.wrapping_mul(31).wrapping_add(index as u8)), "peer {index}");
        }
        // One dies without a word, and another comes.
        let place = usize::from(round) % 8;
        peers[place] = Peer::start();
        connections[place] = peers[place].connect(&device);
    }
}
