//! Texts for people: sizes, counts, and paragraphs of a given width.

use std::fmt;
use std::net::SocketAddr;

/// Bytes with a binary unit: exact where they are whole ones, else with two decimals. `8 MiB`, `1.50 GiB`, `220 B`.
pub fn amount(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(shift, _)| bytes >> shift > 0);
    match unit {
        None => format!("{bytes} B"),
        Some((shift, name)) if bytes.is_multiple_of(1 << shift) => format!("{} {name}", bytes >> shift),
        Some((shift, name)) => format!("{:.2} {name}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

/// A number of things: `1 warning`, `2 warnings`.
pub fn count(number: impl fmt::Display + From<u8> + PartialEq, what: &str) -> String {
    format!("{number} {what}{}", if number == 1.into() { "" } else { "s" })
}

/// What may be printed: strings that come from files or from a peer may hold codes that a terminal obeys.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Where a server is, and how `client`, a command to which the host is added, and then the port by that option, reaches it.
pub fn serving(bound: SocketAddr, client: &str, option: &str) -> String {
    let (ip, port) = (bound.ip(), bound.port());
    if ip.is_loopback() {
        format!(
            "serving at {bound}, for this machine alone (--bind serves others); on it: {client} {ip} {option} {port}"
        )
    } else {
        format!("serving at {bound}; on the other machine: {client} HOST {option} {port}")
    }
}

/// Breaks a text into lines of at most `width` characters, at blanks. A longer word stands alone.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
    }
    lines
}

const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_largest_unit_that_fits() {
        let texts = [
            (0, "0 B"),
            (220, "220 B"),
            (1000, "1000 B"),
            (1024, "1 KiB"),
            (384 << 10, "384 KiB"),
            (1536 << 10, "1.50 MiB"),
            (8 << 20, "8 MiB"),
            (3 << 29, "1.50 GiB"),
            (1 << 40, "1 TiB"),
        ];
        for (bytes, text) in texts {
            assert_eq!(amount(bytes), text);
        }
        assert_eq!(amount(u64::MAX), "16777216.00 TiB");
    }

    #[test]
    fn paragraphs_keep_their_width_and_their_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable x", 4), ["unbreakable", "x"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn codes_for_terminals_are_not_printed() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    }
}
