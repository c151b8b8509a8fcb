//! Where the axes of a picture have numbers, and how these are written.

use std::ops::Range;

use crate::round::round_step;
use crate::size::Size;

/// Round values of a logarithmic axis: 1, 2 and 5 times powers of ten, or the powers alone where these are enough. A span that
/// has fewer than three of them is divided evenly.
pub fn of_values(span: &Range<f64>) -> Vec<f64> {
    let digits: [&[u32]; 2] = [&[1, 2, 5], &[1]];
    let enough = digits.map(|digits| of_decades(span, digits)).into_iter().find(|ticks| ticks.len() <= MOST);
    match enough {
        Some(ticks) if ticks.len() >= LEAST => ticks,
        Some(_) => even(span),
        None => {
            let decades = of_decades(span, &[1]);
            let every = decades.len().div_ceil(MOST);
            decades.into_iter().step_by(every).collect()
        }
    }
}

/// Those of the sizes, in bytes and in order, whose labels have room on an axis of that many pixels.
pub fn of_sizes(sizes: &[f64], span: &Range<f64>, pixels: f64) -> Vec<f64> {
    let place = |size: f64| (size / span.start).ln() / (span.end / span.start).ln() * pixels;
    let half = |size: f64| (Size(size as u64).to_string().len() + 1) as f64 * DIGIT / 2.0;
    let mut ticks: Vec<f64> = Vec::new();
    for &size in sizes {
        if ticks.last().is_none_or(|&last| place(size) - half(size) >= place(last) + half(last)) {
            ticks.push(size);
        }
    }
    ticks
}

/// At most three digits that count, and at most seven characters for what a machine can carry.
pub fn three_digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let whole = rounded.to_string();
    if whole.len() <= 7 { whole } else { format!("{rounded:e}") }
}

/// The digits in each decade. They are parsed, since a product of fractions may miss the round one.
fn of_decades(span: &Range<f64>, digits: &[u32]) -> Vec<f64> {
    let (first, last) = (span.start.log10().floor() as i32, span.end.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| digits.iter().map(move |digit| format!("{digit}e{power}")));
    all.filter_map(|text| text.parse().ok()).filter(|tick| span.contains(tick)).collect()
}

/// Multiples of the least round step that gives at most five.
fn even(span: &Range<f64>) -> Vec<f64> {
    let least = round_step((span.end - span.start) / 6.0);
    let steps = [least, round_step(1.5 * least)];
    let multiples = |step: f64| {
        let (first, last) = ((span.start / step).ceil() as u64, (span.end / step).floor() as u64);
        (first..=last).map(move |times| times as f64 * step)
    };
    let [fine, coarse] = steps.map(|step| multiples(step).collect::<Vec<_>>());
    if fine.len() <= 5 { fine } else { coarse }
}

/// Ticks of values, at most and at least.
const MOST: usize = 13;
const LEAST: usize = 3;
/// The width of a digit in labels of sizes, on the safe side.
const DIGIT: f64 = 7.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(span: Range<f64>) -> Vec<String> {
        of_values(&span).into_iter().map(three_digits).collect()
    }

    #[test]
    fn values_have_round_ticks_at_any_span() {
        assert_eq!(texts(0.77..1.3), ["0.8", "1", "1.2"]);
        assert_eq!(texts(0.0071..0.0123), ["0.008", "0.009", "0.01", "0.011", "0.012"]);
        assert_eq!(texts(0.7..12.0), ["1", "2", "5", "10"]);
        assert_eq!(texts(7e-5..200.0), ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100"]);
        for power in -6..6 {
            for factor in [1.0, 1.2, 1.5, 2.0, 3.0, 10.0, 1e3, 1e6, 1e12] {
                let least = 3.3 * 10_f64.powi(power);
                let texts = texts(least / 1.3..least * factor * 1.3);
                assert!((LEAST..=MOST).contains(&texts.len()), "{least} x {factor}: {texts:?}");
                let mut different = texts.clone();
                different.dedup();
                assert!(different == texts && texts.iter().all(|text| text.len() <= 7), "{texts:?}");
            }
        }
    }

    #[test]
    fn sizes_that_have_no_room_are_left_out() {
        let sizes: Vec<f64> = (0..24).map(|power| f64::from(1_u32 << power)).collect();
        let ticks = of_sizes(&sizes, &(0.5..2e7), 500.0);
        assert!((8..24).contains(&ticks.len()) && ticks.iter().all(|tick| sizes.contains(tick)), "{ticks:?}");
        assert_eq!(of_sizes(&[1000.0], &(800.0..1300.0), 500.0), [1000.0]);
    }
}
