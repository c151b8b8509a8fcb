//! What can go wrong in a measurement between two processes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use qpair::transport::{self, CloseReason, ListenError, OpError, RecvFailure, SendCopyError, SendFailure, WorkerError};
use qpair::verbs::{
    CompletionError, ConnectError, CqError, CreateError, MemoryError, OpenError, PortState, PostError, Rejected,
    WcStatus,
};
use thiserror::Error;

use super::device::SOFT;
use super::perftest::error::ExchangeError;
use super::test::Test;
use crate::machine::PinError;
use crate::output::PrintError;
use crate::ranks::RankEnd;
use crate::size::Size;

/// A measurement that did not run to its end.
#[derive(Debug, Error)]
pub enum PerfError {
    /// The port to serve at is in use.
    #[error("port {port} is taken; give another with --port (the client must give the same)")]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The server could not listen.
    #[error("can not listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Nobody serves there.
    #[error(
        "no server at {host}:{port}: {source}; start {} there first", server(*test, device)
    )]
    NoServer {
        /// Host that was asked for.
        host: String,
        /// Port that was asked for.
        port: u16,
        /// The measurement asked for.
        test: Test,
        /// The device to measure.
        device: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The host's name leads nowhere.
    #[error("{host} is no address, and no name that has one: {source}; {}", of_no_host(host))]
    NoSuchHost {
        /// Host that was asked for.
        host: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The control connection broke.
    #[error("the control connection to the other side failed: {0}")]
    Exchange(io::Error),
    /// The other side does not go on.
    #[error("the other side was silent for too long; see whether its process is stopped, or busy with another client")]
    Silent,
    /// The server takes the connection and says nothing.
    #[error(
        "what listens at {host}:{port} has said nothing for {} s; see whether it is a `qpair perf`, is stopped, or has another client",
        limit.as_secs()
    )]
    NoAnswer {
        /// Host that was asked for.
        host: String,
        /// Port that was asked for.
        port: u16,
        /// How long was waited.
        limit: Duration,
    },
    /// The other side is gone.
    #[error("the other side closed the connection; its own output tells why")]
    PeerClosed,
    /// The other side said what is no message here.
    #[error("the other side's message makes no sense ({why}); is it a `qpair perf` of release {}?", env!("CARGO_PKG_VERSION"))]
    Garbled {
        /// What is wrong with it.
        why: String,
    },
    /// A client asks a server for more memory than it gives.
    #[error(
        "a client asks for messages of {asked}, and the server gives memory for {limit} each; start it with the same --size"
    )]
    TooLong {
        /// Longest message asked for.
        asked: Size,
        /// Longest that there is memory for.
        limit: Size,
    },
    /// The other side is of another version.
    #[error(
        "the other side is release {release}, with version {theirs} of this protocol; this side has {ours}: use the same release"
    )]
    Version {
        /// Its release.
        release: String,
        /// Its protocol version.
        theirs: u32,
        /// This side's.
        ours: u32,
    },
    /// The other side can not do the measurement.
    #[error("the other side refused: {0}")]
    Refused(String),
    /// The exchange with perftest, or with another qpair as perftest does it, did not come about.
    #[error(transparent)]
    Perftest(ExchangeError),
    /// The device has no such port.
    #[error("device {device} has no port {port}; it has {ports}, counted from 1")]
    NoPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
        /// Ports there are.
        ports: u8,
    },
    /// The port carries no data.
    #[error(
        "port {port} of {device} is not up ({state:?}); see its cable and network interface (`ip link`), or give another with -i"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },
    /// The port has no such row in its table of GIDs.
    #[error("port {port} of {device} has no GID {index}; `qpair devices -v` tells which there are")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The row asked for.
        index: u32,
    },
    /// The MTU is above the port's.
    #[error(
        "an MTU of {asked} is above that of {device}, {active}; give -m {active} or less, or raise its network interface's"
    )]
    Mtu {
        /// The device.
        device: String,
        /// MTU asked for, in bytes.
        asked: u32,
        /// The port's, in bytes.
        active: u32,
    },
    /// A datagram is longer than the path takes.
    #[error("a datagram of {size} does not fit the path's MTU; give -s {} or less", Size((*.mtu).into()))]
    DatagramSize {
        /// Size asked for.
        size: Size,
        /// The path's MTU in bytes.
        mtu: u32,
    },
    /// A message is longer than the device takes.
    #[error("{device} takes no messages of {size}; give -s {limit} or less")]
    MessageSize {
        /// The device.
        device: String,
        /// Size asked for.
        size: Size,
        /// Longest message.
        limit: Size,
    },
    /// The device did not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A queue could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be had or reached.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The queue pairs did not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A completion queue failed.
    #[error(transparent)]
    Poll(#[from] CqError),
    /// A request failed.
    #[error("{}{}", .0, of_the_other_side(.0.status))]
    Completion(#[from] CompletionError),
    /// The queue pair failed without telling of a request.
    #[error("the queue pair went to the error state; the other side's output tells why")]
    QueuePairFailed,
    /// The worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The worker could not listen.
    #[error(transparent)]
    WorkerListen(#[from] ListenError),
    /// The worker could not begin to connect.
    #[error(transparent)]
    WorkerConnect(#[from] transport::ConnectError),
    /// The workers did not connect.
    #[error("the other side's worker did not connect within {0:?}; is its process stopped?")]
    NoConnection(Duration),
    /// The connection between the workers ended.
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// A message was not taken.
    #[error(transparent)]
    Send(#[from] SendFailure),
    /// A message was not copied.
    #[error(transparent)]
    SendCopy(#[from] SendCopyError),
    /// A receive was not taken.
    #[error(transparent)]
    Receive(#[from] RecvFailure),
    /// A message did not come about.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// An atomic operation gave a wrong value.
    #[error("fetch-and-add returned {found}, where {expected} must be; the device is at fault")]
    WrongValue {
        /// What came.
        found: u64,
        /// What must come.
        expected: u64,
    },
    /// The process could not be bound to a CPU.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A size that the measurement does not have.
    #[error("{test} can not be measured with {size} bytes: {why}")]
    Size {
        /// The measurement.
        test: Test,
        /// The size.
        size: Size,
        /// What it needs.
        why: &'static str,
    },
    /// Options that do not fit the measurement.
    #[error("{0}")]
    Options(String),
    /// The serving process of --local did not start.
    #[error("could not start the serving process: {0}")]
    Local(io::Error),
    /// The serving process of --local did not end well.
    #[error("the serving process {0} after all was measured; its own output tells why")]
    ServerFailed(RankEnd),
    /// The serving process of --local did not end.
    #[error("the serving process did not end within {0:?} after all was measured, and was killed")]
    ServerHangs(Duration),
    /// The results could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl PerfError {
    /// What the command shall exit with: 2 where the arguments are to blame.
    pub fn exit_code(&self) -> u8 {
        match self {
            PerfError::Options(_)
            | PerfError::Size { .. }
            | PerfError::DatagramSize { .. }
            | PerfError::MessageSize { .. } => 2,
            _ => 1,
        }
    }
}

/// What to do about a name that leads nowhere.
fn of_no_host(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.parse::<u16>().is_ok() => format!("write {name} -p {port}"),
        _ => format!("see what `getent hosts {host}` says"),
    }
}

/// What a failed request may tell of the other side.
fn of_the_other_side(status: WcStatus) -> &'static str {
    match status {
        WcStatus::WR_FLUSH_ERR | WcStatus::RETRY_EXC_ERR => {
            "; so it is when the other side has ended, or can not be reached any more: see its output"
        }
        _ => "",
    }
}

/// What serves `test` for a client with `device`.
fn server(test: Test, device: &str) -> String {
    match (device, test.is_tagged()) {
        (SOFT, _) => format!("`qpair perf {test} -d {SOFT}` (with --bind ADDRESS for other addresses than 127.0.0.1)"),
        (_, true) => format!("`qpair perf {test} -d DEVICE`"),
        (_, false) => format!("`qpair perf {test} -d DEVICE` or `ib_{}`", test.name().replace('-', "_")),
    }
}

impl From<Rejected> for PerfError {
    fn from(rejected: Rejected) -> Self {
        PerfError::Post(rejected.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_named_by_the_device() {
        let hint = |test, device: &str| {
            let (host, source) = ("h".to_owned(), io::ErrorKind::ConnectionRefused.into());
            PerfError::NoServer { host, port: 1, test, device: device.to_owned(), source }.to_string()
        };
        let rdma = hint(Test::WriteBw, "mlx5_0");
        assert!(rdma.ends_with("start `qpair perf write-bw -d DEVICE` or `ib_write_bw` there first"), "{rdma}");
        assert!(!hint(Test::TagLat, "mlx5_0").contains("ib_"));
        let soft = hint(Test::WriteBw, SOFT);
        assert!(soft.contains("`qpair perf write-bw -d soft0`") && soft.contains("--bind"), "{soft}");
    }
}
