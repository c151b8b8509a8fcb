//! `qpair perf`: every measurement between two processes, and sides that are not what they should be.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;

use common::port::Port;
use common::{Running, finish, qpair, rows, stderr, stdout};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use rustix::thread::{CpuSet, sched_getaffinity};

fn perf(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("perf").chain(args.split(' ')).collect();
    finish(qpair(&args))
}

/// A server at a free port of this machine.
fn serve(args: &str) -> (Running, String) {
    let args: Vec<&str> = ["perf", "--announce", "-p", "0", "-d", "soft0"].into_iter().chain(args.split(' ')).collect();
    let mut server = Running::start(qpair(&args));
    let port = server.line();
    (server, port)
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
fn a_single_message_gives_every_figure() {
    for test in ["write-lat", "send-lat", "read-lat", "tag-lat", "atomic-lat"] {
        let rows = rows(&perf(&format!("{test} --local -n 1 --json")));
        let [row] = rows.as_slice() else { panic!("{test}: {rows:?}") };
        assert_eq!(row["operations"], 1, "{row}");
        let times = ["min_us", "typical_us", "median_us", "p99_us", "max_us"];
        assert!(times.iter().all(|name| row[name].as_f64() > Some(0.0) && row[name] == row["min_us"]), "{row}");
    }
}

#[test]
fn every_bandwidth_is_measured_at_every_kind_of_size() {
    for test in ["write-bw", "send-bw", "read-bw", "tag-bw"] {
        // More SENDs than the receiver has receives, so that credits must work.
        let rows = rows(&perf(&format!("{test} --local -n 14000 -s 8,300 --json")));
        assert_eq!(rows.len(), 2, "{test}");
        let large = crate::rows(&perf(&format!("{test} --local -n 14 -t 4 --signal-every 2 -s 1M --json")));
        for row in rows.iter().chain(&large) {
            let number = |name: &str| row[name].as_f64().expect("a number");
            assert_eq!(row["test"], test);
            assert!(number("mean_mb_s") > 0.0, "{row}");
            assert!((number("mb_s") - number("size") * number("mmsg_s")).abs() < 1e-6 * number("mb_s"), "{row}");
            assert!(
                (number("ratio") - number("mb_s") / 1e3 / number("memcpy_gb_s")).abs() < 1e-6 * number("ratio"),
                "{row}"
            );
        }
    }
}

#[test]
fn as_many_operations_are_measured_as_were_asked_for() {
    for (test, count) in ["read-lat", "write-bw"].into_iter().flat_map(|test| [1, 2, 3, 10].map(|count| (test, count)))
    {
        let rows = rows(&perf(&format!("{test} --local -n {count} --json")));
        assert_eq!(rows[0]["operations"], count, "{test}");
        let time = if test == "read-lat" { "min_us" } else { "mb_s" };
        assert!(rows[0][time].as_f64().expect("a number") > 0.0, "{test}: {rows:?}");
        // Of one slice the median is the mean.
        assert!(test == "read-lat" || count > 1 || rows[0]["mean_mb_s"] == rows[0]["mb_s"], "{rows:?}");
    }
}

#[test]
fn post_and_poll_are_measured_with_each_and_with_few_signaled() {
    let rows = rows(&perf("write-lat --local --post-poll -n 10000 --json"));
    let signaled: Vec<_> = rows.iter().map(|row| row["signal_every"].as_u64().expect("a number")).collect();
    assert_eq!(signaled, [1, 64]);
    assert!(rows.iter().all(|row| row["test"] == "post-poll"));
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
    let rows = rows(&perf(&format!("send-bw 127.0.0.1 -p {port} -d soft0 -n 70 -s 4K --json")));
    assert_eq!(rows[0]["test"], "send-bw");
    let output = server.finish();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_server_is_reached_at_each_of_its_addresses() {
    // All of them, as by default on a device: the one that the client takes counts.
    let (server, port) = serve("tag-lat --bind :: --forever");
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        let output = perf(&format!("tag-lat {address} -p {port} -d soft0 -n 20 --json"));
        assert_eq!(rows(&output).len(), 1, "{address}: {}", stderr(&output));
    }
    server.signal(Signal::KILL);
    drop(server.finish());
}

#[test]
fn more_than_there_is_memory_for_is_refused() {
    for (test, size) in ["tag-bw", "tag-lat"].into_iter().flat_map(|test| [(test, "1024G"), (test, "8589934592G")]) {
        let output = perf(&format!("{test} --local -s {size}"));
        assert_eq!(output.status.code(), Some(1), "{test} {size}: {}", stderr(&output));
        assert!(stderr(&output).contains("error: "), "{test} {size}: {}", stderr(&output));
    }
}

#[test]
fn messages_that_the_device_does_not_take_are_refused_before_anything_is_done() {
    for line in ["write-bw --local -s 5G", "send-lat --local -s 8,1024G"] {
        let output = perf(line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains("give -s 2G or less"), "{line}: {}", stderr(&output));
    }
}

#[test]
fn a_name_that_leads_nowhere_is_no_missing_server() {
    let output = perf("write-bw no..host -d soft0");
    assert!(stderr(&output).contains("no..host is no address, and no name that has one"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("start `qpair perf"), "{}", stderr(&output));
}

#[test]
fn a_server_without_end_outlives_strangers_and_failures() {
    let (server, port) = serve("write-lat --forever");
    let mut stranger = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is taken");
    drop(stranger);
    // This one knows how to greet, and has nothing to say.
    let mut silent = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    silent.write_all(b"{\"protocol\":2,\"release\":\"\"}\n").expect("it is taken");
    let refused = perf(&format!("read-lat 127.0.0.1 -p {port} -d soft0 -s 513M"));
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("start it with the same --size"), "{}", stderr(&refused));
    // Queues that no client has.
    let mut greedy = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let asks = "{\"prepare\":[{\"test\":\"tag-bw\",\"max_size\":9000,\"depth\":4294967295,\"signal_every\":1,\"gpu\":false},\"connecting\"]}";
    greedy.write_all(format!("{{\"protocol\":2,\"release\":\"\"}}\n{asks}\n").as_bytes()).expect("it is taken");
    let mut said = String::new();
    greedy.read_to_string(&mut said).expect("it says why");
    assert!(said.contains("refused") && said.contains("4294967295 requests at once"), "{said}");
    for _ in 0..2 {
        let rows = rows(&perf(&format!("read-lat 127.0.0.1 -p {port} -d soft0 -n 10 --json")));
        assert_eq!(rows.len(), 1);
    }
    server.signal(Signal::KILL);
    let output = server.finish();
    assert!(stderr(&output).contains("makes no sense"), "{}", stderr(&output));
    assert!(stderr(&output).contains("was silent for too long"), "{}", stderr(&output));
}

#[test]
fn a_server_without_end_waits_for_a_file_descriptor() {
    let (mut server, port) = serve("write-lat --forever");
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(0), ..before };
    prlimit(Some(server.pid()), Resource::Nofile, none).expect("it is ours");
    // A server that waits already has a descriptor for who comes first.
    drop(TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens"));
    let client = ["perf", "read-lat", "127.0.0.1", "-p", &port, "-d", "soft0", "-n", "10", "--json"];
    let client = Running::start(qpair(&client));
    while !server.error_line().contains("ulimit -n") {}
    prlimit(Some(server.pid()), Resource::Nofile, before).expect("it is ours");
    assert_eq!(rows(&client.finish()).len(), 1);
}

/// A client that is connected: it has printed the first line of its header.
fn client(test: &str, port: &str) -> Running {
    let mut client = Running::start(qpair(&["perf", test, "127.0.0.1", "-p", port, "-d", "soft0", "-D", "2h"]));
    assert!(client.line().starts_with('#'));
    client
}

#[test]
fn a_client_that_is_killed_ends_the_server() {
    for test in ["write-lat", "send-lat", "write-bw", "tag-lat"] {
        let (server, port) = serve(test);
        client(test, &port).signal(Signal::KILL);
        let output = server.finish();
        assert_eq!(output.status.code(), Some(1), "{test}");
        assert!(stderr(&output).starts_with("error: "), "{test}: {}", stderr(&output));
    }
}

#[test]
fn a_server_that_is_killed_ends_the_client() {
    for test in ["write-lat", "send-lat", "read-bw", "send-bw", "tag-bw"] {
        let (server, port) = serve(test);
        let client = client(test, &port);
        server.signal(Signal::KILL);
        let output = client.finish();
        assert_eq!(output.status.code(), Some(1), "{test}");
        assert!(stderr(&output).starts_with("error: "), "{test}: {}", stderr(&output));
    }
}

#[test]
fn both_sides_run_where_they_are_told_to() {
    let set = sched_getaffinity(None).expect("the system tells");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let output = perf(&format!("read-lat --local -n 10 --cpu {last},{first}"));
    let text = stdout(&output);
    assert!(text.contains(&format!("client on cpu {last}, server on cpu {first}")), "{text}{}", stderr(&output));
}

#[test]
fn no_server_is_an_error_that_says_what_to_do() {
    let port = Port::keep();
    let output = perf(&format!("write-bw 127.0.0.1 -d soft0 -p {}", port.number));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("start `qpair perf write-bw -d soft0` (with --bind ADDRESS"),
        "{}",
        stderr(&output)
    );
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
        ("write-lat --local --post-poll -s 64", 2, "leave out -s, -a and -Q"),
        ("write-lat --local --post-poll -x 3", 2, "--post-poll is no test of perftest: leave out its options"),
        ("tag-bw --local -q 4", 2, "tag-bw is no test of perftest: leave out its options"),
        ("write-lat --local --bind 0.0.0.0", 2, "cannot be used with"),
        ("write-lat --local -d mlx5_99", 1, "mlx5_99"),
        ("write-lat --local --cpu 0", 2, "--cpu 0,1"),
        ("write-lat --cpu 1000000", 1, "is not to be had"),
    ] {
        let output = perf(line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
}
