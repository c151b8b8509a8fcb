//! What is printed: perftest's header and rows, so that what reads those reads these; or an object per result.

use qpair::verbs::LinkLayer;
use serde::Serialize;

use super::names::service_name;
use super::port::Port;
use super::settings::Settings;
use super::stats::{Figures, Latency, Mean, sum};
use super::terms::Goal;
use super::units::{GIGABIT, MEBIBYTE};
use super::wire::{BandwidthReport, Key};
use crate::output::{PrintError, print, print_object};
use crate::perf::test::{Kind, Test};

/// Prints results as they come.
#[derive(Debug)]
pub struct Table {
    test: Test,
    service: &'static str,
    qps: u32,
    duplex: bool,
    gbits: bool,
    by_duration: bool,
    form: Form,
}

/// The form of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// perftest's tables.
    Table,
    /// An object per result.
    Objects,
    /// Nothing.
    Silent,
}

/// What the header tells besides the settings.
#[derive(Debug)]
pub struct Connection<'a> {
    /// The port.
    pub port: &'a Port,
    /// The path's MTU in bytes.
    pub mtu: u32,
    /// The GID's row.
    pub gid_index: Option<u32>,
    /// Bytes up to which messages go inline.
    pub inline: usize,
    /// READs and atomics under way at once on a queue pair.
    pub outs: u8,
    /// Whether this side sends.
    pub sends: bool,
    /// Whether this side receives.
    pub receives: bool,
    /// This side's queue pairs.
    pub ours: &'a [Key],
    /// The other side's.
    pub theirs: &'a [Key],
}

#[derive(Debug, Serialize)]
struct BandwidthRow {
    test: Test,
    connection: &'static str,
    qps: u32,
    bidirectional: bool,
    size: u64,
    iterations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    peak_mib_s: Option<f64>,
    average_mib_s: f64,
    average_gbit_s: f64,
    rate_mpps: f64,
}

#[derive(Debug, Serialize)]
struct LatencyRow {
    test: Test,
    connection: &'static str,
    size: usize,
    iterations: u64,
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    t_99_us: f64,
    #[serde(rename = "t_99.9_us")]
    t_999_us: f64,
}

#[derive(Debug, Serialize)]
struct MeanRow {
    test: Test,
    connection: &'static str,
    size: usize,
    iterations: u64,
    t_avg_us: f64,
    tps: f64,
}

impl Table {
    /// A table of this run.
    pub fn new(settings: &Settings, form: Form) -> Self {
        Table {
            test: settings.test,
            service: service_name(settings.service),
            qps: settings.qps,
            duplex: settings.duplex,
            gbits: settings.gbits,
            by_duration: matches!(settings.goal, Goal::Seconds { .. }),
            form,
        }
    }

    /// Prints what runs over what.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn header(&self, settings: &Settings, connection: &Connection<'_>) -> Result<(), PrintError> {
        self.line(|| header(self, settings, connection))
    }

    /// Prints the names of the columns.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn columns(&self) -> Result<(), PrintError> {
        let names = match (self.test.is_bandwidth(), self.gbits, self.by_duration) {
            (true, false, _) => BANDWIDTH_COLUMNS,
            (true, true, _) => BANDWIDTH_COLUMNS_GBITS,
            (false, _, false) => LATENCY_COLUMNS,
            (false, _, true) => MEAN_COLUMNS,
        };
        self.line(|| names.to_owned())
    }

    /// Prints a bandwidth, that of both sides if `theirs` is given. `lost` messages did not arrive.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn bandwidth(
        &self,
        ours: &BandwidthReport,
        theirs: Option<&BandwidthReport>,
        lost: u64,
    ) -> Result<(), PrintError> {
        let report = theirs.map_or(*ours, |theirs| sum(ours, theirs));
        if self.form != Form::Objects {
            let fine = self.gbits && ours.average < FINE;
            return self.line(|| if fine { fine_bandwidth_row(&report) } else { bandwidth_row(&report) });
        }
        let bytes = |value: f64| value * if self.gbits { GIGABIT } else { MEBIBYTE };
        print_object(&BandwidthRow {
            test: self.test,
            connection: self.service,
            qps: self.qps,
            bidirectional: self.duplex,
            size: report.size,
            iterations: report.iterations,
            lost: (lost > 0).then_some(lost),
            peak_mib_s: (report.peak > 0.0).then_some(bytes(report.peak) / MEBIBYTE),
            average_mib_s: bytes(report.average) / MEBIBYTE,
            average_gbit_s: bytes(report.average) / GIGABIT,
            rate_mpps: report.rate,
        })
    }

    /// Prints a latency.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn latency(&self, size: usize, figures: &Figures) -> Result<(), PrintError> {
        let (test, connection) = (self.test, self.service);
        match figures {
            Figures::Each(of) if self.form == Form::Objects => print_object(&LatencyRow {
                test,
                connection,
                size,
                iterations: of.iterations,
                t_min_us: of.min,
                t_max_us: of.max,
                t_typical_us: of.typical,
                t_avg_us: of.average,
                t_stdev_us: of.deviation,
                t_99_us: of.p99,
                t_999_us: of.p999,
            }),
            Figures::Mean(Mean { iterations, average, rate }) if self.form == Form::Objects => print_object(&MeanRow {
                test,
                connection,
                size,
                iterations: *iterations,
                t_avg_us: *average,
                tps: *rate,
            }),
            Figures::Each(of) => self.line(|| latency_row(size, of)),
            Figures::Mean(of) => self.line(|| mean_row(size, of)),
        }
    }

    fn line(&self, text: impl FnOnce() -> String) -> Result<(), PrintError> {
        if self.form == Form::Table { print(&text()) } else { Ok(()) }
    }

    /// Prints the end.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn end(&self) -> Result<(), PrintError> {
        self.line(|| LINE.to_owned())
    }
}

