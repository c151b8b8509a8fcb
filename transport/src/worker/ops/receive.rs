//! Posting receives, and looking at what waits for one.

use qpair_verbs::Local;
use qpair_verbs::calc::Calc;

use crate::engine::{Pattern, Placed, Posted, Waiting};
use crate::worker::Worker;
use crate::worker::endpoint::Stage;
use crate::worker::error::{RecvError, RecvFailure};
use crate::worker::ids::{EndpointId, OpId, Source, Tag, TagPattern};
use crate::worker::memory::Target;

/// A message that waits for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its connection.
    pub ep: EndpointId,
    /// Its tag.
    pub tag: Tag,
    /// Its length in bytes.
    pub len: u64,
}

impl Worker {
    /// Posts a receive for the next message of that tag, or one of those tags, from that peer, or from
    /// [any](Source::Any). [`Event::ReceivedInto`](crate::Event::ReceivedInto) hands the memory back with the message in
    /// it, or, with `calc`, combined with it; or [`Event::Failed`](crate::Event::Failed).
    ///
    /// It takes a message that waits for a receive ([`Config::unmatched`](crate::Config::unmatched)), the one that came
    /// first, else one that comes from now on. Of several receives that would take a message, the one that was posted first
    /// takes it. If that does not fit, the receive fails; where the message waits then, so do others that it does not fit, when they
    /// are posted or another message of its tag comes behind it.
    ///
    /// # Errors
    /// [`RecvError`] with the memory, if the connection is closed, the message that waits does not fit, or the memory is of a form
    /// that nothing is received into, or so combined; of a GPU that is not registered, also if there is no memory for
    /// [slots](Worker::prepare_gpu), which the first such receive takes.
    pub fn recv_into(
        &mut self,
        source: impl Into<Source>,
        tags: impl Into<TagPattern>,
        into: impl Into<Local>,
        calc: Option<Calc>,
    ) -> Result<OpId, RecvError> {
        let target = Target::new(into.into(), calc);
        if let Err(error) = target.check().and_then(|()| self.prepare_target(&target)) {
            return Err(RecvError { error, memory: target.memory });
        }
        self.post_receive(source.into(), tags.into(), target)
    }

    /// Posts a receive for a message as it is, in the memory that it lands in:
    /// [`Event::Matched`](crate::Event::Matched) hands it out. All else is as of [`recv_into`](Worker::recv_into).
    ///
    /// # Errors
    /// [`RecvFailure::Closed`].
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, Source, Tag, TagPattern, Unmatched, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default().unmatched(Unmatched::Hold))?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// worker.send(ep, Tag(0x107), &b"for anyone who takes tags that end in 7"[..])?;
    /// let sevens = TagPattern::masked(Tag(7), 0xf);
    /// worker.recv(Source::Any, sevens)?;
    /// worker.run(|event, _worker| match event {
    ///     Event::Matched { tag, message, .. } => {
    ///         assert_eq!((tag, message.len()), (Tag(0x107), 39));
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn recv(&mut self, source: impl Into<Source>, tags: impl Into<TagPattern>) -> Result<OpId, RecvFailure> {
        self.post_receive(source.into(), tags.into(), Target::whole()).map_err(|refused| refused.error)
    }

    /// The message that a receive of these tags from that peer, or from any, would take at once. There is none but where
    /// messages wait for receives: see [`Config::unmatched`](crate::Config::unmatched).
    pub fn probe(&self, source: impl Into<Source>, tags: impl Into<TagPattern>) -> Option<Probe> {
        let Waiting { peer, tag, len } = self.inbox.probe(&pattern(source.into(), tags.into()))?;
        Some(Probe { ep: EndpointId::of(peer), tag: Tag(tag), len })
    }

    /// Sees to it that there are slots for a message that is to go into memory of a GPU.
    fn prepare_target(&mut self, target: &Target) -> Result<(), RecvFailure> {
        let Local::Gpu(buffer) = &target.memory else { return Ok(()) };
        self.prepare_gpu(buffer.gpu()).map_err(|error| RecvFailure::NoSlots(error.to_string().into()))
    }

    fn post_receive(&mut self, source: Source, tags: TagPattern, target: Target) -> Result<OpId, RecvError> {
        let pattern = pattern(source, tags);
        if let Source::Endpoint(ep) = source {
            let open = self.endpoints.get(ep).is_some_and(|endpoint| !matches!(endpoint.stage, Stage::Ending { .. }));
            // What came before a connection ended can still be received.
            if !open && self.inbox.probe(&pattern).is_none() {
                return Err(RecvError { error: RecvFailure::Closed(ep), memory: target.memory });
            }
        }
        let number = self.op();
        // Such a payload can not be read straight to where it is to go.
        let on_gpu = matches!(target.memory, Local::Gpu(_));
        let staged = target.whole || (target.calc.is_some() && !self.read_reduce && !on_gpu);
        match self.inbox.post(Posted { op: number, pattern, fit: target.fit(), staged, memory: target }) {
            Placed::Waits => {}
            Placed::Due => self.deliver_due(),
            Placed::Startable(peer, key) => {
                let ep = EndpointId::of(peer);
                if let Some(endpoint) = self.endpoints.get_mut(ep) {
                    endpoint.link.want(key);
                    self.pump(ep.index as usize);
                }
            }
            Placed::Misfit { posted, len } => {
                let misfit = posted.memory.misfit(len);
                return Err(RecvError { error: RecvFailure::Misfit(misfit), memory: posted.memory.memory });
            }
        }
        Ok(OpId::new(number, pattern.source.map(EndpointId::of)))
    }
}

fn pattern(source: Source, tags: TagPattern) -> Pattern {
    let source = match source {
        Source::Any => None,
        Source::Endpoint(ep) => Some(ep.peer()),
    };
    Pattern { source, tag: tags.tag.0, mask: tags.mask }
}
