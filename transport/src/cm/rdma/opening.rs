//! Streams that are not there yet.

use qpair_verbs::{Connecting, Established};

use super::RdmaCmError;
use super::pipe::{Parts, Pipe};

/// A stream that was asked for, or accepted. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Opening {
    connecting: Connecting,
    parts: Parts,
    established: Option<Box<Established>>,
}

impl Opening {
    pub(super) fn new(connecting: Connecting, parts: Parts) -> Self {
        Opening { connecting, parts, established: None }
    }

    /// True once both ends are ready. No descriptor tells of that: it has to be asked often.
    pub(crate) fn is_done(&mut self) -> Result<bool, RdmaCmError> {
        if self.established.is_none() {
            self.established = self.connecting.poll()?.map(Box::new);
        }
        Ok(self.established.is_some())
    }

    /// The stream, if it [is done](Opening::is_done).
    pub(crate) fn into_pipe(self) -> Option<Pipe> {
        Some(Pipe::new(*self.established?, self.parts))
    }
}