fn header(table: &Table, settings: &Settings, connection: &Connection<'_>) -> String {
    let Connection { port, mtu, gid_index, inline, outs, sends, receives, ours, theirs } = connection;
    let kind = table.test.kind();
    let both = if table.duplex { "Bidirectional " } else { "" };
    let what = if table.test.is_bandwidth() { "BW" } else { "Latency" };
    let name = match kind {
        Kind::Write => "RDMA_Write".to_owned(),
        Kind::Read => "RDMA_Read".to_owned(),
        Kind::Send => "Send".to_owned(),
        Kind::Atomic => format!("Atomic {}", settings.atomic.name()),
        Kind::Tagged => "Tagged".to_owned(),
    };
    let mut lines = vec![LINE.to_owned(), format!("                    {name} {both}{what} Test")];
    if settings.events {
        lines.push(" Test with events.".to_owned());
    }
    lines.push(format!(" Dual-port       : OFF\t\tDevice         : {}", port.device));
    lines.push(format!(" Number of qps   : {}\t\tTransport type : IB", table.qps));
    lines.push(format!(" Connection type : {}\t\tUsing SRQ      : OFF", table.service));
    if *sends {
        lines.push(format!(" TX depth        : {}", settings.tx_depth()));
    }
    if *receives {
        lines.push(format!(" RX depth        : {}", settings.rx_depth()));
    }
    if table.test.is_bandwidth() {
        lines.push(format!(" CQ Moderation   : {}", settings.cq_mod()));
    }
    lines.push(format!(" Mtu             : {mtu}[B]"));
    lines.push(format!(" Link type       : {}", link_type(port.link_layer)));
    lines.extend(gid_index.map(|index| format!(" GID index       : {index}")));
    lines.push(match kind {
        Kind::Read | Kind::Atomic => format!(" Outstand reads  : {outs}"),
        Kind::Write | Kind::Send | Kind::Tagged => format!(" Max inline data : {inline}[B]"),
    });
    lines.push(" rdma_cm QPs\t : OFF".to_owned());
    lines.push(" Data ex. method : Ethernet".to_owned());
    lines.push(LINE.to_owned());
    for (side, keys) in [("local", ours), ("remote", theirs)] {
        keys.iter().for_each(|key| lines.extend(address_lines(side, kind, key)));
    }
    lines.push(LINE.to_owned());
    lines.join("\n")
}

