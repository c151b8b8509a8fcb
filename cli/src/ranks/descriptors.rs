//! How many descriptors this process may have: those that watch many ranks need some for each.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the limit was before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Lets this process have so many, as far as the system allows that without a privilege.
///
/// # Errors
/// How many it allows, where that is less.
pub fn allow(needed: u64) -> Result<(), u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < needed) else { return Ok(()) };
    if let Some(maximum) = maximum.filter(|maximum| *maximum < needed) {
        return Err(maximum);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|_| current)?;
    // The first counts.
    let _ = BEFORE.set(current);
    Ok(())
}

/// What children are to have instead of this process's own limit, if that was raised.
pub(super) fn before() -> Option<u64> {
    BEFORE.get().copied()
}

/// Has this process go back to fewer. Where the system refuses, it may have more than it knows what to do with.
pub(super) fn keep_to(current: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }) {
        tracing::warn!(%error, "the number of descriptors is not what it was");
    }
}
