//! The commands that post work and take completions.

use std::time::Duration;

use qpair_verbs::calc::Calc;
use qpair_verbs::{
    Completion, CompletionQueue, CqError, Local, ProtectionDomain, Qpn, QueuePair, Rejected, RemoteSlice, SendRequest,
    WcOpcode, WcStatus, WorkCompletion,
};

use super::exposed::Exposed;
use super::machine::{Answer, Machine, Stage, answer, kind, text};
use super::{Command, Content, Done, HandleId, LIMIT, Mem, Op, QpId, Refused, SrqId, Work};

impl Machine {
    pub(super) fn run_posting(&mut self, command: Command) -> Answer {
        match command {
            Command::NewSrq { depth } => {
                self.srqs.push(self.domains[0].create_srq(depth).map_err(text)?);
                answer(SrqId(self.srqs.len() - 1))
            }
            Command::SrqPost { srq, mem, wr_id } => {
                let local = self.local(&self.domains[0], &mem)?;
                answer(self.srqs[srq.0].post(local, wr_id).map_err(refused))
            }
            Command::SrqLimit { srq, limit } => {
                self.srqs[srq.0].arm_limit(limit);
                answer(())
            }
            Command::SrqAvailable { srq } => answer(self.srqs[srq.0].available()),
            Command::PostRecv { qp, mem, wr_id } => self.post_recv(qp, &mem, wr_id),
            Command::PostSend { qp, work } => self.post_send(qp, work),
            Command::Completion { cq, limit } => {
                let is_datagram = |qpn| self.qps.iter().any(|qp| qp.stage.is_datagram(qpn));
                answer(completion(&mut self.cqs[cq.0].queue, limit, is_datagram)?)
            }
            Command::Repost { qp, cq, limit } => {
                let Stage::Connected(qp) = &mut self.qps[qp.0].stage else { return Err("not connected".to_owned()) };
                answer(repost(&mut self.cqs[cq.0].queue, limit, qp)?)
            }
            Command::Drain { cq, count } => {
                let is_datagram = |qpn| self.qps.iter().any(|qp| qp.stage.is_datagram(qpn));
                let queue = &mut self.cqs[cq.0].queue;
                let mut take =
                    || completion(queue, LIMIT.as_millis() as u64, is_datagram)?.ok_or("no completion".to_owned());
                answer((0..count).map(|_| take()).collect::<Result<Vec<_>, _>>()?)
            }
            Command::AddMany { qp, remote, count } => self.add_many(qp, remote, count),
            Command::Stream { qp, remote, sends } => self.stream(qp, remote, sends),
            Command::StreamTo { qp, to, len } => self.stream_to(qp, to, len),
            other => Err(format!("{other:?} does not concern posting")),
        }
    }

    /// The memory that `mem` describes.
    fn local(&self, pd: &ProtectionDomain, mem: &Mem) -> Result<Local, String> {
        Ok(match mem {
            Mem::None | Mem::Inline { .. } => Local::None,
            Mem::Buffer(piece) => piece.make_local(pd)?,
            Mem::Slab(piece) => piece.make(pd)?.into_slab().into(),
            Mem::List(list) => list.iter().map(|piece| piece.make(pd)).collect::<Result<Vec<_>, _>>()?.into(),
            Mem::Region { region, start, end } => self.region(*region)?.local(*start..*end).into(),
        })
    }

    fn post_recv(&mut self, QpId(qp): QpId, mem: &Mem, wr_id: u64) -> Answer {
        let local = self.local(&self.domains[self.qps[qp].domain.0], mem)?;
        let request = match &mut self.qps[qp].stage {
            Stage::Prepared(qp) => qp.recv(local),
            Stage::Connected(qp) => qp.recv(local),
            Stage::Datagram(qp) => qp.recv(local),
            Stage::Ready(_) | Stage::Gone => return Err("nothing can be posted there".to_owned()),
        };
        answer(request.id(wr_id).post().map_err(refused))
    }

