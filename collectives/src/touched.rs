//! Who touched a piece of a buffer: the last step that wrote it, and the steps that read it since.

/// That, for one piece. Reads are a list that pieces share, so that a copy of it is one of two numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Touched {
    writer: u32,
    /// The last read, in [`Reads`].
    reads: u32,
}

const NONE: u32 = u32::MAX;

/// The reads of all pieces, each with the read before it. Pieces that were read alike share them, so that there are many only
/// where steps read the same pieces over and over that were first read apart.
#[derive(Debug, Default)]
pub(crate) struct Reads(Vec<(u32, u32)>);

impl Reads {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Touched {
    /// By nobody.
    pub(crate) const NEVER: Self = Self { writer: NONE, reads: NONE };

    /// Just written.
    #[inline]
    pub(crate) fn by(writer: u32) -> Self {
        Self { writer, reads: NONE }
    }

    #[inline]
    pub(crate) fn writer(&self) -> Option<u32> {
        (self.writer != NONE).then_some(self.writer)
    }

    /// Whether it was read since it was written.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.reads != NONE
    }

    #[inline]
    pub(crate) fn read(&mut self, step: u32, reads: &mut Reads) {
        let read = (step, self.reads);
        // The piece before it may have been read by the same.
        if reads.0.last() != Some(&read) {
            reads.0.push(read);
        }
        self.reads = reads.0.len() as u32 - 1;
    }

    /// The steps that read it since, the last first.
    #[inline]
    pub(crate) fn readers<'a>(&self, reads: &'a Reads) -> impl Iterator<Item = u32> + use<'a> {
        let mut at = self.reads;
        std::iter::from_fn(move || {
            let &(step, before) = reads.0.get(at as usize)?;
            at = before;
            Some(step)
        })
    }
}
