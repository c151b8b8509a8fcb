//! A small writer of SVG: boxes, lines and text that fits.

use std::fmt::Write;

use crate::escape::escape;

/// A drawing. Frames are under lines, lines under boxes, and boxes under text, whatever order they
/// come in.
#[derive(Debug, Default)]
pub(super) struct Svg {
    frames: String,
    lines: String,
    boxes: String,
    texts: String,
}

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rect {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) w: i32,
    pub(super) h: i32,
}

impl Rect {
    /// Where lines to the right start, and from the left end.
    pub(super) fn right(&self) -> (i32, i32) {
        (self.x + self.w, self.y + self.h / 2)
    }

    pub(super) fn left(&self) -> (i32, i32) {
        (self.x, self.y + self.h / 2)
    }
}

/// The width of a character of text of 12 pixels, in a font of one width; on the safe side.
const CHARACTER: f32 = 7.3;

impl Svg {
    /// A rectangle that lines pass over.
    pub(super) fn frame(&mut self, rect: Rect, fill: &str, stroke: &str) {
        self.frames.push_str(&rectangle(rect, fill, stroke, 1));
    }

    /// A rectangle that lines pass under.
    pub(super) fn rect(&mut self, rect: Rect, fill: &str, stroke: &str, width: u32) {
        self.boxes.push_str(&rectangle(rect, fill, stroke, width));
    }

    /// Text that starts at a place and is cut where it would be wider than `width`.
    pub(super) fn text(&mut self, x: i32, y: i32, width: i32, text: &str, bold: bool) {
        if text.is_empty() {
            return;
        }
        let text = escape(&fit(text, width));
        let weight = if bold { r#" font-weight="bold""# } else { "" };
        let _ = writeln!(self.texts, r#"<text x="{x}" y="{y}"{weight}>{text}</text>"#);
    }

    /// A curve that leaves and arrives level; `bend` says how far it swings, to the right, or to the left
    /// if it is negative.
    pub(super) fn curve(&mut self, from: (i32, i32), to: (i32, i32), bend: i32, stroke: &str, dashed: bool) {
        let dashes = if dashed { r#" stroke-dasharray="7 4""# } else { "" };
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.lines,
            r#"<path d="M{x1} {y1} C{} {y1} {} {y2} {x2} {y2}" fill="none" stroke="{stroke}" stroke-width="2.5"{dashes}/>"#,
            x1 + bend,
            x2 - bend
        );
    }

    pub(super) fn line(&mut self, from: (i32, i32), to: (i32, i32), stroke: &str, dashed: bool) {
        let dashes = if dashed { r#" stroke-dasharray="7 4""# } else { "" };
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.lines,
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="2.5"{dashes}/>"#
        );
    }

    /// The file, of a size.
    pub(super) fn finish(self, width: i32, height: i32) -> String {
        let Self { frames, lines, boxes, texts } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" \
             font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             {frames}{lines}{boxes}{texts}</svg>\n"
        )
    }
}

fn rectangle(rect: Rect, fill: &str, stroke: &str, width: u32) -> String {
    let Rect { x, y, w, h } = rect;
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"5\" fill=\"{fill}\" stroke=\"{stroke}\" \
         stroke-width=\"{width}\"/>\n"
    )
}

/// As much of a text as fits, with an ellipsis where it was cut.
fn fit(text: &str, width: i32) -> String {
    let most = (width as f32 / CHARACTER) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_made_safe() {
        assert_eq!(fit("mlx5_0", 60), "mlx5_0");
        assert_eq!(fit("mlx5_bond_0", 60), "mlx5_bo…");
        assert_eq!(escape("<a&\"\u{1}\u{ffff}"), "&lt;a&amp;&quot;??");
    }
}
