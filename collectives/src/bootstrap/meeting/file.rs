//! A port of this host in a file that only its user can write and read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::deadline::Deadline;
use crate::error::BootstrapError;
use crate::regular;

/// What stands in the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    port: u16,
    ticket: String,
    /// The process of rank 0, and when that started: so that what it leaves when it is killed is recognised.
    process: u32,
    started: Option<u64>,
}

/// The file, which is removed when this is dropped, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct Published {
    path: PathBuf,
    ticket: String,
}

impl Drop for Published {
    fn drop(&mut self) {
        let removed = read(&self.path).and_then(|note| match note {
            Some(note) if note.ticket == self.ticket => fs::remove_file(&self.path),
            _ => Err(io::Error::other("another program has replaced it")),
        });
        // A launcher may have cleaned up.
        if let Err(error) = removed.or_else(gone) {
            tracing::warn!(%error, path = %self.path.display(), "where the ranks met is not removed");
        }
    }
}

/// Makes the file, which is whole from the moment on that it is there. One that a process left which has ended is replaced.
pub(super) fn publish(path: &Path, port: u16, ticket: &str) -> Result<Published, BootstrapError> {
    let process = std::process::id();
    let note = Note { port, ticket: ticket.to_owned(), process, started: started(process) };
    let mut line = serde_json::to_vec(&note).unwrap_or_default();
    line.push(b'\n');
    let failed = |source| BootstrapError::Publish { path: path.to_owned(), source };
    let draft = Draft::write(path, ticket, &line).map_err(failed)?;
    // Who finds what is stale may else remove what another has put in its place.
    let _turn = turn(path);
    for _ in 0..ATTEMPTS {
        match draft.put(path) {
            Ok(()) => return Ok(Published { path: path.to_owned(), ticket: ticket.to_owned() }),
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Err(_) => match read(path) {
                Ok(Some(note)) if !note.is_stale() => {
                    return Err(BootstrapError::Meeting { path: path.to_owned(), process: note.process });
                }
                // Or it is none of these files.
                Ok(_) => fs::remove_file(path).or_else(gone).map_err(failed)?,
                Err(error) => gone(error).map_err(failed)?,
            },
        }
    }
    Err(failed(ErrorKind::AlreadyExists.into()))
}

/// What is to be the file, beside it, and is removed when this is dropped.
struct Draft(PathBuf);

