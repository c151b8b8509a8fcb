//! Slurm's `srun`.

use super::hosts;
use super::{Launcher, Told, Variables, derived_port};
use crate::bootstrap::meeting::Meeting;
use crate::error::BootstrapError;

pub(super) const LAUNCHER: Launcher = Launcher {
    name: "Slurm's srun",
    sign: "SLURM_PROCID and SLURM_STEP_ID",
    is_there: |variables| variables.has("SLURM_PROCID") && is_step(variables),
    read,
};

/// A batch script has the variables of a job, and no step's: it is not a rank. Nor is the shell that `salloc` gives.
pub(super) fn is_step(variables: &Variables) -> bool {
    let is_none = |name| variables.get(name).is_some_and(|id| NO_STEPS.contains(&&*id));
    has_step(variables) && !["SLURM_STEP_ID", "SLURM_STEPID"].into_iter().any(is_none)
}

/// Whether there are the variables of a step, of whatever kind.
pub(super) fn has_step(variables: &Variables) -> bool {
    ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"].into_iter().any(|name| variables.has(name))
}

fn read(variables: &Variables) -> Result<Told, BootstrapError> {
    let hint = "start the ranks by srun, which sets it";
    let rank = variables.number("SLURM_PROCID", hint)?;
    // Slurm writes the step's own number of tasks to the second, too, but where it is asked for by an option of the job.
    let size = variables.optional(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], hint)?;
    let size = size.ok_or(BootstrapError::Unset { name: "SLURM_STEP_NUM_TASKS", hint })?;
    let local_rank = variables.optional(&["SLURM_LOCALID"], hint)?;
    let host = match variables.get("MASTER_ADDR") {
        Some(host) => host,
        None => first_host(variables)?,
    };
    let (port, job) = match variables.port()? {
        Some(port) => (port, None),
        None => {
            let hint = "start the ranks by srun, which sets it, or set MASTER_PORT";
            let job: Option<u64> = variables.optional(&["SLURM_JOB_ID", "SLURM_JOBID"], hint)?;
            let job = job.ok_or(BootstrapError::Unset { name: "SLURM_JOB_ID", hint })?;
            let step: Option<u64> = variables.optional(&["SLURM_STEP_ID", "SLURM_STEPID"], hint)?;
            let step = step.unwrap_or(0);
            (derived_port(job, step), Some(format!("Slurm {job}.{step}")))
        }
    };
    Ok(Told { rank, size, local_rank, meeting: Meeting::At { host, port }, job })
}

/// Numbers that stand for no step in which ranks are started: SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT and SLURM_EXTERN_CONT
/// (slurm/slurm.h).
const NO_STEPS: [&str; 3] = ["4294967290", "4294967291", "4294967292"];

/// Where rank 0 is: on the first host of the step. If there is no other, loopback leads to it.
fn first_host(variables: &Variables) -> Result<String, BootstrapError> {
    let hint = "start the ranks by srun, which sets it, or set MASTER_ADDR to the host of rank 0";
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let Some(name) = lists.into_iter().find(|name| variables.has(name)) else {
        // Where srun was started, which is where rank 0 is unless srun was told otherwise.
        let launch = variables.get("SLURM_LAUNCH_NODE_IPADDR");
        return launch.ok_or(BootstrapError::Unset { name: "SLURM_STEP_NODELIST", hint });
    };
    let list = variables.text(name, hint)?;
    let parsed = hosts::parse(&list);
    let hosts =
        parsed.ok_or(BootstrapError::Value { name, value: list, hint: "set MASTER_ADDR to the host of rank 0" })?;
    let nodes: Option<usize> = variables.optional(&["SLURM_STEP_NUM_NODES"], hint)?;
    // A list of the whole job does not tell how many of them the step has.
    let is_alone = hosts.len() == 1 || nodes == Some(1) && name == "SLURM_STEP_NODELIST";
    Ok(if is_alone { "127.0.0.1".into() } else { hosts.into_iter().next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, told};
    use super::*;

    fn with(change: &[(&'static str, &str)]) -> Result<Told, BootstrapError> {
        let defaults = [
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "100"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NODELIST", "node[02-03]"),
            ("SLURM_JOB_NODELIST", "node[01-03]"),
        ];
        let mut all: Vec<_> = change.iter().copied().filter(|(_, value)| !value.is_empty()).collect();
        all.extend(defaults.into_iter().filter(|(name, _)| change.iter().all(|(changed, _)| changed != name)));
        told(&all)
    }

    #[test]
    fn a_step_meets_at_its_first_host_and_a_port_of_its_own() {
        let told = with(&[]).unwrap();
        assert_eq!((told.rank, told.size, told.local_rank), (3, 4, Some(1)));
        assert_eq!(told.meeting, at("node02", derived_port(100, 2)));
        assert_eq!(told.job.as_deref(), Some("Slurm 100.2"), "the port is also that of the next job's");
        let older = with(&[("SLURM_STEP_NUM_TASKS", ""), ("SLURM_STEP_NODELIST", "")]).unwrap();
        assert_eq!((older.size, older.meeting), (8, at("node01", derived_port(100, 2))));
    }

    #[test]
    fn a_step_on_one_host_meets_at_loopback() {
        let told = with(&[("SLURM_STEP_NODELIST", "node07")]).unwrap();
        assert_eq!(told.meeting, at("127.0.0.1", derived_port(100, 2)));
    }

    #[test]
    fn where_the_user_says_counts_and_where_srun_is_is_the_last_resort() {
        let told = with(&[("MASTER_ADDR", "10.0.0.9"), ("MASTER_PORT", "4242")]).unwrap();
        assert_eq!((told.meeting, told.job), (at("10.0.0.9", 4242), None));
        let both = with(&[("QPAIR_PORT", "4243"), ("MASTER_PORT", "4242")]).unwrap();
        assert_eq!(both.meeting, at("node02", 4243));
        let without = [("SLURM_STEP_NODELIST", ""), ("SLURM_JOB_NODELIST", "")];
        let launch = with(&[&without[..], &[("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.2")]].concat()).unwrap();
        assert_eq!(launch.meeting, at("10.0.0.2", derived_port(100, 2)));
        let words = with(&without).unwrap_err().to_string();
        assert!(words.starts_with("SLURM_STEP_NODELIST is not set") && words.contains("MASTER_ADDR"), "{words}");
    }

    #[test]
    fn the_shell_of_a_job_is_no_rank() {
        for step in NO_STEPS {
            // Slurm's own PMI tells no more.
            for pmi in [&[][..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("PMI_FD", "9")]] {
                let words = with(&[&[("SLURM_STEP_ID", step)], pmi].concat()).unwrap_err().to_string();
                assert!(words.contains("start the ranks by `srun`"), "{words}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let words = with(&[("SLURM_STEP_NODELIST", "node[3-")]).unwrap_err().to_string();
        assert!(words.starts_with("SLURM_STEP_NODELIST is `node[3-`: set MASTER_ADDR"), "{words}");
        let words = with(&[("SLURM_PROCID", "x")]).unwrap_err().to_string();
        assert!(words.starts_with("SLURM_PROCID is `x`"), "{words}");
    }
}
