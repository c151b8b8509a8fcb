//! The picture of one or several runs: loss above, accuracy below, over the same epochs.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Result;
use crate::report::{Epoch, Report};

/// Draws `reports` as SVG into the file `path`.
///
/// # Errors
/// Those of writing the file, with its name.
pub fn draw(path: &Path, reports: &[Report]) -> Result<()> {
    draw_page(path, reports).map_err(|error| format!("can not write {}: {error}", path.display()).into())
}

fn draw_page(path: &Path, reports: &[Report]) -> Result<()> {
    let page = SVGBackend::new(path, (900, 760)).into_drawing_area();
    page.fill(&WHITE)?;
    let page = page.margin(8, 8, 8, 8).titled(&title(reports), ("sans-serif", 22))?;
    let (above, below) = page.split_vertically(360);
    panel(&above, reports, &LOSS)?;
    panel(&below, reports, &ACCURACY)?;
    page.present()?;
    Ok(())
}

/// One of the two panels.
struct Panel {
    what: &'static str,
    axis: &'static str,
    value: fn(&Epoch) -> f64,
    range: fn(f64, f64) -> (f64, f64),
    legend: SeriesLabelPosition,
}

const LOSS: Panel = Panel {
    what: "training loss",
    axis: "training loss (cross-entropy)",
    value: |epoch| epoch.loss,
    range: |_, high| (0.0, 1.05 * high),
    legend: SeriesLabelPosition::UpperRight,
};

const ACCURACY: Panel = Panel {
    what: "held-out accuracy",
    axis: "held-out accuracy (%)",
    value: |epoch| epoch.accuracy_percent,
    range: |low, _| (10.0 * ((low - 0.5) / 10.0).floor().max(0.0), 100.5),
    legend: SeriesLabelPosition::LowerRight,
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn title(reports: &[Report]) -> String {
    let ranks: Vec<String> = reports.iter().map(|report| report.size.to_string()).collect();
    let noun = if ranks == ["1"] { "rank" } else { "ranks" };
    format!("Data-parallel training on handwritten digits, {} {noun}", ranks.join(", "))
}

fn panel(area: &Area<'_>, reports: &[Report], panel: &Panel) -> Result<()> {
    let values = || reports.iter().flat_map(|report| &report.epochs).map(panel.value);
    let (low, high) = (panel.range)(values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let epochs = reports.iter().map(|report| report.epochs.len()).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(1.0..epochs.max(2) as f64, low..high)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc(panel.axis)
        .x_labels(epochs.clamp(2, 21))
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    for (i, report) in reports.iter().enumerate() {
        let style = line_style(i, reports.len());
        let points = report.epochs.iter().enumerate().map(|(i, epoch)| (i as f64 + 1.0, (panel.value)(epoch)));
        chart
            .draw_series(LineSeries::new(points, style).point_size(style.stroke_width / 2 + 2))?
            .label(format!("{}, {}", panel.what, report.ranks()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    chart
        .configure_series_labels()
        .position(panel.legend.clone())
        .legend_area_size(34)
        .margin(14)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(160, 160, 160))
        .draw()?;
    Ok(())
}

/// Curves lie over one another, so earlier ones are wider and lighter: all stay visible. The colors are told apart
/// by people who do not see red and green alike.
fn line_style(curve: usize, curves: usize) -> ShapeStyle {
    const COLORS: [RGBColor; 3] = [RGBColor(230, 159, 0), RGBColor(86, 180, 233), RGBColor(0, 0, 0)];
    let color = if curves == 1 { RGBColor(0, 90, 160) } else { COLORS[curve % COLORS.len()] };
    let width = 2 + 4 * (curves - 1 - curve) as u32;
    color.filled().stroke_width(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Settings;

    /// A run in which the loss falls and the accuracy rises.
    fn report(size: usize) -> Report {
        let epoch = |i| Epoch { loss: 1.0 / f64::from(i), correct: 0, accuracy_percent: 80.0 + f64::from(i) };
        Report {
            rank: 0,
            size,
            epochs: (1..=9).map(epoch).collect(),
            settings: Settings::default(),
            held_out: 359,
            parameters: 9610,
            buckets: 5,
            hash: 0,
            seconds: 1.0,
        }
    }

    #[test]
    fn both_panels_show_a_curve_for_each_run() {
        let path = std::env::temp_dir().join(format!("qpair-curve-{}.svg", std::process::id()));
        let drawn = draw(&path, &[report(1), report(4)]);
        let text = std::fs::read_to_string(&path);
        std::fs::remove_file(&path).unwrap();
        drawn.unwrap();
        let text = text.unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        for label in ["training loss, 1 rank", "training loss, 4 ranks", "held-out accuracy, 4 ranks"] {
            assert!(text.contains(label), "{label}");
        }
        assert!(text.matches("<polyline").count() >= 4, "a line for each run and panel");
    }

    #[test]
    fn a_file_that_can_not_be_written_is_named() {
        let error = draw(Path::new("/nowhere/curve.svg"), &[report(1)]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/curve.svg"), "{error}");
    }

    #[test]
    fn earlier_curves_are_wider() {
        let widths: Vec<u32> = (0..3).map(|i| line_style(i, 3).stroke_width).collect();
        assert_eq!(widths, [10, 6, 2]);
        assert_eq!(line_style(0, 1).stroke_width, 2);
    }
}
