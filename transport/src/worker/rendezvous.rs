//! Rendezvous, receiver's side: payloads are read straight into the memory of their receive.

use qpair_verbs::{Local, PostError};

use super::Worker;
use super::endpoint::{Combining, OneSided, Reach, Reading};
use super::error::ResourceError;
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId, Tag};
use super::message::Message;
use super::receive::fill;
use super::target::Target;
use crate::engine::{Posted, Pulled, Start};

impl Worker {
    /// Reads a payload.
    pub(super) fn pull(&mut self, index: usize, mut start: Start<Target>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (target, staged, pooled) = match start.posted.take() {
            Some(Posted { staged: false, memory, .. }) => (memory, None, 0),
            posted => match self.pool.slab(start.len as usize) {
                Ok(Some(slab)) => {
                    let pooled = slab.len();
                    let target = Target { memory: slab.into(), calc: None };
                    (target, posted.map(|posted| posted.memory), pooled)
                }
                Ok(None) => return endpoint.link.stall(Start { posted, ..start }),
                Err(error) => {
                    endpoint.link.stall(Start { posted, ..start });
                    return self.check(index, Err(ResourceError::Memory(error)));
                }
            },
        };
        match endpoint.reach(Reach::Read(target.calc), target.memory, start.offer.remote(start.len)) {
            Ok(()) => endpoint.reads.push_back(OneSided::Pull(Reading { key: start.key, staged, pooled })),
            Err((error, memory)) => {
                let memory = self.unstage(memory, staged, pooled);
                self.pull_refused(index, &start, error, memory);
            }
        }
    }

    /// The memory of the receive, which a slab of the pool may stand for: that goes back to the pool.
    pub(super) fn unstage(&mut self, memory: Local, staged: Option<Target>, pooled: usize) -> Local {
        match memory {
            Local::Slab(slab) if pooled > 0 => {
                self.pool.give_slab(slab);
                staged.map_or(Local::None, |target| target.memory)
            }
            memory => memory,
        }
    }

    /// The device does not take the memory of a receive: the receive fails, the message goes to the application, or waits
    /// for another receive.
    #[cold]
    fn pull_refused(&mut self, index: usize, start: &Start<Target>, error: PostError, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let Some((op, waits)) = endpoint.link.unmatch(start.key, start.offer) else {
            return self.check(index, Err(error.into()));
        };
        let returned = Returned::Memory(memory);
        self.ready.push_back(Event::Failed { op: OpId(op), ep, error: error.into(), returned });
        self.ready.extend(waits.map(|(tag, len)| Event::Offered { ep, tag: Tag(tag), len }));
    }

    /// A READ, WRITE or atomic completed.
    pub(super) fn read_done(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let Reading { key, staged, pooled } = match endpoint.reads.pop_front() {
            Some(OneSided::Pull(reading)) => reading,
            Some(OneSided::Get(op)) => return self.ready.push_back(Event::Got { op, ep, memory }),
            Some(OneSided::Put(op)) => return self.ready.push_back(Event::Put { op, ep, memory }),
            Some(OneSided::Fetch(fetching)) => return self.fetched(ep, &fetching, memory),
            Some(OneSided::Combine(combining)) => return self.combine(ep, combining, memory),
            None => return,
        };
        let Some(Pulled { op, tag, len, .. }) = endpoint.link.pulled(key) else {
            // The connection ended meanwhile, and with it the receive.
            self.unstage(memory, staged, pooled);
            return;
        };
        self.counters.rendezvous_received += 1;
        let len = len as usize;
        let event = match (op, staged, memory) {
            (Some(op), Some(target), Local::Slab(slab)) => {
                let event = fill(OpId(op), ep, Tag(tag), target, &slab[..len]);
                self.pool.give_slab(slab);
                event
            }
            (Some(op), _, memory) => Event::ReceivedInto { op: OpId(op), ep, tag: Tag(tag), memory, len },
            (None, _, Local::Slab(slab)) => {
                let message = Message::new(&slab, 0..len);
                self.pool.lend(slab);
                Event::Received { ep, tag: Tag(tag), message }
            }
            // Without a receive, a payload is read into a slab.
            (None, ..) => return,
        };
        self.ready.push_back(event);
        self.release_held(index);
    }

    /// Bytes that were read are combined with the application's memory.
    fn combine(&mut self, ep: EndpointId, combining: Combining, read: Local) {
        let Combining { op, mut target, len, .. } = combining;
        let Local::Slab(slab) = read else { return };
        let combined = target.put(&slab[..len]);
        self.pool.give_slab(slab);
        self.ready.push_back(match combined {
            Ok(()) => Event::Got { op, ep, memory: target.memory },
            Err(error) => Event::Failed { op, ep, error, returned: Returned::Memory(target.memory) },
        });
    }

    /// Hands out messages that waited behind another of their tag.
    fn release_held(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        while let Some(held) = endpoint.link.next_held() {
            let tag = Tag(held.tag);
            self.ready.push_back(match held.posted {
                Some(posted) => fill(OpId(posted.op), ep, tag, posted.memory, &held.body),
                None => Event::Received { ep, tag, message: held.body },
            });
        }
    }
}
