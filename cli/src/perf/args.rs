//! Arguments of `perf`, and what both sides must know of them.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use super::device::{SOFT, default_device};
use super::error::PerfError;
use super::perftest::options::PerftestOptions;
use super::test::{Effort, Kind, Parameters, Test};
use crate::period::Period;
use crate::size::Size;

/// Measures verbs and messages between two processes.
///
/// Without HOST it serves; with the name or address of a server it is the client, and prints the results. --local does
/// both, each process on a core of its own where there are two, else on a CPU of its own. Between two qpairs the client says
/// what is measured, for both sides; each side has its own of what its device takes (-d, -i, -x, -m, -I, -o) and of -e.
///
/// On an RDMA device it measures as perftest 4.5 does, prints what perftest prints, and the other side may be perftest
/// (ib_write_bw for write-bw, and so on); then both sides must be given the same options, as perftest wants it. On the
/// software device soft0 it does so too where the other side is on another host (by RoCEv2 over UDP), where it serves at an
/// address that is none of loopback, and with any option of perftest's. Within a host soft0 has a way of its own, with sizes
/// in lists, and memcpy beside bandwidths.
///
/// In that own way latencies are one way for write-lat, send-lat and tag-lat (half a round trip of a ping-pong) and whole for
/// read-lat and atomic-lat. `typical` is the median of means over batches, which clock reads do not disturb, or of single
/// operations where there are few; min, median, p99 and max are of single operations.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair perf write-lat --local                       8-byte WRITE ping-pong, both sides here
  qpair perf write-bw --local -s 64K,1M,16M          bandwidth, and memcpy in the same run
  qpair perf write-lat --local --post-poll --json    what post and poll take, for each WRITE
  qpair perf tag-lat --local -a                      messages of all sizes
  qpair perf write-bw --local --gpu -s 64M           from a GPU's memory into that of another process
  qpair perf read-bw                                 serves once
  qpair perf read-bw 127.0.0.1 -s 1M -D 2s --json    the client to it
  qpair perf write-bw -d mlx5_0                      serves `ib_write_bw HOST`, and a qpair
  qpair perf send-bw 10.0.0.1 -d rxe0 -b -q 4        client to `ib_send_bw -b -q 4` at 10.0.0.1
  qpair perf write-bw 10.0.0.1 -d soft0              the same to `ib_write_bw`, with no RDMA device here
  qpair perf write-bw -d soft0 --bind 0.0.0.0        serves `ib_write_bw HOST`, with no RDMA device here
  qpair perf read-bw 10.0.0.1 -d rxe0 --counters     and tells what was lost on the way")]
pub struct PerfArgs {
    /// What to measure
    #[arg(value_enum)]
    pub test: Test,
    /// The server to be client to; serve if there is none
    #[arg(conflicts_with_all = ["local", "forever"])]
    pub host: Option<String>,
    /// TCP port over which both sides find each other; 0 lets a server choose
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,
    /// Size in bytes, or on soft0 several separated by commas; take K, M, G [default: 64K for bandwidth; for latency 8,
    /// in perftest's way 2]
    #[arg(short, long, value_name = "SIZES", value_delimiter = ',', conflicts_with = "all")]
    pub size: Vec<Size>,
    /// All powers of two from 8 B to 16 MiB; in perftest's way from 2 B to 8 MiB
    #[arg(short, long)]
    pub all: bool,
    /// Operations per size, on each queue pair [default: as many as --duration allows; in perftest's way 5000 for
    /// write-bw, else 1000]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..=1 << 26))]
    pub iters: Option<u64>,
    /// Time per size: 2, 500ms [default: 1s, with several sizes 300ms; in perftest's way --iters counts]
    #[arg(short = 'D', long, value_name = "TIME")]
    pub duration: Option<Period>,
    /// Requests outstanding at once in bandwidth measurements
    #[arg(short = 't', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub depth: u32,
    /// One request in so many is signaled in bandwidth measurements [default: 32, at most half of --depth; in perftest's
    /// way 100, above 8K all]
    #[arg(short = 'Q', long, visible_alias = "cq-mod", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub signal_every: Option<u32>,
    /// Start the serving process too
    #[arg(long, conflicts_with = "forever")]
    pub local: bool,
    /// Serve one client after another, without end
    #[arg(long)]
    pub forever: bool,
    /// CPU to run on; with --local two, for client and server [default with --local: those of two cores]
    #[arg(long, value_name = "CPU[,CPU]", value_delimiter = ',')]
    pub cpu: Vec<usize>,
    /// Device to open [default: the first RDMA device with its port up, else soft0; with --local soft0]
    #[arg(short, long)]
    pub device: Option<String>,
    /// Address to serve at. Clients are not asked who they are: bind to no more than is needed [default: 127.0.0.1 with
    /// soft0, else all addresses, as perftest]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["local", "host"])]
    pub bind: Option<IpAddr>,
    /// Keep the data of both sides in memory of a GPU, the first that each process sees or --gpu=N of its own, which for a server
    /// is the one for clients that ask for it; the copy beside a bandwidth is then the GPU's. With write-bw, read-bw, read-lat,
    /// send-bw and send-lat, on soft0 within a host
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub gpu: Option<usize>,
    /// Print one JSON object per result
    #[arg(long)]
    pub json: bool,
    /// Print at the end which counters of the device's port changed during the run, and by how much: packets, what was lost
    /// and repeated, what the peer refused. Names are the device's own (/sys/class/infiniband/*/ports/*/hw_counters). With
    /// --json an object of its own, with a field `counters`. What stays in shared memory is not counted
    #[arg(long)]
    pub counters: bool,
    /// Measure what posting and polling an 8-byte WRITE costs the caller, in ns: with each WRITE signaled, and with one
    /// in 64 (`signal_every` in JSON). Whole batches of 1024. With write-lat only
    #[arg(long)]
    pub post_poll: bool,
    /// Print nothing but the port when serving
    #[arg(long, hide = true)]
    pub announce: bool,
    /// perftest's options.
    #[command(flatten)]
    pub perftest: PerftestOptions,
}

