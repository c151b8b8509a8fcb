//! Memory of a posted receive: whether a message fits, and putting one there that came with a slab.

use qpair_verbs::Local;
use qpair_verbs::calc::{Calc, combine};

use crate::engine::Fit;
use crate::worker::error::{Misfit, OpError, RecvFailure};

/// Memory of a posted receive, and what is to be done with it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) memory: Local,
    pub(crate) calc: Option<Calc>,
    /// The message is handed out as it is, instead of being put into memory.
    pub(crate) whole: bool,
}

impl Target {
    /// Memory to put a message into.
    pub(crate) fn new(memory: Local, calc: Option<Calc>) -> Self {
        Target { memory, calc, whole: false }
    }

    /// For a message as it is.
    pub(crate) fn whole() -> Self {
        Target { memory: Local::None, calc: None, whole: true }
    }

    /// Which lengths it takes.
    pub(crate) fn fit(&self) -> Fit {
        if self.whole {
            return Fit { limit: u64::MAX, granule: 1 };
        }
        let granule = self.calc.map_or(1, |calc| calc.data_type().size() as u32);
        Fit { limit: self.memory.len() as u64, granule }
    }

    /// Why a message of `len` bytes does not fit.
    pub(crate) fn misfit(&self, len: u64) -> Misfit {
        let room = self.memory.len() as u64;
        match self.calc {
            Some(calc) if len <= room => Misfit::Partial { len, calc },
            _ => Misfit::TooLong { len, room },
        }
    }

    /// Whether anything can be received into it.
    pub(crate) fn check(&self) -> Result<(), RecvFailure> {
        match &self.memory {
            Local::Slab(slab) if !slab.is_unique() => Err(RecvFailure::StillShared),
            Local::List(_) | Local::None if self.calc.is_some() => Err(RecvFailure::Form(self.memory.form())),
            // A program's own operation runs on no GPU.
            Local::Gpu(_) if self.calc.is_some_and(|calc| calc.is_own()) => {
                Err(RecvFailure::Form("memory of a GPU, by an operation of the program's own"))
            }
            Local::Buffer(_) | Local::Slab(_) | Local::List(_) | Local::Region(_) | Local::Gpu(_) | Local::None => {
                Ok(())
            }
            // Short messages are copied, which needs memory that this program reaches.
            _ => Err(RecvFailure::Form(self.memory.form())),
        }
    }

    /// Puts `message`, which fits, into the memory.
    pub(crate) fn put(&mut self, message: &[u8]) -> Result<(), OpError> {
        let len = message.len();
        match (&mut self.memory, self.calc) {
            (Local::None, _) => {}
            (Local::Buffer(buffer), None) => buffer[..len].copy_from_slice(message),
            (Local::Buffer(buffer), Some(calc)) => combine(calc, &mut buffer[..len], message).map_err(failed)?,
            (Local::Slab(slab), calc) => {
                let Some(room) = slab.get_mut() else { return Err(failed(RecvFailure::StillShared)) };
                match calc {
                    None => room[..len].copy_from_slice(message),
                    Some(calc) => combine(calc, &mut room[..len], message).map_err(failed)?,
                }
            }
            (Local::List(list), _) => {
                let mut rest = message;
                for buffer in list {
                    let (part, after) = rest.split_at(rest.len().min(buffer.len()));
                    buffer[..part.len()].copy_from_slice(part);
                    rest = after;
                }
            }
            (Local::Region(slice), None) => slice.write(0, message).map_err(failed)?,
            (Local::Region(slice), Some(calc)) => slice.combine(0, calc, message).map_err(failed)?,
            (Local::Gpu(buffer), None) => buffer.write(0, message).map_err(failed)?,
            (Local::Gpu(buffer), Some(calc)) => buffer.combine(0, message, calc).map_err(failed)?,
            (other, _) => return Err(failed(RecvFailure::Form(other.form()))),
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> OpError {
    OpError::Memory(error.to_string().into())
}
