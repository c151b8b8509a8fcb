//! The state of the operation that runs: which steps wait, which are under way, which are done.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use qpair_transport::OpId;
use qpair_verbs::{Gpu, ProtectionDomain};

use super::block::Block;
use super::compile::Compiled;
use super::engine::Runs;
use super::memory::Memory;
use super::numbers::Number;
use super::reach::Reach;
use super::staged::Staged;
use super::stash::Contents;
use super::tag::Kind;
use super::turns::Turn;
use super::wait::TimeLimit;
use crate::error::CollectiveError;
use crate::plan::Buffer as Named;

/// The state of the operation that runs. It is used again for the next one, so that nothing is allocated once it has
/// served the largest plan.
#[derive(Debug)]
pub(crate) struct Run {
    /// What it is known by to who started it.
    pub(crate) id: u64,
    /// What is to be given back for the input, where a copy of that is worked on.
    pub(crate) own_input: Option<Block>,
    /// How long it may take, if it has a limit of its own.
    pub(crate) limit: Option<TimeLimit>,
    /// Which plan it runs, in the cache.
    pub(crate) plan: usize,
    /// Whether its peers are connected and its steps are under way.
    pub(super) active: bool,
    /// The connections at the last look at whether all are there that it needs.
    pub(super) looked: u64,
    /// By slot: the number of the operation with that peer.
    pub(super) numbers: Vec<Number>,
    /// By step: how many steps it still waits for.
    pub(super) counts: Vec<u32>,
    pub(super) states: Vec<State>,
    /// By step: the message for it, if that came first. Empty between operations.
    pub(super) messages: Vec<Option<Contents>>,
    /// By slot: how many messages came or were offered.
    pub(super) arrived: Vec<u32>,
    /// By slot: where the peer's memory is, once it has begun.
    pub(super) begun: Vec<Option<Reach>>,
    /// By slot: how often this rank still reads or writes the peer's memory.
    pub(super) reaches: Vec<u32>,
    /// By slot: whether the peer still reads or writes this rank's memory.
    pub(super) reached: Vec<bool>,
    /// Steps not complete, and peers that are not done with this rank's memory.
    pub(super) open: usize,
    /// Steps that may start.
    pub(super) ready: VecDeque<u32>,
    /// By slot: whose turn it is of what is copied.
    pub(super) turns: Vec<Turn>,
    /// Sends that are [out of turn](State::OutOfTurn).
    pub(super) held_back: u32,
    /// What waits for room at the peer.
    pub(super) blocked: VecDeque<Word>,
    /// Reads and writes that may be done. The first in the program goes first, so that what was reduced is handed out
    /// while it is in the cache.
    pub(super) transfers: BinaryHeap<Reverse<u32>>,
    /// Reads and writes that the device does.
    pub(super) posted: VecDeque<Posted>,
    /// Of steps that are read or written in pieces: how many bytes are posted.
    pub(super) pieces: Vec<(u32, usize)>,
    /// The step that was prepared, from which byte on, and not posted yet.
    pub(super) prepared: Option<(u32, usize)>,
    /// Reads among them.
    pub(super) gets: u32,
    /// Messages that go by slots.
    pub(super) staged: Staged,
    pub(super) input: Memory,
    pub(super) data: Memory,
    pub(super) scratch: Memory,
    /// What is copied or combined within this rank, where peers may reach it meanwhile.
    pub(super) part: Box<[u8]>,
    /// Memory that former operations had as scratch, and as a copy of their input.
    kept: [Option<Block>; 2],
}

/// Memory that a run keeps from one operation to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Scratch,
    Input,
}

/// The memory of an operation.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) input: Memory,
    pub(crate) data: Memory,
    pub(crate) scratch: Memory,
    /// What was worked on instead of the input.
    pub(crate) copy: Memory,
}

/// Something to say to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) slot: u16,
    pub(super) kind: Kind,
    pub(super) message: u32,
    /// The step whose message it is, if it has contents.
    pub(super) step: Option<u32>,
}

/// A read or write that the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) op: OpId,
    pub(super) step: u32,
    /// Whether the step is done with it.
    pub(super) last: bool,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It may not start.
    Waiting,
    /// It may not start, and its message may be read, or is empty and has come.
    Offered,
    /// It may start once those long before it to the same peer have gone.
    OutOfTurn,
    /// It may not start, and its message was given away by the copy before it.
    Given,
    /// It has started, and waits for its peer.
    Started,
    /// It has started, and its read or write is to be posted, or is.
    Queued,
    /// It is done.
    Done,
}