impl PerfArgs {
    /// The device to open.
    pub fn device(&self) -> String {
        match &self.device {
            Some(device) => device.clone(),
            None if self.local || self.test.is_tagged() => SOFT.to_owned(),
            None => default_device(&self.perftest),
        }
    }

    /// True if the measurement goes perftest's way on `device`.
    pub fn is_perftest(&self, device: &str) -> bool {
        !self.post_poll && !self.test.is_tagged() && (device != SOFT || self.perftest.any() || self.is_afar())
    }

    /// True if the other side may be on another host.
    fn is_afar(&self) -> bool {
        match (&self.host, self.bind) {
            (Some(host), _) => host != "localhost" && !host.parse().is_ok_and(|host: IpAddr| host.is_loopback()),
            (None, bind) => bind.is_some_and(|bind| !bind.is_loopback()),
        }
    }

    /// The sizes to measure, in the order given.
    ///
    /// # Errors
    /// [`PerfError::Size`] for a size that the measurement does not have.
    pub fn sizes(&self) -> Result<Vec<usize>, PerfError> {
        if self.test.kind() == Kind::Atomic {
            return self.atomic_size();
        }
        let default = [Size(if self.test.is_bandwidth() { 64 << 10 } else { 8 })];
        let all: Vec<Size> = (3..=24).map(|shift| Size(1 << shift)).collect();
        let asked = match (self.all, self.size.as_slice()) {
            (true, _) => all.as_slice(),
            (false, []) => &default,
            (false, sizes) => sizes,
        };
        let mut sizes = asked.iter().map(|&size| self.checked(size)).collect::<Result<Vec<_>, _>>()?;
        sizes.dedup();
        Ok(sizes)
    }

    /// What the server must know.
    ///
    /// # Errors
    /// [`PerfError::Options`] if options do not fit together, and as [`sizes`](PerfArgs::sizes).
    pub fn parameters(&self) -> Result<Parameters, PerfError> {
        let refuse = |why: String| Err(PerfError::Options(why));
        if self.post_poll && self.test != Test::WriteLat {
            return refuse("--post-poll measures WRITEs: give it with write-lat".to_owned());
        }
        if self.post_poll && (self.all || !self.size.is_empty() || self.signal_every.is_some()) {
            return refuse(
                "--post-poll measures WRITEs of 8 bytes, signaled in two ways: leave out -s, -a and -Q".to_owned(),
            );
        }
        if self.perftest.any() {
            let what = if self.post_poll { "--post-poll".to_owned() } else { self.test.to_string() };
            return refuse(format!(
                "{what} is no test of perftest: leave out its options (`qpair perf --help` lists them)"
            ));
        }
        let gpu = self.gpu.is_some();
        if gpu && !self.test.can_be_on_gpu() {
            return refuse(format!(
                "{} is not measured in memory of a GPU; --gpu goes with write-bw, read-bw, read-lat, send-bw and send-lat",
                self.test
            ));
        }
        let signal_every = self.signal_every.unwrap_or(DEFAULT_SIGNAL_EVERY.min((self.depth / 2).max(1)));
        if signal_every > self.depth {
            return refuse(format!(
                "of {} outstanding requests none would be signaled: give --signal-every {0} or less",
                self.depth
            ));
        }
        let longest = self.sizes()?.into_iter().max().unwrap_or(8);
        // What a server has no part in.
        let test = if self.post_poll { Test::WriteBw } else { self.test };
        Ok(Parameters { test, max_size: longest as u64, depth: self.depth, signal_every, gpu })
    }

