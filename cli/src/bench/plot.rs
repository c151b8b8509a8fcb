//! The picture of a run: busbw over size, both logarithmic, a line for each algorithm, placement and type.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;

use super::measure::Point;
use super::operation::{Placement, op_name};
use super::row::{Row, bytes};
use super::workload::Workload;
use crate::size::Size;

/// A line of the picture.
#[derive(Debug)]
struct Line {
    label: String,
    color: RGBColor,
    dashed: bool,
    /// Size in bytes, and busbw in GB/s.
    points: Vec<(f64, f64)>,
}

/// The measurements of all sizes as SVG.
///
/// # Errors
/// What went wrong, in words.
pub fn draw(title: &str, sizes: &[Vec<Point>], workload: &Workload, ranks: usize) -> Result<String, String> {
    let mut lines = lines(sizes, workload, ranks);
    lines.retain(|line| !line.points.is_empty());
    if lines.is_empty() {
        return Err("there is nothing to draw".to_owned());
    }
    let mut svg = String::new();
    let drawn = page(&mut svg, title, &lines, &chosen(sizes, workload, ranks), workload);
    drawn.map_err(|error| error.to_string())?;
    Ok(svg)
}

/// A line for each series. Its color is that of its algorithm and type, so that placements can be compared.
fn lines(sizes: &[Vec<Point>], workload: &Workload, ranks: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut color = 0;
    for &kind in &workload.kinds {
        for &algorithm in &workload.algorithms {
            for &placement in &workload.placements {
                let call = |point: &&Point| {
                    ((point.call.dtype, point.call.op), point.asked, point.call.placement)
                        == (kind, algorithm, placement)
                };
                let points = sizes.iter().flatten().filter(call).map(|point| at(point, workload, ranks));
                let mut parts = Vec::new();
                if workload.compare || workload.kinds.len() == 1 {
                    parts.push(algorithm.name().to_owned());
                }
                if workload.kinds.len() > 1 {
                    let (dtype, op) = kind;
                    parts.push(op.map_or_else(|| dtype.to_string(), |op| format!("{} of {dtype}", op_name(Some(op)))));
                }
                parts.push(placement.name().to_owned());
                lines.push(Line {
                    label: parts.join(", "),
                    color: COLORS[color % COLORS.len()],
                    dashed: placement == Placement::InPlace && workload.placements.len() > 1,
                    points: points.filter(|&(_, busbw)| busbw > 0.0).collect(),
                });
            }
            color += 1;
        }
    }
    lines
}

/// Where the automatic choice is among what is compared.
fn chosen(sizes: &[Vec<Point>], workload: &Workload, ranks: usize) -> Vec<(f64, f64)> {
    if !workload.compare {
        return Vec::new();
    }
    let auto = |point: &&Point| workload.chosen(&point.call, ranks) == point.algorithm;
    sizes.iter().flatten().filter(auto).map(|point| at(point, workload, ranks)).filter(|point| point.1 > 0.0).collect()
}

fn at(point: &Point, workload: &Workload, ranks: usize) -> (f64, f64) {
    let busbw = Row::new(point, None, workload, ranks).busbw_gb_s;
    (bytes(point, workload.operation, ranks) as f64, busbw)
}

fn page(
    svg: &mut String,
    title: &str,
    lines: &[Line],
    chosen: &[(f64, f64)],
    workload: &Workload,
) -> Result<(), Box<dyn Error>> {
    let page = SVGBackend::with_string(svg, (1100, 640)).into_drawing_area();
    page.fill(&WHITE)?;
    let page = page.margin(8, 8, 8, 8).titled(&format!("qpair {title}"), ("sans-serif", 22))?;
    // The legend has a column of its own: lines go everywhere.
    let (left, right) = page.split_horizontally(1100 - LEGEND);
    let all = || lines.iter().flat_map(|line| &line.points);
    let (x, y) = (span(all().map(|point| point.0)), span(all().map(|point| point.1)));
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size (B)")
        .y_desc(workload.operation.bus().formula().replacen("busbw", "busbw (GB/s)", 1))
        .x_labels(14)
        .x_label_formatter(&|size| Size(size.round() as u64).to_string())
        .y_label_formatter(&|busbw| format!("{busbw}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()?;
    for line in lines {
        let (style, points) = (line.color.stroke_width(2), line.points.iter().copied());
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, style))?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), style))?;
        }
        let fill = if line.dashed { WHITE.filled() } else { line.color.filled() };
        chart.draw_series(points.clone().map(|point| Circle::new(point, 3, fill)))?;
        chart.draw_series(points.map(|point| Circle::new(point, 3, line.color.stroke_width(1))))?;
    }
    chart.draw_series(chosen.iter().map(|&point| Circle::new(point, 7, BLACK.stroke_width(1))))?;
    legend(&right, lines, !chosen.is_empty())
}

/// Labels beside samples of their lines.
fn legend(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    lines: &[Line],
    chosen: bool,
) -> Result<(), Box<dyn Error>> {
    let text = ("sans-serif", 14).into_font();
    let room = 560 / (lines.len() as i32 + 1).max(1);
    let step = room.clamp(9, 22);
    let row = |at: usize| 24 + at as i32 * step;
    for (at, line) in lines.iter().enumerate() {
        let (y, style) = (row(at), line.color.stroke_width(2));
        let dash = |from, to| PathElement::new([(from, y), (to, y)], style);
        if line.dashed {
            area.draw(&dash(0, 10))?;
            area.draw(&dash(18, 28))?;
        } else {
            area.draw(&dash(0, 28))?;
        }
        area.draw(&Text::new(line.label.clone(), (36, y - 7), text.clone()))?;
    }
    if chosen {
        let y = row(lines.len());
        area.draw(&Circle::new((14, y), 7, BLACK.stroke_width(1)))?;
        area.draw(&Text::new("what auto takes", (36, y - 7), text))?;
    }
    Ok(())
}

/// From the least to the greatest, with some room.
fn span(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let (least, most) = (values.clone().fold(f64::MAX, f64::min), values.fold(f64::MIN_POSITIVE, f64::max));
    least / 1.3..most * 1.3
}

/// Told apart by people who do not see red and green alike, the first eight.
const COLORS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(180, 170, 0),
    RGBColor(110, 60, 160),
    RGBColor(140, 80, 30),
    RGBColor(0, 60, 90),
    RGBColor(170, 20, 60),
];
/// The width of the legend.
const LEGEND: u32 = 250;
