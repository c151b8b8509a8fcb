//! What a rank does by itself: copies, combines and finishes within its own memory, wherever that is.

use qpair_verbs::calc::{Calc, DataType, Scale, scale};

use super::run::{PART, Run, apart};
use super::steps::Span;

impl Run {
    /// Copies or combines within this rank. The lengths are equal.
    pub(super) fn local(&mut self, src: Span, dst: Span, calc: Option<Calc>) -> Result<(), String> {
        if src.len == 0 {
            return Ok(());
        }
        if self.memory(src.buffer).is_on_gpu() || self.memory(dst.buffer).is_on_gpu() {
            return self.local_on_gpu(src, dst, calc);
        }
        if src.buffer != dst.buffer {
            let Run { input, data, scratch, .. } = self;
            let (from, into) = apart((input, data, scratch), src.buffer, dst.buffer);
            if let Some(done) = into.put_from(dst, (from, src), calc) {
                return done;
            }
        } else if let Some(done) = self.memory_mut(dst.buffer).put_within(src, dst, calc) {
            return done;
        }
        let mut part = std::mem::take(&mut self.part);
        let done = self.by_parts(src, dst, calc, &mut part);
        self.part = part;
        done
    }

    #[cold]
    fn local_on_gpu(&mut self, src: Span, dst: Span, calc: Option<Calc>) -> Result<(), String> {
        if self.memory(src.buffer).on_gpu().is_some() {
            return self.local_on_own_gpu(src, dst, calc);
        }
        self.memory(src.buffer).make_visible().map_err(|error| error.to_string())?;
        if calc.is_some() {
            self.memory(dst.buffer).make_visible().map_err(|error| error.to_string())?;
        }
        let slices = self.memory(src.buffer).slice(src).zip(self.memory(dst.buffer).slice(dst));
        let (from, into) = slices.ok_or("a span of memory that peers do not reach")?;
        match calc {
            Some(calc) => into.combine_from(&from, calc),
            None => into.copy_from(&from),
        }
        .map_err(|error| error.to_string())
    }

    /// The same where no peer reaches the memory.
    fn local_on_own_gpu(&mut self, src: Span, dst: Span, calc: Option<Calc>) -> Result<(), String> {
        let from_part = src.start..src.start + src.len;
        if src.buffer == dst.buffer {
            let Some(both) = self.memory_mut(dst.buffer).on_gpu_mut() else { return Err(NOT_THERE.into()) };
            let done = match calc {
                Some(calc) => both.combine_within(dst.start, from_part, calc),
                None => both.copy_within(dst.start, from_part),
            };
            return done.map_err(|error| error.to_string());
        }
        let Run { input, data, scratch, .. } = self;
        let (from, into) = apart((input, data, scratch), src.buffer, dst.buffer);
        let (Some(from), Some(into)) = (from.on_gpu(), into.on_gpu_mut()) else { return Err(NOT_THERE.into()) };
        let done = match calc {
            Some(calc) => into.combine_from((dst.start, from, src.start), src.len, calc),
            None => into.copy_from(dst.start, from, src.start, src.len),
        };
        done.map_err(|error| error.to_string())
    }

    fn by_parts(&mut self, src: Span, dst: Span, calc: Option<Calc>, part: &mut [u8]) -> Result<(), String> {
        for done in (0..src.len).step_by(PART) {
            let part = &mut part[..PART.min(src.len - done)];
            self.memory(src.buffer).read(src.start + done, part)?;
            let into = Span { start: dst.start + done, len: part.len(), ..dst };
            self.memory_mut(dst.buffer).put(into, part, calc)?;
        }
        Ok(())
    }

    /// Scales a span, as the elements of a result are finished.
    pub(super) fn finish_span(&mut self, span: Span, data_type: DataType, by: Scale) -> Result<(), String> {
        let finish = |bytes: &mut [u8]| scale(data_type, bytes, by).map_err(|error| error.to_string());
        if self.memory(span.buffer).is_on_gpu() {
            return self.memory_mut(span.buffer).scale(span, data_type, by);
        }
        if let Some(bytes) = self.memory_mut(span.buffer).bytes_mut(span) {
            return finish(bytes);
        }
        let mut part = std::mem::take(&mut self.part);
        let mut done = Ok(());
        for at in (0..span.len).step_by(PART) {
            let part = &mut part[..PART.min(span.len - at)];
            let here = Span { start: span.start + at, len: part.len(), ..span };
            let memory = self.memory_mut(span.buffer);
            done =
                memory.read(here.start, part).and_then(|()| finish(part)).and_then(|()| memory.put(here, part, None));
            if done.is_err() {
                break;
            }
        }
        self.part = part;
        done
    }
}

/// Vectors are on GPUs, or none is.
const NOT_THERE: &str = "a span of a GPU's memory, and one that is not";
