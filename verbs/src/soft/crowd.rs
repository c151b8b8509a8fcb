//! Completion queues of thousands of queue pairs: who rests, and who is roused.

use crate::{Buffer, CompletionQueue, Context, ProtectionDomain, QueuePair, WcOpcode};

/// Two completion queues, and connections between them.
struct Crowd {
    pd: ProtectionDomain,
    queues: [CompletionQueue; 2],
    qps: Vec<[QueuePair; 2]>,
}

impl Crowd {
    fn new(count: usize) -> Crowd {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let queues = [(); 2].map(|()| ctx.create_cq(1 << 16).unwrap());
        let mut crowd = Crowd { pd, queues, qps: Vec::new() };
        (0..count).for_each(|_| crowd.join());
        crowd
    }

    fn join(&mut self) {
        let make = |cq| self.pd.rc(cq).send_depth(2).recv_depth(2).build().unwrap();
        let [mut a, mut b] = self.queues.each_ref().map(make);
        a.recv(self.buffer()).post().unwrap();
        b.recv(self.buffer()).post().unwrap();
        let addresses = [a.address(), b.address()];
        self.qps.push([a.connect(&addresses[1]).unwrap(), b.connect(&addresses[0]).unwrap()]);
    }

    fn buffer(&self) -> Buffer {
        self.pd.alloc(8).unwrap()
    }

    /// Polls until `count` rest of the queue `side`.
    fn calm(&mut self, side: usize, count: usize) {
        for _ in 0..1_000_000 {
            assert!(self.queues[side].poll().unwrap().is_none());
            if self.queues[side].resting() >= count {
                return;
            }
        }
        panic!("{} of {} rest", self.queues[side].resting(), self.qps.len());
    }

    /// A message from one end of a connection to that in queue 1; who rests there while it is under way.
    fn pass(&mut self, place: usize) -> usize {
        let buffer = self.buffer();
        let [from, to] = &mut self.qps[place];
        from.send(buffer).signaled().post().unwrap();
        let sent = self.queues[0].poll().unwrap().expect("it was sent");
        assert_eq!((sent.opcode(), sent.qpn()), (WcOpcode::SEND, from.number()));
        drop(sent);
        let received = self.queues[1].poll().unwrap().expect("it was received");
        assert_eq!((received.opcode(), received.qpn()), (WcOpcode::RECV, to.number()));
        let buffer = received.into_buffer().unwrap();
        to.recv(buffer).post().unwrap();
        self.queues[1].resting()
    }
}

#[test]
fn all_rest_but_the_busy_one() {
    const COUNT: usize = 5000;
    let mut crowd = Crowd::new(COUNT);
    crowd.calm(0, COUNT);
    crowd.calm(1, COUNT);
    for (roused, place) in [1, 63, 64, COUNT - 1].into_iter().enumerate() {
        let left = COUNT - 1 - roused;
        assert_eq!(crowd.pass(place), left, "it was roused, alone");
        assert_eq!(crowd.pass(place), left, "it is awake");
    }
    // No more than these four are looked at, so that they may stay.
    (0..100_000).for_each(|_| assert!(crowd.queues[1].poll().unwrap().is_none()));
    assert_eq!(crowd.queues[1].resting(), COUNT - 4);
    crowd.pass(4096);
    crowd.calm(1, COUNT);
}

#[test]
fn few_are_always_looked_at() {
    let mut crowd = Crowd::new(4);
    for _ in 0..100_000 {
        assert!(crowd.queues[1].poll().unwrap().is_none());
    }
    assert_eq!(crowd.queues[1].resting(), 0);
    assert_eq!(crowd.pass(3), 0);
}

#[test]
fn who_rests_leaves_no_trace_when_it_goes() {
    let mut crowd = Crowd::new(100);
    crowd.calm(1, 100);
    crowd.qps.truncate(10);
    assert!(crowd.queues[1].poll().unwrap().is_none());
    assert_eq!(crowd.queues[1].resting(), 10);
    assert_eq!((0..10).map(|place| crowd.pass(place)).min(), Some(0));
    crowd.qps.clear();
    crowd.queues.iter_mut().for_each(|queue| assert!(queue.poll().unwrap().is_none()));
    assert_eq!(crowd.queues[1].resting(), 0);
}

#[test]
fn one_that_waits_for_its_peer_does_not_rest() {
    let mut crowd = Crowd::new(20);
    crowd.calm(0, 20);
    for _ in 0..2 {
        // The second finds no receive.
        let buffer = crowd.buffer();
        crowd.qps[0][0].send(buffer).post().unwrap();
    }
    for _ in 0..20_000 {
        assert!(crowd.queues[0].poll().unwrap().is_none());
    }
    assert_eq!(crowd.queues[0].resting(), 19);
}

#[test]
fn those_who_have_nothing_rest_though_another_always_has_something() {
    const COUNT: usize = 2000;
    let mut crowd = Crowd::new(COUNT);
    let rest = (0..1000).map(|_| crowd.pass(COUNT / 2)).find(|&resting| resting >= COUNT - 10);
    assert!(rest.is_some(), "{} of {COUNT} rest", crowd.queues[1].resting());
}
