//! Verbs, transport and collectives at once in one process, on one device.

use qpair::{Access, Bytes, Communicator, Config, Context, Event, ReduceOp, Tag, Worker};

mod common;

use common::{Holdings, done, next};

#[test]
fn all_layers_work_at_once_and_leave_nothing() {
    all_layers(); // what a process makes once and keeps
    let before = Holdings::now();
    all_layers();
    before.wait_for_again();
}

fn all_layers() {
    let ctx = Context::open("soft0").unwrap();
    let mut server = Worker::on(ctx.clone(), Config::default()).unwrap();
    let listener = server.listen("127.0.0.1:0").unwrap();
    let mut client = Worker::on(ctx.clone(), Config::default()).unwrap();
    client.connect(listener.local_addr()).unwrap();
    let group = Communicator::group(3).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| writes(&ctx));
        scope.spawn(move || echo(&mut server));
        scope.spawn(move || messages(&mut client));
        for comm in group {
            scope.spawn(move || sums(&comm));
        }
    });
}

/// WRITEs to a window, each read back.
fn writes(ctx: &Context) {
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(16).unwrap();
    let (a, b) = (pd.rc(&cq).build().unwrap(), pd.rc(&cq).build().unwrap());
    let (at_a, at_b) = (a.address(), b.address());
    let (mut a, _b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
    let window = pd.expose(4096, Access::REMOTE_WRITE).unwrap();
    for round in 0..ROUNDS {
        a.write_inline(&round.to_le_bytes(), window.remote(8..16)).signaled().post().unwrap();
        done(&mut cq);
        assert_eq!(window.load(8).unwrap(), round);
    }
}

/// Sends every message back, until the connection is closed.
fn echo(worker: &mut Worker) {
    loop {
        match next(worker) {
            Event::Received { ep, tag, message } => drop(worker.send(ep, tag, message.into_bytes()).unwrap()),
            Event::Closed { .. } => return,
            _ => {}
        }
    }
}

/// Messages of changing length, short and long, each compared with what comes back.
fn messages(worker: &mut Worker) {
    let Event::Connected { ep } = next(worker) else { panic!("connects first") };
    for round in 0..ROUNDS {
        let length = [8, 1000, 100_000][round as usize % 3];
        let message = Bytes::from(vec![round as u8; length]);
        worker.send(ep, Tag(round), message.clone()).unwrap();
        loop {
            match next(worker) {
                Event::Received { tag, message: back, .. } => {
                    assert_eq!((tag, &back[..]), (Tag(round), &message[..]));
                    break;
                }
                Event::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    worker.close(ep);
    while !matches!(next(worker), Event::Closed { .. }) {}
}

/// All-reduces, each checked.
fn sums(comm: &Communicator) {
    for round in 0..ROUNDS {
        let mut vector = comm.buffer::<i64>([1, 1000, 50_000][round as usize % 3]).unwrap();
        vector.fill(round as i64 + comm.rank() as i64);
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
        let expected = 3 * round as i64 + 3;
        assert!(vector.iter().all(|&sum| sum == expected), "round {round}");
    }
}

const ROUNDS: u64 = 200;
