//! `qpair perf`: every measurement between two processes, and sides that are not what they should be.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};

use common::{finish, qpair, stderr, stdout};
use serde_json::Value;

fn perf(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("perf").chain(args.split(' ')).collect();
    finish(qpair(&args))
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output).lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
}

/// A server at a free port of this machine.
fn serve(args: &str) -> (Child, String) {
    let args: Vec<&str> =
        ["perf", "--announce", "-p", "0", "--bind", "127.0.0.1"].into_iter().chain(args.split(' ')).collect();
    let mut command = qpair(&args);
    let mut server =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
    (server, line.trim_end().to_owned())
}

#[test]
fn every_latency_is_measured_at_every_kind_of_size() {
    // Inline, not a multiple of 8, from registered memory, beyond the transport's eager limit.
    for test in ["write-lat", "send-lat", "read-lat", "tag-lat"] {
        let rows = rows(&perf(&format!("{test} --local -n 50 -s 8,100,4097,100K --json")));
        assert_eq!(rows.len(), 4, "{test}");
        for row in rows {
            assert_eq!((&row["test"], &row["operations"]), (&test.into(), &50.into()));
            let time = |name: &str| row[name].as_f64().expect("a number");
            assert!(time("typical_us") > 0.0, "{row}");
            assert!(time("min_us") <= time("median_us") && time("median_us") <= time("p99_us"), "{row}");
            assert!(time("p99_us") <= time("max_us"), "{row}");
        }
    }
    assert_eq!(rows(&perf("atomic-lat --local -n 50 --json"))[0]["size"], 8);
}

#[test]
fn every_bandwidth_is_measured_at_every_kind_of_size() {
    for test in ["write-bw", "send-bw", "read-bw", "tag-bw"] {
        // More SENDs than the receiver has receives, so that credits must work.
        let rows = rows(&perf(&format!("{test} --local -n 14000 -s 8,300 --json")));
        assert_eq!(rows.len(), 2, "{test}");
        let large = rows_of_large(test);
        for row in rows.iter().chain(&large) {
            let number = |name: &str| row[name].as_f64().expect("a number");
            assert_eq!(row["test"], test);
            assert!((number("mb_s") - number("size") * number("mmsg_s")).abs() < 1e-6 * number("mb_s"), "{row}");
            assert!(
                (number("ratio") - number("mb_s") / 1e3 / number("memcpy_gb_s")).abs() < 1e-6 * number("ratio"),
                "{row}"
            );
        }
    }
}

fn rows_of_large(test: &str) -> Vec<Value> {
    rows(&perf(&format!("{test} --local -n 14 -t 4 --signal-every 2 -s 1M --json")))
}

#[test]
fn post_and_poll_are_measured_with_each_and_with_few_signaled() {
    let rows = rows(&perf("write-lat --local --post-poll -n 10000 --json"));
    let signaled: Vec<_> = rows.iter().map(|row| row["signal_every"].as_u64().expect("a number")).collect();
    assert_eq!(signaled, [1, 64]);
    assert!(rows.iter().all(|row| row["median_ns"].as_f64().expect("a number") > 0.0));
}

#[test]
fn the_table_says_what_runs_and_lines_up() {
    let output = perf("write-bw --local -n 70 -s 64,1M");
    let text = stdout(&output);
    assert!(text.contains("device soft0") && text.contains("shm"), "{text}");
    let header = text.lines().find(|line| line.contains("of memcpy")).expect("a header");
    let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 2, "{text}");
    assert!(rows.iter().all(|row| row.len() == header.len()), "{text}");
}

#[test]
fn a_server_serves_what_the_client_asks_for() {
    let (server, port) = serve("write-lat");
    let rows = rows(&perf(&format!("send-bw 127.0.0.1 -p {port} -n 70 -s 4K --json")));
    assert_eq!(rows[0]["test"], "send-bw");
    let output = server.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_server_without_end_outlives_strangers_and_failures() {
    let (mut server, port) = serve("write-lat --forever");
    let mut stranger = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is taken");
    drop(stranger);
    let refused = perf(&format!("read-lat 127.0.0.1 -p {port} -s 1024G"));
    assert!(!refused.status.success());
    for _ in 0..2 {
        let rows = rows(&perf(&format!("read-lat 127.0.0.1 -p {port} -n 10 --json")));
        assert_eq!(rows.len(), 1);
    }
    server.kill().expect("it still runs");
    let output = server.wait_with_output().expect("it ends");
    assert!(stderr(&output).contains("makes no sense"), "{}", stderr(&output));
}

#[test]
fn a_client_that_is_killed_ends_the_server() {
    for test in ["write-lat", "send-lat", "write-bw", "tag-lat"] {
        let (server, port) = serve(test);
        let mut client = qpair(&["perf", test, "127.0.0.1", "-p", &port, "-D", "2h"]);
        let mut client = client.stdout(Stdio::piped()).spawn().expect("it starts");
        wait_for_header(&mut client);
        client.kill().expect("it runs");
        client.wait().expect("it ended");
        let output = server.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{test}");
        assert!(stderr(&output).starts_with("error: "), "{test}: {}", stderr(&output));
    }
}

#[test]
fn a_server_that_is_killed_ends_the_client() {
    for test in ["write-lat", "send-lat", "read-bw", "send-bw", "tag-bw"] {
        let (mut server, port) = serve(test);
        let mut client = qpair(&["perf", test, "127.0.0.1", "-p", &port, "-D", "2h"]);
        let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_for_header(&mut client);
        server.kill().expect("it runs");
        server.wait().expect("it ended");
        let output = client.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{test}");
        assert!(stderr(&output).starts_with("error: "), "{test}: {}", stderr(&output));
    }
}

/// Both sides are connected once the client prints its header.
fn wait_for_header(client: &mut Child) {
    let out = client.stdout.as_mut().expect("a pipe");
    let mut first = [0; 1];
    out.read_exact(&mut first).expect("the header");
    assert_eq!(&first, b"#");
}

#[test]
fn no_server_is_an_error_that_says_what_to_do() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = closed.local_addr().expect("bound").port();
    drop(closed);
    let output = perf(&format!("write-bw 127.0.0.1 -p {port}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("start `qpair perf write-bw` there first"), "{}", stderr(&output));
}

#[test]
fn a_taken_port_is_an_error_that_says_what_to_do() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = holder.local_addr().expect("bound").port();
    let output = perf(&format!("write-lat --bind 127.0.0.1 -p {port}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&format!("port {port} is taken; give another with --port")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bad_arguments_are_errors_that_say_what_to_do() {
    for (line, code, part) in [
        ("write-lat --local -s 8Q", 2, "`8Q` is not a size"),
        ("write-lat --local host", 2, "cannot be used with"),
        ("atomic-lat --local -s 16", 2, "atomics work on 8 bytes"),
        ("send-lat --local -s 0", 2, "give at least 1"),
        ("write-bw --local -t 2 --signal-every 3", 2, "give --signal-every 2 or less"),
        ("read-lat --local --post-poll", 2, "give it with write-lat"),
        ("write-lat --local -d mlx5_99", 1, "mlx5_99"),
        ("write-lat --local --cpu 0", 2, "--cpu 0,1"),
        ("write-lat --cpu 1000000", 1, "is not to be had"),
    ] {
        let output = perf(line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
}
