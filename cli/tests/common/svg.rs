//! Reads drawings, as far as tests need it, and fails on what is no XML.

use std::collections::HashMap;

/// An element with its attributes, and its text if it holds nothing else.
#[derive(Debug)]
pub struct Element {
    pub name: String,
    pub attributes: HashMap<String, String>,
    pub text: String,
}

impl Element {
    pub fn class(&self) -> &str {
        self.attributes.get("class").map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> f64 {
        let text = self.attributes.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name} is no number: {self:?}"))
    }

    /// Left, top, right, bottom of a rectangle; or of a text, in a font of one width.
    pub fn edges(&self) -> [f64; 4] {
        let (x, y) = (self.number("x"), self.number("y"));
        if self.name == "rect" {
            return [x, y, x + self.number("width"), y + self.number("height")];
        }
        let size = self.number("font-size");
        let width = self.text.chars().count() as f64 * size * 0.6;
        let left = match self.attributes.get("text-anchor").map(String::as_str) {
            Some("middle") => x - width / 2.0,
            Some("end") => x - width,
            _ => x,
        };
        [left, y - 0.75 * size, left + width, y + 0.2 * size]
    }
}

/// Whether two share more than a border.
pub fn overlap(a: [f64; 4], b: [f64; 4]) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// All elements of a file, in their order.
pub fn elements(file: &str) -> Vec<Element> {
    let (mut all, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut rest = file.trim_end();
    while !rest.is_empty() {
        let (text, tag) = rest.split_once('<').unwrap_or((rest, ""));
        checked(text);
        match open.last() {
            Some(&at) => all[at].text.push_str(text.trim()),
            None => assert!(text.trim().is_empty() && !tag.is_empty(), "text outside: {text}"),
        }
        let (inside, after) = tag.split_once('>').expect("a tag ends");
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop().map(|at| all[at].name.as_str()), Some(name), "what was opened is closed");
        } else {
            let alone = inside.ends_with('/');
            all.push(element(inside.trim_end_matches('/')));
            assert!(!open.is_empty() || all.len() == 1, "one root");
            if !alone {
                open.push(all.len() - 1);
            }
        }
        rest = after;
    }
    assert!(open.is_empty() && !all.is_empty(), "all is closed");
    all
}

fn element(inside: &str) -> Element {
    let (name, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
    assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
    let mut attributes = HashMap::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.trim_start().split_once("=\"").expect("an attribute in quotes");
        let (value, after) = after.split_once('"').expect("quotes end");
        checked(value);
        assert!(attributes.insert(key.to_owned(), value.to_owned()).is_none(), "{key} twice");
        rest = after;
    }
    Element { name: name.to_owned(), attributes, text: String::new() }
}

fn checked(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    for after in text.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| after.starts_with(entity)), "{text}");
    }
}
