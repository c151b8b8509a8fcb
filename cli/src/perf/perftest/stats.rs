//! perftest's figures of latency and bandwidth, from what a run saw.

use super::flow::Streamed;
use super::pingpong::Timed;
use super::units::unit;
use super::wire::BandwidthReport;

/// Figures of latency, in microseconds: one way of a ping-pong, or the whole of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Messages.
    pub iterations: u64,
    /// The least.
    pub min: f64,
    /// The greatest, but for the [`TAIL`] greatest.
    pub max: f64,
    /// The median.
    pub typical: f64,
    /// The mean.
    pub average: f64,
    /// Standard deviation. (What perftest prints under that name is the mean of the absolute deviations.)
    pub deviation: f64,
    /// What 99 % do not exceed.
    pub p99: f64,
    /// What 99.9 % do not exceed.
    pub p999: f64,
}

/// Figures of a run by duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// Messages.
    pub iterations: u64,
    /// Mean latency in microseconds.
    pub average: f64,
    /// Messages per second.
    pub rate: f64,
}

/// Figures of one size, whatever the run was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figures {
    /// Of each message.
    Each(Latency),
    /// Of all of them.
    Mean(Mean),
}

impl Figures {
    /// The figures, where one latency is the time between messages divided by `ways`.
    pub fn new(timed: Timed, ways: f64) -> Self {
        match timed {
            Timed::Total { messages, seconds } => {
                let each = if messages == 0 { 0.0 } else { seconds / messages as f64 };
                let rate = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
                Figures::Mean(Mean { iterations: messages, average: each * 1e6 / ways, rate })
            }
            Timed::Each(times) => Figures::Each(Latency::new(times, ways)),
        }
    }
}

impl Latency {
    fn new(mut times: Vec<f64>, ways: f64) -> Self {
        times.iter_mut().for_each(|seconds| *seconds *= 1e6 / ways);
        times.sort_unstable_by(f64::total_cmp);
        let iterations = times.len() as u64 + 1;
        let count = times.len().saturating_sub(TAIL);
        let (Some(&min), Some(&max), true) = (times.first(), times.get(count), count > 0) else {
            return Latency { iterations, ..Latency::default() };
        };
        let kept = &times[..count];
        let average = kept.iter().sum::<f64>() / count as f64;
        let variance = kept.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count as f64;
        let middle =
            if count.is_multiple_of(2) { (kept[count / 2 - 1] + kept[count / 2]) / 2.0 } else { kept[count / 2] };
        let part = |of: f64| times[((count as f64 * of).ceil() as usize).min(count)];
        Latency {
            iterations,
            min,
            max,
            typical: middle,
            average,
            deviation: variance.sqrt(),
            p99: part(0.99),
            p999: part(0.999),
        }
    }
}

/// A bandwidth report in MiB/s, or Gb/s with `gbits`.
pub fn bandwidth(streamed: &Streamed, size: usize, gbits: bool) -> BandwidthReport {
    let per = |seconds: f64| if seconds > 0.0 { size as f64 / seconds / unit(gbits) } else { 0.0 };
    let each = if streamed.messages == 0 { 0.0 } else { streamed.seconds / streamed.messages as f64 };
    BandwidthReport {
        size: size as u64,
        iterations: streamed.messages,
        peak: streamed.best.map_or(0.0, per),
        average: per(each),
        rate: if each > 0.0 { 1e-6 / each } else { 0.0 },
    }
}

/// A report of the other side, which may count in another unit, in MiB/s, or Gb/s with `gbits`: what it moved follows from
/// its messages per second, which have but one unit.
pub fn in_unit(theirs: &BandwidthReport, gbits: bool) -> BandwidthReport {
    let average = theirs.rate * 1e6 * theirs.size as f64 / unit(gbits);
    let ratio = if theirs.average > 0.0 { average / theirs.average } else { 0.0 };
    BandwidthReport { peak: theirs.peak * ratio, average, ..*theirs }
}

/// What both sides of a bidirectional run moved together. The messages are those of this side; where one side did not
/// look for its peak, there is none of both.
pub fn sum(ours: &BandwidthReport, theirs: &BandwidthReport) -> BandwidthReport {
    let both_have_peaks = ours.peak > 0.0 && theirs.peak > 0.0;
    BandwidthReport {
        peak: if both_have_peaks { ours.peak + theirs.peak } else { 0.0 },
        average: ours.average + theirs.average,
        rate: ours.rate + theirs.rate,
        ..*ours
    }
}

