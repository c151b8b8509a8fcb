//! The tree that discovery reads, a folder or one in memory, and the record of what it read.

use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::config_space::{self, PortHints};
use super::memory::{Entry, Memory};
use super::sysfs_limits as limits;

/// What stands behind a tree.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Folder(PathBuf),
    Memory(Memory),
}

/// A tree to read from. Paths are from its root, without a leading `/`. What can not be read is not
/// there: a device may vanish between two reads, and a file may be for others alone.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    source: &'a Source,
    /// The root of a folder without links, so that no link leads out of it.
    root: Option<PathBuf>,
    record: RefCell<Option<Memory>>,
    /// Folders that matter even if nothing in them is recorded.
    folders: RefCell<Vec<String>>,
}

/// What a tree says that is no file of sysfs stands below this folder: what the driver of GPUs says,
/// and which devices can be opened.
pub(super) const BESIDE: &str = "qpair";

/// Where a link leads that is broken, in a record. Nothing can have this path, since manifests have no
/// `|` in theirs.
const NOWHERE: &str = "/|broken";

impl<'a> Tree<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        let root = match source {
            Source::Folder(path) => fs::canonicalize(path).ok(),
            Source::Memory(_) => None,
        };
        Self { source, root, record: RefCell::new(None), folders: RefCell::default() }
    }

    /// The same, and what is read is recorded.
    pub(super) fn recording(source: &'a Source) -> Self {
        Self { record: RefCell::new(Some(Memory::default())), ..Self::new(source) }
    }

    pub(super) fn into_record(self) -> Memory {
        let mut record = self.record.into_inner().unwrap_or_default();
        self.folders.into_inner().iter().for_each(|folder| record.insert_folder(folder));
        record
    }

    /// False if there is no folder at all.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.source, Source::Memory(_)) || self.root.as_deref().is_some_and(Path::is_dir)
    }

    /// The text of a file, without white space around it.
    pub(super) fn read(&self, folder: &str, name: &str) -> Option<String> {
        self.read_part(folder, name, |text| text)
    }

    /// A part of the text of a file. The rest is not recorded.
    pub(super) fn read_part(&self, folder: &str, name: &str, part: fn(&str) -> &str) -> Option<String> {
        let path = join(folder, name);
        let text = match self.source {
            Source::Folder(_) => {
                let bytes = read_file(&self.full(&path)?)?;
                String::from_utf8(bytes).ok()?.trim_matches('\0').trim().to_owned()
            }
            Source::Memory(memory) => memory.read(&path)?.trim().to_owned(),
        };
        let text = part(&text).to_owned();
        self.note(path, || Entry::File(text.clone()));
        Some(text)
    }

    /// The number in a file.
    pub(super) fn number<T: std::str::FromStr>(&self, folder: &str, name: &str) -> Option<T> {
        self.read(folder, name)?.parse().ok()
    }

    /// The number in a file, in hexadecimal with `0x`.
    pub(super) fn hex(&self, folder: &str, name: &str) -> Option<u32> {
        let text = self.read(folder, name)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    }

    /// What is in a folder, by name: each with its path without links, or `None` if that leads
    /// nowhere.
    pub(super) fn entries(&self, folder: &str) -> Vec<(String, Option<String>)> {
        let names = match self.source {
            Source::Folder(_) => self.full(folder).map(|path| names(&path)).unwrap_or_default(),
            Source::Memory(memory) => memory.list(folder),
        };
        let resolved = names.into_iter().map(|name| {
            let path = join(folder, &name);
            let found = self.resolve(&path);
            if found.is_none() {
                self.note(path, || Entry::Link(NOWHERE.to_owned()));
            }
            (name, found)
        });
        resolved.collect()
    }

    /// The path without links, if it leads to something in the tree.
    pub(super) fn resolve(&self, path: &str) -> Option<String> {
        let found = match self.source {
            Source::Folder(_) => {
                let full = fs::canonicalize(self.full(path)?).ok()?;
                full.strip_prefix(self.root.as_deref()?).ok()?.to_str()?.to_owned()
            }
            Source::Memory(memory) => memory.resolve(path)?,
        };
        if found != path {
            self.note(path.to_owned(), || Entry::Link(format!("/{found}")));
        }
        Some(found)
    }

    /// Like [`Tree::resolve`], of what matters even where nothing in it can be read.
    pub(super) fn resolve_folder(&self, path: &str) -> Option<String> {
        let found = self.resolve(path)?;
        self.keep(&found);
        Some(found)
    }

    /// Records that there is something at a path.
    pub(super) fn keep(&self, path: &str) {
        if self.record.borrow().is_some() {
            self.folders.borrow_mut().push(path.to_owned());
        }
    }

    /// What the configuration space of a PCI bridge says. A record has what was found, and not the
    /// space itself, where serial numbers are.
    pub(super) fn port_hints(&self, folder: &str) -> PortHints {
        const TYPE: &str = "qpair_port_type";
        const ACS: &str = "qpair_acs_control";
        let hints = match self.source {
            Source::Folder(_) => {
                self.full(&join(folder, "config")).and_then(|path| read_file(&path)).map(|b| config_space::hints(&b))
            }
            Source::Memory(_) => None,
        };
        let Some(hints) = hints else {
            let small = |name| self.hex(folder, name).and_then(|number| u16::try_from(number).ok());
            return PortHints { port_type: small(TYPE).and_then(|n| u8::try_from(n).ok()), acs_control: small(ACS) };
        };
        if let Some(port_type) = hints.port_type {
            self.note(join(folder, TYPE), || Entry::File(format!("{port_type:#x}")));
        }
        if let Some(control) = hints.acs_control {
            self.note(join(folder, ACS), || Entry::File(format!("{control:#x}")));
        }
        hints
    }

    /// Records what is no file of the tree.
    pub(super) fn note(&self, path: String, entry: impl FnOnce() -> Entry) {
        if let Some(record) = &mut *self.record.borrow_mut() {
            record.insert_if_absent(path, entry());
        }
    }

    fn full(&self, path: &str) -> Option<PathBuf> {
        self.root.as_deref().map(|root| root.join(path))
    }
}

pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The first bytes of a file. What is no file, a pipe say, is not opened, since that may wait for
/// ever; nor is a link, which no attribute is, and which may lead to what is not to be captured.
fn read_file(path: &Path) -> Option<Vec<u8>> {
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(limits::FILE as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let named = entries.take(limits::ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = named.collect();
    names.sort();
    names
}