impl Run {
    pub(crate) fn new() -> Self {
        Run {
            id: 0,
            own_input: None,
            limit: None,
            plan: 0,
            active: false,
            looked: 0,
            numbers: Vec::new(),
            counts: Vec::new(),
            states: Vec::new(),
            messages: Vec::new(),
            arrived: Vec::new(),
            begun: Vec::new(),
            reaches: Vec::new(),
            reached: Vec::new(),
            open: 0,
            ready: VecDeque::new(),
            turns: Vec::new(),
            held_back: 0,
            blocked: VecDeque::new(),
            transfers: BinaryHeap::new(),
            posted: VecDeque::new(),
            pieces: Vec::new(),
            prepared: None,
            gets: 0,
            staged: Staged::default(),
            input: Memory::None,
            data: Memory::None,
            scratch: Memory::None,
            part: vec![0; PART].into(),
            kept: [None, None],
        }
    }

    /// One of those whose operations have ended, or a new one: the one whose memory is just large enough, if there is one; in any
    /// case none whose memory is elsewhere, for which there will be operations again.
    #[inline]
    pub(crate) fn fitting(spare: &mut Runs, places: [Option<Option<Gpu>>; 2], scratch: usize) -> Box<Run> {
        let found = match &spare[..] {
            [one] if one.serves(places) => spare.pop(),
            _ => Self::fitting_among(spare, places, scratch),
        };
        found.unwrap_or_else(|| Box::new(Run::new()))
    }

    fn fitting_among(spare: &mut Runs, places: [Option<Option<Gpu>>; 2], scratch: usize) -> Option<Box<Run>> {
        let kept = |at: &usize| spare[*at].kept(Kept::Scratch);
        let mut here = (0..spare.len()).filter(|at| spare[*at].serves(places));
        let fitting = here.clone().filter(|at| kept(at) >= scratch).min_by_key(kept);
        let at = fitting.or_else(|| here.next_back())?;
        Some(spare.swap_remove(at))
    }

    /// Memory of at least `len` bytes of a GPU, or of the processor, which was kept or is new. A GPU's that was kept and does
    /// not serve goes to `spent`, for the caller to say when it is freed.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`].
    pub(crate) fn alloc(
        &mut self,
        which: Kept,
        (gpu, len): (Option<Gpu>, usize),
        (domain, spent): (&ProtectionDomain, &mut Vec<Block>),
    ) -> Result<Block, CollectiveError> {
        match self.kept[which as usize].take() {
            Some(block) if block.len() >= len && block.gpu() == gpu => return Ok(block),
            other => spent.extend(other.filter(|block| block.gpu().is_some())),
        }
        Ok(Block::alloc(gpu, len, domain)?)
    }

    /// Keeps memory for the operations to come.
    pub(crate) fn keep(&mut self, which: Kept, block: Option<Block>) {
        if block.is_some() {
            self.kept[which as usize] = block;
        }
    }

    /// Bytes that it keeps.
    pub(crate) fn kept(&self, which: Kept) -> usize {
        self.kept[which as usize].as_ref().map_or(0, Block::len)
    }

    /// Whether what it keeps is where an operation would have it, of each kind: of a GPU, or of the processor; nothing is said of
    /// kinds that it has no use for.
    pub(crate) fn serves(&self, places: [Option<Option<Gpu>>; 2]) -> bool {
        let mut kept = self.kept.iter().zip(places);
        kept.all(|(kept, place)| kept.as_ref().zip(place).is_none_or(|(block, gpu)| block.gpu() == gpu))
    }

    /// Whether it keeps more of the processor's memory than is kept for each of the operations that are under way together.
    pub(crate) fn keeps_large(&self) -> bool {
        self.kept.iter().flatten().any(|block| block.gpu().is_none() && block.len() > LARGE)
    }

    /// Gives up what it keeps of the processor's memory.
    pub(crate) fn let_go(&mut self) {
        for kept in &mut self.kept {
            drop(kept.take_if(|block| block.gpu().is_none()));
        }
    }

    /// Whether something waits for room: a message, a read or a write.
    pub(super) fn is_held_up(&self) -> bool {
        !self.blocked.is_empty() || !self.transfers.is_empty()
    }

    /// Whether its peers are connected and its steps are under way.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    #[inline]
    pub(super) fn has_posted(&self, op: OpId) -> bool {
        self.posted.iter().any(|posted| posted.op == op)
    }

    #[inline]
    pub(super) fn memory(&self, named: Named) -> &Memory {
        match named {
            Named::Input => &self.input,
            Named::Data => &self.data,
            Named::Scratch => &self.scratch,
        }
    }

    #[inline]
    pub(super) fn memory_mut(&mut self, named: Named) -> &mut Memory {
        self::named((&mut self.input, &mut self.data, &mut self.scratch), named)
    }

