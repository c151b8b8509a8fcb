//! What part of a link a connection uses, by loss and window: a table that is committed, so that a change shows.

use std::fmt::Write;
use std::time::Duration;

use qpair_roce::{Mtu, Op, Outcome, ReliableConfig, Remote};

use super::pair::Pair;
use crate::network::Faults;
use crate::side::{BASE, KEY};

/// Per cent of the link's rate that is payload, of 64 such requests of 64 KiB at once.
fn goodput(op: Op, loss: f64, window: u32) -> f64 {
    let change = |config| ReliableConfig {
        mtu: Mtu::B4096,
        window,
        retry_count: None,
        ack_timeout: Some(Duration::from_micros(131)),
        ..config
    };
    let mut pair = Pair::with(7, Faults { loss, ..Faults::default() }, change);
    pair.limit(RATE);
    let start = pair.now;
    let ids: Vec<_> = (0..64).map(|_| pair.post(0, op, vec![1; 1 << 16]).0).collect();
    pair.drive();
    assert_eq!(pair.sent(0), ids.iter().map(|id| (*id, Outcome::Success)).collect::<Vec<_>>());
    let micros = (pair.now - start).as_nanos() as f64 / 1000.0;
    100.0 * f64::from(64 << 16) / (micros * RATE as f64)
}

#[test]
fn goodput_is_as_it_was() {
    let windows = [8, 32, 128, 512];
    let remote = Remote { va: BASE, rkey: KEY };
    let mut table = String::from(HEAD);
    for (name, op) in [("WRITE", Op::Write(remote, None)), ("READ", Op::Read(remote))] {
        for loss in [0.0, 0.0001, 0.001, 0.01, 0.05] {
            write!(table, "{name:5} {:>7.2} %", loss * 100.0).unwrap();
            for window in windows {
                write!(table, " {:>8.1}", goodput(op, loss, window)).unwrap();
            }
            table.push('\n');
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/roce/rc/goodput.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(path).unwrap(), "UPDATE=1 writes the table anew");
}

/// 100 Gbit/s.
const RATE: u64 = 12_500;
const HEAD: &str = "\
Goodput of a reliable connection in per cent of the link's rate: 64 WRITEs or READs of 64 KiB, MTU 4096, 100 Gbit/s, 10 us each
way, timeout 131 us, in virtual time. A lost packet has all behind it sent again (go-back-N).

           loss  window 8       32      128      512
";
