//! Files that anybody may have put there.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file to read it, with these flags beside. It does not wait, as it would for a pipe.
///
/// # Errors
/// `InvalidInput` if it is no regular file; the system's.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = (flags | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_regular = file.metadata()?.is_file();
    if is_regular { Ok(file) } else { Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file")) }
}
