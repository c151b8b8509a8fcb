//! What the peer may not have goes out again over another queue pair, in the order in which it went out before.

use std::cmp::Reverse;
use std::collections::VecDeque;

use qpair_verbs::Local;

use crate::engine::{Again, HEADER_BYTES, Header, HeaderView, RemoteMemory, Unconfirmed};
use crate::worker::Worker;
use crate::worker::endpoint::{InFlight, OneSided, Reach, Stage, Unposted};
use crate::worker::error::ResourceError;
use crate::worker::ops::{has_memory, post};
use crate::worker::work_id::{Job, wr_id};

/// What goes out again over another queue pair.
#[derive(Debug, Default)]
pub(in crate::worker) struct Repeats {
    /// One-sided work that came back undone.
    pub(in crate::worker) lost: Vec<(InFlight, Local)>,
    /// In the order in which it goes out.
    pub(super) due: VecDeque<Repeat>,
}

#[derive(Debug)]
pub(super) enum Repeat {
    /// A message, with the header that it had.
    Message(Box<[u8]>),
    /// A write of a copy.
    Write(RemoteMemory, Box<[u8]>),
    /// One-sided work with memory of its own.
    Work(Box<InFlight>, Local),
}

impl Repeats {
    /// One-sided work among it.
    pub(in crate::worker) fn works(&mut self) -> impl Iterator<Item = &mut InFlight> + '_ {
        let due = self.due.iter_mut().filter_map(|repeat| match repeat {
            Repeat::Work(work, _) => Some(&mut **work),
            _ => None,
        });
        self.lost.iter_mut().map(|(work, _)| work).chain(due)
    }

    /// The connection ends: takes out the one-sided work.
    pub(in crate::worker) fn abort(&mut self) -> Vec<(InFlight, Local)> {
        let mut works = std::mem::take(&mut self.lost);
        works.extend(self.due.drain(..).filter_map(|repeat| match repeat {
            Repeat::Work(work, memory) => Some((*work, memory)),
            _ => None,
        }));
        works
    }

    /// The queue pair failed again: what had gone out comes before what had not.
    /// `posted`: requests so far, so that their numbers tell how long ago they were.
    pub(super) fn put_first(&mut self, unconfirmed: Vec<Unconfirmed>, works: Vec<(InFlight, Local)>, posted: u32) {
        let repeats = unconfirmed.into_iter().map(|Unconfirmed { number, what }| match what {
            Again::Message(bytes) => (number, Repeat::Message(bytes)),
            Again::Write(remote, data) => (number, Repeat::Write(remote, data)),
        });
        let works = works.into_iter().map(|(work, memory)| (work.order, Repeat::Work(Box::new(work), memory)));
        let mut first: Vec<_> = repeats.chain(works).collect();
        first.sort_by_key(|(number, _)| Reverse(posted.wrapping_sub(*number)));
        let rest = std::mem::replace(&mut self.due, first.into_iter().map(|(_, repeat)| repeat).collect());
        self.due.extend(rest);
    }
}

