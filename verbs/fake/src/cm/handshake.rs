//! How two ids become a connection, and how that ends: as the messages of Linux' connection manager have it, which arrive at
//! once here.

use std::ffi::c_int;

use qpair_verbs_sys::*;

use super::channel::{Event, forget, unread};
use super::id::{Id, Said, State};
use crate::world::World;

impl World {
    /// The listener gets a request, or the one who asks a refusal.
    pub(crate) fn cm_connect(&mut self, id: usize, said: Said) -> Result<(), c_int> {
        let asks = self.cm_enter("rdma_connect", id)?;
        if asks.state != State::Routed {
            return Err(libc::EINVAL);
        }
        (asks.state, asks.said) = (State::Asking, said.padded(REQUEST));
        let (device, own, to, said) = (asks.device, asks.own, asks.to, asks.said.clone());
        let port = to.map(|to| to.port());
        let at = |(_, id): &(&usize, &Id)| {
            matches!(id.state, State::Listening { .. }) && id.own.map(|own| own.port()) == port
        };
        let Some((&listener, Id { channel, state: State::Listening { backlog }, .. })) = self.cm.ids.iter().find(at)
        else {
            self.cm_end(id, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS, Said::default());
            return Ok(());
        };
        let (channel, backlog) = (*channel, *backlog);
        if unread(self, listener) >= backlog {
            self.cm_end(id, RDMA_CM_EVENT_REJECTED, BY_CONSUMER, Said::default().padded(REFUSAL));
            return Ok(());
        }
        // SAFETY: pointers and numbers, for which zero is a value.
        let c: *mut rdma_cm_id = Box::into_raw(Box::new(unsafe { std::mem::zeroed() }));
        let mut asked = Id::new(c, self.cm.new_handle(), channel);
        (asked.state, asked.device, asked.peer) = (State::Asked, device, Some(id));
        (asked.own, asked.to) = (to, own);
        (asked.was_told, asked.is_followed) = (false, false);
        asked.show(device.map(|device| self.cm_context(device)));
        self.cm.ids.insert(c.addr(), asked);
        if let Some(asks) = self.cm.ids.get_mut(&id) {
            asks.peer = Some(c.addr());
        }
        let (event, listener) = (RDMA_CM_EVENT_CONNECT_REQUEST, Some(listener));
        self.cm_push(Event { id: c.addr(), listener, event, status: 0, said });
        Ok(())
    }

    pub(crate) fn cm_accept(&mut self, id: usize, said: Said) -> Result<(), c_int> {
        let accepts = self.cm_enter("rdma_accept", id)?;
        if accepts.state != State::Asked {
            return Err(libc::EINVAL);
        }
        accepts.is_followed = true;
        (accepts.state, accepts.said) = (State::Accepting, said.padded(REPLY));
        let (peer, said) = (accepts.peer, accepts.said.clone());
        if let Some(asks) = peer.and_then(|peer| self.cm.ids.get_mut(&peer)) {
            asks.state = State::Accepted;
        }
        self.cm_tell(peer, RDMA_CM_EVENT_CONNECT_RESPONSE, said);
        Ok(())
    }

    /// Whoever asked is ready.
    pub(crate) fn cm_establish(&mut self, id: usize) -> Result<(), c_int> {
        let asks = self.cm_enter("rdma_establish", id)?;
        if asks.state != State::Accepted {
            return Err(libc::EINVAL);
        }
        asks.state = State::Connected;
        let peer = asks.peer;
        if let Some(accepts) = peer.and_then(|peer| self.cm.ids.get_mut(&peer)) {
            accepts.state = State::Connected;
        }
        self.cm_tell(peer, RDMA_CM_EVENT_ESTABLISHED, Said::default());
        Ok(())
    }

