//! What launchers tell their ranks by environment variables: a file each. Without I/O.

mod hosts;
mod hydra;
mod open_mpi;
mod slurm;
mod torchrun;

use std::str::FromStr;

use super::meeting::Meeting;
use crate::error::BootstrapError;

/// What a launcher tells a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Its number on its host, if that is told.
    pub(super) local_rank: Option<u32>,
    pub(super) meeting: Meeting,
    /// Where ranks of another job could have the same port, since it is derived: what tells them apart.
    pub(super) job: Option<String>,
}

/// Looks up variables.
pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&'static str) -> Option<String>);

/// A launcher, by the variables that it sets.
struct Launcher {
    /// For people.
    name: &'static str,
    /// What it is known by, for people.
    sign: &'static str,
    is_there: fn(&Variables) -> bool,
    read: fn(&Variables) -> Result<Told, BootstrapError>,
}

/// In the order in which they are looked for. A launcher started by another comes first: `mpirun` starts its own programs by
/// `srun`, whose variables its ranks inherit.
const LAUNCHERS: [Launcher; 4] = [torchrun::LAUNCHER, open_mpi::LAUNCHER, hydra::LAUNCHER, slurm::LAUNCHER];

/// What the first launcher tells whose variables are there.
pub(super) fn read(variables: &Variables) -> Result<Told, BootstrapError> {
    match LAUNCHERS.iter().find(|launcher| (launcher.is_there)(variables)) {
        Some(launcher) => (launcher.read)(variables),
        None => {
            let looked: Vec<_> = LAUNCHERS.iter().map(|each| format!("{} ({})", each.sign, each.name)).collect();
            let is_batch = variables.has("SLURM_PROCID");
            Err(BootstrapError::NoLauncher { looked: looked.join(", "), is_batch })
        }
    }
}

/// The launcher whose variables are there.
pub(super) fn name(variables: &Variables) -> Option<&'static str> {
    LAUNCHERS.iter().find(|launcher| (launcher.is_there)(variables)).map(|launcher| launcher.name)
}

impl Variables<'_> {
    fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// Whether a launcher behind the first is there: its variables say more than WORLD_SIZE, which scripts often set beside them.
    fn has_another_launcher(&self) -> bool {
        LAUNCHERS.iter().skip(1).any(|launcher| (launcher.is_there)(self))
    }

    /// Its value, unless it is empty.
    fn get(&self, name: &'static str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &'static str, hint: &'static str) -> Result<String, BootstrapError> {
        match (self.0)(name) {
            None => Err(BootstrapError::Unset { name, hint }),
            Some(value) if value.trim().is_empty() => Err(BootstrapError::Value { name, value, hint }),
            Some(value) => Ok(value.trim().to_owned()),
        }
    }

    fn number<T: FromStr>(&self, name: &'static str, hint: &'static str) -> Result<T, BootstrapError> {
        let value = self.text(name, hint)?;
        value.parse().map_err(|_| BootstrapError::Value { name, value, hint })
    }

    /// The number that the first of `names` has that is set.
    fn optional<T: FromStr>(&self, names: &[&'static str], hint: &'static str) -> Result<Option<T>, BootstrapError> {
        names.iter().find(|name| self.has(name)).map(|name| self.number(name, hint)).transpose()
    }

    /// A port that the user has named, of a launcher that names none.
    fn port(&self) -> Result<Option<u16>, BootstrapError> {
        let Some(name) = ["QPAIR_PORT", "MASTER_PORT"].into_iter().find(|name| self.has(name)) else { return Ok(None) };
        self.port_in(name).map(Some)
    }

    fn port_in(&self, name: &'static str) -> Result<u16, BootstrapError> {
        match self.number(name, PORT_HINT)? {
            0 => Err(BootstrapError::Value { name, value: "0".into(), hint: PORT_HINT }),
            port => Ok(port),
        }
    }
}

/// The port of a job whose launcher names none: the same for all its ranks, and another for jobs and steps near to it.
fn derived_port(job: u64, step: u64) -> u16 {
    FIRST_PORT + (job.wrapping_mul(STEPS).wrapping_add(step) % u64::from(PORTS)) as u16
}

const PORT_HINT: &str = "set it to a free port of rank 0's host, from 1 to 65535, the same for all ranks";
/// Ports 20000 to 29999: below those that systems give to programs by themselves, Linux 32768 and above.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;
/// Steps of a job before they may have the ports of the next job's.
const STEPS: u64 = 31;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told by these variables, and no others.
    pub(super) fn told(variables: &[(&'static str, &str)]) -> Result<Told, BootstrapError> {
        let find = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        read(&Variables(&find))
    }

    pub(super) fn at(host: &str, port: u16) -> Meeting {
        Meeting::At { host: host.into(), port }
    }

    #[test]
    fn without_a_launcher_the_error_lists_what_was_looked_at() {
        let words = told(&[("HOME", "/")]).unwrap_err().to_string();
        for name in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "qpair launch", "MASTER_PORT"] {
            assert!(words.contains(name), "{words}");
        }
        assert!(!words.contains("srun`"), "{words}");
        let words = told(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]).unwrap_err().to_string();
        assert!(words.contains("start the ranks by `srun`"), "{words}");
    }

    #[test]
    fn of_launchers_in_each_other_the_inner_one_counts() {
        let slurm =
            [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_JOB_ID", "7")];
        let one_host = [("OMPI_COMM_WORLD_LOCAL_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_RANK", "5")];
        let ompi = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "8"), ("PMIX_NAMESPACE", "3")];
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("PMI_FD", "9")];
        let torchrun = [("RANK", "6"), ("WORLD_SIZE", "9"), ("LOCAL_RANK", "0")];
        let meeting = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "4242")];
        let rank = |variables: &[&[(&'static str, &str)]]| told(&variables.concat()).unwrap().rank;
        assert_eq!(rank(&[&slurm, &meeting]), 1);
        assert_eq!(rank(&[&slurm, &pmi]), 3);
        assert_eq!(rank(&[&slurm, &pmi, &ompi, &one_host]), 5);
        assert_eq!(rank(&[&slurm, &pmi, &ompi, &one_host, &torchrun, &meeting]), 6);
        // What scripts set for torch before they start ranks: no rank's number, and that of none.
        let script = [("WORLD_SIZE", "9")];
        assert_eq!(rank(&[&slurm, &script, &meeting]), 1);
        assert_eq!(rank(&[&slurm, &pmi, &ompi, &one_host, &script, &meeting]), 5);
        assert!(told(&[&script[..], &meeting].concat()).unwrap_err().to_string().starts_with("RANK is not set"));
        // Slurm's own PMI tells no more than Slurm.
        let own = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "9")];
        assert_eq!(told(&[&slurm[..], &own, &meeting].concat()).unwrap().meeting, at("node1", 4242));
    }

    #[test]
    fn ports_of_neighbouring_jobs_differ() {
        let ports: std::collections::HashSet<_> =
            (0..300).flat_map(|job| (0..31).map(move |step| derived_port(job, step))).collect();
        assert_eq!(ports.len(), 300 * 31);
        assert!(ports.iter().all(|port| (20_000..30_000).contains(port)));
        assert!((20_000..30_000).contains(&derived_port(u64::MAX, u64::MAX)));
    }
}
