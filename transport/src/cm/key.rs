//! The key of a cluster, and the file that it is kept in.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use zeroize::Zeroizing;

/// The secret of all workers that may connect to each other. Clones share the bytes, which are overwritten when the last is
/// dropped; nothing prints or compares them.
///
/// With [`Config::cluster_key`](crate::Config::cluster_key) two workers connect only if both have the same key: each proves to
/// the other that it has it, without sending it (Noise, NNpsk0). What they then say over TCP is encrypted, and can not be
/// changed, replayed, or read later by who learns the key. A stranger costs a listener one of the places of
/// [`Config::hello_timeout`](crate::Config::hello_timeout), and no queue pair or memory; by rdma_cm, where what is said goes over a
/// queue pair, that one with 24 KiB and a descriptor, for up to twice that time.
///
/// It covers **who may connect**, and the addresses and numbers of the queue pairs, which others would need to reach them.
/// It does not cover **the data**: what queue pairs carry, messages, keys of exposed regions and one-sided operations, is
/// neither encrypted nor signed. Who can put packets on the RDMA network, or look into this user's processes, is not kept out.
///
/// ```
/// use qpair_transport::{ClusterKey, Config};
///
/// let dir = std::env::temp_dir().join(format!("qpair-key-{}", std::process::id()));
/// std::fs::create_dir(&dir)?;
/// ClusterKey::generate()?.write(dir.join("cluster.key"))?;   // once; then bring the file to every host
/// let config = Config::default().cluster_key(ClusterKey::read(dir.join("cluster.key"))?);
/// # let _ = config;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClusterKey(Arc<Zeroizing<[u8; KEY_BYTES]>>);

/// A cluster key could not be read, made or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterKeyError {
    /// The file could not be read.
    #[error(
        "the cluster key can not be read from {path}: {source}; check Config::cluster_key or QPAIR_CLUSTER_KEY_FILE"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others than its owner may read or write the file.
    #[error("the cluster key in {path} is open to others (mode {mode:03o}); run chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What stands in the file is no key.
    #[error("{path} holds no cluster key: it must be 64 hexadecimal digits or 32 bytes, as of openssl rand -hex 32")]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be written.
    #[error("the cluster key can not be written to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers for a cluster key: {0}")]
    Random(getrandom::Error),
}

impl ClusterKey {
    /// A key of these bytes, which nobody else may know or guess.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        ClusterKey(Arc::new(Zeroizing::new(bytes)))
    }

    /// A new key.
    ///
    /// # Errors
    /// [`ClusterKeyError::Random`].
    pub fn generate() -> Result<Self, ClusterKeyError> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        getrandom::fill(&mut bytes[..]).map_err(ClusterKeyError::Random)?;
        Ok(ClusterKey(Arc::new(bytes)))
    }

    /// The key in a file of 64 hexadecimal digits, or of 32 bytes, that its owner alone may read.
    ///
    /// # Errors
    /// [`ClusterKeyError`] if the file can not be read, is open to others, or holds something else.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ClusterKeyError> {
        let path = path.as_ref();
        let failed = |source| ClusterKeyError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(ClusterKeyError::Open { path: path.to_owned(), mode });
        }
        // Room for all of it at once, so that no copy stays behind.
        let mut contents = Zeroizing::new(Vec::with_capacity(FILE_LIMIT));
        file.take(FILE_LIMIT as u64 - 1).read_to_end(&mut contents).map_err(failed)?;
        parse(&contents).ok_or_else(|| ClusterKeyError::Form { path: path.to_owned() })
    }

    /// The key in the file that QPAIR_CLUSTER_KEY_FILE in the environment names; none if that is not set.
    ///
    /// # Errors
    /// As [`read`](Self::read): without its key, this process would let in anybody.
    pub fn from_env() -> Result<Option<Self>, ClusterKeyError> {
        std::env::var_os("QPAIR_CLUSTER_KEY_FILE").map(ClusterKey::read).transpose()
    }

    /// Writes the key to a new file, which its owner alone may read.
    ///
    /// # Errors
    /// [`ClusterKeyError::Write`], also if there is such a file.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ClusterKeyError> {
        let path = path.as_ref();
        let mut line = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
        for byte in self.bytes() {
            for digit in [byte >> 4, byte & 15] {
                line.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        line.push('\n');
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|source| ClusterKeyError::Write { path: path.to_owned(), source })
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// A file of 32 bytes holds a key as it is, any other one digits, and space around them.
fn parse(contents: &[u8]) -> Option<ClusterKey> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    if contents.len() == KEY_BYTES {
        bytes.copy_from_slice(contents);
        return Some(ClusterKey(Arc::new(bytes)));
    }
    let digits = contents.trim_ascii();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let digit = |code: u8| char::from(code).to_digit(16);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(ClusterKey(Arc::new(bytes)))
}

const KEY_BYTES: usize = 32;
/// More than a key takes in any form.
const FILE_LIMIT: usize = 256;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder of this test's own, gone when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("qpair-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Folder(path)
        }

        fn file(&self, contents: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join("key");
            let _ = fs::remove_file(&path);
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_key_is_digits_or_bytes() {
        let folder = Folder::new("key-forms");
        let bytes: [u8; 32] = std::array::from_fn(|at| at as u8 * 7);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        for contents in [&bytes[..], digits.as_bytes(), format!("  {}\r\n", digits.to_uppercase()).as_bytes()] {
            assert_eq!(ClusterKey::read(folder.file(contents, 0o600)).unwrap().bytes(), &bytes);
        }
        for contents in [&b""[..], &bytes[1..], &digits.as_bytes()[1..], &[b'g'; 64], &[b'0'; 65], &[b' '; 1000]] {
            let error = ClusterKey::read(folder.file(contents, 0o400)).unwrap_err();
            assert!(matches!(&error, ClusterKeyError::Form { .. }), "{error}");
            assert!(error.to_string().contains("openssl rand -hex 32"), "{error}");
        }
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let folder = Folder::new("key-modes");
        for mode in [0o640, 0o604, 0o602, 0o660, 0o644] {
            let error = ClusterKey::read(folder.file(&[b'0'; 64], mode)).unwrap_err();
            assert!(matches!(error, ClusterKeyError::Open { mode: told, .. } if told == mode), "{error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        let error = ClusterKey::read(folder.0.join("none")).unwrap_err();
        assert!(matches!(error, ClusterKeyError::Read { .. }), "{error}");
    }

    #[test]
    fn a_new_key_is_written_once_and_never_printed() {
        let folder = Folder::new("key-new");
        let path = folder.0.join("key");
        let key = ClusterKey::generate().unwrap();
        key.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ClusterKey::read(&path).unwrap().bytes(), key.bytes());
        assert_ne!(ClusterKey::generate().unwrap().bytes(), key.bytes());
        assert!(matches!(key.write(&path), Err(ClusterKeyError::Write { .. })), "it is not overwritten");
        assert_eq!(format!("{key:?}"), "ClusterKey(..)");
    }
}
