//! What an operation is given, and what comes back of it.

use std::time::Duration;

use crate::error::CollectiveError;
use qpair_verbs::{Gpu, GpuEvent};

use crate::execute::{Block, Grace, Key, Memory, TimeLimit};

/// An operation that was started to be waited for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

/// What a rank has for an operation, beside what all ranks say alike.
#[derive(Debug, Default)]
pub(super) struct Operands {
    /// What is given, where that stays as it is.
    pub(super) input: Memory,
    /// What the result is put into; in place, what is given too.
    pub(super) data: Memory,
    /// How long it may take, if it has a limit of its own.
    pub(super) limit: Option<TimeLimit>,
    /// What GPUs have to do before it begins.
    pub(super) after: Option<Box<Events>>,
}

/// Points in the work of streams, one at least: apart, since most operations have none, and take no room for them.
#[derive(Clone, Debug)]
pub(super) struct Events(pub(super) Vec<GpuEvent>);

/// How an operation ended, with its memory.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) input: Option<Block>,
    pub(super) data: Option<Block>,
    pub(super) result: Result<(), CollectiveError>,
}

/// Why the vector of a pre-multiplied sum was not multiplied.
#[derive(Debug)]
pub(super) enum NotScaled {
    /// Its type does not hold the factor: nothing was begun.
    Unsupported(CollectiveError),
    /// This rank failed, with the memory for the copy. The others may have begun.
    Failed(String, Option<Block>),
}

impl Operands {
    /// A vector that is given, if that stays as it is, and one for the result.
    #[inline]
    pub(super) fn new(input: Option<Block>, data: Option<Block>) -> Self {
        let plain = |memory| match memory {
            Some(block) => Memory::Plain(block),
            None => Memory::None,
        };
        Self { input: plain(input), data: plain(data), limit: None, after: None }
    }

    /// Gives it a time of its own, from now on.
    pub(super) fn within(self, limit: Option<Duration>) -> Self {
        Self { limit: limit.map(TimeLimit::new), ..self }
    }

    /// Has it begin after all those events.
    pub(super) fn after(self, after: Option<Box<Events>>) -> Self {
        Self { after, ..self }
    }

    /// Multiplies what this rank gives, for a pre-multiplied sum: a copy of it, which takes its place, where it is to stay as
    /// it is. Gives what is to be given back then.
    #[inline]
    pub(super) fn scale(
        &mut self,
        key: &Key,
        me: u32,
        alloc: impl FnOnce(Option<Gpu>, usize) -> Result<Block, CollectiveError>,
    ) -> Result<Option<Block>, NotScaled> {
        let by = key.op.and_then(|op| op.scale_before());
        let Some((op, (data_type, by))) = key.op.zip(key.data_type.zip(by)) else { return Ok(None) };
        if !op.supports(data_type) {
            return Err(NotScaled::Unsupported(CollectiveError::Unsupported { op, data_type }));
        }
        if key.spec.in_place {
            let (given, size) = (key.spec.contribution(me), data_type.size());
            let (offset, len) = (given.offset as usize * size, given.len as usize * size);
            return match self.data.plain_mut() {
                Some(block) => match block.scale(offset, len, data_type, by) {
                    Ok(()) => Ok(None),
                    Err(reason) => Err(NotScaled::Failed(reason, None)),
                },
                None => Ok(None), // of a vector without elements
            };
        }
        let Some(own) = std::mem::take(&mut self.input).into_plain(&mut Grace::new(None)) else { return Ok(None) };
        let mut copy = match alloc(own.gpu(), own.len()) {
            Ok(copy) => copy,
            Err(error) => {
                self.input = Memory::Plain(own);
                return Err(NotScaled::Failed(error.to_string(), None));
            }
        };
        let copied = copy.copy_from(&own).map_err(|error| error.to_string());
        // What is left at the end, less than an element, takes no part.
        let whole = own.len() / data_type.size() * data_type.size();
        match copied.and_then(|()| copy.scale(0, whole, data_type, by)) {
            Ok(()) => {
                self.input = Memory::Plain(copy);
                Ok(Some(own))
            }
            Err(reason) => {
                self.input = Memory::Plain(own);
                Err(NotScaled::Failed(reason, Some(copy)))
            }
        }
    }

    /// Where scratch and a copy of the input would be: of a GPU, or of the processor. There is no copy where there is no input.
    pub(super) fn places(&self) -> [Option<Option<Gpu>>; 2] {
        let input = (!matches!(self.input, Memory::None)).then(|| self.input.gpu());
        [Some(self.data.gpu().or_else(|| self.input.gpu())), input]
    }

    /// The memory of an operation that was not started, or that peers did not reach.
    #[inline]
    pub(super) fn back(self, result: Result<(), CollectiveError>) -> Ended {
        let mut grace = Grace::new(None);
        Ended { input: self.input.into_plain(&mut grace), data: self.data.into_plain(&mut grace), result }
    }
}
