//! Tests in processes of their own: a library is loaded once in a process, by what its environment says, and steered for all of it.

use std::any::type_name;
use std::env;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::interface::ATTRIBUTES;

/// Runs the calling test in a process of its own, with these variables in its environment: `case` is a closure that stands in the
/// test, whose name it tells by.
///
/// # Panics
/// If the test fails there, with what it printed; or if `case` is no closure within a test.
#[track_caller]
pub fn in_process<F: FnOnce()>(variables: &[(&str, &str)], case: F) {
    if env::var_os(CHILD).is_some() {
        return case();
    }
    let (_, test) = type_name::<F>().split_once("::").expect("the program, and a path in it");
    let test = test.strip_suffix("::{{closure}}").expect("a closure within a test");
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
    CHOSEN.iter().for_each(|name| _ = command.env_remove(name));
    let attributes = Attributes::new();
    command.env(CHILD, "1").env(ATTRIBUTES, &attributes.0).envs(variables.iter().copied());
    let output = command.output().expect("this program starts");
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {}\n{text}", output.status);
}

/// A folder for the attributes of one process's devices.
struct Attributes(PathBuf);

impl Attributes {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let folder = env::temp_dir().join(format!("qpair-fake-{}-{number}", std::process::id()));
            match std::fs::create_dir(&folder) {
                Ok(()) => return Attributes(folder),
                // Of a process that had this one's number, and was killed; or has it in another namespace.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("no folder for this test alone: {error}"),
            }
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CHILD: &str = "QPAIR_FAKE_TEST_CHILD";

/// What the user chose for other tests is not for these.
const CHOSEN: [&str; 5] = ["FAKE_IBVERBS_DEVICES", "QPAIR_DEVICE", "QPAIR_GPU_STAGING", "QPAIR_NICS", "QPAIR_TOPOLOGY"];