    fn post_send(&mut self, QpId(qp): QpId, work: Work) -> Answer {
        let local = self.local(&self.domains[self.qps[qp].domain.0], &work.mem)?;
        let inline = match &work.mem {
            Mem::Inline { len, fill } => Some(fill.bytes(*len)),
            _ => None,
        };
        let request = match &mut self.qps[qp].stage {
            Stage::Connected(qp) => match &work.op {
                Op::Bind { window, region, start, end, access } => {
                    let window = self.windows[window.0].as_ref().ok_or("the window was dropped")?;
                    let region = self.regions[region.0].as_ref().ok_or("the region was revoked")?;
                    match region {
                        Exposed::Host(region) => qp.bind(window, region, *start..*end, *access),
                        Exposed::Gpu(region) => qp.bind(window, region, *start..*end, *access),
                    }
                }
                op => connected(qp, op, local, inline.as_deref())?,
            },
            Stage::Datagram(qp) => match &work.op {
                Op::Send { to: Some(HandleId(to)), .. } => match &inline {
                    Some(data) => qp.send_inline(data, &self.handles[*to]),
                    None => qp.send(local, &self.handles[*to]),
                },
                other => return Err(format!("datagram queue pairs have no {other:?}")),
            },
            _ => return Err("nothing can be sent there".to_owned()),
        };
        answer(refined(request, &work).post().map_err(refused))
    }

    fn add_many(&mut self, QpId(qp): QpId, remote: RemoteSlice, count: u32) -> Answer {
        let mut word = self.domains[self.qps[qp].domain.0].alloc(8).map_err(text)?;
        let Stage::Connected(connected) = &mut self.qps[qp].stage else { return Err("not connected".to_owned()) };
        let mut sum = 0;
        for _ in 0..count {
            connected.fetch_add(word, remote, 1).signaled().post().map_err(text)?;
            let done = self.cqs[0].queue.wait_for(LIMIT).map_err(text)?;
            done.ok().map_err(text)?;
            word = done.into_buffer().map_err(text)?;
            sum += u64::from_ne_bytes(word[..].try_into().map_err(text)?);
        }
        answer(sum)
    }

    /// Keeps WRITEs and SENDs of several sizes under way until one of them fails.
    fn stream(&mut self, QpId(qp): QpId, remote: RemoteSlice, sends: bool) -> Answer {
        let pd = &self.domains[self.qps[qp].domain.0];
        let Stage::Connected(connected) = &mut self.qps[qp].stage else { return Err("not connected".to_owned()) };
        let queue = &mut self.cqs[0].queue;
        for turn in 0.. {
            let len = [8, 200, 4096, remote.len as usize][turn % 4].min(remote.len as usize);
            let mut buffer = pd.alloc(len).map_err(text)?;
            buffer.fill(turn as u8);
            let request = match turn % 3 {
                0 if sends => connected.send(buffer),
                _ => connected.write(buffer, remote.slice(0..len as u64)),
            };
            request.signaled().post().map_err(text)?;
            if turn >= 8 {
                let done = queue.wait_for(LIMIT).map_err(text)?;
                if let Err(error) = done.ok() {
                    return answer(error.status.to_string());
                }
            }
        }
        unreachable!("the stream is without end")
    }

    fn stream_to(&mut self, QpId(qp): QpId, HandleId(to): HandleId, len: usize) -> Answer {
        let pd = &self.domains[self.qps[qp].domain.0];
        let Stage::Datagram(datagram) = &mut self.qps[qp].stage else { return Err("no datagrams".to_owned()) };
        let queue = &mut self.cqs[0].queue;
        loop {
            datagram.send(pd.alloc(len).map_err(text)?, &self.handles[to]).signaled().post().map_err(text)?;
            queue.wait_for(LIMIT).map_err(text)?.ok().map_err(text)?;
        }
    }
}

