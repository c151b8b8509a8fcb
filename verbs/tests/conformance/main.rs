//! The conformance suite for verbs: one set of cases for every device and wire.
//!
//! `QPAIR_TEST_DEVICE` names the device (default `soft0`). Each two-sided case is written once and runs with both sides
//! on one opened device, on two, and in two processes; there `QPAIR_TEST_FAR_DEVICE` may name another device for the far
//! side. What the devices can not do is skipped, and says so.

mod harness;

/// Runs each case in every placement.
macro_rules! two_sided {
    ($($case:ident,)*) => {$(
        mod $case {
            use crate::harness::{Placement, run};

            #[test]
            fn one_context() {
                run(Placement::OneContext, super::$case);
            }

            #[test]
            fn two_contexts() {
                run(Placement::TwoContexts, super::$case);
            }

            #[test]
            fn two_processes() {
                run(Placement::TwoProcesses, super::$case);
            }
        }
    )*};
}

/// Runs each case between two processes only.
macro_rules! two_processes {
    ($($case:ident,)*) => {$(
        mod $case {
            use crate::harness::{Placement, run};

            #[test]
            fn two_processes() {
                run(Placement::TwoProcesses, super::$case);
            }
        }
    )*};
}

/// Runs each case once, in this process.
macro_rules! one_sided {
    ($($case:ident,)*) => {$(
        mod $case {
            use crate::harness::{Placement, run};

            #[test]
            fn here() {
                run(Placement::OneContext, super::$case);
            }
        }
    )*};
}

mod atomics;
mod bounce;
mod channel;
mod completions;
mod connect;
mod datagram;
mod device;
mod faults;
mod in_place;
mod limits;
mod loss;
mod memory;
mod one_sided;
mod order;
mod overrun;
mod ports;
mod posting;
mod races;
mod random;
mod rdma_cm;
mod read_reduce;
mod resting;
mod rnr;
mod secrets;
mod send;
mod shared_receive;
mod teardown;
mod unreliable;
mod users;
mod windows;

#[test]
#[ignore = "needs a case to start it, as its peer process"]
fn peer_process() {
    match std::env::var(harness::PEER_VARIABLE) {
        Ok(device) => harness::serve(&device),
        Err(_) => eprintln!("nothing to do: no case started this process"),
    }
}

/// Sizes around the limits of inline data, ring lines, pages and copies.
const SIZES: [usize; 14] = [0, 1, 39, 40, 41, 200, 220, 221, 4095, 4096, 4097, 64 << 10, 1 << 20, 16 << 20];
