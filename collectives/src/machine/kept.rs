//! The files in which the cost model of a machine and what was measured of algorithms are kept, and files that users write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::known::{Known, Origin};
use super::unbound::unbound;
use crate::cost::CostModel;
use crate::deadline::Deadline;
use crate::fnv::Fnv;
use crate::parallel::cores;
use crate::regular;
use crate::tune::Fastest;

/// What is kept in a file of its own.
pub(super) trait Keep: Serialize + DeserializeOwned {
    /// What its file's name begins with.
    const KIND: &str;

    /// Whether it can be: or why not.
    fn check(&self) -> Result<(), String>;
}

/// The cost model as it was measured each time, the first time first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Measured(pub(super) Vec<CostModel>);

impl Keep for Measured {
    const KIND: &str = "cost";

    fn check(&self) -> Result<(), String> {
        if self.0.is_empty() {
            return Err("it has no cost model".to_owned());
        }
        self.0.iter().try_for_each(CostModel::check).map_err(|error| error.to_string())
    }
}

impl Keep for Fastest {
    const KIND: &str = "fastest";

    fn check(&self) -> Result<(), String> {
        if self.is_sound() { Ok(()) } else { Err("it names what can not be".to_owned()) }
    }
}

/// What it is good for: another release, processor or number of cores has another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    release: String,
    format: u32,
    /// Whether the code is slow, for those who look for faults.
    unoptimised: bool,
    processor: String,
    cores: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry<T> {
    key: Key,
    kept: T,
}

impl Key {
    pub(super) fn of_this_machine() -> Self {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let names = ["model name", "vendor_id", "cpu family", "model\t", "CPU implementer", "CPU part"];
        let processor: Vec<String> = names.into_iter().filter_map(value).collect();
        Self {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            format: FORMAT,
            unoptimised: cfg!(debug_assertions),
            processor: processor.join(", "),
            cores: unbound(cores),
        }
    }

    /// The name of the file of a kind.
    pub(super) fn file<T: Keep>(&self) -> String {
        let Key { release, format, unoptimised, processor, cores } = self;
        let text = format!("{release} {format} {unoptimised} {processor} {cores}");
        format!("{}-{:016x}.json", T::KIND, Fnv::of(&text))
    }
}

/// Where files are kept: `qpair` in XDG_CACHE_HOME, or in `.cache` of HOME. `None` where neither is set.
pub(super) fn folder(variable: impl Fn(&'static str) -> Option<String>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    Some(cache?.join("qpair"))
}

/// What is kept for `key`.
///
/// # Errors
/// The system's; or if the file is not this user's alone to write, or holds something else.
pub(super) fn read<T: Keep>(path: &Path, key: &Key) -> io::Result<T> {
    // Whoever may write to that folder could put a link there, or a pipe.
    let file = regular::open(path, OFlags::NOFOLLOW)?;
    let meta = file.metadata()?;
    if meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's, or others may write it"));
    }
    let entry: Entry<T> = serde_json::from_str(&text(file)?)?;
    let wrong = |what: String| io::Error::new(ErrorKind::InvalidData, what);
    if entry.key != *key {
        return Err(wrong("it is of another machine".to_owned()));
    }
    entry.kept.check().map_err(wrong)?;
    Ok(entry.kept)
}

/// Keeps it for `key`: whoever reads the file sees the former one, or this one.
///
/// # Errors
/// The system's.
pub(super) fn write<T: Keep>(path: &Path, key: &Key, kept: &T) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let entry = Entry { key: key.clone(), kept };
    let unique = getrandom::u64().map_err(io::Error::from)?;
    let draft = folder.join(format!(".{}-{unique:016x}", T::KIND));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = serde_json::to_vec(&entry).map_err(io::Error::from).and_then(|line| file.write_all(&line));
    let moved = written.and_then(|()| fs::rename(&draft, path));
    if moved.is_err() {
        // It is of no use, and nobody else's.
        let _ = fs::remove_file(&draft);
    }
    moved
}