/// An address as perftest prints it: hexadecimal, with the prefix counted in the width.
fn address_lines(side: &str, kind: Kind, key: &Key) -> Vec<String> {
    let Key { lid, out_reads, qpn, psn, rkey, addr, gid } = key;
    let lid = if *lid == 0 { "0000".to_owned() } else { format!("{lid:#04x}") };
    let mut line = format!(" {side} address: LID {lid} QPN {qpn:#06x} PSN {psn:#06x}");
    if kind == Kind::Read {
        line.push_str(&format!(" OUT {out_reads:#04x}"));
    }
    if matches!(kind, Kind::Read | Kind::Write) {
        line.push_str(&format!(" RKey {rkey:#08x} VAddr {addr:#016x}"));
    }
    let gid = gid.map(|gid| {
        let bytes: Vec<_> = gid.iter().map(|byte| format!("{byte:02}")).collect();
        format!(" GID: {}", bytes.join(":"))
    });
    [Some(line), gid].into_iter().flatten().collect()
}

fn link_type(layer: LinkLayer) -> String {
    match layer {
        LinkLayer::InfiniBand => "IB".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        LinkLayer::SharedMemory => "Shared memory".to_owned(),
        LinkLayer::Unknown(code) => format!("Unknown ({code})"),
    }
}

fn bandwidth_row(report: &BandwidthReport) -> String {
    let BandwidthReport { size, iterations, peak, average, rate } = report;
    format!(" {size:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t   {rate:<7.6}")
}

/// A row of small numbers.
fn fine_bandwidth_row(report: &BandwidthReport) -> String {
    let BandwidthReport { size, iterations, peak, average, rate } = report;
    format!(" {size:<7}    {iterations}           {peak:<7.6}            {average:<7.6}            {rate:<7.6}")
}

fn latency_row(size: usize, of: &Latency) -> String {
    let Latency { iterations, min, max, typical, average, deviation, p99, p999 } = of;
    format!(
        " {size:<7} {iterations}          {min:<7.2}        {max:<7.2}      {typical:<7.2}  \t       {average:<7.2}     \t\
         {deviation:<7.2}\t\t{p99:<7.2} \t\t{p999:<7.2}"
    )
}

fn mean_row(size: usize, of: &Mean) -> String {
    let Mean { iterations, average, rate } = of;
    format!(" {size:<7}       {iterations}            {average:<7.2}        {rate:<7.2}")
}

/// Of Gb/s less than this more digits are printed.
const FINE: f64 = 0.1;
const LINE: &str = "---------------------------------------------------------------------------------------";
const BANDWIDTH_COLUMNS: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";
const BANDWIDTH_COLUMNS_GBITS: &str =
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]";
const LATENCY_COLUMNS: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
     t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ";
const MEAN_COLUMNS: &str = " #bytes        #iterations       t_avg[usec]    tps average";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_perftest() {
        let report = BandwidthReport { size: 65536, iterations: 100, peak: 28.76, average: 28.32, rate: 0.000_453 };
        let row = " 65536      100              28.76              28.32  \t\t   0.000453";
        assert_eq!(bandwidth_row(&report), row);
        let small = BandwidthReport { size: 8, iterations: 100, peak: 0.0123456, average: 0.0023, rate: 0.035_937 };
        let row = " 8          100           0.012346            0.002300            0.035937";
        assert_eq!(fine_bandwidth_row(&small), row);
        let latency = Latency {
            iterations: 100,
            min: 34.75,
            max: 704.91,
            typical: 48.89,
            average: 61.18,
            deviation: 61.51,
            p99: 704.91,
            p999: 704.91,
        };
        let row = " 2       100          34.75          704.91       48.89    \t       61.18       \t61.51  \t\t704.91  \t\t704.91 ";
        assert_eq!(latency_row(2, &latency), row);
        let mean = Mean { iterations: 14415, average: 104.10, rate: 4803.30 };
        assert_eq!(mean_row(2, &mean), " 2             14415            104.10         4803.30");
    }

    #[test]
    fn addresses_are_printed_as_perftest_prints_them() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[255, 255, 10, 77, 0, 11]);
        let key = Key {
            lid: 0,
            out_reads: 128,
            qpn: 0x4e,
            psn: 0x9_6b04,
            rkey: 0x398b,
            addr: 0x5602_8168_5000,
            gid: Some(gid),
        };
        let lines = address_lines("local", Kind::Read, &key);
        let address = " local address: LID 0000 QPN 0x004e PSN 0x96b04 OUT 0x80 RKey 0x00398b VAddr 0x00560281685000";
        assert_eq!(lines, [address, " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:11"]);
        let without = Key { gid: None, lid: 7, ..key };
        let lines = address_lines("remote", Kind::Send, &without);
        assert_eq!(lines, [" remote address: LID 0x07 QPN 0x004e PSN 0x96b04"]);
    }
}
