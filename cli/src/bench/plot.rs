//! The picture of a run: busbw over size, both logarithmic, a line for each algorithm, placement and type.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::element::ComposedElement;
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, DashedLineSeries, DrawingArea, DrawingBackend, EmptyElement, IntoDrawingArea,
    IntoFont, IntoLogRange, LineSeries, PathElement, Polygon, RGBColor, SVGBackend, Text, WHITE,
};

use super::measure::Point;
use super::operation::{Placement, op_name};
use super::row::{Row, bytes};
use super::ticks;
use super::workload::Workload;
use crate::size::Size;

/// A line of the picture.
#[derive(Debug)]
struct Line {
    label: String,
    color: RGBColor,
    /// The outline of its points.
    shape: &'static [Pixel],
    dashed: bool,
    /// Size in bytes, and busbw in GB/s.
    points: Vec<(f64, f64)>,
}

/// Right and down from a point.
type Pixel = (i32, i32);

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
    let words = Words { title, formula: workload.operation.bus().formula() };
    let drawn = page(&mut svg, &words, &lines, &chosen(sizes, workload, ranks));
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
                    shape: SHAPES[color / COLORS.len() % SHAPES.len()],
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

/// What a picture says beside its lines.
struct Words<'a> {
    title: &'a str,
    /// How busbw is reckoned.
    formula: &'a str,
}

fn page(svg: &mut String, words: &Words<'_>, lines: &[Line], chosen: &[(f64, f64)]) -> Result<(), Box<dyn Error>> {
    let legend = Legend::of(lines, !chosen.is_empty());
    let page = SVGBackend::with_string(svg, (PLOT + legend.width(), HEIGHT)).into_drawing_area();
    page.fill(&WHITE)?;
    let page = page.margin(8, 8, 8, 8).titled(&format!("qpair {}", words.title), ("sans-serif", 22))?;
    // The legend has columns of its own: lines go everywhere.
    let (left, right) = page.split_horizontally(PLOT);
    let all = || lines.iter().flat_map(|line| &line.points);
    let (x, y) = (span(all().map(|point| point.0)), span(all().map(|point| point.1)));
    let mut sizes: Vec<f64> = all().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let x_ticks = ticks::of_sizes(&sizes, &x, f64::from(PLOT - Y_LABELS - 2 * MARGIN));
    let y_ticks = ticks::of_values(&y);
    let mut chart = ChartBuilder::on(&left)
        .margin(MARGIN)
        .x_label_area_size(44)
        .y_label_area_size(Y_LABELS)
        .build_cartesian_2d(x.log_scale().with_key_points(x_ticks), y.log_scale().with_key_points(y_ticks))?;
    chart
        .configure_mesh()
        .x_desc("size (B)")
        .y_desc(words.formula.replacen("busbw", "busbw (GB/s)", 1))
        .x_label_formatter(&|size| Size(size.round() as u64).to_string())
        .y_label_formatter(&|busbw| ticks::three_digits(*busbw))
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
        chart.draw_series(points.map(|point| marker(line, point)))?;
    }
    chart.draw_series(chosen.iter().map(|&point| Circle::new(point, 7, BLACK.stroke_width(1))))?;
    legend.draw(&right)
}

/// The point of a line: filled, unless the line is dashed.
fn marker<At, DB: DrawingBackend>(line: &Line, at: At) -> ComposedElement<At, DB, Polygon<Pixel>, PathElement<Pixel>> {
    let fill = if line.dashed { WHITE.filled() } else { line.color.filled() };
    let outline: Vec<Pixel> = line.shape.iter().chain(line.shape.first()).copied().collect();
    EmptyElement::at(at) + Polygon::new(line.shape, fill) + PathElement::new(outline, line.color.stroke_width(1))
}

/// Labels beside samples of their lines, in columns.
struct Legend<'a> {
    lines: &'a [Line],
    /// Whether some points are those that the automatic choice takes.
    has_chosen: bool,
}

impl<'a> Legend<'a> {
    fn of(lines: &'a [Line], has_chosen: bool) -> Self {
        Self { lines, has_chosen }
    }

    /// The width of all columns in pixels.
    fn width(&self) -> u32 {
        let rows = self.lines.len() + usize::from(self.has_chosen);
        rows.div_ceil(ROWS) as u32 * self.column() + 2 * MARGIN
    }

