//! Passes a rank's output on, line by line, each with the rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};

/// Copies `from` to `to` until it ends. Each line gets `prefix` and is written by one call, so that lines of several
/// ranks do not mix. A last line without a newline gets one; a line beyond [`MAX_LINE`] is cut in two.
///
/// # Errors
/// If reading or writing fails; then the writer's end of `from` breaks too once it is dropped.
pub fn relay(from: impl Read, prefix: &str, mut to: impl Write) -> io::Result<()> {
    let mut from = BufReader::with_capacity(BUFFER, from);
    let mut line = prefix.as_bytes().to_vec();
    loop {
        line.truncate(prefix.len());
        if from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        to.write_all(&line)?;
        to.flush()?;
    }
}

/// Copies `from` to `to` as it is, until it ends.
///
/// # Errors
/// If reading or writing fails.
pub fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut part = vec![0; BUFFER];
    loop {
        match from.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&part[..read])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads lines until one ends with `mark`. What comes before, which a host says to whoever comes, is passed on, be its last line
/// without an end.
///
/// # Errors
/// If reading or writing fails, or it ends before.
pub fn wait_for(mark: &str, from: &mut impl BufRead, prefix: &str, mut to: impl Write) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        if from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = line.trim_ascii().strip_suffix(mark.as_bytes());
        match before {
            Some(b"") => return Ok(()),
            Some(before) => to.write_all(&[prefix.as_bytes(), before, b"\n"].concat())?,
            None => to.write_all(&[prefix.as_bytes(), &line].concat())?,
        }
        to.flush()?;
        if before.is_some() {
            return Ok(());
        }
    }
}

/// The prefix of rank `rank` among `ranks`: as wide for each.
pub fn prefix(rank: u32, ranks: u32) -> String {
    let width = ranks.saturating_sub(1).to_string().len();
    format!("[{rank:>width$}] ")
}

/// Bytes of a line that are held back at most, waiting for its end.
const MAX_LINE: u64 = 1 << 20;
/// Bytes read at once.
const BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(input: &[u8]) -> String {
        let mut out = Vec::new();
        relay(input, "[3] ", &mut out).expect("memory does not fail");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_line_gets_the_rank() {
        assert_eq!(relayed(b"a\n\nbc\n"), "[3] a\n[3] \n[3] bc\n");
        assert_eq!(relayed(b""), "");
    }

    #[test]
    fn what_comes_before_the_mark_is_passed_on_and_what_follows_is_left() {
        let (mut from, mut out) = (&b"Welcome!\nup 7\nrest"[..], Vec::new());
        wait_for("up 7", &mut from, "[3] ", &mut out).expect("the mark");
        assert_eq!((from, &out[..]), (&b"rest"[..], &b"[3] Welcome!\n"[..]));
        assert!(wait_for("up 7", &mut from, "", &mut out).is_err());
    }

    #[test]
    fn a_mark_may_stand_behind_a_line_without_its_end() {
        for (said, passed) in [("Welcome! up 7\n", "[3] Welcome! \n"), (" up 7\r\n", "")] {
            let (mut from, mut out) = (said.as_bytes(), Vec::new());
            wait_for("up 7", &mut from, "[3] ", &mut out).expect("the mark");
            assert_eq!((from, String::from_utf8_lossy(&out).as_ref()), (&b""[..], passed), "{said:?}");
        }
        // What a shell says that repeats what it is told.
        assert!(wait_for("up 7", &mut &b"echo 'up 7'\nup 7 8\n"[..], "", &mut Vec::new()).is_err());
    }

    #[test]
    fn a_last_line_without_newline_gets_one() {
        assert_eq!(relayed(b"a\nrest"), "[3] a\n[3] rest\n");
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let long = vec![b'x'; MAX_LINE as usize + 1];
        let out = relayed(&long);
        assert_eq!(out.lines().count(), 2);
        assert_eq!(out.matches('x').count(), long.len());
    }

    #[test]
    fn each_line_is_one_write() {
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writes = Writes(Vec::new());
        relay(&b"one\ntwo\n"[..], "[0] ", &mut writes).expect("memory does not fail");
        assert_eq!(writes.0, [b"[0] one\n".to_vec(), b"[0] two\n".to_vec()]);
    }

    #[test]
    fn prefixes_are_equally_wide() {
        assert_eq!(prefix(3, 4), "[3] ");
        assert_eq!(prefix(3, 16), "[ 3] ");
        assert_eq!(prefix(15, 16), "[15] ");
    }
}