/// So many of the greatest times are left out: what interrupts a run tells nothing of the device.
const TAIL: usize = 2;
#[cfg(test)]
mod tests {
    use super::*;

    /// Times of 20 WRITEs forth and back in microseconds one way, as perftest 4.5 dumped them, and what it made of them.
    const DUMPED: [f64; 19] = [
        2608.03, 82.0054, 49.6336, 48.0698, 44.729, 46.689, 46.929, 47.7948, 45.7013, 46.3975, 46.3129, 48.0463,
        45.8832, 45.7567, 45.6021, 46.5998, 44.2975, 45.6513, 45.9313,
    ];

    #[test]
    fn figures_are_those_of_perftest() {
        let times = DUMPED.iter().map(|time| time * 2e-6).collect();
        let Figures::Each(of) = Figures::new(Timed::Each(times), 2.0) else { panic!("each was timed") };
        assert_eq!(of.iterations, 20);
        let text = format!(
            "{:.2} {:.2} {:.2} {:.2} {:.2} {:.2} {:.2}",
            of.min, of.max, of.typical, of.average, of.deviation, of.p99, of.p999
        );
        assert_eq!(text, "44.30 82.01 46.31 46.47 1.28 82.01 82.01");
    }

    #[test]
    fn few_times_make_no_figures_and_no_panic() {
        for count in 0..4 {
            let Figures::Each(of) = Figures::new(Timed::Each(vec![1e-6; count]), 1.0) else { panic!("each") };
            assert_eq!(of.iterations, count as u64 + 1);
        }
    }

    #[test]
    fn a_run_by_duration_has_a_mean() {
        let mean = Figures::new(Timed::Total { messages: 14415, seconds: 3.001 }, 2.0);
        let Figures::Mean(mean) = mean else { panic!("not each") };
        assert_eq!(format!("{:.2} {:.1}", mean.average, mean.rate), "104.09 4803.4");
        assert_eq!(
            Figures::new(Timed::Total { messages: 0, seconds: 1.0 }, 1.0),
            Figures::Mean(Mean { iterations: 0, average: 0.0, rate: 0.0 })
        );
    }

    #[test]
    fn bandwidths_have_units_and_add_up() {
        let streamed = Streamed { messages: 100, lost: 0, seconds: 0.22, best: Some(0.002) };
        let report = bandwidth(&streamed, 65536, false);
        assert_eq!((format!("{:.2}", report.average), format!("{:.2}", report.peak)), ("28.41".into(), "31.25".into()));
        assert!((report.rate - 0.000_454_545).abs() < 1e-8);
        let gbits = bandwidth(&streamed, 65536, true);
        assert_eq!(format!("{:.3}", gbits.average), "0.238");
        let both = sum(&report, &report);
        assert_eq!((both.iterations, both.average), (100, 2.0 * report.average));
        assert_eq!(bandwidth(&Streamed::default(), 8, false).average, 0.0);
    }

    #[test]
    fn both_sides_add_up_whatever_unit_the_other_counts_in() {
        let streamed = Streamed { messages: 100, lost: 0, seconds: 0.22, best: Some(0.002) };
        for gbits in [false, true] {
            let ours = bandwidth(&streamed, 65536, gbits);
            for theirs in [bandwidth(&streamed, 65536, false), bandwidth(&streamed, 65536, true)] {
                let both = sum(&ours, &in_unit(&theirs, gbits));
                assert!((both.average - 2.0 * ours.average).abs() < 1e-9 * ours.average, "{gbits}: {both:?}");
                assert!((both.peak - 2.0 * ours.peak).abs() < 1e-9 * ours.peak, "{gbits}: {both:?}");
            }
        }
        let nothing = in_unit(&BandwidthReport::default(), true);
        assert_eq!((nothing.average, nothing.peak), (0.0, 0.0));
    }

    #[test]
    fn a_peak_of_one_side_is_none_of_both() {
        let with = bandwidth(&Streamed { messages: 9, lost: 0, seconds: 1.0, best: Some(0.1) }, 8, false);
        let without = BandwidthReport { peak: 0.0, ..with };
        assert_eq!([sum(&with, &without).peak, sum(&without, &with).peak], [0.0, 0.0]);
        assert_eq!(sum(&with, &with).peak, 2.0 * with.peak);
    }
}