impl Draft {
    fn write(path: &Path, ticket: &str, line: &[u8]) -> io::Result<Draft> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{ticket}"));
        let draft = Draft(name.into());
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft.0)?.write_all(line)?;
        Ok(draft)
    }

    /// Puts it there, if nothing is. Not each file system has links.
    fn put(&self, path: &Path) -> io::Result<()> {
        match fs::hard_link(&self.0, path) {
            Err(error) if is_without_links(&error) => {
                Ok(renameat_with(CWD, &self.0, CWD, path, RenameFlags::NOREPLACE)?)
            }
            done => done,
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn is_without_links(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Waits for others who publish in that folder: a while, as anybody may keep them from ending.
fn turn(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    for _ in 0..TURNS {
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            break;
        }
        std::thread::sleep(FIRST_PAUSE);
    }
    Some(folder)
}

/// Waits for the file; the port and ticket in it.
pub(super) fn find(path: &Path, until: Deadline, limit: Duration) -> Result<(u16, String), BootstrapError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match read(path) {
            Ok(Some(note)) if !note.is_stale() => return Ok((note.port, note.ticket)),
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(BootstrapError::Publish { path: path.to_owned(), source });
            }
            _ if until.is_over() => return Err(BootstrapError::Unpublished { path: path.to_owned(), limit }),
            _ => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Note {
    /// Whether the process that wrote it has ended.
    fn is_stale(&self) -> bool {
        started(self.process) != self.started
    }
}

/// The note in the file, if it is whole.
fn read(path: &Path) -> io::Result<Option<Note>> {
    // Whoever may write to that folder could put a link there, or a pipe.
    let file = regular::open(path, OFlags::NOFOLLOW)?;
    check(&file)?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text.strip_suffix('\n').and_then(|line| serde_json::from_str(line).ok()))
}

/// What is there must be a file of this user's alone.
fn check(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's, or open to others"))
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// When a process of this host started, in ticks since the host did; `None` if there is none of that number.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

const ATTEMPTS: u32 = 10;
/// Pauses in which others may end: a second.
const TURNS: u32 = 500;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// More bytes than a note has.
const LONGEST: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;

    use rustix::fs::{FileType, Mode, mknodat};

    use super::*;

    /// A path of this test's own, with nothing there before and after.
    struct Spot(PathBuf);

    impl Spot {
        fn new(name: &str) -> Spot {
            Spot(std::env::temp_dir().join(format!("qpair-note-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Spot {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn what_one_publishes_another_finds_until_it_is_dropped() {
        let spot = Spot::new("found");
        let finding = std::thread::spawn({
            let path = spot.0.clone();
            move || find(&path, Deadline::after(LIMIT), LIMIT).unwrap()
        });
        let published = publish(&spot.0, 4242, "ticket").unwrap();
        assert_eq!(fs::metadata(&spot.0).unwrap().mode() & 0o777, 0o600);
        assert_eq!(finding.join().unwrap(), (4242, "ticket".to_owned()));
        let error = publish(&spot.0, 1, "another").unwrap_err();
        assert!(matches!(error, BootstrapError::Meeting { process, .. } if process == std::process::id()), "{error}");
        drop(published);
        let error = find(&spot.0, Deadline::after(Duration::ZERO), LIMIT).unwrap_err();
        assert!(matches!(error, BootstrapError::Unpublished { .. }), "{error}");
    }

    #[test]
    fn what_a_process_left_that_has_ended_is_not_found_and_replaced() {
        let spot = Spot::new("stale");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (process, started) = (child.id(), started(child.id()));
        child.wait().unwrap();
        let note = Note { port: 1, ticket: "old".into(), process, started };
        for left in [serde_json::to_string(&note).unwrap() + "\n", String::new()] {
            fs::write(&spot.0, left).unwrap();
            fs::set_permissions(&spot.0, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(find(&spot.0, Deadline::after(Duration::ZERO), LIMIT).is_err());
            drop(publish(&spot.0, 4242, "ticket").unwrap());
        }
    }

    #[test]
    fn of_several_that_publish_at_once_one_does_and_the_others_name_it() {
        let spot = Spot::new("race");
        for round in 0..50 {
            if round % 2 == 1 {
                // Left by one that was killed.
                fs::write(&spot.0, "").unwrap();
                fs::set_permissions(&spot.0, fs::Permissions::from_mode(0o600)).unwrap();
            }
            let publish_all = |scope: &mut Vec<_>| {
                for ticket in ["a", "b", "c"] {
                    let path = spot.0.clone();
                    scope.push(std::thread::spawn(move || publish(&path, 1, ticket)));
                }
            };
            let mut threads = Vec::new();
            publish_all(&mut threads);
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let published = results.iter().flatten().count();
            let named = results.iter().filter(|result| matches!(result, Err(BootstrapError::Meeting { .. }))).count();
            assert_eq!((published, named), (1, 2), "round {round}");
        }
        assert!(!spot.0.exists());
    }

    #[test]
    fn what_another_has_replaced_stays() {
        let spot = Spot::new("replaced");
        let first = publish(&spot.0, 1, "first").unwrap();
        fs::remove_file(&spot.0).unwrap();
        let second = publish(&spot.0, 2, "second").unwrap();
        drop(first);
        assert_eq!(find(&spot.0, Deadline::after(LIMIT), LIMIT).unwrap(), (2, "second".to_owned()));
        drop(second);
        assert!(!spot.0.exists());
    }

    #[test]
    fn what_others_may_have_written_is_not_trusted() {
        let spot = Spot::new("open");
        drop(publish(&spot.0, 1, "ticket").map(std::mem::forget));
        fs::set_permissions(&spot.0, fs::Permissions::from_mode(0o622)).unwrap();
        let error = find(&spot.0, Deadline::after(LIMIT), LIMIT).unwrap_err();
        assert!(
            matches!(&error, BootstrapError::Publish { source, .. } if source.kind() == ErrorKind::PermissionDenied)
        );
    }

    #[test]
    fn a_pipe_is_not_waited_for_and_named() {
        let spot = Spot::new("pipe");
        mknodat(CWD, &spot.0, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (says, heard) = channel();
        // Where it is waited for, its thread does not end.
        std::thread::spawn({
            let path = spot.0.clone();
            move || {
                says.send(find(&path, Deadline::after(LIMIT), LIMIT).unwrap_err()).unwrap();
                says.send(publish(&path, 4242, "ticket").unwrap_err()).unwrap();
            }
        });
        for _ in 0..2 {
            let error = heard.recv_timeout(LIMIT).unwrap();
            assert!(
                matches!(&error, BootstrapError::Publish { source, .. } if source.kind() == ErrorKind::InvalidInput)
            );
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
        assert!(spot.0.exists(), "it is another's");
    }
}
