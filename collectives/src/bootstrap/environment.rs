//! Who a rank is and where it meets the others, from the variables of whatever launcher started it.

use std::time::Duration;

use qpair_transport::{ClusterKey, Near};

use super::client::{Joining, Roster};
use super::launchers::{self, Variables};
use super::meeting::{Hosting, Meeting, Settled};
use super::message::{Listening, Member, Staging, Whereabouts};
use super::overrides::Overrides;
use super::seating::{misses_gpus, own_gpu, seating};
use super::server::{Descriptors, Server, Terms};
use super::stand_in::StandIns;
use super::watch::Watch;
use super::whereabouts::whereabouts;
use crate::communicator::{Communicator, this_machine};
use crate::error::BootstrapError;
use crate::execute::{MAX_RANKS, Net, NetSettings};
use crate::fnv::Fnv;
use crate::machine::{Known, Rail};
use crate::variable::variable;

/// Who this process is among the ranks, and where they meet.
///
/// ```no_run
/// use std::time::Duration;
/// use qpair_collectives::Environment;
///
/// let mut environment = Environment::from_env()?;
/// environment.limit = Duration::from_secs(300); // a cluster that starts slowly
/// let comm = environment.connect()?;
/// # Ok::<(), qpair_collectives::BootstrapError>(())
/// ```
///
/// # What launchers say
///
/// [`from_env`](Self::from_env) knows these, and takes the first whose variables are there. Launchers start each other (`mpirun`
/// its own programs by `srun`), and ranks inherit the variables of all; the order is from the inner to the outer.
///
/// | launcher | known by | rank, size, number on the host | where ranks meet |
/// |---|---|---|---|
/// | `qpair launch`, torchrun | RANK, or WORLD_SIZE without the sign of another | RANK, WORLD_SIZE, LOCAL_RANK if it is set | MASTER_ADDR and MASTER_PORT; where torchrun's agent listens there itself (TORCHELASTIC_USE_AGENT_STORE=True), the next port |
/// | Open MPI's `mpirun` | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK | on one host, by a file of the job ([`Meeting::File`]) in PMIX_SERVER_TMPDIR, OMPI_MCA_orte_jobfam_session_dir, TMPDIR or /tmp; on several, on mpirun's host (OMPI_MCA_orte_hnp_uri, PRTE_MCA_prte_hnp_uri, PMIX_NAMESPACE) and a port of the job, if rank 0 runs there |
/// | MPICH's `mpiexec` (Hydra), and others that speak PMI-1 at PMI_FD | PMI_RANK, unless it is Slurm's own | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID | rank 0 chooses a port and tells it by the process manager |
/// | Slurm's `srun` | SLURM_PROCID, with SLURM_STEP_ID or SLURM_STEP_NUM_TASKS | SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID | the first host of SLURM_STEP_NODELIST, SLURM_JOB_NODELIST or SLURM_NODELIST (loopback, if it is the only one), or else SLURM_LAUNCH_NODE_IPADDR; a port of job and step |
///
/// Where a port is one of the job, that is 20000 to 29999: 20000 + (31 x job + step) mod 10000. **MASTER_ADDR** names the host of
/// rank 0 instead of what a launcher says, and **QPAIR_PORT**, or else **MASTER_PORT**, the port; MPICH's ranks need both, which
/// also leaves the process manager alone, for a program that calls MPI itself. The environment of `mpirun` reaches other hosts by
/// `-x NAME`, that of `mpiexec` by `-genv`.
///
/// # Who may join
///
/// With a cluster key (QPAIR_CLUSTER_KEY_FILE, see [`ClusterKey`]), only who has it too. Without one, whoever reaches the port and
/// says what a rank says, but where rank 0 publishes the port itself (a file, PMI): then a ticket is with it, that ranks have to show. Where the port is one of the job, they
/// have to name the job, so that those of another which has the same port are refused. Whoever connects and does not
/// join is turned away after 10 s, or before if there are too many, and costs rank 0 a descriptor and up to 64 KiB until then.
///
/// # What to use
///
/// Whoever starts a program may decide what it leaves to the ranks, or decides otherwise. All ranks need the same.
/// **QPAIR_ALGORITHM** names an algorithm, `ring`, or one for each collective, `all-reduce=ring,broadcast=chain`: it is used
/// whatever [`set_algorithm`](Communicator::set_algorithm) says, also in communicators that are split off. **QPAIR_PLANS** names
/// files of plans, with colons between, which are used for what their specs say: these come first.
///
/// **QPAIR_GPU_STAGING**=1 has messages of GPUs go by [slots](qpair_verbs::GpuStage), on any device, which they do by themselves where
/// the device of a rank does not reach memory of GPUs, or a rank does not see the GPUs of all on its host. One rank suffices; its
/// own slots are pinned memory, while others have theirs where their device reaches best.
///
/// What is left is chosen by what it [costs](crate::cost::CostModel). Rank 0 measures that, in some tens of milliseconds, where
/// ranks of its host reach each other's memory, and keeps it in `$XDG_CACHE_HOME/qpair`, or `~/.cache/qpair`, for this release,
/// processor and number of cores; all ranks use what rank 0 has. Others may use the machine meanwhile: so programs that start later
/// measure it again, five times in all with ten minutes between them at least, and of each value the one in the middle counts, or the
/// fastest where long ranges were moved. Where all algorithms were measured (`qpair bench --compare --keep`,
/// [`Fastest`](crate::tune::Fastest)), which is kept there too, the one that was the fastest at the nearest size is chosen.
/// **QPAIR_COST_MODEL** at rank 0 says otherwise: a file of a model in JSON, as `qpair plan model --json` prints it; `default`, for the
/// built-in one; `measure`, to measure each time and keep nothing. What was kept of algorithms counts for nothing then.
///
/// # Limits
///
/// Rank 0 needs a descriptor for each rank, and says so in time if it may not have as many.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Environment {
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// Its number among the ranks of its host. If it is not told, its place among the ranks there, by their numbers.
    pub local_rank: Option<u32>,
    /// How ranks learn where to meet.
    pub meeting: Meeting,
    /// What ranks of another job do not say, who might come to the same port: they are refused. Where a port is derived from a job's
    /// number [`from_env`](Environment::from_env) puts that here, in full.
    pub job: Option<String>,
    /// How long to wait for all ranks to come, and then for all to be set up: 60 s each unless set; [`Duration::MAX`] for ever.
    pub limit: Duration,
    /// What this rank's data is near to, to choose its NICs by, instead of what [`connect`](Environment::connect) finds out.
    pub near: Option<Near>,
    /// Instead of the key in the file that QPAIR_CLUSTER_KEY_FILE names, for tests; the worker knows of that file alone.
    pub(super) cluster_key: Option<ClusterKey>,
}

