//! Workers with a cluster key, and those who have another or none.

mod support;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use qpair_transport::{
    CloseReason, ClusterKey, ClusterKeyError, Config, ConnectFailure, Event, HandshakeError, Tag, Worker, WorkerError,
};
use support::*;

fn with(key: Option<[u8; 32]>) -> Config {
    let config = Config::default();
    match key {
        Some(bytes) => config.cluster_key(ClusterKey::from_bytes(bytes)),
        None => config,
    }
}

/// Why a caller with one key, and a listener with another, do not come together: what each of them is told.
fn refused(keys: [Option<[u8; 32]>; 2]) -> [HandshakeError; 2] {
    let (mut caller, mut server) = (Worker::new(with(keys[0])).unwrap(), Worker::new(with(keys[1])).unwrap());
    let listener = server.listen("127.0.0.1:0").unwrap();
    let start = Instant::now();
    caller.connect(listener.local_addr()).unwrap();
    let (mut of_caller, mut of_server) = (None, None);
    while of_caller.is_none() || of_server.is_none() {
        match caller.poll().unwrap() {
            Some(Event::Closed {
                reason: CloseReason::Failed(ConnectFailure::Handshake { error, address }), ..
            }) => {
                assert_eq!(address, listener.local_addr());
                of_caller = Some(error);
            }
            Some(other) => panic!("{}", brief(&other)),
            None => {}
        }
        match server.poll().unwrap() {
            Some(Event::Rejected { error, .. }) => of_server = Some(error),
            Some(other) => panic!("{}", brief(&other)),
            None => {}
        }
        // At once, not when the time for connecting is over.
        assert!(start.elapsed() < Duration::from_secs(4), "{of_caller:?}, {of_server:?}");
    }
    [of_caller.unwrap(), of_server.unwrap()]
}

#[test]
fn workers_with_the_same_key_talk() {
    let mut pair = Pair::with(with(Some([7; 32])), with(Some([7; 32])));
    pair.a.send(pair.ep_a, Tag(1), pattern(30_000, 1)).unwrap();
    pair.b.send_copy(pair.ep_b, Tag(2), b"hello").unwrap();
    let (of_a, of_b) = pair.until(|a, b| received(a).len() == 1 && received(b).len() == 1);
    assert!(received(&of_a)[0].1 == b"hello" && received(&of_b)[0].1 == &pattern(30_000, 1));
    drop((of_a, of_b));
    pair.a.close(pair.ep_a);
    let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert!(matches!(of_a.last(), Some(Event::Closed { reason: CloseReason::Local, .. })));
    assert!(matches!(of_b.last(), Some(Event::Closed { reason: CloseReason::Remote, .. })));
}

#[test]
fn who_has_another_key_or_none_is_told_what_to_do() {
    use HandshakeError::{PeerHasNoKey, PeerWantsKey, WrongKey};
    let (ours, other) = (Some([7; 32]), Some([8; 32]));
    assert_eq!(refused([ours, other]), [WrongKey, WrongKey]);
    assert_eq!(refused([ours, None]), [PeerHasNoKey, PeerWantsKey]);
    assert_eq!(refused([None, ours]), [PeerWantsKey, PeerHasNoKey]);
    assert!(PeerWantsKey.to_string().contains("QPAIR_CLUSTER_KEY_FILE"));
}

