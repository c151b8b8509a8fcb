//! Asking peers for their queue pairs before connecting to them, without a wait.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::address::{NodeId, QpAddress};
use crate::asking::{Ticket, Whom};
use crate::context::{Context, Provider};
use crate::error::ConnectError;
use crate::qp::{AddressHandle, DatagramQueuePair, OwnedQp, Prepared, QueuePair};
use crate::soft::{Answer, Found, Node};

/// Peers that are asked for their queue pairs before this side connects to them: for whoever polls, and must not wait for a
/// process that is stopped.
///
/// A device of libibverbs asks nobody on InfiniBand when it connects; nor does the software device within a process, or between
/// hosts once the network is in use. Then the inquiry is over at once. Otherwise a thread of this library asks, and
/// [`connect`](Inquiry::connect) goes by the answer: of the peer's device, or, with RoCE by libibverbs, of whoever answers for the
/// peer's port on its network. One who does not answer within seconds is answered for: [`ConnectError::TimedOut`], and
/// [`ConnectError::Unreachable`] with RoCE.
///
/// ```
/// use std::task::Waker;
///
/// use qpair_verbs::{Context, Inquiry};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ctx = Context::open("soft0")?;
/// let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(64)?);
/// let (near, far) = (pd.rc(&cq).build()?, pd.rc(&cq).build()?);
/// let (here, there) = (near.address(), far.address());
///
/// let mut inquiry = Inquiry::new(Waker::noop());
/// inquiry.ask(&ctx, &there);
/// while !inquiry.is_over() {
///     // Something else is done; the waker tells when to look again.
/// #   std::thread::yield_now();
/// }
/// let near = inquiry.connect(near, &there)?;
/// # let _ = (near, far.connect(&here)?);
/// # Ok(())
/// # }
/// ```
pub struct Inquiry {
    waker: Waker,
    asked: Vec<Asked>,
}

/// A question, and where its answer will be.
enum Asked {
    /// By the software device, of a queue pair, or, where none is named, for a place on the network.
    Soft { by: NodeId, address: Option<QpAddress>, ticket: Arc<Ticket<Found>> },
    /// By a device of libibverbs, of a queue pair's port.
    Ibv { by: u64, address: QpAddress, ticket: Arc<Ticket<()>> },
}

impl Asked {
    fn is_over(&self) -> bool {
        match self {
            Asked::Soft { ticket, .. } => ticket.is_over(),
            Asked::Ibv { ticket, .. } => ticket.is_over(),
        }
    }
}

impl Inquiry {
    /// Nobody is asked yet. With each answer `waker` is woken, by another thread.
    pub fn new(waker: &Waker) -> Self {
        Inquiry { waker: waker.clone(), asked: Vec::new() }
    }

    /// Asks the peer at `address`, to whom a queue pair of that device shall be connected: once for each that is to be connected
    /// there. Does not wait. Of a device of libibverbs it is to be one of port 1, with the row of the GID table that it has by default.
    pub fn ask(&mut self, context: &Context, address: &QpAddress) {
        self.ask_from(context, 1, None, address);
    }

    /// As [`ask`](Inquiry::ask), for a queue pair of that [`port`](crate::QpBuilder::port), and of that row of its GID table, if
    /// it is built with a [`gid_index`](crate::QpBuilder::gid_index).
    pub fn ask_from(&mut self, context: &Context, port: u8, gid_index: Option<u32>, address: &QpAddress) {
        match context.provider() {
            Provider::Soft(node) => self.put(node, node.whom_to_ask(address), Some(*address)),
            Provider::Ibv(device) => {
                if let Some(ticket) = device.ask(port, gid_index, address, &self.waker) {
                    self.asked.push(Asked::Ibv { by: device.id(), address: *address, ticket });
                }
            }
        }
    }

