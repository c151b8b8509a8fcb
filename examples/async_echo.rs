//! Messages in an async program, here on tokio: a server that answers any number of clients, each a task.
//!
//! ```text
//! cargo run --release --example async_echo                          # server and clients in one program
//! cargo run --release --example async_echo -- serve 0.0.0.0:7000    # or apart: the server
//! cargo run --release --example async_echo -- call HOST:7000        # and clients
//! ```

use std::error::Error;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use qpair::transport::futures::{AsyncWorker, Sleeper};
use qpair::transport::{CloseReason, Event, HandlerId};
use qpair::{Config, Worker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::{LocalSet, spawn_local};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ECHO: HandlerId = HandlerId(1);
const CLIENTS: usize = 8;
const CALLS: usize = 1000;

/// Sleeps on tokio's reactor.
struct Reactor;

impl Sleeper for Reactor {
    async fn sleep(&mut self, fd: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<()> {
        #[expect(
            deprecated,
            reason = "the newer way wants a promise that the descriptor is open; an `OwnedFd` always is"
        )]
        let fd = AsyncFd::with_interest(fd.try_clone_to_owned()?, Interest::READABLE)?;
        let readable = async { fd.readable().await.map(|mut guard| guard.clear_ready()) };
        match limit {
            Some(limit) => tokio::time::timeout(limit, readable).await.unwrap_or(Ok(())),
            None => readable.await,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let local = LocalSet::new();
    local
        .run_until(async {
            match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] => {
                    let server = start()?;
                    let address = server.listen("127.0.0.1:0")?.local_addr();
                    spawn_local(serve(server));
                    call(&address.to_string()).await
                }
                ["serve", address] => {
                    let server = start()?;
                    println!("serving at {}", server.listen(address)?.local_addr());
                    serve(server).await
                }
                ["call", address] => call(address).await,
                _ => Err("use: async_echo [serve ADDRESS | call HOST:PORT]".into()),
            }
        })
        .await
}

/// A worker, and a task that drives it.
fn start() -> Outcome<AsyncWorker> {
    let worker = AsyncWorker::new(Worker::new(Config::default())?);
    let driving = worker.drive(Reactor);
    spawn_local(async move {
        if let Err(error) = driving.await {
            eprintln!("stopped: {error}");
        }
    });
    Ok(worker)
}

/// Answers each request with what it says.
async fn serve(worker: AsyncWorker) -> Outcome {
    loop {
        match worker.next_event().await? {
            Event::Request(request) => {
                let answer = request.message.into_bytes();
                worker.with(|worker| {
                    // A client that is gone needs no answer; one that asks on and takes no answers is hung up on.
                    if let Err((_, reply)) = worker.respond(request.reply, answer) {
                        worker.abort(reply.endpoint());
                    }
                });
            }
            Event::Closed { reason, .. } if !matches!(reason, CloseReason::Remote) => {
                println!("a client is gone: {reason}")
            }
            _ => {}
        }
    }
}

/// Runs some clients at once, over one connection each.
async fn call(address: &str) -> Outcome {
    let worker = start()?;
    let begun = Instant::now();
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| spawn_local(one(worker.clone(), address.to_owned(), client))).collect();
    for client in clients {
        client.await?.map_err(|error| format!("a client failed: {error}"))?;
    }
    let calls = CLIENTS * CALLS;
    println!("{calls} calls by {CLIENTS} clients in {:.3} s", begun.elapsed().as_secs_f64());
    // Who waits no longer than that for an answer may get it too late; that is no harm.
    let ep = worker.connect(address).await?;
    match tokio::time::timeout(Duration::ZERO, worker.request(ep, ECHO, vec![0; 1 << 20])).await {
        Ok(answer) => println!("{} bytes came back at once", answer?.len()),
        Err(_) => println!("1 MiB does not come back at once; its future is dropped"),
    }
    Ok(())
}

async fn one(worker: AsyncWorker, address: String, client: usize) -> Result<(), String> {
    let ep = worker.connect(&*address).await.map_err(|error| error.to_string())?;
    for call in 0..CALLS {
        let question = format!("call {call} of client {client}");
        let answer =
            worker.request(ep, ECHO, question.clone().into_bytes()).await.map_err(|error| error.to_string())?;
        if answer != question.as_bytes() {
            return Err(format!("another answer: {answer:?}"));
        }
    }
    worker.with(|worker| worker.close(ep));
    Ok(())
}