    /// That of a column: a sample, the longest label, and a gap.
    fn column(&self) -> u32 {
        let labels = self.lines.iter().map(|line| line.label.as_str()).chain(self.has_chosen.then_some(CHOSEN));
        let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
        LABEL as u32 + longest as u32 * LETTER + 16
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let text = ("sans-serif", 14).into_font();
        let place = |at: usize| ((at / ROWS) as i32 * self.column() as i32, 24 + (at % ROWS) as i32 * STEP);
        for (at, line) in self.lines.iter().enumerate() {
            let ((x, y), style) = (place(at), line.color.stroke_width(2));
            let dash = |from, to| PathElement::new([(x + from, y), (x + to, y)], style);
            if line.dashed {
                area.draw(&dash(0, 10))?;
                area.draw(&dash(18, 28))?;
            } else {
                area.draw(&dash(0, 28))?;
            }
            area.draw(&marker(line, (x + 14, y)))?;
            area.draw(&Text::new(line.label.clone(), (x + LABEL, y - 7), text.clone()))?;
        }
        if self.has_chosen {
            let (x, y) = place(self.lines.len());
            area.draw(&Circle::new((x + 14, y), 7, BLACK.stroke_width(1)))?;
            area.draw(&Text::new(CHOSEN, (x + LABEL, y - 7), text))?;
        }
        Ok(())
    }
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
/// Tell lines of one color apart, of which there is one for each color before the colors come again.
const SHAPES: [&[Pixel]; 8] = [
    // Round.
    &[(-3, -1), (-1, -3), (1, -3), (3, -1), (3, 1), (1, 3), (-1, 3), (-3, 1)],
    // A square, and triangles that point up and down.
    &[(-3, -3), (3, -3), (3, 3), (-3, 3)],
    &[(0, -4), (4, 3), (-4, 3)],
    &[(0, 4), (4, -3), (-4, -3)],
    // A square on its corner, a plus, and what is like an hourglass, upright and lying.
    &[(0, -5), (5, 0), (0, 5), (-5, 0)],
    &[(-1, -4), (1, -4), (1, -1), (4, -1), (4, 1), (1, 1), (1, 4), (-1, 4), (-1, 1), (-4, 1), (-4, -1), (-1, -1)],
    &[(-4, -4), (4, -4), (-4, 4), (4, 4)],
    &[(-4, -4), (-4, 4), (4, -4), (4, 4)],
];
/// The size of a page without its legend.
const PLOT: u32 = 850;
const HEIGHT: u32 = 640;
const MARGIN: u32 = 12;
/// The width of the numbers beside busbw, and of what they are.
const Y_LABELS: u32 = 76;
/// Rows of a column of the legend, which fill the page, and how far they are apart.
const ROWS: usize = 33;
const STEP: i32 = 17;
/// Where a label begins beside its line's sample, and how wide a letter is at most, on average.
const LABEL: i32 = 36;
const LETTER: u32 = 7;
const CHOSEN: &str = "what auto takes";

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of a page, with the attributes of its element.
    struct Label {
        text: String,
        attributes: String,
    }

    impl Label {
        fn number(&self, name: &str) -> f64 {
            let value = self.attributes.split(&format!(" {name}=\"")).nth(1).expect("the attribute");
            value.split('"').next().expect("a value").parse().expect("a number")
        }
    }

    /// The texts of a page with these lines.
    fn labels(svg: &str) -> Vec<Label> {
        let texts = svg.split("<text").skip(1).map(|element| {
            let (attributes, rest) = element.split_once('>').expect("a tag ends");
            let text = rest.split('<').next().expect("a text").trim().to_owned();
            Label { text, attributes: attributes.to_owned() }
        });
        texts.collect()
    }

    fn draw_lines(lines: &[Line]) -> String {
        let mut svg = String::new();
        let words = Words { title: "all-reduce", formula: "busbw = algbw" };
        page(&mut svg, &words, lines, &[(8.0, 1.0)]).expect("a page");
        svg
    }

    fn line(label: &str, points: Vec<(f64, f64)>) -> Line {
        Line { label: label.to_owned(), color: COLORS[0], shape: SHAPES[0], dashed: false, points }
    }

    #[test]
    fn both_axes_have_numbers_that_fit_at_any_span() {
        for times in [1.0, 1.5, 10.0, 1e6] {
            for least in [3e-6, 0.0071, 0.9, 42.0] {
                let sizes: &[f64] = if times == 1.0 { &[1024.0] } else { &[1024.0, 4096.0, 16384.0] };
                let points = sizes.iter().zip([least, least * times, least]).map(|(&size, busbw)| (size, busbw));
                let labels = labels(&draw_lines(&[line("auto", points.collect())]));
                let with = |anchor: &str| {
                    let anchor = format!("text-anchor=\"{anchor}\"");
                    labels
                        .iter()
                        .filter(move |label| label.attributes.contains(&anchor))
                        .map(|label| label.text.as_str())
                };
                let busbw: Vec<&str> = with("end").collect();
                assert!(busbw.len() >= 2 && busbw.iter().all(|text| text.len() <= 7), "{least} x {times}: {busbw:?}");
                let sizes: Vec<&str> = with("middle").filter(|text| text.ends_with('K')).collect();
                assert_eq!(sizes, ["1K", "4K", "16K"][..sizes.len()], "sizes that were measured, and no others");
                assert!(with("middle").all(|text| text.parse::<f64>().is_err()), "{least} x {times}");
            }
        }
    }

    #[test]
    fn a_legend_is_on_the_page_whatever_its_length() {
        for count in [1, 12, 40, 192] {
            let label = |at: usize| format!("minimum of f8e4m3, recursive-doubling, out-of-place {at}");
            let lines: Vec<Line> = (0..count).map(|at| line(&label(at), vec![(8.0, 1.0), (64.0, 2.0)])).collect();
            let svg = draw_lines(&lines);
            let page = Label { text: String::new(), attributes: svg[..svg.find('>').expect("a tag")].to_owned() };
            let labels = labels(&svg);
            let legend = |label: &&Label| label.text.contains("out-of-place") || label.text == CHOSEN;
            let mut places = std::collections::BTreeSet::new();
            for label in labels.iter().filter(legend) {
                let width = label.text.chars().count() as f64 * label.number("font-size") * 0.6;
                assert!(label.number("x") + width <= page.number("width"), "{}", label.text);
                assert!(label.number("y") + label.number("font-size") <= page.number("height"), "{}", label.text);
                assert!(places.insert((label.number("x") as u32, label.number("y") as u32)), "{}", label.text);
            }
            assert_eq!(places.len(), count + 1);
        }
    }
}