    /// Asks for what a datagram queue pair of that device needs when it is [activated](Prepared::activate): a place on the
    /// network. Does not wait. If there is none to be had, activating it goes on without, as it always does.
    pub fn ask_to_activate(&mut self, context: &Context) {
        let Provider::Soft(node) = context.provider() else { return };
        let id = node.home().id();
        if !self.asked.iter().any(|asked| matches!(asked, Asked::Soft { by, address: None, .. } if *by == id)) {
            self.put(node, node.neighbours(), None);
        }
    }

    fn put(&mut self, node: &Arc<Node>, whom: Option<Whom>, address: Option<QpAddress>) {
        if let Some(whom) = whom {
            let ticket = node.ask(whom, address, &self.waker);
            self.asked.push(Asked::Soft { by: node.home().id(), address, ticket });
        }
    }

    /// True once there is an answer of all who were asked.
    pub fn is_over(&self) -> bool {
        self.asked.iter().all(Asked::is_over)
    }

    /// Connects a queue pair to the peer at `address`, as [`Prepared::connect`], by what that answered. An answer
    /// goes for one queue pair. Without one, this waits as that does.
    ///
    /// # Errors
    /// As there.
    pub fn connect(&self, prepared: Prepared, address: &QpAddress) -> Result<QueuePair, ConnectError> {
        let found = self.answer(prepared.owned(), address)?;
        prepared.receive_from(address, found)?.ready_to_send()
    }

    /// Makes a handle for datagrams to the peer at `address`, as [`DatagramQueuePair::address_handle`], by what that answered.
    /// Without an answer, this waits as that does.
    ///
    /// # Errors
    /// As there.
    pub fn address_handle(&self, qp: &DatagramQueuePair, address: &QpAddress) -> Result<AddressHandle, ConnectError> {
        let found = self.answer(qp.owned(), address)?;
        qp.handle(address, found)
    }

    /// What `address` answered to the device of a queue pair, once for each time that it was asked. That its port is found leaves
    /// nothing to tell.
    fn answer(&self, qp: &OwnedQp, of: &QpAddress) -> Result<Option<Answer>, ConnectError> {
        match qp {
            OwnedQp::Soft(qp) => {
                let answer = |asked: &Asked| match asked {
                    Asked::Soft { by, address, ticket } if *by == qp.device() && *address == Some(*of) => ticket.take(),
                    _ => None,
                };
                Ok(self.asked.iter().find_map(answer))
            }
            OwnedQp::Ibv(qp) => {
                let answer = |asked: &Asked| match asked {
                    Asked::Ibv { by, address, ticket } if *by == qp.device_id() && address == of => ticket.take(),
                    _ => None,
                };
                self.asked.iter().find_map(answer).transpose().map(|_| None)
            }
        }
    }
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.asked.iter().filter(|asked| !asked.is_over()).count();
        f.debug_struct("Inquiry").field("asked", &self.asked.len()).field("open", &open).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::task::Wake;
    use std::thread::{self, Thread};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::companion::Companion;
    use crate::types::QpType;

    /// What another process does: it tells of a queue pair for messages and one for datagrams, and waits.
    #[test]
    #[ignore = "needs another test to start it, as its other process"]
    fn process() {
        if std::env::var_os(PROCESS).is_none() {
            return;
        }
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let (messages, datagrams) = (pd.rc(&cq).build().unwrap(), pd.ud(&cq).build().unwrap());
        println!("\n!{}", serde_json::to_string(&[messages.address(), datagrams.address()]).unwrap());
        let _ = std::io::stdin().read_line(&mut String::new());
    }

    /// Such a process, and its queue pairs.
    fn peer() -> (Companion, [QpAddress; 2]) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(PROCESS, "1");
        let peer = Companion::start(command, "inquiry::tests::process");
        let addresses = serde_json::from_str(&peer.line()).unwrap();
        (peer, addresses)
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Asks for queue pairs; this thread is woken with the answers.
    fn asking(ctx: &Context, addresses: &[QpAddress]) -> Inquiry {
        let mut inquiry = Inquiry::new(&Waker::from(Arc::new(Unpark(thread::current()))));
        addresses.iter().for_each(|address| inquiry.ask(ctx, address));
        inquiry
    }

