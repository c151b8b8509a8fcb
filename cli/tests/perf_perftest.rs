//! `qpair perf` as perftest measures, between two qpairs on the software device, and against sides that are not what they
//! should be.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::thread;

use common::{Running, finish, qpair, rows, stderr, stdout};
use rustix::process::Signal;
use serde_json::Value;

fn perf(args: &str) -> Output {
    finish(qpair(&words(args)))
}

fn words(args: &str) -> Vec<&str> {
    std::iter::once("perf").chain(args.split(' ')).collect()
}

/// Both sides, by perftest's way.
fn local(args: &str) -> Output {
    perf(&format!("{args} --local -d soft0"))
}

/// A server at a free port of this machine.
fn serve(args: &str) -> (Running, String) {
    let line = format!("--announce -p 0 -d soft0 {args}");
    let mut server = Running::start(qpair(&words(&line)));
    let port = server.line();
    (server, port)
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"))
}

#[test]
fn every_bandwidth_is_measured_in_one_direction_and_in_both() {
    for test in ["write-bw", "read-bw", "send-bw", "atomic-bw"] {
        for (options, qps, both) in [
            ("-q 1", 1, false),
            ("-q 3", 3, false),
            ("-b", 1, true),
            ("-q 2 -b", 2, true),
            ("-b --report_gbits", 1, true),
        ] {
            let size = if test == "atomic-bw" { 8 } else { 3000 };
            let rows = rows(&local(&format!("{test} {options} -n 700 -s {size} -t 20 -Q 7 -r 16 --json")));
            let [row] = rows.as_slice() else { panic!("{test}: {rows:?}") };
            assert_eq!((&row["test"], &row["size"]), (&test.into(), &size.into()), "{row}");
            assert_eq!((&row["qps"], &row["bidirectional"]), (&qps.into(), &both.into()), "{row}");
            assert_eq!(row["iterations"], 700 * qps, "{row}");
            let (peak, average) = (number(row, "peak_mib_s"), number(row, "average_mib_s"));
            assert!(peak >= average * 0.999 && average > 0.0, "{row}");
            let by_rate = number(row, "rate_mpps") * 1e6 * f64::from(size) / f64::from(1 << 20);
            assert!((by_rate - average).abs() < 1e-6 * average, "{row}");
            let gbits = average * f64::from(1 << 20) * 8.0 / 1e9;
            assert!((number(row, "average_gbit_s") - gbits).abs() < 1e-6 * gbits, "{row}");
        }
    }
}

#[test]
fn every_latency_is_measured_with_percentiles() {
    for test in ["write-lat", "read-lat", "send-lat", "atomic-lat"] {
        // Inline, and from registered memory; a byte that is the last and the first.
        for size in if test == "atomic-lat" { vec![8] } else { vec![1, 8, 221, 5000] } {
            let rows = rows(&local(&format!("{test} -n 300 -s {size} -q 1 --json")));
            let [row] = rows.as_slice() else { panic!("{test}: {rows:?}") };
            assert_eq!((&row["size"], &row["iterations"]), (&size.into(), &300.into()), "{row}");
            let times = ["t_min_us", "t_typical_us", "t_99_us", "t_99.9_us"].map(|name| number(row, name));
            assert!(times[0] > 0.0 && times.is_sorted(), "{row}");
            assert!(number(row, "t_max_us") >= times[3] && number(row, "t_avg_us") >= times[0], "{row}");
        }
    }
}

#[test]
fn unreliable_services_carry_what_they_can() {
    for line in [
        "write-bw -c UC -n 300",
        "write-lat -c UC -n 300",
        "send-lat -c UC -n 300",
        "send-lat -c ud -n 300",
        "send-bw -c UC -n 300 -s 4K",
        "send-bw -c UD -n 300",
        "send-bw -c UD -b -n 300 -s 512",
    ] {
        let rows = rows(&local(&format!("{line} --json")));
        assert_eq!(rows.len(), 1, "{line}");
        let service = if line.contains("UC") { "UC" } else { "UD" };
        assert_eq!(rows[0]["connection"], service, "{line}");
    }
}

