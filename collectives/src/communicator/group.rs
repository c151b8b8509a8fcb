//! Ranks that are threads of one process.

use std::net::{IpAddr, Ipv4Addr};

use qpair_topology::PciAddress;
use qpair_transport::Near;
use qpair_verbs::Gpu;

use super::comm::Communicator;
use super::measure::this_machine;
use crate::bootstrap::{Member, Shared, Watch, Whereabouts, whereabouts};
use crate::error::BootstrapError;
use crate::execute::{MAX_RANKS, Net, NetSettings};
use crate::machine::Known;

impl Communicator {
    /// `ranks` ranks within this process, in order, for a thread each.
    ///
    /// Each is used as if it were a process of its own: an operation waits for all others, so that one thread can not
    /// run two of them.
    ///
    /// The first group of a process measures what operations cost here, in some tens of milliseconds, and keeps that in
    /// `$XDG_CACHE_HOME/qpair` or `~/.cache/qpair`; or it reads what is kept there, or what QPAIR_COST_MODEL names, as
    /// [`Environment`](crate::Environment#what-to-use) says.
    ///
    /// # Errors
    /// [`BootstrapError::Size`] if the number is 0 or too large; [`BootstrapError::CostModel`]; if the system refuses a
    /// resource.
    pub fn group(ranks: usize) -> Result<Vec<Communicator>, BootstrapError> {
        Self::group_knowing(ranks, NetSettings::default(), &this_machine()?)
    }

    /// A rank within this process for each of these GPUs, in order, for a thread each: a [`group`](Self::group) that knows which
    /// GPUs are joined by NVLink, and which by PCIe alone. Where [`Machine::this`](qpair_topology::Machine::this) does not tell of
    /// a GPU, all are taken to be alike. Vectors may be on any GPU still.
    ///
    /// ```no_run
    /// use qpair_collectives::{Communicator, ReduceOp};
    /// use qpair_verbs::Gpu;
    ///
    /// let gpus = (0..Gpu::count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
    /// let ranks = Communicator::group_on(&gpus)?;
    /// std::thread::scope(|scope| {
    ///     for (comm, gpu) in ranks.into_iter().zip(gpus) {
    ///         scope.spawn(move || {
    ///             let mut gradient = comm.gpu_buffer::<f32>(gpu, 1 << 20)?;
    ///             comm.all_reduce(&mut gradient, ReduceOp::Sum)
    ///         });
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// GPUs that reach each other's memory are let in to that, which is better done before streams are held.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn group_on(gpus: &[Gpu]) -> Result<Vec<Communicator>, BootstrapError> {
        // Now, and not with the first copy, when streams may be held.
        for (place, gpu) in gpus.iter().enumerate() {
            gpus[..place].iter().for_each(|other| _ = gpu.reaches(other));
        }
        let here = whereabouts();
        let at = |gpu: &Gpu| {
            let address = gpu.attributes().pci_address.parse::<PciAddress>().ok();
            Whereabouts { gpu: address, ..here.clone() }.on_islands()
        };
        Self::group_at(gpus.iter().map(at).collect(), NetSettings::default(), &this_machine()?)
    }

    /// The same as [`group`](Self::group), where it is known what operations cost.
    pub(crate) fn group_knowing(
        ranks: usize,
        settings: NetSettings,
        known: &Known,
    ) -> Result<Vec<Communicator>, BootstrapError> {
        Self::group_at(vec![whereabouts(); size(ranks)? as usize], settings, known)
    }

    /// The same for ranks that are there.
    fn group_at(
        ranks: Vec<Whereabouts>,
        settings: NetSettings,
        known: &Known,
    ) -> Result<Vec<Communicator>, BootstrapError> {
        let size = size(ranks.len())?;
        let mut nets = Vec::with_capacity(ranks.len());
        for rank in 0..size {
            nets.push(Net::new(rank, size, IpAddr::V4(Ipv4Addr::LOCALHOST), settings, Near::software())?);
        }
        let token = getrandom::u64()
            .map_err(|error| BootstrapError::System { what: "draw a random number", source: error.into() })?;
        let addresses: Vec<_> = nets.iter().map(Net::address).collect();
        let shared = Shared::new(size);
        let member = |(whereabouts, net): (Whereabouts, &Net)| Member {
            whereabouts,
            device: net.device().to_owned(),
            is_software: true,
            staging: net.staging(),
        };
        let members: Vec<_> = ranks.into_iter().zip(&nets).map(member).collect();
        let communicator = |mut net: Net| {
            net.meet(addresses.iter().copied(), token);
            let rank = net.me;
            Communicator::new(net, Watch::Shared(shared.clone()), rank, members.clone(), known.clone())
        };
        Ok(nets.into_iter().map(communicator).collect())
    }
}

/// So many ranks, if there can be.
fn size(ranks: usize) -> Result<u32, BootstrapError> {
    let size = u32::try_from(ranks).ok().filter(|size| (1..=MAX_RANKS).contains(size));
    size.ok_or(BootstrapError::Size { size: ranks, limit: MAX_RANKS })
}
