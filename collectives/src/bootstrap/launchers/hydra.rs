//! MPICH's Hydra, and others that start ranks with a socket to a process manager that speaks PMI-1.

use super::{Launcher, Told, Variables};
use crate::bootstrap::meeting::Meeting;
use crate::error::BootstrapError;

pub(super) const LAUNCHER: Launcher = Launcher {
    name: "MPICH's mpiexec and its kin",
    sign: "PMI_RANK",
    is_there: |variables| variables.has("PMI_RANK") && !is_slurms_own(variables),
    read,
};

/// Slurm sets these variables too for programs that ask its own process manager, which is not needed.
fn is_slurms_own(variables: &Variables) -> bool {
    let same = |pmi, slurm| variables.get(pmi).is_some_and(|number| variables.get(slurm) == Some(number));
    let tasks = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"].into_iter().find(|name| variables.has(name));
    super::slurm::has_step(variables)
        && same("PMI_RANK", "SLURM_PROCID")
        && tasks.is_some_and(|tasks| same("PMI_SIZE", tasks))
}

fn read(variables: &Variables) -> Result<Told, BootstrapError> {
    let hint = "start the ranks by a launcher that sets it, as MPICH's mpiexec does";
    let rank = variables.number("PMI_RANK", hint)?;
    let size = variables.number("PMI_SIZE", hint)?;
    let local_rank = variables.optional(&["MPI_LOCALRANKID"], hint)?;
    let one_host = variables.optional::<u32>(&["MPI_LOCALNRANKS"], hint)? == Some(size);
    let meeting = match (variables.get("MASTER_ADDR"), variables.port()?) {
        (Some(host), Some(port)) => Meeting::At { host, port },
        (None, Some(port)) if one_host => Meeting::At { host: "127.0.0.1".into(), port },
        _ => {
            let hint = "start the ranks by a launcher that speaks PMI-1, as MPICH's mpiexec does, or set MASTER_ADDR and \
                        MASTER_PORT for all ranks";
            Meeting::Pmi { descriptor: variables.number("PMI_FD", hint)?, one_host }
        }
    };
    Ok(Told { rank, size, local_rank, meeting, job: None })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, told};
    use super::*;

    fn with(more: &[(&'static str, &str)]) -> Result<Told, BootstrapError> {
        told(&[&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "0")], more].concat())
    }

    #[test]
    fn ranks_ask_their_process_manager_unless_they_are_told_a_port() {
        let all = with(&[("PMI_FD", "8"), ("MPI_LOCALNRANKS", "4")]).unwrap();
        assert_eq!((all.rank, all.size, all.local_rank), (1, 4, Some(0)));
        assert_eq!(all.meeting, Meeting::Pmi { descriptor: 8, one_host: true });
        let some = with(&[("PMI_FD", "8"), ("MPI_LOCALNRANKS", "2")]).unwrap().meeting;
        assert_eq!(some, Meeting::Pmi { descriptor: 8, one_host: false });
        let told = with(&[("PMI_FD", "8"), ("MASTER_ADDR", "node1"), ("QPAIR_PORT", "4242")]).unwrap().meeting;
        assert_eq!(told, at("node1", 4242));
        let words = with(&[]).unwrap_err().to_string();
        assert!(words.starts_with("PMI_FD is not set") && words.contains("MASTER_ADDR"), "{words}");
    }
}
