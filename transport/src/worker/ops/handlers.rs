//! Functions for active messages and requests, by number.

use crate::worker::Worker;
use crate::worker::error::SendFailure;
use crate::worker::event::Event;
use crate::worker::ids::{EndpointId, HandlerId};
use crate::worker::memory::Message;
use crate::worker::ops::Request;

/// What an application does with active messages and requests: a function for each [`HandlerId`], called with the
/// application's own state `S`.
///
/// They are plain functions, found by their number in a table: a call allocates nothing and looks up nothing else. State goes
/// into `S`.
///
/// ```
/// use qpair_transport::{ActiveMessage, Config, Flow, HandlerId, Handlers, Request, Worker};
///
/// const ADD: HandlerId = HandlerId(0);
/// const TOTAL: HandlerId = HandlerId(1);
///
/// #[derive(Default)]
/// struct Sums {
///     total: u64,
///     answered: bool,
/// }
///
/// fn add(sums: &mut Sums, _worker: &mut Worker, active: ActiveMessage) {
///     sums.total += active.argument;
/// }
///
/// fn total(sums: &mut Sums, worker: &mut Worker, request: Request) {
///     worker.respond(request.reply, sums.total.to_le_bytes().to_vec()).expect("the peer is there");
///     sums.answered = true;
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut handlers = Handlers::new();
/// handlers.on_message(ADD, add).on_request(TOTAL, total);
///
/// let mut worker = Worker::new(Config::default())?;
/// let server = worker.listen("127.0.0.1:0")?;
/// let ep = worker.connect(server.local_addr())?;
/// worker.send_active(ep, ADD, 40, &[][..])?;
/// worker.send_active(ep, ADD, 2, &[][..])?;
/// worker.request(ep, TOTAL, &[][..])?;
/// let mut sums = Sums::default();
/// worker.run(|event, worker| match handlers.dispatch(event, &mut sums, worker) {
///     Some(qpair_transport::Event::Response { message, .. }) => {
///         assert_eq!(&message[..], &42u64.to_le_bytes()[..]);
///         Flow::Stop
///     }
///     _ => Flow::Continue,
/// })?;
/// assert!(sums.answered);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Handlers<S> {
    messages: Vec<Option<MessageHandler<S>>>,
    requests: Vec<Option<RequestHandler<S>>>,
}

/// A function for active messages.
pub type MessageHandler<S> = fn(&mut S, &mut Worker, ActiveMessage);

/// A function for requests.
pub type RequestHandler<S> = fn(&mut S, &mut Worker, Request);

/// An active message of a peer.
#[derive(Debug)]
pub struct ActiveMessage {
    /// The connection.
    pub ep: EndpointId,
    /// What it is for.
    pub handler: HandlerId,
    /// A number that came with it.
    pub argument: u64,
    /// What it says.
    pub message: Message,
}

impl<S> Default for Handlers<S> {
    fn default() -> Self {
        Handlers { messages: Vec::new(), requests: Vec::new() }
    }
}

impl<S> Handlers<S> {
    /// None at all.
    pub fn new() -> Self {
        Handlers::default()
    }

    /// Sets the function for active messages of that number. The table grows to the greatest number.
    pub fn on_message(&mut self, handler: HandlerId, f: MessageHandler<S>) -> &mut Self {
        put(&mut self.messages, handler, f);
        self
    }

    /// Sets the function for requests of that number.
    pub fn on_request(&mut self, handler: HandlerId, f: RequestHandler<S>) -> &mut Self {
        put(&mut self.requests, handler, f);
        self
    }

    /// Calls the function for an active message or a request. All other events are given back, and active messages for which
    /// there is none; a request for which there is none is declined with [`Handlers::UNKNOWN`], or given back where that can not be
    /// said now: decline it later, or dispatch it again, since its sender waits.
    pub fn dispatch(&self, event: Event, state: &mut S, worker: &mut Worker) -> Option<Event> {
        match event {
            Event::Active { ep, handler, argument, message } => match get(&self.messages, handler) {
                Some(f) => f(state, worker, ActiveMessage { ep, handler, argument, message }),
                None => return Some(Event::Active { ep, handler, argument, message }),
            },
            Event::Request(request) => match get(&self.requests, request.handler) {
                Some(f) => f(state, worker, request),
                None => {
                    tracing::debug!(ep = %request.ep, handler = %request.handler, "a request without a handler");
                    // Of a connection that ends, the peer knows.
                    if let Err((error, reply)) = worker.decline(request.reply, UNKNOWN)
                        && matches!(error.error, SendFailure::QueueFull { .. } | SendFailure::Memory(_))
                    {
                        return Some(Event::Request(Request { reply, ..request }));
                    }
                }
            },
            other => return Some(other),
        }
        None
    }
}

impl Handlers<()> {
    /// Why a request is declined for which there is no function.
    pub const UNKNOWN: u16 = UNKNOWN;
}

fn put<F>(table: &mut Vec<Option<F>>, handler: HandlerId, f: F) {
    let at = usize::from(handler.0);
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    table[at] = Some(f);
}

fn get<F: Copy>(table: &[Option<F>], handler: HandlerId) -> Option<F> {
    table.get(usize::from(handler.0)).copied().flatten()
}

const UNKNOWN: u16 = 0;
