//! The machine that runs this: its processor, and the cores that this process may use.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;

/// This process could not be bound to a core.
#[derive(Debug, Error)]
pub enum PinError {
    /// The core is not among those that this process may use.
    #[error("cpu {cpu} is not to be had; this process may use {allowed:?}")]
    NotAllowed {
        /// The core asked for.
        cpu: usize,
        /// The cores there are.
        allowed: Vec<usize>,
    },
    /// The system refused.
    #[error("could not bind to cpu {cpu}: {source}")]
    System {
        /// The core asked for.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
}

/// The cores that this process may use, in ascending order; empty if the system does not tell.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Binds this thread, and those that it starts later, to one core.
///
/// # Errors
/// [`PinError`] if the core is not allowed or the system refuses.
pub fn pin_to(cpu: usize) -> Result<(), PinError> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(PinError::NotAllowed { cpu, allowed: allowed_cpus() });
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| match errno {
        Errno::INVAL => PinError::NotAllowed { cpu, allowed: allowed_cpus() },
        other => PinError::System { cpu, source: other.into() },
    })
}

/// The machine's processor and its cores, in words.
pub fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = core_count(&info);
    let model = model_name(&info).unwrap_or(std::env::consts::ARCH);
    format!("{cores} {}, {model}", if cores == 1 { "core" } else { "cores" })
}

fn core_count(cpuinfo: &str) -> usize {
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_from_cpuinfo() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t: fpu\n\nprocessor\t: 1\n";
        assert_eq!(core_count(info), 2);
        assert_eq!(model_name(info), Some("Some CPU @ 2 GHz"));
        assert_eq!(model_name("processor: 0\nCPU implementer : 0x41\n"), None);
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            assert!(matches!(pin_to(cpu), Err(PinError::NotAllowed { cpu: refused, .. }) if refused == cpu));
        }
    }

    #[test]
    fn a_thread_can_be_bound_to_an_allowed_core() {
        let first = allowed_cpus()[0];
        let bound = std::thread::spawn(move || pin_to(first).map(|()| allowed_cpus()));
        let bound = bound.join().expect("no panic").expect("an allowed core");
        assert_eq!(bound, [first]);
    }
}