    /// The read or write of a step may be done.
    pub(super) fn queue(&mut self, number: u32) {
        self.states[number as usize] = State::Queued;
        self.transfers.push(Reverse(number));
    }

    /// Makes ready to run `plan` on `data`. What becomes of memory that was kept is as in [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is none for scratch, or memory can not be exposed; the data is kept.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        plan: &Compiled,
        (input, data): (Memory, Memory),
        scratch_on: Option<Gpu>,
        (domain, spent): (&ProtectionDomain, &mut Vec<Block>),
    ) -> Result<(), CollectiveError> {
        self.input = input;
        self.data = data;
        self.counts.clear();
        self.counts.extend_from_slice(plan.graph.dep_counts());
        self.states.clear();
        self.states.resize(plan.len(), State::Waiting);
        self.turns.clear();
        self.turns.resize(plan.peers.len(), Turn::default());
        self.held_back = 0;
        self.arrived.clear();
        self.arrived.resize(plan.peers.len(), 0);
        self.open = plan.len();
        self.looked = 0;
        if self.messages.len() < plan.len() {
            self.reserve(plan);
        }
        if plan.scratch > 0 {
            self.scratch = Memory::Plain(self.alloc(Kept::Scratch, (scratch_on, plan.scratch), (domain, spent))?);
        }
        if plan.large {
            if plan.staged {
                self.staged.reserve(plan.len(), plan.peers.len());
            } else {
                self.input.expose(domain)?;
                self.data.expose(domain)?;
                self.scratch.expose(domain)?;
            }
            self.gets = 0;
            self.begun.clear();
            self.begun.resize(plan.peers.len(), None);
            self.reaches.clear();
            self.reaches.extend(plan.peers.iter().map(|peer| peer.reaches));
            self.reached.clear();
            self.reached.extend(plan.peers.iter().map(|peer| peer.reached));
            self.open += plan.peers.iter().filter(|peer| peer.reached).count();
        }
        Ok(())
    }

    #[cold]
    fn reserve(&mut self, plan: &Compiled) {
        let len = plan.len();
        self.messages.resize_with(len, || None);
        self.ready.reserve(len);
        self.blocked.reserve(len + 2 * plan.peers.len());
        self.transfers.reserve(len);
        self.posted.reserve(len);
    }

    /// Ends the operation, and gives its memory.
    #[inline]
    pub(crate) fn finish(&mut self) -> Buffers {
        self.active = false;
        debug_assert!(self.staged.is_idle(), "an operation has ended, and slots are in use for it");
        self.take_memory()
    }

    #[inline]
    fn take_memory(&mut self) -> Buffers {
        let worked_on = std::mem::take(&mut self.input);
        let data = std::mem::take(&mut self.data);
        let scratch = std::mem::take(&mut self.scratch);
        match self.own_input.take() {
            Some(own) => Buffers { input: Memory::Plain(own), data, scratch, copy: worked_on },
            None => Buffers { input: worked_on, data, scratch, copy: Memory::None },
        }
    }

    /// Drops all that belongs to the operation but its memory, which it gives.
    pub(crate) fn abandon(&mut self) -> Buffers {
        self.active = false;
        self.messages.iter_mut().for_each(|message| *message = None);
        self.ready.clear();
        self.blocked.clear();
        self.transfers.clear();
        self.posted.clear();
        self.pieces.clear();
        self.prepared = None;
        self.staged.clear();
        self.take_memory()
    }
}

/// One of the buffers.
#[inline]
pub(super) fn named<'m>(
    (input, data, scratch): (&'m mut Memory, &'m mut Memory, &'m mut Memory),
    named: Named,
) -> &'m mut Memory {
    match named {
        Named::Input => input,
        Named::Data => data,
        Named::Scratch => scratch,
    }
}

/// Two different ones of the buffers: what is read, and what is written, which is never the input.
#[inline]
pub(super) fn apart<'m>(
    (input, data, scratch): (&'m mut Memory, &'m mut Memory, &'m mut Memory),
    from: Named,
    into: Named,
) -> (&'m Memory, &'m mut Memory) {
    match (from, into) {
        (Named::Input, Named::Data) => (input, data),
        (Named::Input, _) => (input, scratch),
        (Named::Scratch, _) => (scratch, data),
        (Named::Data, _) => (data, scratch),
    }
}

/// Bytes that stay in the first-level cache. A multiple of every element's size.
pub(super) const PART: usize = 8 << 10;

/// Bytes of the processor's memory that each of the operations under way together may keep for the next.
const LARGE: usize = 4 << 20;
