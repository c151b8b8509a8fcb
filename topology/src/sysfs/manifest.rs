//! The text manifest: a sysfs as lines that people can read, send and write.

use std::fmt::Write;

use thiserror::Error;

use super::memory::{Entry, Memory};
use super::pci::last;
use super::sysfs_limits as limits;
use super::tree::join;
use crate::PciAddress;

/// Text that is no manifest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// A line is none of a manifest.
    #[error(
        "line {line} is not `path|attribute=value`: `{text}`; write one line for each file, with the path from /sys on"
    )]
    Line {
        /// The line, from 1.
        line: usize,
        /// The line, or its beginning.
        text: String,
    },
    /// A path leads out of sysfs, or can not be one.
    #[error("line {line} has a path that can not be: `{text}`; it has no `..`, no `|`, `=` or control characters, and at most {limit} bytes", limit = limits::PATH)]
    Path {
        /// The line, from 1.
        line: usize,
        /// The line, or its beginning.
        text: String,
    },
    /// It is longer than any machine.
    #[error("the manifest has {bytes} bytes, more than {limit}; capture the machine anew", limit = limits::MANIFEST)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is of a version that is not known here.
    #[error("the manifest is of version {version}, and this qpair reads version {VERSION}; use a newer qpair")]
    Version {
        /// The version that it says.
        version: String,
    },
}

const VERSION: &str = "1";
const HEADER: &str = "# qpair machine manifest ";

/// How a link is written in place of a value.
const LINK: &str = "-> ";

/// How a folder is written in which there is nothing that matters, in place of an attribute.
const FOLDER: &str = ".";

/// True if text begins as a manifest does: with its header, a comment, or a line.
pub(crate) fn looks_like(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| !line.starts_with('#')).map_or(text.starts_with(HEADER), |line| split(line).is_some())
}

/// Writes a tree, in the order of paths.
pub(super) fn write(memory: &Memory) -> String {
    let mut text = format!("{HEADER}{VERSION}\n");
    for (path, entry) in memory.entries() {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        // What can not be written in a line is no attribute of a device.
        if !is_sound(path) {
            continue;
        }
        let (mark, value) = match entry {
            Entry::File(value) => ("", value),
            Entry::Link(target) => (LINK, target),
            Entry::Folder => {
                let _ = writeln!(text, "{path}|{FOLDER}=");
                continue;
            }
        };
        let value = value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
        // What only looks like a link is none.
        let mark = if mark.is_empty() && value.starts_with("->") { "\\" } else { mark };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{folder}|{name}={mark}{value}");
    }
    text
}

/// Reads a tree. Links by which the kernel lists devices need not be there: each folder that has a
/// `class` and an address for a name is listed as a PCI device, and each folder in one that is called
/// `infiniband` as an RDMA device.
pub(super) fn parse(text: &str) -> Result<Memory, ManifestError> {
    if text.len() > limits::MANIFEST {
        return Err(ManifestError::TooLong { bytes: text.len() });
    }
    if let Some(version) = text.lines().next().and_then(|line| line.strip_prefix(HEADER)) {
        let version = version.trim();
        if version != VERSION {
            return Err(ManifestError::Version { version: cut(version) });
        }
    }
    let mut memory = Memory::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end_matches('\r');
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let (path, name, value) =
            split(line).ok_or_else(|| ManifestError::Line { line: number + 1, text: cut(line) })?;
        let folder = path.trim();
        let folder = folder.strip_prefix("/sys/").unwrap_or(folder).trim_matches('/');
        let is_folder = name.trim() == FOLDER;
        let path = if is_folder { folder.to_owned() } else { join(folder, name.trim()) };
        if !is_sound(&path) {
            return Err(ManifestError::Path { line: number + 1, text: cut(&path) });
        }
        if is_folder {
            memory.insert_folder(&path);
            continue;
        }
        let entry = match value.trim_start().strip_prefix(LINK) {
            Some(target) if target.len() <= limits::PATH => Entry::Link(unescape(target.trim())),
            Some(target) => return Err(ManifestError::Path { line: number + 1, text: cut(target) }),
            None => Entry::File(unescape(value)),
        };
        memory.insert(path, entry);
    }
    list_devices(&mut memory);
    Ok(memory)
}

/// Adds what the kernel has beside the devices themselves.
fn list_devices(memory: &mut Memory) {
    let mut links = Vec::new();
    for path in memory.entries().keys() {
        let Some((folder, name)) = path.rsplit_once('/') else { continue };
        if name == "class" && last(folder).parse::<PciAddress>().is_ok() && folder.starts_with("devices/") {
            links.push((format!("bus/pci/devices/{}", last(folder)), format!("/{folder}")));
        }
        if let Some((device, rest)) = path.split_once("/infiniband/")
            && path.starts_with("devices/")
            && let Some((name, _)) = rest.split_once('/')
        {
            links.push((format!("class/infiniband/{name}"), format!("/{device}/infiniband/{name}")));
            if !device.starts_with("devices/virtual") {
                links.push((format!("{device}/infiniband/{name}/device"), format!("/{device}")));
            }
        }
    }
    for (path, target) in links {
        memory.insert_if_absent(path, Entry::Link(target));
    }
}

/// Path, attribute and value of a line.
fn split(line: &str) -> Option<(&str, &str, &str)> {
    let (path, rest) = line.split_once('|')?;
    let (name, value) = rest.split_once('=')?;
    (!name.trim().is_empty() && !name.contains('|')).then_some((path, name, value))
}

/// True of paths whose names are names.
fn is_sound(path: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && name.trim() == name;
    path.len() <= limits::PATH
        && path.split('/').all(is_name)
        && !path.contains(|c: char| c.is_control() || matches!(c, '|' | '='))
}

fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(escaped @ ('n' | 'r' | '\\' | '-'))) => {
                rest.next();
                text.push(match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    other => other,
                });
            }
            _ => text.push(c),
        }
    }
    text
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}
