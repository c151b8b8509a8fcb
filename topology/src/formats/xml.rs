//! XML as a tree of elements, within limits, and with no entities but the five that XML has itself.

use std::borrow::Cow;

use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;
use quick_xml::{Reader, XmlVersion};
use thiserror::Error;

use super::format_limits as limits;

/// XML that can not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum XmlError {
    /// It is longer than any machine.
    #[error("the file has {bytes} bytes, more than {limit}; a topology file of a machine is far smaller", limit = limits::FILE)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is no text.
    #[error("byte {offset} is no UTF-8; save the file as UTF-8")]
    NotUtf8 {
        /// The byte, from 0.
        offset: usize,
    },
    /// It is no XML.
    #[error("line {line}, byte {offset}: {problem}; the file is damaged or cut off")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// The byte, from 0.
        offset: usize,
        /// What is wrong.
        problem: String,
    },
    /// It has entities, which can grow without end.
    #[error("line {line}, byte {offset}: the file defines or uses entities, which are not read; write it without them")]
    Entity {
        /// The line, from 1.
        line: usize,
        /// The byte, from 0.
        offset: usize,
    },
    /// It has more of something than any machine.
    #[error("line {line}, byte {offset}: {what} exceed the limit of {limit}")]
    Limit {
        /// The line, from 1.
        line: usize,
        /// The byte, from 0.
        offset: usize,
        /// Of what there are too many.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// It ends in the middle.
    #[error("the file ends before its first element is closed; it was cut off")]
    CutOff,
}

/// An element. Its text is kept only where it is wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Element<'a> {
    pub(super) name: &'a str,
    pub(super) line: u32,
    pub(super) children: Vec<Self>,
    pub(super) text: String,
    attributes: Vec<(&'a str, Cow<'a, str>)>,
}

impl Element<'_> {
    /// The value of an attribute.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| &**value)
    }

    pub(super) fn named<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b Self> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// The text of a file.
///
/// # Errors
///
/// It is too long, or no UTF-8.
pub(super) fn text(bytes: &[u8]) -> Result<&str, XmlError> {
    if bytes.len() > limits::FILE {
        return Err(XmlError::TooLong { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| XmlError::NotUtf8 { offset: error.valid_up_to() })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// The element that a file is, with all that is in it. `keep_text` says of which elements the text is
/// kept.
pub(super) fn parse(text: &str, keep_text: fn(&str) -> bool) -> Result<Element<'_>, XmlError> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element<'_>> = Vec::new();
    let mut position = Position { text, offset: 0, line: 1 };
    let mut budget = Budget { elements: limits::ELEMENTS, attributes: limits::ALL_ATTRIBUTES };
    let mut root: Option<Element<'_>> = None;
    loop {
        position.advance(reader.buffer_position() as usize);
        let event = reader.read_event().map_err(|error| {
            position.advance(reader.error_position() as usize);
            position.malformed(error)
        })?;
        if root.is_some() && !may_follow(&event) {
            return Err(position.malformed("something follows the first element, which is all there may be"));
        }
        // What is before the end of the tag: the slash of an empty element, and the bracket.
        let tag = |content: &str, closing: usize| {
            let end = (reader.buffer_position() as usize).checked_sub(closing)?;
            text.get(end.checked_sub(content.len())?..end)
        };
        let closed = match event {
            Event::Start(start) => {
                if open.len() == limits::DEPTH {
                    return Err(position.limit("elements one in the other", limits::DEPTH));
                }
                let content = tag(&start, 1).unwrap_or_default();
                open.push(element(content, start.name().as_ref().len(), &position, &mut budget)?);
                continue;
            }
            Event::Empty(start) => {
                let content = tag(&start, 2).unwrap_or_default();
                element(content, start.name().as_ref().len(), &position, &mut budget)?
            }
            Event::End(_) => {
                let Some(closed) = open.pop() else { return Err(position.malformed("an end without a start")) };
                closed
            }
            Event::Text(piece) => {
                if let Some(element) = open.last_mut().filter(|element| keep_text(element.name)) {
                    element.text.push_str(&piece);
                }
                continue;
            }
            Event::DocType(definition) if definition.contains(['[', '&', '%']) => return Err(position.entity()),
            Event::GeneralRef(reference) if !is_known(&reference) => return Err(position.entity()),
            Event::Eof => return root.ok_or(XmlError::CutOff),
            _ => continue,
        };
        match open.last_mut() {
            Some(parent) => parent.children.push(closed),
            None => root = Some(closed),
        }
    }
}

/// True of what may stand behind the first element: what says nothing.
fn may_follow(event: &Event<'_>) -> bool {
    match event {
        Event::Text(text) => text.trim().is_empty(),
        event => matches!(event, Event::Comment(_) | Event::PI(_) | Event::Eof),
    }
}

/// How many more there may be.
struct Budget {
    elements: usize,
    attributes: usize,
}

/// The element of a tag, whose name is as long as this.
fn element<'a>(
    tag: &'a str,
    name: usize,
    position: &Position<'_>,
    budget: &mut Budget,
) -> Result<Element<'a>, XmlError> {
    let less = |left: usize| left.checked_sub(1);
    budget.elements = less(budget.elements).ok_or_else(|| position.limit("elements", limits::ELEMENTS))?;
    // The number is checked first: to check that no two have one name takes the square of it.
    if Attributes::new(tag, name).with_checks(false).take(limits::ATTRIBUTES + 1).count() > limits::ATTRIBUTES {
        return Err(position.limit("attributes of an element", limits::ATTRIBUTES));
    }
    let mut attributes = Vec::new();
    for attribute in Attributes::new(tag, name) {
        let attribute = attribute.map_err(|error| position.malformed(error))?;
        let all = limits::ALL_ATTRIBUTES;
        budget.attributes = less(budget.attributes).ok_or_else(|| position.limit("attributes", all))?;
        if attribute.value.len() > limits::VALUE {
            return Err(position.limit("bytes of an attribute", limits::VALUE));
        }
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| match error {
            quick_xml::Error::Escape(_) => position.entity(),
            error => position.malformed(error),
        })?;
        attributes.push((attribute.key.into_inner(), value));
    }
    Ok(Element {
        name: tag.get(..name).unwrap_or_default(),
        line: position.line as u32,
        attributes,
        ..Element::default()
    })
}

