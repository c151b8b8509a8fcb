//! What goes to standard output: results as they come, for people or for programs; and to files that arguments name.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::table::{Column, RowTable};

/// What to exit with where standard output was closed: 128 + SIGPIPE, as a shell shows for other programs.
pub const CLOSED_EXIT_CODE: u8 = 141;

/// Standard output did not take a line.
#[derive(Debug, Error)]
#[error("could not print: {0}")]
pub struct PrintError(#[from] io::Error);

impl PrintError {
    /// Whether the reader has gone, as `head` does once it has enough. That is no failure to talk about.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// A file could not be written.
#[derive(Debug, Error)]
#[error("can not write {}: {source}; name another file, in a folder that you may write to", path.display())]
pub struct WriteError {
    path: PathBuf,
    /// The system's reason.
    source: io::Error,
}

/// Writes a file that an argument names.
///
/// # Errors
/// [`WriteError`] with what the system says.
pub fn write_file(path: &Path, text: &str) -> Result<(), WriteError> {
    fs::write(path, text).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Whether [`write_file`] can write that file. What is there stays, and what is not there is not there afterwards either. What is
/// no file, such as a pipe, is left alone: who reads from it would take this for the end.
///
/// # Errors
/// [`WriteError`] if not.
pub fn try_file(path: &Path) -> Result<(), WriteError> {
    let tried = match fs::metadata(path) {
        Ok(there) if there.is_file() || there.is_dir() => File::options().append(true).open(path).map(drop),
        Ok(_) => Ok(()),
        // A link to what is not there yet.
        Err(_) if path.is_symlink() => Ok(()),
        Err(_) => File::create_new(path).and_then(|_| fs::remove_file(path)),
    };
    tried.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Prints a line at once, whole.
///
/// # Errors
/// [`PrintError`] with what the system says.
pub fn print(line: &str) -> Result<(), PrintError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints a line on standard error, if anybody reads that: there is nobody to tell that nobody does, and what is under way goes on.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints an object on a line of its own.
///
/// # Errors
/// As [`print()`].
pub fn print_object(object: &impl Serialize) -> Result<(), PrintError> {
    print(&serde_json::to_string(object).map_err(io::Error::from)?)
}

/// Results that come one by one: a table with remarks in front of it, or an object per line and nothing else.
#[derive(Debug)]
pub enum Results {
    /// For people.
    Table(RowTable),
    /// For programs.
    Objects,
}

impl Results {
    /// Begins with the title and the remarks, if it is to be a table.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn begin(json: bool, columns: &[Column], title: &str, remarks: &[String]) -> Result<Self, PrintError> {
        if json {
            return Ok(Results::Objects);
        }
        let table = RowTable::new(columns);
        print(&format!("# qpair {} {title}", env!("CARGO_PKG_VERSION")))?;
        remarks.iter().try_for_each(|remark| print(&format!("# {remark}")))?;
        print(&format!("#\n{}", table.header()))?;
        Ok(Results::Table(table))
    }

    /// Prints one result, given both ways.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn row(&self, object: &impl Serialize, cells: &[String]) -> Result<(), PrintError> {
        match self {
            Results::Table(table) => print(&table.row(cells)),
            Results::Objects => print_object(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_tried_without_a_trace_of_it() {
        let folder = std::env::temp_dir().join(format!("qpair-tried-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let (new, old) = (folder.join("new.svg"), folder.join("old.svg"));
        fs::write(&old, "a picture").expect("it is written");
        try_file(&new).expect("it can be written");
        assert!(!new.exists());
        try_file(&old).expect("it can be written");
        assert_eq!(fs::read_to_string(&old).expect("it is there"), "a picture");
        for wrong in [&folder, &folder.join("no/such/folder/x.svg")] {
            assert!(try_file(wrong).is_err(), "{}", wrong.display());
        }
        // A pipe that nobody reads would be waited for.
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        try_file(&pipe).expect("it is left alone");
        fs::remove_dir_all(&folder).expect("it goes");
    }
}
