//! Options and their meaning: perftest's defaults, what does not go together, and what a client may ask for.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    perf: PerfArgs,
}

/// What the options amount to.
pub fn settings(line: &str) -> Result<Settings, PerfError> {
    Settings::new(&Line::try_parse_from(std::iter::once("perf").chain(line.split(' '))).expect("a valid line").perf)
}

/// What options that go together amount to.
pub fn valid(line: &str) -> Settings {
    settings(line).expect(line)
}

#[test]
fn defaults_are_those_of_perftest() {
    let shape = |line: &str| {
        let of = valid(line);
        (of.sizes(Mtu::B1024).expect("fits"), of.iterations(), of.tx_depth(), of.rx_depth(), of.cq_mod())
    };
    assert_eq!(shape("write-bw"), (vec![65536], Some(5000), 128, 0, 1));
    assert_eq!(shape("read-bw -s 8192"), (vec![8192], Some(1000), 128, 0, 100));
    assert_eq!(shape("write-bw -n 100"), (vec![65536], Some(100), 100, 0, 1));
    assert_eq!(shape("send-bw -n 100 -c ud"), (vec![1024], Some(100), 100, 100, 100));
    assert_eq!(shape("send-bw -D 3"), (vec![65536], None, 128, 512, 1));
    assert_eq!(shape("atomic-bw"), (vec![8], Some(1000), 128, 0, 100));
    assert_eq!(shape("write-lat"), (vec![2], Some(1000), 1, 0, 1));
    assert_eq!(shape("send-lat -n 100"), (vec![2], Some(100), 1, 100, 1));
    assert_eq!(shape("send-lat -c UC"), (vec![2], Some(1000), 1, 1000, 1));
    assert_eq!(shape("send-bw -c UD"), (vec![1024], Some(1000), 128, 1000, 100));
    assert_eq!(shape("send-bw -c UC -n 30000"), (vec![65536], Some(30000), 128, 16000, 1));
    assert_eq!(shape("send-bw -c UC -D 3"), (vec![65536], None, 128, 512, 1));
    assert_eq!(shape("send-bw -c UC -r 600"), (vec![65536], Some(1000), 128, 600, 1));
    assert_eq!(shape("send-bw -s 64K -t 8 -r 7 -Q 20"), (vec![65536], Some(1000), 8, 7, 8));
    let inline = |line: &str| valid(line).inline(400);
    assert_eq!(["write-lat", "send-lat", "send-lat -c UC", "send-lat -c UD"].map(inline), [220, 236, 236, 188]);
    assert_eq!(
        ["write-bw", "send-bw", "read-lat", "atomic-lat", "read-lat -I 8", "write-bw -I 8"].map(inline),
        [0, 0, 0, 0, 0, 8]
    );
    assert_eq!(valid("send-lat").inline(96), 96);
    let all = valid("write-bw -a -n 20");
    let sizes = all.sizes(Mtu::B1024).expect("fits");
    assert_eq!((sizes.len(), sizes[0], sizes[22], all.cq_mod()), (23, 2, 1 << 23, 20));
    assert_eq!(valid("send-lat -a -c UD").sizes(Mtu::B1024).expect("fits").last(), Some(&1024));
}

#[test]
fn a_quarter_of_the_duration_is_margin_in_whole_seconds() {
    for (line, expected) in [
        ("write-bw -D 10", 2.0),
        ("write-bw -D 8s", 2.0),
        ("write-bw -D 3", 0.0),
        ("write-bw -D 500ms", 0.0),
        ("write-bw -D 10 -f 0", 0.0),
        ("write-bw -D 10 -f 1.5", 1.5),
    ] {
        let Goal::Seconds { margin, .. } = valid(line).goal else { panic!("{line} is by duration") };
        assert_eq!(margin, expected, "{line}");
    }
}

#[test]
fn lossy_services_get_the_receives_that_the_device_has_room_for() {
    let mut small = valid("send-bw -c UC -n 30000 -q 4");
    small.fit(1 << 20, 32767);
    assert_eq!(small.rx_depth(), 8191);
    small.fit(1024, 32767);
    assert_eq!(small.rx_depth(), 1024);
    let mut asked = valid("send-bw -c UC -n 30000 -r 2000");
    asked.fit(1024, 32767);
    assert_eq!(asked.rx_depth(), 2000, "the device says that it has not so many");
}