/// Not even with all that a peer who has the key once said.
#[test]
fn strangers_cost_a_worker_with_a_key_no_endpoint() {
    let key = Some([7; 32]);
    // One endpoint: a stranger that took it would keep others out.
    let mut server = Worker::new(with(key).endpoints(1)).unwrap();
    let listener = server.listen("127.0.0.1:0").unwrap();
    // What a caller with the key says to a listener that is not one.
    let trap = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut caller = Worker::new(with(key)).unwrap();
    caller.connect(trap.local_addr().unwrap()).unwrap();
    let (mut trapped, _) = trap.accept().unwrap();
    trapped.write_all(b"QPTR\x03\x03\x01\0\0\0\0\0").unwrap();
    trapped.set_nonblocking(true).unwrap();
    let mut recorded = Vec::new();
    let start = Instant::now();
    while recorded.len() < 12 + 2 + 48 {
        caller.poll().unwrap();
        let _ = trapped.read_to_end(&mut recorded);
        assert!(start.elapsed() < LIMIT, "{recorded:?}");
    }
    let mut strangers = Vec::new();
    for count in 0..20 {
        let mut stranger = TcpStream::connect(listener.local_addr()).unwrap();
        stranger.write_all(&recorded).unwrap();
        // It can not go on from there.
        if count % 2 == 0 {
            stranger.write_all(&[&100u16.to_le_bytes()[..], &[3; 100]].concat()).unwrap();
            assert!(matches!(next(&mut server), Event::Rejected { error: HandshakeError::Tampered, .. }));
        }
        strangers.push(stranger);
    }
    let ep = caller.connect(listener.local_addr()).unwrap();
    loop {
        assert!(server.poll().unwrap().is_none_or(|event| matches!(event, Event::Accepted { .. })));
        match caller.poll().unwrap() {
            Some(Event::Connected { ep: up }) => break assert_eq!(up, ep),
            Some(other) => panic!("{}", brief(&other)),
            None => assert!(start.elapsed() < LIMIT),
        }
    }
}

/// A file in a folder of its own, gone when dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str) -> KeyFile {
        let folder = std::env::temp_dir().join(format!("qpair-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        KeyFile(folder.join("cluster.key"))
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

/// Processes whose environment names a file.
#[test]
#[ignore = "needs a test below to start it, as its other process"]
fn as_a_peer() {
    let Some((role, address)) = role() else { return };
    match role.as_str() {
        "named" => {
            let mut worker = Worker::new(Config::default()).unwrap();
            worker.connect(address.as_str()).unwrap();
            connected(&mut worker);
            assert!(matches!(closed(next(&mut worker)), CloseReason::Remote));
        }
        "overruled" => {
            let mut worker = Worker::new(with(Some([9; 32]))).unwrap();
            worker.connect(address.as_str()).unwrap();
            let reason = closed(next(&mut worker));
            let wrong = |error: &HandshakeError| *error == HandshakeError::WrongKey;
            assert!(
                matches!(&reason, CloseReason::Failed(ConnectFailure::Handshake { error, .. }) if wrong(error)),
                "{reason}"
            );
        }
        "open" => {
            let error = Worker::new(Config::default()).map(|_| ()).unwrap_err();
            assert!(matches!(error, WorkerError::ClusterKey(ClusterKeyError::Open { mode: 0o640, .. })), "{error}");
        }
        _ => {
            let error = Worker::new(Config::default()).map(|_| ()).unwrap_err();
            assert!(matches!(error, WorkerError::ClusterKey(ClusterKeyError::Read { .. })), "{error}");
        }
    }
}

#[test]
fn the_environment_names_a_key_where_the_settings_name_none() {
    let file = KeyFile::new("key-of-environment");
    let key = ClusterKey::generate().unwrap();
    key.write(&file.0).unwrap();
    let mut server = Worker::new(Config::default().cluster_key(key)).unwrap();
    let listener = server.listen("127.0.0.1:0").unwrap();
    let run = |role: &str, path: &str| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_a_peer", "--nocapture", "--include-ignored"])
            .env("QPAIR_TEST_PEER", listener.local_addr().to_string())
            .env("QPAIR_TEST_ROLE", role)
            .env("QPAIR_CLUSTER_KEY_FILE", path)
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    };
    let path = file.0.to_str().unwrap();
    let named = run("named", path);
    let ep = connected(&mut server);
    server.close(ep);
    assert!(is_closed(&next(&mut server)));
    named.finish();
    let overruled = run("overruled", path);
    assert!(matches!(next(&mut server), Event::Rejected { error: HandshakeError::WrongKey, .. }));
    overruled.finish();
    // A key that can not be read is not as if there were none.
    run("missing", "/no/such/file").finish();
    run("empty", "").finish();
    fs::set_permissions(&file.0, Permissions::from_mode(0o640)).unwrap();
    run("open", path).finish();
}
