//! Reading small files of the system under a root, within bounds.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;

/// The folder that stands for `/`, and what was odd under it.
#[derive(Debug)]
pub struct Root {
    base: PathBuf,
    oddities: RefCell<Vec<Oddity>>,
}

/// A file whose content makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oddity {
    /// Where it stands, seen from the root.
    pub path: String,
    /// What is odd.
    pub what: String,
}

impl Root {
    /// Takes `base` for `/`.
    pub fn new(base: &Path) -> Self {
        Root { base: base.to_owned(), oddities: RefCell::default() }
    }

    /// Where a path of the system lies.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// Whether something stands there.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, of at most [`SMALL`] bytes. `None` if it can not be read.
    pub fn text(&self, path: &str) -> Option<String> {
        self.long_text(path, SMALL)
    }

    /// The same of at most `limit` bytes; what is longer ends at the last whole line within.
    pub fn long_text(&self, path: &str, limit: u64) -> Option<String> {
        let bytes = self.bytes(path, limit)?;
        let cut = bytes.len() as u64 >= limit;
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if cut {
            text.truncate(text.rfind('\n').unwrap_or(0));
        }
        Some(text)
    }

    /// The first bytes of a file.
    pub fn bytes(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        open(&self.path(path)).and_then(|file| file.take(limit).read_to_end(&mut bytes)).ok()?;
        Some(bytes)
    }

    /// The first line of a file, without blanks at its ends; `None` if there is none or it is empty.
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        if line.chars().count() > LONGEST_LINE {
            self.odd(path, format!("a line of {} characters", line.chars().count()));
            return None;
        }
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// The number in a file. A text that is no such number is odd.
    pub fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.parsed(path, &self.line(path)?)
    }

    /// The number that a file holds in hexadecimal, with or without `0x`.
    pub fn hex(&self, path: &str) -> Option<u64> {
        let line = self.line(path)?;
        let parsed = u64::from_str_radix(line.trim_start_matches("0x"), 16).ok();
        if parsed.is_none() {
            self.odd(path, format!("`{line}` is no hexadecimal number"));
        }
        parsed
    }

    /// The number in front of the colon, as in `4: ACTIVE`.
    pub fn code(&self, path: &str) -> Option<u32> {
        let line = self.line(path)?;
        self.parsed(path, line.split(':').next().unwrap_or_default().trim())
    }

    fn parsed<T: FromStr>(&self, path: &str, text: &str) -> Option<T> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.odd(path, format!("`{text}` is no number that could stand there"));
        }
        parsed
    }

    /// The names in a folder, sorted; at most [`MOST_NAMES`].
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.take(MOST_NAMES + 1).collect();
        if names.len() > MOST_NAMES {
            names.truncate(MOST_NAMES);
            self.odd(path, format!("more than {MOST_NAMES} entries"));
        }
        names.sort_unstable();
        names
    }

    /// The last part of what a symbolic link points to.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Keeps aside what makes no sense.
    pub fn odd(&self, path: &str, what: String) {
        let mut oddities = self.oddities.borrow_mut();
        if oddities.len() < MOST_ODDITIES {
            oddities.push(Oddity { path: path.to_owned(), what });
        }
    }

    /// What was kept aside.
    pub fn into_oddities(self) -> Vec<Oddity> {
        self.oddities.into_inner()
    }
}

/// Opens a file so that a pipe in its place does not hold this up.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Bytes of a file of a few lines.
const SMALL: u64 = 64 << 10;
/// Characters of a line that is worth showing.
const LONGEST_LINE: usize = 200;
/// More entries than any folder that is read here has on a large machine.
const MOST_NAMES: usize = 16384;
/// More would tell nothing new.
const MOST_ODDITIES: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn nonsense_is_kept_aside_and_read_as_absent() {
        let fixture = Fixture::new();
        fixture.file("a/number", "twelve\n").file("a/hex", "0xzz").file("a/state", "?: ACTIVE\n").file("a/empty", "");
        fixture.file("a/long", &"x".repeat(300)).file("a/huge", &"line\n".repeat(100_000));
        let root = Root::new(fixture.path());
        assert_eq!(root.number::<u32>("/a/number"), None);
        assert_eq!((root.hex("/a/hex"), root.code("/a/state"), root.line("/a/empty")), (None, None, None));
        assert_eq!((root.line("/a/long"), root.line("/a/none")), (None, None));
        assert!(root.text("/a/huge").expect("it is there").len() <= SMALL as usize);
        assert!(root.text("/a").is_none(), "a folder has no text");
        let odd: Vec<String> = root.into_oddities().into_iter().map(|odd| odd.path).collect();
        assert_eq!(odd, ["/a/number", "/a/hex", "/a/state", "/a/long"]);
    }

    #[test]
    fn numbers_are_read_as_the_kernel_writes_them() {
        let fixture = Fixture::new();
        fixture.file("mtu", "1500\n").file("flags", "0x1003\n").file("state", "4: ACTIVE\n").file("lid", "1f\n");
        let root = Root::new(fixture.path());
        assert_eq!(root.number::<u32>("/mtu"), Some(1500));
        assert_eq!((root.hex("/flags"), root.hex("/lid"), root.code("/state")), (Some(0x1003), Some(31), Some(4)));
        assert!(root.into_oddities().is_empty());
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_not_waited_for() {
        let fixture = Fixture::new();
        rustix::fs::mkfifoat(rustix::fs::CWD, fixture.path().join("pipe"), rustix::fs::Mode::from_raw_mode(0o600))
            .expect("a pipe");
        assert_eq!(Root::new(fixture.path()).line("/pipe"), None);
    }
}
