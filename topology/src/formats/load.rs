//! Reading a machine of any format.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::xml;
use super::{HwlocError, JsonError, NcclError, XmlError, format_limits as limits};
use crate::{Machine, ManifestError, Sysfs, looks_like_manifest};

/// A format that a machine can be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// What [`Machine::to_json`] writes.
    Json,
    /// What [`Sysfs::capture`] writes.
    Manifest,
    /// Topology files of NCCL and RCCL.
    NcclXml,
    /// XML of hwloc.
    HwlocXml,
}

impl Format {
    /// Finds the format by how a text begins: `{`, the first element of XML, or a line with `|` and
    /// `=`.
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        match text.as_bytes().first()? {
            b'{' => Some(Self::Json),
            b'<' => match first_element(text)? {
                "system" => Some(Self::NcclXml),
                "topology" => Some(Self::HwlocXml),
                _ => None,
            },
            _ => looks_like_manifest(text).then_some(Self::Manifest),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "JSON",
            Self::Manifest => "manifest",
            Self::NcclXml => "topology file of NCCL",
            Self::HwlocXml => "hwloc XML",
        })
    }
}

/// A text that is no machine.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It is longer than any machine.
    #[error("{}", XmlError::TooLong { bytes: *.bytes })]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is no text.
    #[error("byte {offset} is no UTF-8; a machine is described by text")]
    NotUtf8 {
        /// The byte, from 0.
        offset: usize,
    },
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// It is in none of the formats.
    #[error(
        "it is no machine in a format known here: JSON of qpair, a topology file of NCCL (`<system>`), XML of hwloc \
         (`<topology>`), or a manifest of lines `path|attribute=value`; it begins with `{start}`"
    )]
    Unknown {
        /// Its beginning.
        start: String,
    },
    /// It is JSON, and no machine.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is a manifest that is not sound.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It is XML of NCCL that is not sound.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// It is XML of hwloc that is not sound.
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
}

/// A file that no machine can be read from.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The system does not give it.
    #[error("{} can not be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// What is in it is no machine.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ReadError,
    },
}

impl Machine {
    /// Reads a machine in any of the formats, which it finds out by itself.
    ///
    /// ```
    /// use qpair_topology::Machine;
    ///
    /// let machine = Machine::read(b"<system version='1'><cpu numaid='0'/></system>")?;
    /// assert_eq!(machine.cpus().len(), 1);
    /// let same = Machine::read(machine.to_json().as_bytes())?;
    /// assert_eq!(same, machine);
    /// # Ok::<(), qpair_topology::ReadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// It is in none of the formats, or not sound in its own.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let text = xml::text(bytes).map_err(|error| match error {
            XmlError::NotUtf8 { offset } => ReadError::NotUtf8 { offset },
            _ => ReadError::TooLong { bytes: bytes.len() },
        })?;
        match Format::of(text) {
            Some(Format::Json) => Ok(Self::from_json(text)?),
            Some(Format::Manifest) => Ok(Self::discover(&Sysfs::from_manifest(text)?)),
            Some(Format::NcclXml) => Ok(Self::from_nccl_xml(text)?),
            Some(Format::HwlocXml) => Ok(Self::from_hwloc_xml(text)?),
            None if text.trim().is_empty() => Err(ReadError::Empty),
            None => Err(ReadError::Unknown { start: text.trim_start().chars().take(40).collect() }),
        }
    }

    /// Reads a machine from a file in any of the formats, or from a folder that is laid out like
    /// `/sys`.
    ///
    /// # Errors
    ///
    /// The file can not be read, or [`Machine::read`] can not read what is in it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let fail = |source| LoadError::File { path: path.to_owned(), source };
        if fs::metadata(path).map_err(fail)?.is_dir() {
            return Ok(Self::discover(&Sysfs::at(path)));
        }
        let mut bytes = Vec::new();
        // One more than may be, so that what is too long is not cut instead.
        fs::File::open(path)
            .and_then(|file| file.take(limits::FILE as u64 + 1).read_to_end(&mut bytes))
            .map_err(fail)?;
        Self::read(&bytes).map_err(|source| LoadError::Content { path: path.to_owned(), source })
    }
}

/// The name of the first element of XML, past declarations and comments.
fn first_element(mut text: &str) -> Option<&str> {
    loop {
        text = text.trim_start();
        let end = if text.starts_with("<!--") {
            text.find("-->")? + 3
        } else if text.starts_with("<?") || text.starts_with("<!") {
            // Definitions within it are refused later.
            let end = text.find('>')?;
            let definitions = text[..end].contains('[').then(|| text.find("]>")).flatten();
            definitions.map_or(end + 1, |end| end + 2)
        } else {
            let name = text.strip_prefix('<')?;
            return name.split(|c: char| c.is_whitespace() || matches!(c, '>' | '/' | '<')).next();
        };
        text = &text[end..];
    }
}
