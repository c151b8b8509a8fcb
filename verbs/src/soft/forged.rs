//! Completions that a linked process forges, and claims that it takes back: memory that is handed out is not written any more,
//! whoever in this process was to fill it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Entry, KIND_SEND};
use super::home::Home;
use super::ring::{Lines, Producer, Slot};
use crate::{Buffer, CompletionQueue, Context, ProtectionDomain, QpState, QueuePair, SharedReceiveQueue, WcStatus};

const LEN: usize = 4096;

/// Two queue pairs of one device, which send to each other within this process.
struct Ground {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    sender: QueuePair,
    receiver: QueuePair,
}

impl Ground {
    fn new(srq: Option<&SharedReceiveQueue>, pd: ProtectionDomain) -> Self {
        let depth = 64;
        let cq = CompletionQueue::soft(pd.node().home(), depth, None).unwrap();
        let receiver = match srq {
            Some(srq) => pd.rc(&cq).srq(srq),
            None => pd.rc(&cq),
        };
        let (sender, receiver) = (pd.rc(&cq).retry_count(0).rnr_retry(0).build().unwrap(), receiver.build().unwrap());
        let addresses = [sender.address(), receiver.address()];
        let (sender, receiver) = (sender.connect(&addresses[1]).unwrap(), receiver.connect(&addresses[0]).unwrap());
        Ground { pd, cq, sender, receiver }
    }

    fn home(&self) -> &Home {
        self.pd.node().home()
    }

    fn filled(&self, byte: u8) -> Buffer {
        let mut buffer = self.pd.alloc(LEN).unwrap();
        buffer.fill(byte);
        buffer
    }

    /// Says that the message is there which takes receive `receive`, as the sender's device does.
    fn forge(&self, receive: u32) {
        let info = self.home().member(self.receiver.number().0).unwrap().info();
        // SAFETY: words have no invalid pattern; nobody else writes the ring.
        let lines = unsafe {
            let ring = self.home().shared().array::<Slot>(info.ring, info.ring_lines as usize).unwrap();
            Lines::new(ring, info.ring_lines)
        };
        let entry = Entry { kind: KIND_SEND, byte_len: LEN as u32, receive, ..Entry::default() };
        Producer::new(lines).push(entry, &[]);
    }
}

/// Lets the next sender claim receive 0 of `number` again.
fn rewind(home: &Home, number: u32) {
    let claims = home.member(number).unwrap().info().claims.unwrap();
    // SAFETY: words have no invalid pattern.
    let head = unsafe { home.shared().at::<AtomicU64>(claims.head).unwrap().as_ref() };
    assert_eq!(head.load(Ordering::Relaxed) as u32, 1);
    head.store(0, Ordering::Relaxed);
}

fn device() -> ProtectionDomain {
    Context::open("soft0").unwrap().alloc_pd().unwrap()
}

#[test]
fn a_receive_that_is_being_filled_here_is_not_handed_out() {
    let mut ground = Ground::new(None, device());
    ground.receiver.recv(ground.filled(0)).id(5).post().unwrap();
    let filled = ground.home().member(ground.receiver.number().0).unwrap().fill(0, 0).unwrap();
    ground.forge(0);
    assert!(ground.cq.poll().unwrap().is_none());
    assert_eq!(ground.receiver.state(), QpState::Err);
    drop(filled);
    let done = ground.cq.poll().unwrap().unwrap();
    assert_eq!((done.wr_id(), done.status()), (5, WcStatus::WR_FLUSH_ERR));
}

#[test]
fn a_receive_of_a_shared_queue_that_is_being_filled_here_is_not_handed_out() {
    let pd = device();
    let mut srq = pd.create_srq(4).unwrap();
    let mut ground = Ground::new(Some(&srq), pd);
    srq.post(ground.filled(0), 5).unwrap();
    let filled = ground.home().member(ground.receiver.number().0).unwrap().fill(0, 0).unwrap();
    ground.forge(0);
    assert!(ground.cq.poll().unwrap().is_none());
    assert_eq!(ground.receiver.state(), QpState::Err);
    drop(filled);
}

#[test]
fn a_receive_is_filled_here_by_one_at_a_time_and_not_once_it_is_handed_out() {
    let mut ground = Ground::new(None, device());
    ground.receiver.recv(ground.filled(0)).post().unwrap();
    let member = ground.home().member(ground.receiver.number().0).unwrap();
    let first = member.fill(0, 0);
    assert!(first.is_some() && member.fill(0, 0).is_none());
    drop((first, member));
    ground.sender.send(ground.filled(9)).post().unwrap();
    let buffer = ground.cq.poll().unwrap().unwrap().into_buffer().unwrap();
    assert_eq!(buffer[..], [9; LEN]);
    assert!(ground.home().member(ground.receiver.number().0).unwrap().fill(0, 0).is_none());
}

#[test]
fn what_was_completed_of_a_shared_queue_is_not_written_when_its_claim_is_taken_back() {
    let pd = device();
    let mut srq = pd.create_srq(4).unwrap();
    let mut ground = Ground::new(Some(&srq), pd);
    srq.post(ground.filled(0), 0).unwrap();
    ground.sender.send(ground.filled(9)).post().unwrap();
    let buffer = ground.cq.poll().unwrap().unwrap().into_buffer().unwrap();
    rewind(ground.home(), ground.receiver.number().0);
    ground.sender.send(ground.filled(7)).signaled().post().unwrap();
    let status = ground.cq.poll().unwrap().map(|done| done.status());
    assert!(status.is_some_and(|status| !status.is_success()), "{status:?}");
    assert_eq!(buffer[..], [9; LEN]);
}

#[test]
fn what_was_completed_as_a_datagram_is_not_written_when_its_claim_is_taken_back() {
    let pd = device();
    let mut cq = CompletionQueue::soft(pd.node().home(), 64, None).unwrap();
    let datagrams = || pd.ud(&cq).build().unwrap().activate().unwrap();
    let (mut sender, mut receiver) = (datagrams(), datagrams());
    let message = |byte| {
        let mut buffer = pd.alloc(1000).unwrap();
        buffer.fill(byte);
        buffer
    };
    receiver.recv(message(0)).post().unwrap();
    let handle = sender.address_handle(&receiver.address()).unwrap();
    let mut send = |byte| sender.send(message(byte), &handle).range(0..900).post().unwrap();
    send(9);
    let buffer = cq.poll().unwrap().unwrap().into_buffer().unwrap();
    assert_eq!(buffer[40..940], [9; 900]);
    rewind(pd.node().home(), receiver.number().0);
    send(7);
    assert_eq!(buffer[40..940], [9; 900]);
}