    fn wait(inquiry: &Inquiry) {
        let start = Instant::now();
        while !inquiry.is_over() {
            thread::park_timeout(LIMIT);
            assert!(start.elapsed() < LIMIT, "nobody wakes this thread");
        }
    }

    #[test]
    fn one_that_is_stopped_is_waited_for_by_nobody_who_asks_another() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let (stopped, at_stopped) = peer();
        let (_running, at_running) = peer();
        stopped.stop();
        let late = asking(&ctx, &at_stopped);
        let given_up = asking(&ctx, &at_stopped[..1]);
        let soon = asking(&ctx, &at_running);
        wait(&soon);
        let qp = soon.connect(pd.rc(&cq).build().unwrap(), &at_running[0]).unwrap();
        assert!(qp.explain().contains("in another process"), "{}", qp.explain());
        let datagrams = pd.ud(&cq).build().unwrap().activate().unwrap();
        soon.address_handle(&datagrams, &at_running[1]).unwrap();
        assert!(!late.is_over() && !given_up.is_over(), "who is stopped says nothing");
        drop(given_up);
        stopped.go_on();
        wait(&late);
        late.connect(pd.rc(&cq).build().unwrap(), &at_stopped[0]).unwrap();
        late.address_handle(&datagrams, &at_stopped[1]).unwrap();
    }

    #[test]
    fn each_answer_goes_for_one_queue_pair() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let (peer, [there, _]) = peer();
        let inquiry = asking(&ctx, &[there, there]);
        wait(&inquiry);
        // It would answer nothing more.
        peer.stop();
        for _ in 0..2 {
            inquiry.connect(pd.rc(&cq).build().unwrap(), &there).unwrap();
        }
    }

    #[test]
    fn a_place_on_the_network_is_had_before_datagrams_need_it() {
        let ctx = Context::open("soft0").unwrap();
        let mut inquiry = asking(&ctx, &[]);
        assert!(inquiry.is_over(), "nobody was asked");
        inquiry.ask_to_activate(&ctx);
        inquiry.ask_to_activate(&ctx);
        assert_eq!(inquiry.asked.len(), 1);
        wait(&inquiry);
        let node = ctx.soft().unwrap();
        assert!(node.neighbours().is_none(), "it is in use");
        let mut again = asking(&ctx, &[]);
        again.ask_to_activate(&ctx);
        assert!(again.is_over());
    }

    #[test]
    fn what_is_wrong_with_a_peer_is_told_when_connecting_to_it() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let (peer, [there, _]) = peer();
        let elsewhere = QpAddress { qpn: crate::Qpn(there.qpn.0 + 1), ..there };
        let inquiry = asking(&ctx, &[there, elsewhere]);
        wait(&inquiry);
        let connect = |inquiry: &Inquiry, address| inquiry.connect(pd.rc(&cq).build().unwrap(), address);
        let error = connect(&inquiry, &elsewhere).unwrap_err();
        assert!(matches!(error, ConnectError::NoSuchQueuePair { qpn } if qpn == elsewhere.qpn), "{error}");
        let other_type = QpAddress { qp_type: QpType::Uc, ..there };
        let error = connect(&inquiry, &other_type).unwrap_err();
        assert!(matches!(error, ConnectError::TypeMismatch { .. }), "{error}");
        drop(peer);
        let inquiry = asking(&ctx, &[there]);
        wait(&inquiry);
        let error = connect(&inquiry, &there).unwrap_err();
        assert!(matches!(error, ConnectError::PeerGone { .. }), "{error}");
    }

    const PROCESS: &str = "QPAIR_TEST_INQUIRED";
    const LIMIT: Duration = Duration::from_secs(60);
}