    /// How much to measure per size.
    ///
    /// # Errors
    /// As [`sizes`](PerfArgs::sizes).
    pub fn effort(&self) -> Result<Effort, PerfError> {
        let default = if self.sizes()?.len() > 1 { Duration::from_millis(300) } else { Duration::from_secs(1) };
        Ok(match (self.iters, self.duration) {
            (Some(operations), _) => Effort::Operations(operations),
            (None, Some(time)) => Effort::Time(time.0),
            (None, None) => Effort::Time(default),
        })
    }

    fn atomic_size(&self) -> Result<Vec<usize>, PerfError> {
        match self.size.iter().find(|size| size.0 != 8) {
            Some(&size) => Err(PerfError::Size { test: self.test, size, why: "atomics work on 8 bytes" }),
            None => Ok(vec![8]),
        }
    }

    fn checked(&self, size: Size) -> Result<usize, PerfError> {
        let refuse = |why| PerfError::Size { test: self.test, size, why };
        match usize::try_from(size.0) {
            Ok(0) => Err(refuse("give at least 1")),
            // The last 8 bytes tell the other side that the message is there.
            Ok(bytes) if self.test == Test::WriteLat => Ok(bytes.max(8)),
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(refuse("this machine can not address so much")),
        }
    }
}

const DEFAULT_SIGNAL_EVERY: u32 = 32;
/// Requests outstanding at once.
pub const MAX_DEPTH: u32 = 4096;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use clap::ValueEnum as _;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn args(line: &str) -> PerfArgs {
        Line::try_parse_from(std::iter::once("perf").chain(line.split(' '))).expect("a valid line").perf
    }

    #[test]
    fn sizes_have_defaults_lists_and_ranges() {
        assert_eq!(args("write-lat").sizes().expect("valid"), [8]);
        assert_eq!(args("read-bw").sizes().expect("valid"), [65536]);
        assert_eq!(args("send-bw -s 8,64K,1M").sizes().expect("valid"), [8, 65536, 1 << 20]);
        let all = args("tag-lat -a").sizes().expect("valid");
        assert_eq!((all.len(), all[0], all[21]), (22, 8, 16 << 20));
        assert_eq!(args("write-lat -s 1,2,8,16").sizes().expect("valid"), [8, 16]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_typed_errors() {
        assert!(matches!(args("atomic-lat -s 16").sizes(), Err(PerfError::Size { .. })));
        assert!(matches!(args("send-lat -s 0").sizes(), Err(PerfError::Size { .. })));
        assert_eq!(args("atomic-lat -s 8").sizes().expect("valid"), [8]);
    }

    #[test]
    fn at_least_one_request_of_a_window_is_signaled() {
        assert_eq!(args("write-bw").parameters().expect("valid").signal_every, 32);
        assert_eq!(args("write-bw -t 1").parameters().expect("valid").signal_every, 1);
        let error = args("write-bw -t 4 --signal-every 5").parameters().expect_err("none signaled");
        assert!(error.to_string().contains("--signal-every 4"), "{error}");
    }

    #[test]
    fn data_lies_on_a_gpu_where_the_processor_does_not_look_at_it() {
        assert!(!args("write-bw").parameters().expect("valid").gpu);
        assert_eq!((args("write-bw --gpu host").gpu, args("write-bw --gpu=1").gpu), (Some(0), Some(1)));
        assert!(args("read-lat --gpu").parameters().expect("valid").gpu);
        for test in ["write-lat", "atomic-bw", "atomic-lat", "tag-lat", "tag-bw"] {
            let error = args(&format!("{test} --gpu")).parameters().expect_err("not on a GPU");
            assert!(error.to_string().starts_with(test), "{error}");
        }
    }

    #[test]
    fn effort_is_operations_or_time() {
        assert_eq!(args("write-lat -n 100").effort().expect("valid"), Effort::Operations(100));
        assert_eq!(args("write-lat -D 2").effort().expect("valid"), Effort::Time(Duration::from_secs(2)));
        assert_eq!(args("write-lat -a").effort().expect("valid"), Effort::Time(Duration::from_millis(300)));
    }

    #[test]
    fn a_server_is_not_a_client() {
        for line in ["write-lat host --local", "write-lat host --forever", "write-lat -a -s 8", "no-test"] {
            assert!(Line::try_parse_from(std::iter::once("perf").chain(line.split(' '))).is_err(), "{line}");
        }
    }

    #[test]
    fn names_on_the_wire_are_those_of_the_command_line() {
        for test in Test::value_variants() {
            let value = test.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), test.name());
            assert_eq!(serde_json::to_value(test).expect("plain data"), test.name());
        }
    }
}