fn is_known(entity: &str) -> bool {
    entity.starts_with('#') || matches!(entity, "lt" | "gt" | "amp" | "quot" | "apos")
}

/// How far a file was read.
struct Position<'a> {
    text: &'a str,
    offset: usize,
    line: usize,
}

impl Position<'_> {
    /// Goes on to a later byte; lines are counted once.
    fn advance(&mut self, offset: usize) {
        if let Some(passed) = self.text.as_bytes().get(self.offset..offset) {
            self.line += passed.iter().filter(|&&byte| byte == b'\n').count();
            self.offset = offset;
        }
    }

    fn malformed(&self, problem: impl std::fmt::Display) -> XmlError {
        let problem = problem.to_string().chars().take(200).collect();
        XmlError::Malformed { line: self.line, offset: self.offset, problem }
    }

    fn entity(&self) -> XmlError {
        XmlError::Entity { line: self.line, offset: self.offset }
    }

    fn limit(&self, what: &'static str, limit: usize) -> XmlError {
        XmlError::Limit { line: self.line, offset: self.offset, what, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Element<'_>, XmlError> {
        parse(text, |name| name == "t")
    }

    #[test]
    fn elements_attributes_and_lines_are_read() {
        let root =
            read("<?xml version='1.0'?>\n<!DOCTYPE a SYSTEM \"a.dtd\">\n<a x='1 &lt; 2'>\n<b/><t>5 6</t></a>").unwrap();
        assert_eq!((root.name, root.get("x"), root.line), ("a", Some("1 < 2"), 3));
        assert_eq!(root.children[0].line, 4);
        assert_eq!(root.named("t").next().map(|t| t.text.as_str()), Some("5 6"));
    }

    #[test]
    fn entities_are_refused_with_their_line() {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"c\">]>\n<a x='&b;'/>";
        assert_eq!(read(bomb).unwrap_err(), XmlError::Entity { line: 1, offset: 0 });
        assert_eq!(read("<a>\n<b x='&c;'/></a>").unwrap_err(), XmlError::Entity { line: 2, offset: 4 });
        assert!(matches!(read("<a>&c;</a>"), Err(XmlError::Entity { .. })));
    }

    #[test]
    fn depth_number_and_size_have_limits() {
        let limit = |text: &str| match read(text) {
            Err(XmlError::Limit { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(limit(&"<a>".repeat(1_000_000)), limits::DEPTH);
        assert_eq!(limit(&format!("<a>{}", "<b/>".repeat(limits::ELEMENTS))), limits::ELEMENTS);
        let flood: String = (0..100_000).map(|i| format!(" a{i}=''")).collect();
        assert_eq!(limit(&format!("<a{flood}/>")), limits::ATTRIBUTES);
        assert_eq!(limit(&format!("<a x='{}'/>", "y".repeat(limits::VALUE + 1))), limits::VALUE);
        assert!(matches!(text(&vec![b' '; limits::FILE + 1]), Err(XmlError::TooLong { .. })));
    }

    #[test]
    fn nothing_but_comments_may_follow_the_first_element() {
        assert!(read("<a/>\n<!-- the end -->\n<?x y?>\n").is_ok());
        for rest in ["<b/>", "<a>", "text", "</a>", "&lt;", "<![CDATA[x]]>", "<!DOCTYPE a>", "<!--", "\0"] {
            let text = format!("<a/>\n{rest}");
            assert!(matches!(read(&text), Err(XmlError::Malformed { .. })), "{rest}: {:?}", read(&text));
        }
        let second = read("<a/>\n<b/>").unwrap_err();
        assert!(matches!(second, XmlError::Malformed { line: 2, offset: 5, .. }), "{second}");
    }

    #[test]
    fn what_is_cut_off_or_crossed_is_told_with_its_place() {
        assert_eq!(read("").unwrap_err(), XmlError::CutOff);
        assert_eq!(read("<a><b/>").unwrap_err(), XmlError::CutOff);
        assert!(matches!(read("<a>\n<b></a>"), Err(XmlError::Malformed { line: 2, .. })));
        assert!(matches!(read("<a\n x='"), Err(XmlError::Malformed { .. })));
        assert!(matches!(read("<a x='1' x='2'/>"), Err(XmlError::Malformed { .. })));
        assert_eq!(text(b"<a\xff").unwrap_err(), XmlError::NotUtf8 { offset: 2 });
    }
}
