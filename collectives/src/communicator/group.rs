//! Ranks that are threads of one process.

use std::net::{IpAddr, Ipv4Addr};

use qpair_transport::Near;

use super::comm::Communicator;
use super::measure::this_machine;
use crate::bootstrap::{Member, Shared, Watch, whereabouts};
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

    /// The same, where it is known what operations cost.
    pub(crate) fn group_knowing(
        ranks: usize,
        settings: NetSettings,
        known: &Known,
    ) -> Result<Vec<Communicator>, BootstrapError> {
        let size = u32::try_from(ranks).ok().filter(|size| (1..=MAX_RANKS).contains(size));
        let size = size.ok_or(BootstrapError::Size { size: ranks, limit: MAX_RANKS })?;
        let mut nets = Vec::with_capacity(ranks);
        for rank in 0..size {
            nets.push(Net::new(rank, size, IpAddr::V4(Ipv4Addr::LOCALHOST), settings, Near::software())?);
        }
        let token = getrandom::u64()
            .map_err(|error| BootstrapError::System { what: "draw a random number", source: error.into() })?;
        let addresses: Vec<_> = nets.iter().map(Net::address).collect();
        let shared = Shared::new(size);
        let whereabouts = whereabouts();
        let member = |net: &Net| Member { whereabouts: whereabouts.clone(), device: net.device().to_owned() };
        let members: Vec<_> = nets.iter().map(member).collect();
        let communicator = |mut net: Net| {
            net.meet(addresses.iter().copied(), token);
            let rank = net.me;
            Communicator::new(net, Watch::Shared(shared.clone()), rank, members.clone(), known.clone())
        };
        Ok(nets.into_iter().map(communicator).collect())
    }
}
