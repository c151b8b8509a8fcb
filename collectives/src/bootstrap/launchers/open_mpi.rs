//! Open MPI's `mpirun`, also `prterun`.

use core::net::IpAddr;
use std::path::PathBuf;

use super::{Launcher, Told, Variables, derived_port};
use crate::bootstrap::meeting::Meeting;
use crate::error::BootstrapError;
use crate::fnv::Fnv;

pub(super) const LAUNCHER: Launcher = Launcher {
    name: "Open MPI's mpirun",
    sign: "OMPI_COMM_WORLD_RANK",
    is_there: |variables| variables.has("OMPI_COMM_WORLD_RANK"),
    read,
};

fn read(variables: &Variables) -> Result<Told, BootstrapError> {
    let hint = "start the ranks by Open MPI's mpirun, which sets it";
    let rank = variables.number("OMPI_COMM_WORLD_RANK", hint)?;
    let size = variables.number("OMPI_COMM_WORLD_SIZE", hint)?;
    let local_rank = variables.optional(&["OMPI_COMM_WORLD_LOCAL_RANK"], hint)?;
    let local_size: Option<u32> = variables.optional(&["OMPI_COMM_WORLD_LOCAL_SIZE"], hint)?;
    // A number in Open MPI 4, `prterun-HOST-PROCESS@1` in 5.
    let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].into_iter().find_map(|name| variables.get(name));
    let meeting = meeting(variables, local_size == Some(size), job.as_deref())?;
    let is_derived = variables.port()?.is_none();
    Ok(Told { rank, size, local_rank, meeting, job: job.filter(|_| is_derived) })
}

fn meeting(variables: &Variables, one_host: bool, job: Option<&str>) -> Result<Meeting, BootstrapError> {
    let (host, port) = (variables.get("MASTER_ADDR"), variables.port()?);
    let Some(job) = job else {
        let hint = "start the ranks by Open MPI's mpirun, which sets it, or set MASTER_ADDR and MASTER_PORT";
        let (Some(host), Some(port)) = (host, port) else {
            return Err(BootstrapError::Unset { name: "PMIX_NAMESPACE", hint });
        };
        return Ok(Meeting::At { host, port });
    };
    let derived = || derived_port(job.parse().unwrap_or_else(|_| Fnv::of(job)), 0);
    match (host, port) {
        (Some(host), port) => Ok(Meeting::At { host, port: port.unwrap_or_else(derived) }),
        (None, Some(port)) if one_host => Ok(Meeting::At { host: "127.0.0.1".into(), port }),
        (None, None) if one_host => Ok(Meeting::File(file(variables, job))),
        (None, port) => {
            let hosts = launcher(variables, job);
            if hosts.is_empty() {
                let hint = "ranks on several hosts have to be told where rank 0 is; pass -x MASTER_ADDR=HOST to mpirun";
                return Err(BootstrapError::Unset { name: "MASTER_ADDR", hint });
            }
            Ok(Meeting::BesideLauncher { hosts, port: port.unwrap_or_else(derived) })
        }
    }
}

/// A file in the job's own folder, which goes with the job, or else among all temporary files.
fn file(variables: &Variables, job: &str) -> PathBuf {
    let folders = ["PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir", "TMPDIR"];
    let folder = folders.into_iter().find_map(|name| variables.get(name)).unwrap_or_else(|| "/tmp".into());
    let job: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    PathBuf::from(folder).join(format!("qpair-{job}"))
}

/// The addresses or the name of the host on which mpirun runs.
fn launcher(variables: &Variables, job: &str) -> Vec<String> {
    let uri = ["OMPI_MCA_orte_hnp_uri", "PRTE_MCA_prte_hnp_uri"].into_iter().find_map(|name| variables.get(name));
    let addresses = uri.map(|uri| addresses(&uri)).unwrap_or_default();
    if !addresses.is_empty() {
        return addresses;
    }
    let name = job.strip_prefix("prterun-").and_then(|rest| rest.rsplit_once('@')?.0.rsplit_once('-'));
    name.map(|(host, _)| host.to_owned()).into_iter().filter(|host| !host.is_empty()).collect()
}

