//! The picture of a plan: a lane per rank, time to the right, bars for steps, arrows for messages.

mod labels;
mod lanes;
mod svg;

use super::examined::Examined;
use super::words::{Unit, name, time};
use crate::round::round_step;
use crate::text::{amount, count};
use lanes::{Class, Lane, Scale};
use svg::{Anchor, Rect, SMALL, Svg, width};

/// A picture.
#[derive(Debug)]
pub struct Picture {
    /// The file.
    pub svg: String,
    /// What is not in it.
    pub left_out: Vec<String>,
}

/// Draws the first `most` ranks of a plan.
pub fn draw(examined: &Examined, most: u32) -> Picture {
    let (plan, figures) = (examined.plan(), &examined.figures);
    let drawn = plan.spec.ranks.0.min(most);
    let seconds = examined.timeline.cost().seconds;
    let left = 2.0 * MARGIN + width(&format!("rank {drawn}"), 12);
    let scale = Scale { left, width: plot_width(examined, drawn), seconds };
    let mut svg = Svg::default();
    let title = format!("{} by {}: {}", plan.spec, name(&plan.algorithm), time(seconds));
    svg.text("title", (MARGIN, 28.0), 14, Anchor::Start, &title);
    let below = format!(
        "{}, {} in a row; {} sent in all; time by the model, elements on arrows",
        count(figures.messages, "message"),
        figures.messages_in_a_row,
        amount(figures.total)
    );
    svg.text("subtitle", (MARGIN, 46.0), 11, Anchor::Start, &below);
    let legend_width = legend(&mut svg, 58.0);

    let mut top = TOP;
    let lanes: Vec<Lane> = (0..drawn)
        .map(|rank| {
            let lane = Lane::of(examined, rank, &scale, top);
            top = lane.bottom() + GAP;
            lane
        })
        .collect();
    let bottom = top - GAP;
    lanes.iter().for_each(|lane| draw_lane(&mut svg, lane));
    axis(&mut svg, &scale, bottom);
    let mut left_out = beyond(examined, drawn);
    let between = examined.timeline.messages().iter().filter(|message| message.from.max(message.to) < drawn).count();
    if between <= MOST_ARROWS {
        labels::arrows(&mut svg, examined, &lanes, &scale);
    } else {
        left_out.push(format!("the arrows of {between} messages"));
    }
    let mut y = bottom + 48.0;
    for what in &left_out {
        svg.text("note", (MARGIN, y), 11, Anchor::Start, &format!("left out: {what}"));
        y += 16.0;
    }
    let texts = width(&title, 14).max(width(&below, 11)).max(legend_width) + 2.0 * MARGIN;
    let whole = (scale.left + scale.width + MARGIN + 20.0).max(texts);
    Picture { svg: svg.finish(whole, y + 4.0), left_out }
}

/// Wide enough that the bars of the rank that has most can be told apart, if that is not wider than anybody could look at.
fn plot_width(examined: &Examined, drawn: u32) -> f64 {
    let programs = (0..drawn).filter_map(|rank| examined.plan().program(rank));
    let work = programs.map(|program| program.steps().iter().filter(|step| !step.kind.is_send()).count());
    (work.max().unwrap_or(0) as f64 * 64.0).clamp(880.0, 2400.0)
}

/// Which ranks are not drawn.
fn beyond(examined: &Examined, drawn: u32) -> Vec<String> {
    let ranks = examined.plan().spec.ranks.0;
    if drawn == ranks {
        return Vec::new();
    }
    let messages = examined.timeline.messages().iter().filter(|message| (message.from < drawn) != (message.to < drawn));
    let ranks = if drawn + 1 == ranks { format!("rank {drawn}") } else { format!("ranks {drawn} to {}", ranks - 1) };
    vec![format!("{ranks}, and {} between them and those above", count(messages.count(), "message"))]
}

fn draw_lane(svg: &mut Svg, lane: &Lane) {
    svg.lane(lane.rect);
    let middle = lane.work_top + lanes::WORK / 2.0 + 4.0;
    svg.text("rank", (lane.rect.x - 8.0, middle), 12, Anchor::End, &format!("rank {}", lane.rank));
    for (rect, bar) in lane.sends() {
        let (class, _, colour) = bar.class.look();
        svg.bar(class, apart(rect), colour, &bar.tip);
    }
    for bar in &lane.work {
        let (class, _, colour) = bar.class.look();
        let rect = lane.work_rect(bar);
        svg.bar(class, apart(rect), colour, &bar.tip);
        if width(&bar.text, SMALL) + 4.0 <= rect.w {
            let place = (rect.x + rect.w / 2.0, middle - 1.0);
            svg.text("in-bar", place, SMALL, Anchor::Middle, &bar.text);
        }
    }
}

/// With a line between it and the next bar, if that follows at once.
fn apart(bar: Rect) -> Rect {
    Rect { w: if bar.w > 4.0 { bar.w - 0.8 } else { bar.w }, ..bar }
}

/// What the colours mean; how wide it is.
fn legend(svg: &mut Svg, y: f64) -> f64 {
    let mut x = MARGIN;
    for class in Class::ALL {
        let (_, name, colour) = class.look();
        let h = if class == Class::Send { 5.0 } else { 12.0 };
        svg.bar("legend", Rect { x, y: y + (12.0 - h) / 2.0, w: 16.0, h }, colour, "");
        svg.text("legend", (x + 21.0, y + 10.0), 11, Anchor::Start, name);
        x += 21.0 + width(name, 11) + 16.0;
    }
    svg.arrow("legend", (x, y + 6.0), (x + 22.0, y + 6.0));
    svg.text("legend", (x + 27.0, y + 10.0), 11, Anchor::Start, "message");
    x + 27.0 + width("message", 11) - MARGIN
}

/// Lines and numbers at round times.
fn axis(svg: &mut Svg, scale: &Scale, bottom: f64) {
    let unit = Unit::of(scale.seconds);
    let whole = scale.seconds * unit.a_second;
    let step = round_step(whole / 10.0);
    let decimals = if step < 1.0 { (-step.log10()).ceil() as usize } else { 0 };
    let ticks = if whole > 0.0 { (whole / step + 1e-9) as u32 } else { 0 };
    for tick in 0..=ticks {
        let at = f64::from(tick) * step;
        let x = scale.x(at / unit.a_second);
        svg.grid(x, TOP - 4.0, bottom + 4.0);
        svg.text("axis", (x, bottom + 18.0), 10, Anchor::Middle, &format!("{at:.decimals$}"));
    }
    svg.text("axis", (scale.left + scale.width / 2.0, bottom + 32.0), 10, Anchor::Middle, unit.name);
}

const MARGIN: f64 = 20.0;
/// Where the first lane begins: below title and legend.
const TOP: f64 = 92.0;
/// Between lanes: room for two rows of labels.
const GAP: f64 = 27.0;
/// More would cover each other.
const MOST_ARROWS: usize = 1200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_axis_are_round() {
        for (least, step) in [(0.0, 1.0), (0.03, 0.05), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (70.0, 100.0)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }
}
