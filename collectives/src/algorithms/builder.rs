//! Writes one rank's program. What a step waits for follows from what it reads and writes, so that an algorithm only says
//! what goes where, in order.

use crate::pieces::Pieces;
use crate::plan::{Buffers, Program, Slice, StepKind};
use crate::touched::{Reads, Touched};

/// A rank's program in the making.
pub(super) struct Builder {
    program: Program,
    buffers: Buffers<Pieces<Touched>>,
    reads: Reads,
    /// Elements of a segment.
    pub(super) segment: u64,
    finish: bool,
    /// What the next step waits for beside.
    after: Vec<u32>,
}

impl Builder {
    pub(super) fn new(segment: u64, finish: bool) -> Self {
        Self {
            program: Program::new(),
            buffers: Buffers::all(|| Pieces::new(u64::MAX, Touched::NEVER)),
            reads: Reads::default(),
            segment: segment.max(1),
            finish,
            after: Vec::new(),
        }
    }

    pub(super) fn into_program(mut self) -> Program {
        self.program.shrink();
        self.program
    }

    /// Sends `src`. Nothing is done where there are no elements; so with all that follow.
    pub(super) fn send(&mut self, peer: u32, src: Slice) -> Option<u32> {
        self.push(StepKind::Send { peer, src })
    }

    pub(super) fn recv(&mut self, peer: u32, dst: Slice) -> Option<u32> {
        self.push(StepKind::Recv { peer, dst })
    }

    pub(super) fn recv_reduce(&mut self, peer: u32, dst: Slice) -> Option<u32> {
        self.push(StepKind::RecvReduce { peer, dst })
    }

    /// Copies, unless the two are one.
    pub(super) fn copy(&mut self, src: Slice, dst: Slice) -> Option<u32> {
        if src == dst { None } else { self.push(StepKind::Copy { src, dst }) }
    }

    pub(super) fn reduce(&mut self, src: Slice, dst: Slice) -> Option<u32> {
        self.push(StepKind::Reduce { src, dst })
    }

    /// All contributions are in `dst`.
    pub(super) fn finish(&mut self, dst: Slice) {
        if self.finish {
            self.push(StepKind::Finish { dst });
        }
    }

    /// Sends `src`, also where there are no elements: the other side is to hear that there are none.
    pub(super) fn send_always(&mut self, peer: u32, src: Slice) -> u32 {
        if src.len > 0 { self.append(StepKind::Send { peer, src }) } else { self.signal(peer) }
    }

    /// Receives what is sent [so](Self::send_always).
    pub(super) fn recv_always(&mut self, peer: u32, dst: Slice) -> u32 {
        if dst.len > 0 { self.append(StepKind::Recv { peer, dst }) } else { self.hear(peer) }
    }

    /// Sends a signal, which is a message without elements.
    pub(super) fn signal(&mut self, peer: u32) -> u32 {
        self.append(StepKind::Send { peer, src: Slice::EMPTY })
    }

    /// Waits for a signal.
    pub(super) fn hear(&mut self, peer: u32) -> u32 {
        self.append(StepKind::Recv { peer, dst: Slice::EMPTY })
    }

    /// Lets the next step wait for that one, if it is one.
    pub(super) fn after(&mut self, step: impl IntoIterator<Item = u32>) {
        self.after.extend(step);
    }

    /// How many segments `slice` has.
    pub(super) fn segments(&self, slice: Slice) -> u64 {
        slice.len.div_ceil(self.segment)
    }

    /// A segment of `slice`; no elements past the last.
    pub(super) fn part(&self, slice: Slice, number: u64) -> Slice {
        let at = number.saturating_mul(self.segment).min(slice.len);
        Slice { offset: slice.offset + at, len: self.segment.min(slice.len - at), ..slice }
    }

    fn push(&mut self, kind: StepKind) -> Option<u32> {
        if kind.elements() > 0 {
            Some(self.append(kind))
        } else {
            self.after.clear();
            None
        }
    }

    fn append(&mut self, kind: StepKind) -> u32 {
        let step = self.program.len() as u32;
        let mut deps = std::mem::take(&mut self.after);
        if let Some(src) = kind.src() {
            self.read(src, step, &mut deps);
        }
        if let Some(dst) = kind.dst() {
            self.write(dst, step, &mut deps);
        }
        self.program.append(kind, &mut deps);
        deps.clear();
        self.after = deps;
        step
    }

    fn read(&mut self, slice: Slice, step: u32, deps: &mut Vec<u32>) {
        let (pieces, reads) = (&mut self.buffers[slice.buffer], &mut self.reads);
        let visited: Result<(), Never> =
            pieces.visit(slice.offset, slice.offset.saturating_add(slice.len), |_, _, touched| {
                deps.extend(touched.writer());
                touched.read(step, reads);
                Ok(())
            });
        visited.unwrap_or_else(|never| match never {});
    }

    fn write(&mut self, slice: Slice, step: u32, deps: &mut Vec<u32>) {
        let end = slice.offset.saturating_add(slice.len);
        let (pieces, reads) = (&mut self.buffers[slice.buffer], &self.reads);
        let read: Result<(), Never> = pieces.read(slice.offset, end, |_, _, touched| {
            // Those that read it wait for its writer.
            if touched.is_read() {
                deps.extend(touched.readers(reads).filter(|&reader| reader != step));
            } else {
                deps.extend(touched.writer());
            }
            Ok(())
        });
        read.unwrap_or_else(|never| match never {});
        pieces.set(slice.offset, end, Touched::by(step));
    }
}

enum Never {}