/// How long ago it was kept; `None` if that can not be told.
pub(super) fn age(path: &Path) -> Option<Duration> {
    fs::symlink_metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// Nobody else has this at the same time, of those who ask for it in that folder, where the system has locks; until it is dropped.
/// Who has it for long is stopped: then both have it, and what one of them keeps may be lost.
pub(super) fn alone(folder: &Path) -> Option<File> {
    fs::create_dir_all(folder).ok()?;
    let folder = File::open(folder).ok()?;
    let until = Deadline::after(PATIENCE);
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if !until.is_over() => std::thread::sleep(PAUSE),
            Err(_) => return None,
        }
    }
}

/// The model in a file that the user names.
pub(super) fn given(path: &Path) -> Result<Known, String> {
    let file = regular::open(path, OFlags::empty()).map_err(|error| error.to_string())?;
    let text = text(file).map_err(|error| error.to_string())?;
    let model: CostModel = serde_json::from_str(&text).map_err(|error| format!("it is no cost model: {error}"))?;
    model.check().map_err(|error| error.to_string())?;
    Ok(Known { model, origin: Origin::File { path: path.display().to_string() }, ..Known::default() })
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    let fits = text.len() as u64 <= LONGEST;
    if fits { Ok(text) } else { Err(io::Error::new(ErrorKind::InvalidData, "it is too long")) }
}

/// Of these files: rises when what is measured, or what it means, changes.
const FORMAT: u32 = 16;
/// Of a file.
const LONGEST: u64 = 64 << 10;
/// How long others may take to keep something, which is a file's writing.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn key(cores: usize) -> Key {
        Key { release: "1".into(), format: FORMAT, unoptimised: false, processor: "a processor".into(), cores }
    }

    #[test]
    fn what_is_kept_is_read_again_for_the_same_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er").join(key(2).file::<Measured>());
        let model = |copy, times| Measured(vec![CostModel { copy, ..CostModel::default() }; times]);
        assert_eq!(read::<Measured>(&path, &key(2)).unwrap_err().kind(), ErrorKind::NotFound);
        write(&path, &key(2), &model(1.25e9, 1)).unwrap();
        assert_eq!(read::<Measured>(&path, &key(2)).unwrap(), model(1.25e9, 1));
        let again = model(2.5e9, 2);
        write(&path, &key(2), &again).unwrap();
        assert_eq!(read::<Measured>(&path, &key(2)).unwrap(), again);
        assert_eq!(read::<Measured>(&path, &key(4)).unwrap_err().to_string(), "it is of another machine");
        assert_ne!(key(2).file::<Measured>(), key(4).file::<Measured>());
        assert_ne!(key(2).file::<Measured>(), key(2).file::<Fastest>());
        // Nothing but the file is left.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn who_has_the_folder_for_long_holds_nobody_up_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let first = alone(folder.path()).expect("nobody has it");
        assert!(alone(folder.path()).is_none());
        drop(first);
        assert!(alone(folder.path()).is_some());
    }

    #[test]
    fn a_file_that_is_corrupt_or_hostile_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("good"), &key(2), &Measured(vec![CostModel::default()])).unwrap();
        let good = fs::read_to_string(path("good")).unwrap();
        let fails = |name: &str| read::<Measured>(&path(name), &key(2)).unwrap_err();
        let model = good.find("\"turn\":").unwrap();
        let hostile =
            format!("{}\"turn\":-1e300,{}", &good[..model], &good[good[model..].find(',').unwrap() + model + 1..]);
        for (name, text) in
            [("cut", &good[..good.len() / 2]), ("hostile", &hostile), ("empty", ""), ("long", &" ".repeat(1 << 17))]
        {
            fs::write(path(name), text).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
            fails(name);
        }
        assert!(fails("hostile").to_string().starts_with("turn is -1"), "{}", fails("hostile"));
        symlink(path("good"), path("link")).unwrap();
        fails("link");
        fs::create_dir(path("folder")).unwrap();
        fails("folder");
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(fails("pipe").to_string().contains("no regular file"));
        fs::set_permissions(path("good"), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(fails("good").kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_folder_is_that_of_the_users_caches() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            folder(|name| if name == "HOME" { home } else { xdg }.map(str::to_owned))
        };
        assert_eq!(of(Some("/cache"), Some("/home/me")), Some("/cache/qpair".into()));
        assert_eq!(of(None, Some("/home/me")), Some("/home/me/.cache/qpair".into()));
        assert_eq!(of(Some("not/absolute"), Some("/home/me")), Some("/home/me/.cache/qpair".into()));
        assert_eq!(of(None, None), None);
    }
}
