//! `qpair doctor` on the machine of the tests, whatever that is, and beside peers that mean well or harm.

mod common;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use common::port::Port;
use common::{Running, finish, qpair, stderr, stdout};
use serde_json::Value;

/// The findings that the command printed, and its exit code.
fn findings(args: &[&str]) -> (Vec<Value>, Option<i32>) {
    let output = finish(qpair(&[&["doctor", "--json"], args].concat()));
    assert_eq!(stderr(&output), "");
    let objects = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect();
    (objects, output.status.code())
}

fn of_check<'a>(findings: &'a [Value], check: &str) -> Vec<&'a Value> {
    findings.iter().filter(|finding| finding["check"] == check).collect()
}

/// A server, and the port that it is at.
fn server() -> (Running, String) {
    let mut server = Running::start(qpair(&["doctor", "--serve", "--port", "0"]));
    let line = server.line();
    let port = line.rsplit(' ').next().expect("a port").to_owned();
    assert!(line.starts_with(&format!("serving at 127.0.0.1:{port}, for this machine alone")), "{line}");
    (server, port)
}

/// What the command finds beside a peer that says this, and then no more.
fn beside(says: Vec<u8>) -> Value {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let peer = thread::spawn(move || {
        let mut stream = listener.accept().expect("it connects").0;
        // The other end may have had enough.
        let _ = stream.write_all(&says);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    let (findings, code) = findings(&["127.0.0.1", "--port", &port]);
    peer.join().expect("no panic");
    assert_eq!(code, Some(1));
    let [finding] = of_check(&findings, "peer").try_into().expect("one finding on the peer");
    finding.clone()
}

#[test]
fn findings_are_whole_and_the_exit_code_tells_of_problems() {
    let (findings, code) = findings(&[]);
    for finding in &findings {
        assert!(finding["message"].as_str().is_some_and(|message| !message.is_empty()), "{finding}");
        let severity = finding["severity"].as_str().expect("a severity");
        assert!(["problem", "warning", "note", "ok"].contains(&severity), "{finding}");
        let fixes = finding["fixes"].as_array().expect("a list");
        assert!(!fixes.is_empty() || ["note", "ok"].contains(&severity), "{finding}");
        assert!(fixes.iter().all(|fix| fix["where"].is_string() && fix["lines"].is_array()), "{finding}");
    }
    let problems = findings.iter().filter(|finding| finding["severity"] == "problem").count();
    assert_eq!(code, Some(i32::from(problems > 0)));
    let opened = of_check(&findings, "device-open");
    assert!(opened.iter().any(|finding| finding["subject"] == "soft0" && finding["severity"] == "ok"), "{opened:?}");
    assert_eq!(of_check(&findings, "rdma-device").len(), 1);
}

#[test]
fn the_report_counts_what_it_shows() {
    let output = finish(qpair(&["doctor", "-v"]));
    let text = stdout(&output);
    let shown = |label: &str| text.lines().filter(|line| line.starts_with(label)).count();
    let end = text.split("\n\n").last().expect("a summary").replace('\n', " ");
    for (label, name) in [("PROBLEM  ", "problem"), ("warning  ", "warning"), ("note  ", "note"), ("ok  ", "thing")] {
        let count = shown(label);
        let expected = format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        assert!(end.contains(&expected), "{expected} not in {end}");
    }
    assert!(stdout(&finish(qpair(&["doctor"]))).lines().all(|line| !line.starts_with("ok  ")));
}

#[test]
fn a_machine_knows_itself_as_its_peer() {
    let (mut server, port) = server();
    let (findings, _) = findings(&["127.0.0.1", "--port", &port]);
    assert_eq!(of_check(&findings, "same-machine").len(), 1, "{findings:?}");
    assert_eq!(of_check(&findings, "peer-release")[0]["severity"], "ok");
    let line = server.line();
    assert!(line.contains(concat!("release ", env!("CARGO_PKG_VERSION"))), "{line}");
}

#[test]
fn strangers_do_not_stop_the_server() {
    let (mut server, port) = server();
    let strangers = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "makes no sense"),
        (vec![b'x'; 3 << 20], "says more than"),
        (b"{\"protocol\":3}\n".to_vec(), "speaks version 3"),
        (b"{\"prot".to_vec(), "closed the connection"),
    ];
    for (says, answer) in strangers {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        // The server may have had enough.
        let _ = stream.write_all(&says);
        let _ = stream.shutdown(Shutdown::Write);
        let line = server.line();
        assert!(line.starts_with("127.0.0.1:") && line.contains(answer), "{line}");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (findings, _) = findings(&["127.0.0.1", "--port", &port]);
    assert_eq!(of_check(&findings, "same-machine").len(), 1, "{findings:?}");
}

#[test]
fn a_peer_that_makes_no_sense_is_a_finding() {
    for (says, message) in [
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "makes no sense"),
        (vec![b'['; 3 << 20], "says more than"),
        (b"{\"protocol\":2".to_vec(), "closed the connection"),
        (b"{\"protocol\":9}\n".to_vec(), "speaks version 9 of this exchange, this side 2: use the same release"),
    ] {
        let finding = beside(says);
        assert_eq!((&finding["severity"], &finding["subject"]), (&"problem".into(), &"127.0.0.1".into()));
        assert!(finding["message"].as_str().is_some_and(|text| text.contains(message)), "{finding}");
        assert!(finding["fixes"][0]["lines"][0].as_str().is_some_and(|line| line.contains("--serve")), "{finding}");
    }
}

#[test]
fn what_a_peer_says_does_not_reach_the_terminal_as_codes() {
    let (mut server, port) = server();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let says = r#"{"protocol":2,"release":"\u001b[2J\u0007","architecture":"x","kernel":"\u009b31m","rdma_core":null,"boot":null,"namespace":null,"ports":[]}"#;
    stream.write_all(format!("{says}\n").as_bytes()).expect("it is taken");
    let line = server.line();
    assert!(line.contains("[2J") && line.chars().all(|c| !c.is_control()), "{line:?}");
}

#[test]
fn a_port_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let output = finish(qpair(&["doctor", "--serve", "--port", &port]));
    assert_eq!(output.status.code(), Some(3), "1 would tell of a problem on this machine");
    assert!(
        stderr(&output).contains(&format!("port {port} is taken; give another with --port")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_keeps_the_command_from_its_work_has_a_code_of_its_own() {
    let help = stdout(&finish(qpair(&["doctor", "--help"])));
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Exits with 0 if there is no problem", "with 1 if there is", "with 2 if", "with 3 if"] {
        assert!(words.contains(part), "{part} not in {help}");
    }
    // An address that no interface has.
    let output = finish(qpair(&["doctor", "--serve", "--bind", "192.0.2.1", "--port", "0"]));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), ""));
    assert!(stderr(&output).contains("can not listen at 192.0.2.1:0"), "{}", stderr(&output));
    assert_eq!(finish(qpair(&["doctor", "--serve", "host"])).status.code(), Some(2));
}

#[test]
fn nobody_there_is_a_finding_with_what_to_start() {
    let closed = Port::keep();
    let (findings, code) = findings(&["127.0.0.1", "--port", &closed.number.to_string()]);
    assert_eq!(code, Some(1));
    let [finding] = of_check(&findings, "peer").try_into().expect("one finding on the peer");
    assert!(finding["message"].as_str().is_some_and(|text| text.starts_with("no answer at 127.0.0.1:")), "{finding}");
    assert_eq!(finding["fixes"][0]["where"], "on 127.0.0.1");
}
