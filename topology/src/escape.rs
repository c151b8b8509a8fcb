//! Text within markup.

/// Text as it stands in an attribute or between tags of XML, SVG among it. What XML can not hold becomes a
/// question mark: control characters, and the two code points that are no characters.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if is_printable(c) => escaped.push(c),
            _ => escaped.push('?'),
        }
    }
    escaped
}

/// False of control characters, which terminals obey, and of code points that are no characters.
pub(crate) fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_xml_or_can_not_be_there_is_replaced() {
        assert_eq!(escape("<a b=\"c\"> & d"), "&lt;a b=&quot;c&quot;&gt; &amp; d");
        assert_eq!(escape("a\u{1}b\u{85}c\u{ffff}d\u{fffe}e"), "a?b?c?d?e");
        assert_eq!(escape("Ä"), "Ä");
    }
}