/// What a rank brings to the others.
pub(super) struct Arrival {
    pub(super) whereabouts: Whereabouts,
    /// At rank 0, what operations cost; what fails with that is told to all.
    pub(super) cost: Result<Option<Known>, BootstrapError>,
}

impl Environment {
    /// A rank that meets the others at a port of rank 0's host.
    ///
    /// ```
    /// use qpair_collectives::Environment;
    ///
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// let comm = Environment::at(0, 1, "127.0.0.1", port).connect()?;
    /// assert_eq!((comm.rank(), comm.size()), (0, 1));
    /// # Ok::<(), qpair_collectives::BootstrapError>(())
    /// ```
    pub fn at(rank: u32, size: u32, host: impl Into<String>, port: u16) -> Self {
        Self::meeting(rank, size, Meeting::At { host: host.into(), port })
    }

    /// A rank that meets the others in that way.
    pub fn meeting(rank: u32, size: u32, meeting: Meeting) -> Self {
        Self { rank, size, local_rank: None, meeting, job: None, limit: LIMIT, near: None, cluster_key: None }
    }

    /// Reads what a launcher says: see [above](Self#what-launchers-say).
    ///
    /// # Errors
    /// [`BootstrapError`] that names what was looked for, or the variable which is not set, makes no sense, or contradicts another.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_variables(variable)
    }

    /// The same, with variables from elsewhere.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, BootstrapError> {
        let told = launchers::read(&Variables(&variable))?;
        let launchers::Told { rank, size, local_rank, meeting, job } = told;
        let environment = Self { local_rank, job, ..Self::meeting(rank, size, meeting) };
        environment.check()?;
        Ok(environment)
    }

    /// The launcher whose variables [`from_env`](Self::from_env) would read, for people; `None` if there is none.
    pub fn launcher() -> Option<&'static str> {
        launchers::name(&Variables(&variable))
    }

    /// Meets the other ranks, at rank 0.
    ///
    /// Ranks first tell each other where they run. If that is one host, they go over its memory. If there are several, each goes
    /// over NICs that topology names: those of the GPU of the rank's number, as far as the host has one and the rank is not bound
    /// to another NUMA node (CUDA_VISIBLE_DEVICES and its kin are heeded); else those of a NUMA node that the rank may run on,
    /// which the ranks there divide among them. QPAIR_DEVICE names the device instead; QPAIR_NICS and QPAIR_TOPOLOGY are heeded as
    /// [`Near`](qpair_transport::Near) says. [`Communicator::explain`] tells what came of it.
    ///
    /// # Errors
    /// [`BootstrapError`]: the port is taken, rank 0 does not answer, ranks are missing, or two ranks contradict
    /// each other; a rank can not be set up, here or elsewhere.
    pub fn connect(&self) -> Result<Communicator, BootstrapError> {
        let cost = (self.rank == 0).then(this_machine).transpose();
        let whereabouts = Whereabouts { gpu: own_gpu(self.local_rank), ..whereabouts() }.on_islands();
        self.connect_with(Arrival { whereabouts, cost })
    }

    /// The same with that.
    pub(super) fn connect_with(&self, arrival: Arrival) -> Result<Communicator, BootstrapError> {
        self.check()?;
        let key = match &self.cluster_key {
            Some(key) => Some(key.clone()),
            None => ClusterKey::from_env()?,
        };
        let mut settled = self.meeting.settle((self.rank, self.size), key.clone(), self.limit)?;
        // Of those that are not told one where they meet.
        settled.place.ticket =
            settled.place.ticket.or_else(|| self.job.as_deref().map(|job| format!("{:016x}", Fnv::of(job))));
        self.join(settled, key, arrival, || Overrides::read(variable))
    }

    /// Meets the other ranks where that is settled.
    pub(super) fn join(
        &self,
        settled: Settled,
        key: Option<ClusterKey>,
        arrival: Arrival,
        overrides: impl FnOnce() -> Result<Overrides, BootstrapError>,
    ) -> Result<Communicator, BootstrapError> {
        let Settled { place, hosting } = settled;
        let server = hosting.map(|hosting| self.serve(hosting, key.clone(), place.ticket.clone())).transpose()?;
        let ranks = (self.rank, self.size);
        let Arrival { whereabouts, cost } = arrival;
        // What fails here is told once all have come.
        let (cost, failed) = match cost {
            Ok(cost) => (cost, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let (joining, roster) = Joining::new(place, ranks, (whereabouts, cost), server, self.limit)?;
        let Roster { token, members, ip, cost } = roster;
        let several = members.iter().any(|other| other.node != members[0].node);
        let settings = NetSettings::of(several);
        let near = self.near.clone().map_or_else(|| seating(self.rank, &members), Ok);
        let net = near.and_then(|near| Net::new(self.rank, self.size, ip, settings, near));
        let set_up = failed.and(net).and_then(|net| Ok((net, overrides()?)));
        let (mut net, overrides) = match set_up {
            Ok(set_up) => set_up,
            Err(error) => {
                joining.give_up(&error);
                return Err(error);
            }
        };
        if misses_gpus(self.rank, &members) {
            net.stage_unseen();
        }
        let mut own = net.listening();
        let stand_ins = StandIns::new(ranks, &members, ip, token, key);
        own.stand_in_port = stand_ins.port();
        let (client, all) = joining.listen(own, stand_ins, self.limit)?;
        check_links(&all)?;
        // What others on its node can not map is not to lie in memory of this rank's GPU.
        let node = &members[self.rank as usize].node;
        let mut near = members.iter().zip(&all).filter(|(member, _)| member.node == *node);
        if near.any(|(_, said)| said.staging == Some(Staging::Unseen)) {
            net.stage_unseen();
        }
        net.meet(all.iter().map(|rank| rank.address), token);
        let local_rank = self.local_rank.unwrap_or_else(|| place_on_host(self.rank, &members));
        let rails = members.iter().zip(&all).map(|(rank, listening)| Rail {
            node: &rank.node,
            device: &listening.device,
            is_software: listening.is_software,
            rate_mbps: listening.rate_mbps,
        });
        let cost = cost.with_rails(rails);
        let members = members.into_iter().zip(all);
        let member = |(whereabouts, Listening { device, is_software, staging, .. })| Member {
            whereabouts,
            device,
            is_software,
            staging,
        };
        let members = members.map(member).collect();
        let comm = Communicator::new(net, Watch::Store(Box::new(client)), local_rank, members, cost);
        overrides.apply(&comm)?;
        Ok(comm)
    }

    fn check(&self) -> Result<(), BootstrapError> {
        if self.size == 0 || self.size > MAX_RANKS {
            return Err(BootstrapError::Size { size: self.size as usize, limit: MAX_RANKS });
        }
        for (name, rank) in [("RANK", Some(self.rank)), ("LOCAL_RANK", self.local_rank)] {
            if let Some(rank) = rank.filter(|&rank| rank >= self.size) {
                return Err(BootstrapError::NoSuchRank { name, rank, size: self.size });
            }
        }
        Ok(())
    }

    fn serve(
        &self,
        hosting: Hosting,
        key: Option<ClusterKey>,
        ticket: Option<String>,
    ) -> Result<Server, BootstrapError> {
        let descriptors = Descriptors::now();
        let places = descriptors.left();
        if places < self.size as usize {
            let (needed, limit) = (descriptors.taken + self.size as usize, descriptors.limit);
            return Err(BootstrapError::Descriptors { size: self.size, needed, limit });
        }
        let terms = Terms { size: self.size, limit: self.limit, key, ticket, places };
        let server = Server::start(hosting, terms);
        server.map_err(|source| BootstrapError::System { what: "start what ranks meet at", source })
    }
}

/// How many ranks of the same machine come before it.
fn place_on_host(rank: u32, all: &[Whereabouts]) -> u32 {
    let before = &all[..rank as usize];
    before.iter().filter(|other| other.machine == all[rank as usize].machine).count() as u32
}

/// InfiniBand and the rest do not reach each other; before anything is sent, ranks on either are named.
fn check_links(all: &[Listening]) -> Result<(), BootstrapError> {
    let first = |infiniband: bool| (0_u32..).zip(all).find(|(_, rank)| rank.is_on_infiniband == infiniband);
    match (first(true), first(false)) {
        (Some((infiniband, on)), Some((other, beside))) => Err(BootstrapError::Links {
            infiniband,
            device: on.device.clone(),
            other,
            other_device: beside.device.clone(),
        }),
        _ => Ok(()),
    }
}

/// How long to wait for all ranks.
const LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_contradict_each_other_are_refused() {
        let parse = |rank: &str, local_rank: &str, size: &str| {
            let variables = [("RANK", rank), ("LOCAL_RANK", local_rank), ("WORLD_SIZE", size)];
            let place = [("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
            let all = [&variables[..], &place].concat();
            Environment::from_variables(|name| Some(all.iter().find(|(known, _)| *known == name)?.1.to_owned()))
        };
        assert!(parse("3", "0", "4").is_ok());
        let wrong = parse("4", "0", "4").unwrap_err();
        assert!(matches!(wrong, BootstrapError::NoSuchRank { name: "RANK", rank: 4, size: 4 }), "{wrong}");
        let wrong = parse("3", "9", "4").unwrap_err();
        assert!(matches!(wrong, BootstrapError::NoSuchRank { name: "LOCAL_RANK", .. }), "{wrong}");
        assert!(matches!(parse("0", "0", "0"), Err(BootstrapError::Size { size: 0, .. })));
        assert!(matches!(parse("0", "0", "5000"), Err(BootstrapError::Size { .. })));
    }

    #[test]
    fn ranks_that_do_not_reach_each_other_are_named() {
        let on = |device: &str, is_on_infiniband| Listening {
            address: "127.0.0.1:9".parse().unwrap(),
            device: device.into(),
            is_on_infiniband,
            is_software: device == "soft0",
            staging: None,
            rate_mbps: None,
            stand_in_port: None,
        };
        assert!(check_links(&[on("soft0", false), on("mlx5_0", false)]).is_ok());
        assert!(check_links(&[on("mlx5_0", true), on("mlx5_1", true)]).is_ok());
        let error = check_links(&[on("mlx5_0", true), on("mlx5_1", true), on("soft0", false)]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("rank 0 is on mlx5_0, which is on InfiniBand, and rank 2 on soft0, which is not"),
            "{text}"
        );
        assert!(text.contains("QPAIR_DEVICE"), "{text}");
    }
}
