//! Rendezvous, receiver's side: payloads are read straight into the memory of their receive.

use qpair_verbs::{Local, PostError};

use super::Worker;
use super::endpoint::{Job, OneSided, Reading, wr_id};
use super::error::{CloseReason, ResourceError};
use super::event::{Event, Returned};
use super::ids::{OpId, Tag};
use super::message::Message;
use super::receive::fill;
use super::target::Target;
use crate::engine::{Posted, Pulled, Start};

impl Worker {
    /// Reads a payload.
    pub(super) fn pull(&mut self, index: usize, mut start: Start<Target>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let posted = start.posted.take();
        let len = start.len as usize;
        let staged = !self.read_reduce && posted.as_ref().is_some_and(|posted| posted.memory.calc.is_some());
        let (memory, calc, staged) = match posted {
            Some(posted) if !staged => (posted.memory.memory, posted.memory.calc, None),
            posted => match self.pool.slab(len) {
                Ok(Some(slab)) => (Local::Slab(slab), None, posted),
                Ok(None) => {
                    endpoint.link.stall(Start { posted, ..start });
                    return;
                }
                Err(error) => {
                    let error = Box::new(ResourceError::Memory(error));
                    endpoint.link.stall(Start { posted, ..start });
                    return self.break_off(index, CloseReason::Resources(error));
                }
            },
        };
        let (Some(work), Some(qp)) = (endpoint.link.take_slot(), &mut endpoint.qp) else { return };
        let remote = start.offer.remote(start.len);
        let request = match calc {
            None => qp.read(memory, remote),
            Some(calc) => qp.read_reduce(memory, remote, calc),
        };
        let id = wr_id(Job::Read, endpoint.id, work.number);
        match request.range(0..len).id(id).signaled().post() {
            Ok(()) => {
                let staged = staged.map(|posted| posted.memory);
                endpoint.reads.push_back(OneSided::Pull(Reading { key: start.key, staged }));
            }
            Err(rejected) => self.pull_refused(index, &start, rejected.into_parts()),
        }
    }

    /// The device does not take the memory of a receive: the receive fails, the message goes to the application.
    #[cold]
    fn pull_refused(&mut self, index: usize, start: &Start<Target>, refused: (PostError, Local)) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (error, memory) = refused;
        match endpoint.link.unmatch(start.key, start.offer) {
            Some(op) => {
                let (op, ep) = (OpId(op), endpoint.id);
                self.ready.push_back(Event::Failed { op, ep, error: error.into(), returned: Returned::Memory(memory) });
            }
            None => self.break_off(index, CloseReason::Resources(Box::new(error.into()))),
        }
    }

    /// A READ completed.
    pub(super) fn read_done(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let reading = match endpoint.reads.pop_front() {
            Some(OneSided::Pull(reading)) => reading,
            Some(OneSided::Get(op)) => return self.ready.push_back(Event::Got { op, ep, memory }),
            Some(OneSided::Put(op)) => return self.ready.push_back(Event::Put { op, ep, memory }),
            None => return,
        };
        let Some(Pulled { op, tag, len, .. }) = endpoint.link.pulled(reading.key) else { return };
        self.counters.rendezvous_received += 1;
        let len = len as usize;
        let tag = Tag(tag);
        self.ready.push_back(match (op, reading.staged, memory) {
            (Some(op), Some(target), Local::Slab(slab)) => {
                let posted = Posted { op, tag: tag.0, fit: target.fit(), memory: target };
                let event = fill(ep, tag.0, posted, &slab[..len]);
                self.pool.give_slab(slab);
                event
            }
            (None, _, Local::Slab(slab)) => {
                let message = Message::new(&slab, 0..len);
                self.pool.lend(slab);
                Event::Received { ep, tag, message }
            }
            (op, _, memory) => Event::ReceivedInto { op: OpId(op.unwrap_or_default()), ep, tag, memory, len },
        });
        self.release_held(index);
    }

    /// Hands out messages that waited behind another of their tag.
    fn release_held(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        while let Some(held) = endpoint.link.next_held() {
            let tag = Tag(held.tag);
            self.ready.push_back(match held.posted {
                Some(posted) => fill(ep, held.tag, posted, &held.body),
                None => Event::Received { ep, tag, message: held.body },
            });
        }
    }
}
