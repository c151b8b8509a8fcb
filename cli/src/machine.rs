//! The machine that runs this: its processor, its cores, and the CPUs that this process may use.
//! A CPU is what the system schedules threads on; a core has several where it has hyperthreads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getppid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;

/// This process could not be bound to a CPU.
#[derive(Debug, Error)]
pub enum PinError {
    /// The CPU is not among those that this process may use.
    #[error("cpu {cpu} is not to be had; this process may use {allowed:?}")]
    NotAllowed {
        /// The CPU asked for.
        cpu: usize,
        /// The CPUs there are.
        allowed: Vec<usize>,
    },
    /// The system refused.
    #[error("could not bind to cpu {cpu}: {source}")]
    System {
        /// The CPU asked for.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
}

/// The CPUs that this process may use, the first of each core before the second of any: whoever takes them in this
/// order shares no core as long as there are cores left. Empty if the system does not tell.
pub fn cpus() -> Vec<usize> {
    by_core(&allowed(None), core_of).into_iter().map(|(_, cpu)| cpu).collect()
}

/// Binds this thread, and those that it starts later, to one CPU.
///
/// # Errors
/// [`PinError`] if the CPU is not allowed or the system refuses.
pub fn pin_to(cpu: usize) -> Result<(), PinError> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(PinError::NotAllowed { cpu, allowed: allowed(None) });
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| match errno {
        Errno::INVAL => PinError::NotAllowed { cpu, allowed: allowed(None) },
        other => PinError::System { cpu, source: other.into() },
    })
}

/// The cores that this process may use, of those there are, and the processor's model.
pub fn describe() -> String {
    describe_for(None)
}

/// The same for the process that started this one: a launcher has the cores that its ranks are bound to one by one.
pub fn describe_launcher() -> String {
    describe_for(getppid())
}

fn describe_for(process: Option<Pid>) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let usable = by_core(&allowed(process), core_of).iter().filter(|(turn, _)| *turn == 0).count();
    let model = model_name(&info).unwrap_or(std::env::consts::ARCH);
    format!("{}, {model}", cores(usable, all_cores()))
}

/// The CPUs that a process, or this one, may use, in ascending order.
fn allowed(process: Option<Pid>) -> Vec<usize> {
    let Ok(set) = sched_getaffinity(process) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Each CPU with its turn among those of its core, in the order of turns.
fn by_core(cpus: &[usize], core_of: impl Fn(usize) -> Option<String>) -> Vec<(usize, usize)> {
    let mut taken = BTreeMap::new();
    let mut turns: Vec<_> = cpus
        .iter()
        .map(|&cpu| {
            let turn: &mut usize = taken.entry(core_of(cpu).unwrap_or_else(|| cpu.to_string())).or_default();
            *turn += 1;
            (*turn - 1, cpu)
        })
        .collect();
    turns.sort_unstable();
    turns
}

/// What the CPUs of one core have in common, and no others: the list of them.
fn core_of(cpu: usize) -> Option<String> {
    fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
}

/// Cores of the machine; 0 if the system does not tell.
fn all_cores() -> usize {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu") else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let cpus = names.filter_map(|name| name.strip_prefix("cpu")?.parse().ok());
    cpus.filter_map(core_of).collect::<BTreeSet<_>>().len()
}

fn cores(usable: usize, all: usize) -> String {
    match (usable, all) {
        (1, 0..=1) => "1 core".to_owned(),
        (usable, all) if usable < all => format!("{usable} of {all} cores"),
        (usable, _) => format!("{usable} cores"),
    }
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(cpus: &[usize], core_of: impl Fn(usize) -> Option<String>) -> Vec<usize> {
        by_core(cpus, core_of).into_iter().map(|(_, cpu)| cpu).collect()
    }

    #[test]
    fn cores_are_used_before_their_hyperthreads() {
        // Siblings numbered together, siblings numbered apart, and a machine that does not tell.
        assert_eq!(order(&[0, 1, 2, 3], |cpu| Some((cpu / 2).to_string())), [0, 2, 1, 3]);
        assert_eq!(order(&[0, 1, 2, 3], |cpu| Some((cpu % 2).to_string())), [0, 1, 2, 3]);
        assert_eq!(order(&[3, 5], |_| None), [3, 5]);
        // The first CPU of a core may be one that this process may not use.
        assert_eq!(order(&[1, 2, 3], |cpu| Some((cpu / 2).to_string())), [1, 2, 3]);
    }

    #[test]
    fn this_machine_has_at_least_the_cores_that_may_be_used() {
        let usable = by_core(&allowed(None), core_of).iter().filter(|(turn, _)| *turn == 0).count();
        assert!(usable >= 1);
        assert!(all_cores() == 0 || all_cores() >= usable);
    }

    #[test]
    fn cores_are_counted_in_words() {
        assert_eq!(cores(1, 1), "1 core");
        assert_eq!(cores(1, 64), "1 of 64 cores");
        assert_eq!(cores(2, 2), "2 cores");
        assert_eq!(cores(2, 0), "2 cores");
    }

    #[test]
    fn the_model_is_read_from_cpuinfo() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t: fpu\n\nprocessor\t: 1\n";
        assert_eq!(model_name(info), Some("Some CPU @ 2 GHz"));
        assert_eq!(model_name("processor: 0\nCPU implementer : 0x41\n"), None);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            assert!(matches!(pin_to(cpu), Err(PinError::NotAllowed { cpu: refused, .. }) if refused == cpu));
        }
    }

    #[test]
    fn a_thread_can_be_bound_to_an_allowed_cpu() {
        let first = cpus()[0];
        let bound = std::thread::spawn(move || pin_to(first).map(|()| cpus()));
        let bound = bound.join().expect("no panic").expect("an allowed cpu");
        assert_eq!(bound, [first]);
    }
}