/// Each side posts its next receive in time, and none beyond the last message.
#[test]
fn messages_forth_and_back_need_no_more_receives_than_they_have() {
    for service in ["RC", "UC", "UD"] {
        for count in ["-n 300 -r 1", "-n 300 -r 2", "-n 5 -r 1", "-n 5 -r 2", "-n 5 -r 4", "-n 5 -r 5", "-n 5 -r 9"] {
            let test = format!("send-lat -c {service}");
            let (server, port) = serve(&test);
            let rows = rows(&perf(&format!("{test} {count} 127.0.0.1 -p {port} -d soft0 --json")));
            let iterations: u64 = count.split(' ').nth(1).and_then(|count| count.parse().ok()).expect("a number");
            assert_eq!((rows.len(), &rows[0]["iterations"]), (1, &iterations.into()), "{test} {count}: {rows:?}");
            let server = server.finish();
            assert!(server.status.success(), "{test} {count}: {}", stderr(&server));
        }
    }
}

/// So do those whose number is not known before.
#[test]
fn messages_forth_and_back_by_duration_need_one_receive() {
    for receives in [1, 2] {
        let (server, port) = serve("send-lat -q 1");
        let line = format!("send-lat -q 1 -r {receives} -D 300ms -f 50ms 127.0.0.1 -p {port} -d soft0 --json");
        let rows = rows(&perf(&line));
        assert!(rows.len() == 1 && number(&rows[0], "iterations") > 0.0, "{receives}: {rows:?}");
        let server = server.finish();
        assert!(server.status.success(), "{receives}: {}", stderr(&server));
    }
}

#[test]
fn runs_by_duration_end_by_themselves() {
    for test in ["write-bw", "write-bw -b", "read-bw", "send-bw", "send-bw -b", "atomic-bw"] {
        let rows = rows(&local(&format!("{test} -D 600ms -f 100ms --json")));
        assert!(number(&rows[0], "iterations") > 0.0 && rows[0]["peak_mib_s"].is_null(), "{test}: {rows:?}");
    }
    for test in ["write-lat", "read-lat", "send-lat", "atomic-lat"] {
        let rows = rows(&local(&format!("{test} -D 600ms -f 100ms --json")));
        let (average, rate) = (number(&rows[0], "t_avg_us"), number(&rows[0], "tps"));
        let ways = if test.starts_with("read") || test.starts_with("atomic") { 1.0 } else { 2.0 };
        assert!((average * ways * rate - 1e6).abs() < 1.0, "{test}: {rows:?}");
    }
}

#[test]
fn all_sizes_are_measured_one_after_another() {
    for test in ["write-bw", "write-bw -b", "send-bw", "send-bw -b", "write-lat", "send-lat", "read-lat"] {
        let rows = rows(&local(&format!("{test} -a -n 5 -q 1 --json")));
        let sizes: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().expect("a size")).collect();
        assert_eq!(sizes, (1..=23).map(|shift| 1 << shift).collect::<Vec<_>>(), "{test}");
    }
    let rows = rows(&local("send-bw -a -n 5 -c UD --json"));
    assert_eq!(rows.last().expect("some")["size"], 4096);
}

#[test]
fn who_sleeps_is_woken() {
    for line in
        ["send-bw -n 300 -e", "send-bw -n 300 -e -b", "send-lat -n 100 -e", "read-lat -n 100 -e", "write-bw -n 300 -e"]
    {
        assert_eq!(rows(&local(&format!("{line} --json"))).len(), 1, "{line}");
    }
}

