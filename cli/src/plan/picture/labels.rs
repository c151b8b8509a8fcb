//! Arrows from lane to lane, and their labels where there is room.

use qpair::collectives::cost::Message;
use qpair::collectives::{Buffer, Plan, Slice, StepKind};

use super::lanes::{Lane, Scale, WORK};
use super::svg::{Rect, SMALL, Svg, width};
use crate::plan::examined::Examined;
use crate::plan::words::elements;

/// Draws an arrow for each message between lanes that are drawn.
pub fn arrows(svg: &mut Svg, examined: &Examined, lanes: &[Lane], scale: &Scale) {
    let mut taken: Vec<Rect> = Vec::new();
    for message in examined.timeline.messages() {
        let (Some(from), Some(to)) = (lanes.get(message.from as usize), lanes.get(message.to as usize)) else {
            continue;
        };
        let moment =
            |rank: u32, step: u32| examined.timeline.steps(rank).get(step as usize).copied().unwrap_or_default();
        let sent = scale.x(moment(message.from, message.send).begin);
        let received = scale.x(moment(message.to, message.recv).begin);
        let down = from.rank < to.rank;
        let start = (sent, if down { from.bottom() } else { from.rect.y });
        let end = (received, if down { to.work_top } else { to.work_top + WORK });
        svg.arrow("arrow", start, end);
        let text = carried(examined.plan(), message);
        let room = places(lanes, message, start, end, width(&text, SMALL) + 2.0);
        let free = room.into_iter().find(|rect| {
            let inside = rect.x >= scale.left && rect.x + rect.w <= scale.left + scale.width;
            inside && !taken.iter().any(|other| other.overlaps(rect))
        });
        if let (Some(rect), false) = (free, text.is_empty()) {
            svg.label(rect, &text);
            taken.push(rect);
        }
    }
}

/// Where a label of that width may stand: on its arrow or beside it, between two lanes; nearest to the sender first.
fn places(lanes: &[Lane], message: &Message, start: (f64, f64), end: (f64, f64), w: f64) -> Vec<Rect> {
    let (low, high) = (message.from.min(message.to) as usize, message.from.max(message.to) as usize);
    let down = message.from < message.to;
    let gaps = lanes.get(low..=high).unwrap_or_default().windows(2);
    let rows = gaps.flat_map(|pair| {
        let (top, bottom) = (pair[0].bottom() + 1.0, pair[1].rect.y - 1.0);
        let count = ((bottom - top) / LINE) as u32;
        (0..count).map(move |row| top + f64::from(row) * LINE)
    });
    let mut rows: Vec<f64> = rows.collect();
    if !down {
        rows.reverse();
    }
    let slope = (end.0 - start.0) / (end.1 - start.1);
    let on_arrow = move |y: f64| start.0 + slope * (y - start.1);
    let beside = |y: f64| {
        // Where the arrow is within this row: a label on a steep one would hide it.
        let (a, b) = (on_arrow(y), on_arrow(y + LINE));
        let (left, right) = (a.min(b), a.max(b));
        let xs = if right - left < w { [right + 1.0, left - w - 1.0] } else { [(a + b - w) / 2.0; 2] };
        xs.map(|x| Rect { x, y, w, h: LINE })
    };
    rows.into_iter().flat_map(beside).collect()
}

/// Which elements a message carries, by their place in a vector at one of its ends.
fn carried(plan: &Plan, message: &Message) -> String {
    let slice = |rank: u32, step: u32, of: fn(&StepKind) -> Option<Slice>| of(&plan.program(rank)?.kind(step)?);
    let from = slice(message.from, message.send, StepKind::src);
    let to = slice(message.to, message.recv, StepKind::dst);
    let named = [from, to].into_iter().flatten().find(|slice| slice.buffer != Buffer::Scratch);
    match named.or(from) {
        Some(slice) if slice.len == 0 => String::new(),
        Some(slice) if slice.buffer == Buffer::Scratch => format!("scratch {}", elements(slice)),
        Some(slice) => elements(slice),
        None => String::new(),
    }
}

/// The height of a label.
const LINE: f64 = 11.0;