impl Worker {
    /// Sends again what there is room for. True once all is done, and the connection goes on.
    #[cold]
    pub(in crate::worker) fn repeat(&mut self, index: usize) -> bool {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return false };
            if !matches!(endpoint.stage, Stage::Up) || endpoint.broken.is_some() {
                return false;
            }
            // What stood behind a read may have waited for it.
            let reads = matches!(endpoint.repeats.due.front(), Some(Repeat::Work(work, _)) if work.is_read());
            if !reads && !endpoint.reads.is_empty() {
                return false;
            }
            let Some(repeat) = endpoint.repeats.due.pop_front() else {
                endpoint.link.go_on();
                endpoint.up = true;
                if !endpoint.link.is_proven() {
                    // This shows whether it works, and that the first has come: nothing that went may have asked for a completion.
                    // If there is no room for it, something has.
                    self.post_probe(index);
                }
                return true;
            };
            match self.repeat_one(index, repeat) {
                Ok(None) => {
                    if let Some(endpoint) = self.endpoints.at(index) {
                        endpoint.link.went_again();
                    }
                }
                Ok(Some(repeat)) => {
                    if let Some(endpoint) = self.endpoints.at(index) {
                        endpoint.repeats.due.push_front(repeat);
                    }
                    return false;
                }
                Err(error) => {
                    self.check(index, Err(error));
                    return false;
                }
            }
        }
    }

    /// Gives it back if there is no room for it.
    fn repeat_one(&mut self, index: usize, repeat: Repeat) -> Result<Option<Repeat>, ResourceError> {
        let Some(endpoint) = self.endpoints.at(index) else { return Ok(None) };
        match repeat {
            Repeat::Message(bytes) => {
                // It went out with it.
                let Ok(view) = HeaderView::new_checked(&bytes) else { return Ok(None) };
                let (scratch, pool, inline) = (&mut self.frame, &mut self.pool, self.max_inline);
                if !has_memory(endpoint, pool, inline, bytes.len() - HEADER_BYTES).map_err(ResourceError::Memory)? {
                    return Ok(Some(Repeat::Message(bytes)));
                }
                let Some(frame) = endpoint.link.repeat(&Header::parse(&view)) else {
                    return Ok(Some(Repeat::Message(bytes)));
                };
                post(endpoint, scratch, pool, inline, &mut self.datagrams, frame, &bytes[HEADER_BYTES..])?;
            }
            Repeat::Write(remote, data) => {
                let name = endpoint.name(&remote)?;
                // A device may take less with a request than the one before.
                let body = data.len().saturating_sub(HEADER_BYTES);
                if !has_memory(endpoint, &mut self.pool, self.max_inline, body).map_err(ResourceError::Memory)? {
                    return Ok(Some(Repeat::Write(remote, data)));
                }
                let (Some(qp), Some(work)) = (&mut endpoint.qp, endpoint.link.take_slot()) else {
                    return Ok(Some(Repeat::Write(remote, data)));
                };
                let id = wr_id(Job::Send, endpoint.id, work.number);
                if data.len() <= self.max_inline {
                    qp.write_inline(&data, name).id(id).signaled().post().map_err(|rejected| rejected.error)?;
                } else {
                    let mut buffer = self.pool.message(data.len())?;
                    buffer[..data.len()].copy_from_slice(&data);
                    let (len, bytes) = (data.len(), buffer.len());
                    let id = wr_id(Job::SendBuffer, endpoint.id, work.number);
                    if let Err(rejected) = qp.write(buffer, name).range(0..len).id(id).signaled().post() {
                        let (error, memory) = rejected.into_parts();
                        if let Local::Buffer(buffer) = memory {
                            self.pool.give_message(buffer);
                        }
                        return Err(error.into());
                    }
                    endpoint.copied += bytes;
                }
                endpoint.link.keep_write(work, remote, &data);
            }
            Repeat::Work(work, memory) => {
                if !endpoint.link.has_slot() {
                    return Ok(Some(Repeat::Work(work, memory)));
                }
                return self.repeat_work(index, *work, memory).map(|()| None);
            }
        }
        Ok(None)
    }

    fn repeat_work(&mut self, index: usize, work: InFlight, memory: Local) -> Result<(), ResourceError> {
        let Some(endpoint) = self.endpoints.at(index) else { return Ok(()) };
        let InFlight { number, awaited, len, what, .. } = work;
        let (reach, remote) = match &what {
            OneSided::Get { remote, .. } | OneSided::Combine { remote, .. } => (Reach::Read(None), *remote),
            OneSided::Put { remote, .. } => (Reach::Write, *remote),
            OneSided::Pull(_) | OneSided::Fetch { .. } => {
                let OneSided::Pull(reading) = what else { return Ok(()) };
                return match endpoint.read_part(reading, awaited, memory) {
                    Ok(()) => Ok(()),
                    // Its receive fails, and nothing else.
                    Err(unread) if matches!(unread.error, Unposted::NoKey(_)) => {
                        self.read_refused(index, *unread, awaited);
                        Ok(())
                    }
                    Err(unread) => {
                        self.unread(index, unread.reading, awaited, unread.memory);
                        Err(unread.error.into())
                    }
                };
            }
        };
        match endpoint.reach(reach, memory, &remote) {
            Ok(order) => {
                endpoint.reads.push_back(InFlight { number, order, awaited, len, what });
                Ok(())
            }
            // It fails, and nothing else; but for a write, which what went after it counts on.
            Err((Unposted::NoKey(error), memory)) if !matches!(what, OneSided::Put { .. }) => {
                let order = endpoint.link.posted();
                self.work_lost(index, InFlight { number, order, awaited, len, what }, memory, error.into());
                Ok(())
            }
            Err((error, memory)) => {
                let order = endpoint.link.posted();
                endpoint.repeats.lost.push((InFlight { number, order, awaited, len, what }, memory));
                Err(error.into())
            }
        }
    }
}