    pub(crate) fn cm_reject(&mut self, id: usize, private: Vec<u8>) -> Result<(), c_int> {
        let rejects = self.cm_enter("rdma_reject", id)?;
        if rejects.state != State::Asked {
            return Err(libc::EINVAL);
        }
        rejects.state = State::Over;
        let said = Said { private, ..Said::default() }.padded(REFUSAL);
        if let Some(peer) = rejects.peer {
            self.cm_end(peer, RDMA_CM_EVENT_REJECTED, BY_CONSUMER, said);
        }
        Ok(())
    }

    pub(crate) fn cm_disconnect(&mut self, id: usize) -> Result<(), c_int> {
        let state = self.cm_enter("rdma_disconnect", id)?.state;
        match state {
            State::Connected | State::Left => self.cm_leave(id, state),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Ends what an id has with its peer, and forgets it.
    pub(crate) fn cm_destroy(&mut self, id: usize) -> Result<(), c_int> {
        let (state, device) = {
            let id = self.cm_enter("rdma_destroy_id", id)?;
            (id.state, id.device)
        };
        let events = self.cm.unacknowledged_of(id);
        if events > 0 {
            let line = format!("cm_id{} is destroyed with {events} events not acknowledged", self.cm.ids[&id].handle);
            self.cm_violation(device, format_args!("{line}, which waits for ever"));
            return Err(libc::EDEADLK);
        }
        self.cm_part(id, state);
        for request in forget(self, id) {
            // The kernel had it alone.
            self.cm_part(request, State::Asked);
            self.cm.ids.remove(&request);
        }
        if let Some(gone) = self.cm.ids.remove(&id) {
            self.cm.bury(id, format!("cm_id{}", gone.handle));
        }
        Ok(())
    }

    fn cm_part(&mut self, id: usize, state: State) {
        let peer = self.cm.ids.get(&id).and_then(|id| id.peer);
        match (state, peer) {
            (State::Connected | State::Leaving | State::Left, _) => self.cm_leave(id, state),
            (State::Asking | State::Asked | State::Accepting | State::Accepted, Some(peer)) => {
                self.cm_end(peer, RDMA_CM_EVENT_REJECTED, BY_CONSUMER, Said::default().padded(REFUSAL));
            }
            _ => {}
        }
        if let Some(id) = self.cm.ids.get_mut(&id) {
            (id.state, id.peer) = (State::Over, None);
        }
    }

    /// Says that the connection is over, or agrees to that.
    fn cm_leave(&mut self, id: usize, state: State) {
        let peer = self.cm.ids.get(&id).and_then(|id| id.peer);
        let theirs = peer.and_then(|peer| self.cm.ids.get(&peer)).map(|peer| peer.state);
        let next = match (state, theirs) {
            (State::Connected, Some(State::Connected)) => Some((State::Leaving, State::Left)),
            (State::Left, Some(State::Leaving)) => Some((State::Over, State::Over)),
            _ => None,
        };
        let (Some((own, theirs)), Some(peer)) = (next, peer) else { return };
        for (end, state) in [(id, own), (peer, theirs)] {
            if let Some(end) = self.cm.ids.get_mut(&end) {
                end.state = state;
            }
        }
        self.cm_tell(Some(peer), RDMA_CM_EVENT_DISCONNECTED, Said::default());
    }

    fn cm_tell(&mut self, id: Option<usize>, event: u32, said: Said) {
        if let Some(id) = id {
            self.cm_raise(id, event, 0, said);
        }
    }

    /// Something that did not become a connection is over.
    fn cm_end(&mut self, id: usize, event: u32, status: c_int, said: Said) {
        if let Some(id) = self.cm.ids.get_mut(&id) {
            (id.state, id.peer) = (State::Over, None);
        }
        self.cm_raise(id, event, status, said);
    }
}

impl Said {
    /// With private data as long as its message has it, zeros behind.
    fn padded(mut self, len: usize) -> Said {
        self.private.resize(len, 0);
        self
    }
}

/// Bytes of private data of each message.
const REQUEST: usize = 56;
const REPLY: usize = 196;
const REFUSAL: usize = 148;
/// Reasons of a refusal.
const NOBODY_LISTENS: c_int = 8;
const BY_CONSUMER: c_int = 28;