fn connected<'a>(
    qp: &'a mut QueuePair,
    op: &Op,
    local: Local,
    inline: Option<&'a [u8]>,
) -> Result<SendRequest<'a>, String> {
    Ok(match (*op).clone() {
        Op::Send { invalidate, to: None } => {
            let request = match inline {
                Some(data) => qp.send_inline(data),
                None => qp.send(local),
            };
            match invalidate {
                Some(rkey) => request.invalidating(rkey),
                None => request,
            }
        }
        Op::Write(remote) => match inline {
            Some(data) => qp.write_inline(data, remote),
            None => qp.write(local, remote),
        },
        Op::Read(remote) => qp.read(local, remote),
        Op::ReadReduce(remote, data_type, op) => {
            let calc = Calc::new(data_type, op).expect("an operation of that type");
            qp.read_reduce(local, remote, calc)
        }
        Op::CompareSwap { remote, compare, swap } => qp.compare_swap(local, remote, compare, swap),
        Op::FetchAdd { remote, add } => qp.fetch_add(local, remote, add),
        Op::Invalidate(rkey) => qp.invalidate(rkey),
        Op::Send { to: Some(_), .. } | Op::Bind { .. } => {
            return Err("not for connected queue pairs".to_owned());
        }
    })
}

fn refined<'a>(mut request: SendRequest<'a>, work: &Work) -> SendRequest<'a> {
    request = request.id(work.wr_id);
    if let Some(imm) = work.imm {
        request = request.imm(imm);
    }
    if let Some((start, end)) = work.range {
        request = request.range(start..end);
    }
    if work.signaled {
        request = request.signaled();
    }
    if work.solicited {
        request = request.solicited();
    }
    if work.fenced {
        request = request.fenced();
    }
    request
}

fn refused(rejected: Rejected) -> Refused {
    let (error, memory) = rejected.into_parts();
    Refused { kind: kind(&error), retryable: error.is_retryable(), memory_len: memory.len() }
}

/// The next completion within `limit`.
fn next(queue: &mut CompletionQueue, limit: u64) -> Result<Option<Completion<'_>>, String> {
    let next = match limit {
        0 => queue.poll(),
        _ => queue.wait_for(Duration::from_millis(limit)).map(Some),
    };
    match next {
        Err(CqError::TimedOut(_)) => Ok(None),
        next => next.map_err(text),
    }
}

/// Reads the next message in place, and posts its receive again.
fn repost(queue: &mut CompletionQueue, limit: u64, qp: &mut QueuePair) -> Result<Option<Done>, String> {
    let Some(completion) = next(queue, limit)? else { return Ok(None) };
    let message = completion.message().map(<[u8]>::to_vec);
    let form = if message.is_some() { "in place" } else { "no message" };
    let memory = Content::found(form.to_owned(), &message.unwrap_or_default(), &[]);
    let done = done(completion.values(), memory, Vec::new());
    qp.repost(completion).map_err(text)?;
    Ok(Some(done))
}

fn completion(
    queue: &mut CompletionQueue,
    limit: u64,
    is_datagram: impl Fn(Qpn) -> bool,
) -> Result<Option<Done>, String> {
    let Some(mut completion) = next(queue, limit)? else { return Ok(None) };
    let retired = std::iter::from_fn(|| completion.next_retired()).map(|memory| Content::of(memory, 0, None)).collect();
    let wc = completion.values();
    // Of a receive the bytes of the message count; of other memory, all.
    let received = wc.opcode.is_receive() && wc.status == WcStatus::SUCCESS;
    let skip = if received && is_datagram(wc.qpn) { qpair_verbs::GRH_BYTES } else { 0 };
    let len = match wc.opcode {
        WcOpcode::RECV_RDMA_WITH_IMM => Some(0), // the bytes went elsewhere
        opcode => opcode.is_receive().then_some(wc.byte_len as usize),
    };
    Ok(Some(done(wc, Content::of(completion.into_memory(), skip, len), retired)))
}

fn done(wc: WorkCompletion, memory: Content, retired: Vec<Content>) -> Done {
    Done {
        wr_id: wc.wr_id,
        status: wc.status.0,
        opcode: wc.opcode.0,
        qpn: wc.qpn,
        byte_len: wc.byte_len,
        imm: wc.imm,
        invalidated: wc.invalidated,
        src_qpn: wc.src_qpn,
        memory,
        retired,
    }
}

impl Stage {
    /// Whether it is the datagram queue pair of that number.
    fn is_datagram(&self, qpn: Qpn) -> bool {
        matches!(self, Stage::Datagram(qp) if qp.number() == qpn)
    }
}