#[test]
fn a_datagram_longer_than_the_mtu_is_a_typed_error() {
    let error = valid("send-bw -c UD -s 2048").sizes(Mtu::B1024).expect_err("too long");
    assert!(matches!(error, PerfError::DatagramSize { size: Size(2048), mtu: 1024 }), "{error:?}");
    assert!(error.to_string().contains("-s 1K"), "{error}");
    valid("send-bw -c UD -s 2048").sizes(Mtu::B2048).expect("fits");
}

#[test]
fn what_a_test_does_not_have_is_a_typed_error() {
    for (line, part) in [
        ("read-bw -c UC", "-c RC"),
        ("write-lat -c UD", "-c RC"),
        ("atomic-bw -c UC", "-c RC"),
        ("tag-lat -b", "no test of perftest"),
        ("read-lat -A CMP_AND_SWAP", "-A"),
        ("atomic-bw -s 16", "8 bytes"),
        ("atomic-lat -a", "8 bytes"),
        ("write-bw -s 0", "1 B"),
        ("write-bw -s 2G", "1 B"),
        ("write-bw -s 8,64", "one size"),
        ("write-lat -b", "-b"),
        ("send-lat -q 2", "-q"),
        ("write-lat -e", "-e"),
        ("write-bw -a -D 2", "-D"),
        ("write-bw -D 2 -f 1", "-f"),
        ("write-bw -n 4", "-n"),
    ] {
        let error = settings(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(part), "{line}: {error}");
    }
}

#[test]
fn the_clients_terms_count_within_limits() {
    let mut server = valid("write-bw");
    let line = "write-bw -s 1M -n 77 -q 3 -b -t 33 -Q 5 -N --report_gbits";
    let client = valid(line).terms(None);
    server.adopt(&client).expect("modest");
    assert_eq!(server.terms(None), client);
    assert_eq!(server.sizes(Mtu::B1024).expect("fits"), [1 << 20]);
    assert_eq!((server.tx_depth(), server.cq_mod(), server.peak(), server.gbits), (33, 5, false, true));
    let mut server = valid("send-bw");
    server.adopt(&valid("send-bw -r 77").terms(None)).expect("modest");
    assert_eq!(server.rx_depth(), 77);
    let mut server = valid("atomic-bw");
    server.adopt(&valid("atomic-bw -A CMP_AND_SWAP").terms(None)).expect("modest");
    assert_eq!(server.atomic, AtomicOperation::CmpAndSwap);

    valid("send-bw").adopt(&valid("send-bw -q 1024 -t 4096 -r 16384").terms(None)).expect("the command line's most");
    for terms in [
        Terms { depth: 0, ..client.clone() },
        Terms { depth: 5000, ..client.clone() },
        Terms { rx_depth: Some(0), ..client.clone() },
        Terms { rx_depth: Some(20_000), ..client.clone() },
        Terms { cq_mod: Some(0), ..client.clone() },
        Terms { size: Some(1), qps: 100_000, ..client.clone() },
        Terms { size: Some(u64::MAX), qps: u32::MAX, ..client.clone() },
        Terms { goal: Goal::Iterations(u64::MAX), ..client.clone() },
        Terms { goal: Goal::Seconds { duration: f64::MAX, margin: -1.0 }, ..client.clone() },
        Terms { goal: Goal::Seconds { duration: f64::NAN, margin: 0.0 }, ..client.clone() },
        Terms { size: Some(0), ..client.clone() },
        Terms { qps: 0, ..client },
    ] {
        valid("write-bw").adopt(&terms).expect_err("a lie");
    }
}

#[test]
fn the_peak_is_looked_for_in_short_runs() {
    assert!(valid("write-bw").peak());
    assert!(!valid("write-bw -N").peak());
    assert!(!valid("write-bw -n 20001").peak());
    assert!(valid("write-bw -n 20000 -q 2").peak());
    assert!(!valid("write-bw -D 1").peak());
}