#[test]
fn the_tables_are_those_of_perftest() {
    let text = stdout(&local("write-bw -n 100 -q 2"));
    for part in [
        "                    RDMA_Write BW Test\n",
        " Dual-port       : OFF\t\tDevice         : soft0\n",
        " Number of qps   : 2\t\tTransport type : IB\n",
        " Connection type : RC\t\tUsing SRQ      : OFF\n",
        " TX depth        : 100\n CQ Moderation   : 1\n Mtu             : 4096[B]\n",
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      200  ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(text.matches(" local address: LID ").count(), 2, "{text}");
    assert_eq!(text.matches(" remote address: LID ").count(), 2, "{text}");
    let gbits = stdout(&local("send-bw -n 100 -b --report_gbits"));
    assert!(gbits.contains("Send Bidirectional BW Test") && gbits.contains("BW peak[Gb/sec]"), "{gbits}");
    let latency = stdout(&local("write-lat -n 100 -c UC"));
    assert!(latency.contains(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]"), "{latency}");
    let mean = stdout(&local("send-lat -D 200ms -c RC"));
    assert!(mean.contains(" #bytes        #iterations       t_avg[usec]    tps average\n 2      "), "{mean}");
}

/// Both sides here, but not through shared memory.
fn by_network(args: &str) -> Output {
    let mut command = qpair(&words(&format!("{args} --local -d soft0")));
    command.env("QPAIR_NO_SHARED_MEMORY", "1");
    finish(command)
}

#[test]
fn what_a_device_counted_is_printed_at_the_end() {
    for (line, least) in [("write-bw -q 1 -n 50 -s 64K", 50), ("read-lat -n 20 -s 100", 20), ("tag-lat -n 20", 40)] {
        let rows = rows(&by_network(&format!("{line} --counters --json")));
        let [_, counted] = rows.as_slice() else { panic!("{line}: {rows:?}") };
        assert_eq!((&counted["device"], &counted["port"]), (&"soft0".into(), &1.into()), "{line}");
        assert!(counted["counters"]["sent_pkts"].as_i64() >= Some(least), "{line}: {counted}");
        assert!(counted["counters"]["unsupported_opcode"].is_null(), "what did not change: {counted}");
    }
    let text = stdout(&by_network("send-bw -q 1 -n 50 --counters"));
    let (_, counted) = text.split_once("\n# counters of soft0 that changed\ncounter").expect("a second table");
    assert!(counted.contains("\nsent_pkts") && counted.contains("  +"), "{text}");
    let text = stdout(&local("write-lat -n 10 -q 1 --counters"));
    assert!(text.ends_with("\n# no counter of soft0 changed\n"), "shared memory counts nothing: {text}");
}

#[test]
fn sizes_after_one_of_which_messages_got_lost_are_measured_all_the_same() {
    // A receiver that has receives for few of those that come.
    let rows = rows(&by_network("send-bw -c UD -a -q 1 -r 8 -n 500 --json"));
    assert_eq!(rows.len(), 12, "{rows:?}");
    for row in &rows {
        assert!(row["iterations"].as_u64() > Some(0), "{row}");
    }
}

#[test]
fn a_server_prints_objects_alone_for_programs() {
    let mut server = Running::start(qpair(&words("write-bw -p 0 --bind 127.0.0.1 -d soft0 --json --counters")));
    let line = server.error_line();
    let port = line.rsplit(' ').next().expect("a port");
    let rows = rows(&perf(&format!("write-bw 127.0.0.1 -p {port} -d soft0 -n 77 -q 1 -s 100 --json")));
    assert_eq!(rows[0]["iterations"], 77);
    let output = server.finish();
    assert!(!crate::rows(&output).is_empty(), "{}", stdout(&output));
}

#[test]
fn a_run_over_the_network_is_one_over_ethernet() {
    let text = stdout(&by_network("write-bw -q 1 -n 20"));
    assert!(text.contains("\n Link type       : Ethernet\n GID index       : "), "{text}");
    assert!(text.contains("\n local address: LID 0000 QPN 0x") && text.contains("\n GID: 00:00:"), "{text}");
    let text = stdout(&local("write-bw -q 1 -n 20"));
    assert!(text.contains("\n Link type       : Shared memory\n"), "{text}");
}

#[test]
fn the_clients_numbers_count_and_the_server_prints_them_too() {
    let mut server = Running::start(qpair(&words("write-bw -p 0 --bind 127.0.0.1 -d soft0")));
    let line = server.line();
    let port = line.rsplit(' ').next().expect("a port").to_owned();
    let rows = rows(&perf(&format!("write-bw 127.0.0.1 -p {port} -d soft0 -n 77 -q 3 -s 100 --json")));
    assert_eq!(rows[0]["iterations"], 231);
    let output = server.finish();
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("Number of qps   : 3"), "{text}");
    assert!(text.contains("\n 100        231 "), "{text}");
}

#[test]
fn sides_that_run_different_tests_are_told_so() {
    for (ours, theirs) in [("write-bw -b", "send-bw"), ("send-lat -c UC", "send-lat"), ("read-bw -c RC", "write-lat")] {
        let (server, port) = serve(theirs);
        let client = perf(&format!("{ours} 127.0.0.1 -p {port} -d soft0"));
        let server = server.finish();
        for output in [client, server] {
            assert_eq!(output.status.code(), Some(1), "{ours}: {}", stderr(&output));
            let text = stderr(&output);
            // One side may learn of it by the other's end.
            assert!(text.contains("give both the same") || text.contains("closed the connection"), "{ours}: {text}");
        }
    }
}

#[test]
fn a_server_without_end_outlives_strangers_who_speak_as_perftest_does() {
    let (server, port) = serve("write-bw --forever");
    for words in [
        &b"5.60\0\0\0\0\0\0\0\0\0\0\0\0"[..],
        b"6.06\0\0\0\0",
        b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\x7f\0\0\0",
        &[b'6'; 20000],
    ] {
        let mut stranger = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        // It may be told to go before it has said all.
        let _ = stranger.write_all(words);
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let rows = rows(&perf(&format!("write-bw 127.0.0.1 -p {port} -d soft0 -b -n 50 --json")));
    assert_eq!(rows.len(), 1);
    server.signal(Signal::KILL);
    let text = stderr(&server.finish());
    for part in [
        "speaks version 5.60 of perftest's exchange",
        "closed the connection, when its version was next",
        "asks for pages of 2130706432 bytes",
        "instead of a version",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_server_that_is_none_is_told_to_the_client() {
    for (answer, part) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "neither perftest nor qpair perf"),
        (b"5.33\0\0\0\0\0\0\0\0\0\0\0\0", "install perftest 4.4 or later"),
        (b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", "closed the connection, when its page size was next"),
        (b"", "closed the connection, when its version was next"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(answer).expect("it is taken");
            stream.shutdown(std::net::Shutdown::Write).expect("it is open");
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let output = perf(&format!("write-bw 127.0.0.1 -p {port} -d soft0 -b"));
        server.join().expect("it ended");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// A client that runs: it has printed its header's first line.
fn client(test: &str, port: &str) -> Running {
    let mut client = Running::start(qpair(&words(&format!("{test} 127.0.0.1 -p {port} -d soft0 -D 2h"))));
    while !client.line().starts_with(" #bytes") {}
    client
}

#[test]
fn a_side_that_is_killed_ends_the_other() {
    for test in ["write-bw -b", "send-bw -q 1", "send-lat -q 1", "write-lat -q 1", "read-lat -q 1", "send-bw -c UD"] {
        for killed in ["client", "server"] {
            let (server, port) = serve(test);
            let client = client(test, &port);
            let other = match killed {
                "client" => {
                    client.signal(Signal::KILL);
                    server
                }
                _ => {
                    server.signal(Signal::KILL);
                    client
                }
            };
            let output = other.finish();
            assert_eq!(output.status.code(), Some(1), "{test}, {killed} killed: {}", stderr(&output));
            assert!(stderr(&output).contains("error: "), "{test}: {}", stderr(&output));
        }
    }
}

#[test]
fn bad_arguments_are_errors_that_say_what_to_do() {
    for (line, code, part) in [
        ("send-bw -c UD -s 8K --local -d soft0", 2, "give -s 4K or less"),
        ("atomic-bw -b -s 16 --local", 2, "atomics work on 8 bytes"),
        ("read-bw -c UC --local", 2, "give -c RC"),
        ("write-lat -b --local", 2, "leave out -q and -b"),
        ("write-bw -q 0 --local", 2, "1..=1024"),
        ("write-bw -c XRC --local", 2, "RC, UC, UD"),
        ("send-lat -q 1 -n 1 --local", 2, "-n is 5 to"),
        ("write-bw -m 1000 --local", 2, "256, 512, 1024, 2048 or 4096"),
        ("write-bw -b -s 8,64 --local", 2, "takes one size"),
        ("write-bw -b -f 1 --local", 2, "--duration"),
        ("write-bw -i 2 --local -d soft0", 1, "has no port 2"),
        ("write-bw -x 99 --local -d soft0", 1, "has no GID 99"),
        ("write-bw -b -d mlx5_99", 1, "mlx5_99"),
        ("write-bw -d mlx5_99", 1, "mlx5_99"),
    ] {
        let output = perf(line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
}
