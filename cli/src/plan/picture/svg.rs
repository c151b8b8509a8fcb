//! A small writer of SVG: what stands under what, and text that is safe.

use std::fmt::Write;

use qpair::topology::escape;

/// A drawing. Lanes are under bars, bars under arrows, and arrows under text, whatever order they come in.
#[derive(Debug, Default)]
pub struct Svg {
    lanes: String,
    bars: String,
    arrows: String,
    texts: String,
}

/// A rectangle, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

impl Rect {
    /// Whether the two share more than a border.
    pub fn overlaps(&self, other: &Rect) -> bool {
        let apart = |a: f64, aw: f64, b: f64, bw: f64| a + aw <= b || b + bw <= a;
        !apart(self.x, self.w, other.x, other.w) && !apart(self.y, self.h, other.y, other.h)
    }
}

/// How text stands to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// The ground of a rank.
    pub fn lane(&mut self, rect: Rect) {
        let _ = writeln!(self.lanes, r##"<rect class="lane" {} rx="3" fill="#eef1f4"/>"##, place(rect));
    }

    /// A line of the grid, down through all lanes.
    pub fn grid(&mut self, x: f64, top: f64, bottom: f64) {
        let _ = writeln!(self.lanes, r##"<path d="M{x:.1} {top:.1}V{bottom:.1}" stroke="#d5dbe1" fill="none"/>"##);
    }

    /// A bar of a class, with what is told under the pointer.
    pub fn bar(&mut self, class: &str, rect: Rect, fill: &str, tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
        let _ = writeln!(self.bars, r#"<rect class="{class}" {} fill="{fill}">{tip}</rect>"#, place(rect));
    }

    /// An arrow.
    pub fn arrow(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let length = (x2 - x1).hypot(y2 - y1).max(1e-9);
        let (dx, dy) = ((x2 - x1) / length, (y2 - y1) / length);
        let (back_x, back_y) = (x2 - HEAD * dx, y2 - HEAD * dy);
        let (side_x, side_y) = (dy * HEAD * 0.45, dx * HEAD * 0.45);
        let _ = writeln!(
            self.arrows,
            r##"<path class="{class}" d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}M{:.1} {:.1}L{x2:.1} {y2:.1}L{:.1} {:.1}" stroke="#37424d" stroke-opacity="0.75" fill="none"/>"##,
            back_x + side_x,
            back_y - side_y,
            back_x - side_x,
            back_y + side_y,
        );
    }

    /// Text on the line `y`.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let text = escape(text);
        let _ = writeln!(
            self.texts,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" font-size="{size}"{anchor}>{text}</text>"#
        );
    }

    /// A small text on a ground of its own, which keeps it apart from the arrows below it.
    pub fn label(&mut self, rect: Rect, text: &str) {
        let ground = r##"fill="#ffffff" fill-opacity="0.85""##;
        let _ = writeln!(self.texts, r#"<rect class="ground" {} {ground}/>"#, place(rect));
        self.text("label", (rect.x + rect.w / 2.0, rect.y + rect.h - 2.0), SMALL, Anchor::Middle, text);
    }

    /// The file, of a size.
    pub fn finish(self, width: f64, height: f64) -> String {
        let Self { lanes, bars, arrows, texts } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" \
             font-size=\"12\">\n<rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n\
             {lanes}{bars}{arrows}{texts}</svg>\n"
        )
    }
}

/// The width of a text, in a font of one width; on the safe side.
pub fn width(text: &str, size: u32) -> f64 {
    text.chars().count() as f64 * f64::from(size) * 0.61
}

fn place(rect: Rect) -> String {
    let Rect { x, y, w, h } = rect;
    format!(r#"x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}""#)
}

/// The size of labels and of text in bars.
pub const SMALL: u32 = 9;
/// The length of an arrow's head.
const HEAD: f64 = 6.0;