/// Those in a URI such as `1998192640.0;tcp://192.0.2.2,10.0.0.1:53323;tcp6://[fd00::2]:50301`, but for loopback. Behind the port
/// PRRTE has the lengths of networks' prefixes.
fn addresses(uri: &str) -> Vec<String> {
    let lists = uri.split(';').filter_map(|part| {
        let rest = part.split_once("://")?.1;
        // Addresses of IPv6 have colons, and stand in brackets.
        Some(rest.rfind(']').map_or_else(|| rest.split(':').next().unwrap_or_default(), |end| &rest[..=end]))
    });
    let each = lists.flat_map(|list| list.split(',').map(|address| address.trim_matches(['[', ']']).to_owned()));
    let is_elsewhere = |address: &IpAddr| !address.is_loopback();
    each.filter(|address| address.parse().is_ok_and(|address| is_elsewhere(&address))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, told};
    use super::*;

    /// As Open MPI 4.1 sets them, on one host or one of several.
    fn with(local_size: &str, more: &[(&'static str, &str)]) -> Result<Told, BootstrapError> {
        let mut variables = vec![
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", local_size),
            ("PMIX_NAMESPACE", "1998192641"),
        ];
        variables.extend(more);
        told(&variables)
    }

    #[test]
    fn ranks_of_one_host_meet_by_a_file_of_their_job() {
        let told = with("4", &[("PMIX_SERVER_TMPDIR", "/tmp/ompi.vm.0/pid.7140")]).unwrap();
        assert_eq!((told.rank, told.size, told.local_rank), (1, 4, Some(1)));
        assert_eq!(told.meeting, Meeting::File("/tmp/ompi.vm.0/pid.7140/qpair-1998192641".into()));
        let version_5 = with("4", &[("TMPDIR", "/scratch")]).unwrap().meeting;
        assert_eq!(version_5, Meeting::File("/scratch/qpair-1998192641".into()));
        assert_eq!(with("4", &[("QPAIR_PORT", "4242")]).unwrap().meeting, at("127.0.0.1", 4242));
    }

    #[test]
    fn ranks_of_several_hosts_meet_beside_mpirun_unless_they_are_told_where() {
        let uri = "1998192640.0;tcp://192.0.2.2,127.0.0.1,10.0.0.1:53323;tcp6://[fd00::2]:50301";
        let hosts = ["192.0.2.2", "10.0.0.1", "fd00::2"].map(str::to_owned).to_vec();
        let Meeting::BesideLauncher { hosts: found, port } =
            with("2", &[("OMPI_MCA_orte_hnp_uri", uri)]).unwrap().meeting
        else {
            panic!("elsewhere");
        };
        assert_eq!(found, hosts);
        assert!((20_000..30_000).contains(&port));
        let told = with("2", &[("OMPI_MCA_orte_hnp_uri", uri), ("MASTER_ADDR", "node1")]).unwrap();
        assert_eq!(told.meeting, at("node1", port));
        assert!(told.job.is_some(), "other jobs may have that port");
        let told = with("2", &[("OMPI_MCA_orte_hnp_uri", uri), ("MASTER_PORT", "4242")]).unwrap();
        assert_eq!((told.meeting, told.job), (Meeting::BesideLauncher { hosts, port: 4242 }, None));
        let words = with("2", &[]).unwrap_err().to_string();
        assert!(words.contains("pass -x MASTER_ADDR"), "{words}");
    }

    #[test]
    fn version_5_tells_prefixes_behind_the_port() {
        let uri = "prterun-node-1-4711@0.0;tcp://10.0.0.1,192.0.2.2:38215:24,16;tcp6://[fd00::2],[::1]:50301:64,128";
        assert_eq!(addresses(uri), ["10.0.0.1", "192.0.2.2", "fd00::2"]);
        assert!(addresses("prterun-node-1-4711@0.0;tcp://:38215").is_empty());
    }

    #[test]
    fn version_5_names_its_host_in_the_jobs_name() {
        let variables = Variables(&|_| None);
        assert_eq!(launcher(&variables, "prterun-node-1-4711@1"), ["node-1"]);
        assert!(launcher(&variables, "1998192641").is_empty());
    }
}
