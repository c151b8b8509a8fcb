//! What those who listen or connect ask of the network. Each call is carried out at once, and what it has to send is sent.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use qpair_roce::cm::{Accept, CmState, Connect, OpenError, StateError, Terms};
use qpair_roce::wire::cm::{Reason, Reject};

use super::agent::{Agent, entropy};
use super::inbox::Inbox;
use super::key::Key;
use super::watch::Watch;
use crate::soft::roce::network::Network;

impl Network {
    /// Listens at a port; `None` if another does.
    pub(crate) fn listen(&self, port: u16) -> io::Result<Option<Arc<Inbox>>> {
        let inbox = Arc::new(Inbox::new()?);
        self.manage(|engine, _| {
            if !engine.agent().reopen(port) && !engine.udp.listen(port)? {
                return Ok(None);
            }
            engine.agent().listen(port, inbox.clone());
            Ok(Some(inbox))
        })
    }

    /// Listens at a port no more.
    pub(crate) fn unlisten(&self, port: u16) {
        self.by_agent(|agent, _| agent.unlisten(port));
    }

    /// Asks a peer for a connection, from the address `from`.
    pub(crate) fn request(&self, from: IpAddr, connect: &Connect) -> Result<(Key, Arc<Watch>), OpenError> {
        self.by_agent(|agent, now| {
            let id = agent.manager(from).connect(now, connect, &mut entropy)?;
            let (key, watch) = (Key { address: from, id }, Arc::new(Watch::default()));
            agent.watch(key, watch.clone());
            Ok((key, watch))
        })
    }

    /// True while a peer waits for an answer to its request.
    pub(crate) fn is_asked(&self, key: Key) -> bool {
        self.by_agent(|agent, _| matches!(agent.state(key), Some(CmState::RequestReceived(_))))
    }

    /// Accepts a request with a queue pair that is connected.
    pub(crate) fn accept(&self, key: Key, accept: &Accept) -> Result<Terms, StateError> {
        self.by_agent(|agent, now| {
            let terms = agent.manager_of(key).accept(now, key.id, accept)?;
            agent.await_peer(key, accept.offered.qpn);
            Ok(terms)
        })
    }

    /// Says that this end is ready, after the peer accepted.
    pub(crate) fn ready(&self, key: Key) -> Result<(), StateError> {
        self.by_agent(|agent, _| agent.manager_of(key).ready(key.id, &[0; 224]))
    }

    /// Refuses a request, or an acceptance.
    pub(crate) fn reject(&self, key: Key, reason: Reason, private: &[u8; Reject::PRIVATE]) -> Result<(), StateError> {
        self.by_agent(|agent, now| agent.manager_of(key).reject(now, key.id, reason, private))
    }

    /// Ends an established connection, and fails its queue pair.
    pub(crate) fn disconnect(&self, key: Key, watch: &Watch) -> Result<(), StateError> {
        self.manage(|engine, now| {
            let begun = engine.agent().manager_of(key).disconnect(now, key.id, &[0; 220]);
            engine.end(watch.queue_pair());
            begun
        })
    }

    /// Nobody follows a connection any more: it ends, if it has not.
    pub(crate) fn let_go(&self, key: Key) {
        let watch = self.manage(|engine, now| {
            let watch = engine.agent().let_go(now, key);
            engine.end(watch.as_ref().and_then(|watch| watch.queue_pair()));
            watch
        });
        // What it holds is not to be dropped under the lock.
        drop(watch);
    }

    /// Loses messages from now on, those of which `loses` says so.
    #[cfg(test)]
    pub(crate) fn lose_messages(&self, loses: impl FnMut(&[u8]) -> bool + Send + 'static) {
        self.by_agent(|agent, _| agent.loses = Some(Box::new(loses)));
    }

    /// True if this device has the host's share of connection management.
    #[cfg(test)]
    pub(crate) fn has_management(&self) -> bool {
        self.manage(|engine, _| engine.udp.has_management())
    }

    /// Connections that the managers know, those that linger among them.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.by_agent(|agent, _| agent.connections())
    }

    fn by_agent<R>(&self, act: impl FnOnce(&mut Agent, Instant) -> R) -> R {
        self.manage(|engine, now| act(engine.agent(), now))
    }
}
