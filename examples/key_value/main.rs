//! A key-value store whose GET is one RDMA READ that the server's program takes no part in, and whose PUT is a request.
//!
//! The server keeps its table in memory that clients may read. A client that wants a value reads the bucket of its key, checks
//! that it was not in the middle of a change, and looks for the key in it. Values are changed by the server alone, as clients
//! ask it to.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example key_value                              # server and client in one program, and a measurement
//! cargo run --release --example key_value -- serve 0.0.0.0:7100        # or apart: the server
//! cargo run --release --example key_value -- put HOST:7100 KEY VALUE
//! cargo run --release --example key_value -- get HOST:7100 KEY
//! cargo run --release --example key_value -- measure HOST:7100
//! ```
//!
//! # Expected output
//!
//! ```text
//! 100000 PUTs:   1.44 us each (median), 99 % 2.05 us
//! 100000 GETs:   1.02 us each (median), 99 % 1.31 us, 0 read again
//! server, after set-up: 0 allocations, blocked 0 times
//! ```
//!
//! Times depend on the machine. The last line comes with server and client in one program, whose server is asked for it; it
//! ends with status 1 if that allocated, or blocked more than some few times: the kernel lets a thread sleep too, where it
//! moves or takes back a page of its memory.

mod client;
mod server;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use client::Client;
use server::Server;

#[path = "../../benches/counting/mod.rs"]
mod counting;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Requests that each side knows.
mod handlers {
    use qpair::transport::HandlerId;

    /// Where the table is.
    pub const WHERE: HandlerId = HandlerId(1);
    /// Changes a value.
    pub const PUT: HandlerId = HandlerId(2);
}

const ROUNDS: usize = 100_000;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => together(),
        ["serve", address] => {
            let mut server = Server::new(address)?;
            println!("serving at {}", server.address());
            server.serve(&AtomicBool::new(true)).map(|_| ())
        }
        ["put", address, key, value] => {
            let mut client = Client::connect(address)?;
            client.put(key.as_bytes(), value.as_bytes())?;
            client.close()
        }
        ["get", address, key] => {
            let mut client = Client::connect(address)?;
            match client.get(key.as_bytes())? {
                Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                None => println!("there is no {key}"),
            }
            client.close()
        }
        ["measure", address] => measure(address),
        _ => {
            Err("use: key_value [serve ADDRESS | put HOST:PORT KEY VALUE | get HOST:PORT KEY | measure HOST:PORT]"
                .into())
        }
    }
}

/// Server and client as two threads of this program.
fn together() -> Outcome {
    let running = AtomicBool::new(true);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let running = &running;
        let server = scope.spawn(move || {
            let mut server = Server::new("127.0.0.1:0")?;
            tell.send(server.address().to_string())?;
            server.serve(running)
        });
        let measured = told.recv().map_err(Into::into).and_then(|address: String| measure(&address));
        running.store(false, Ordering::Relaxed);
        let served = server.join().map_err(|_| "the server panicked")?;
        measured?;
        let (allocated, blocked) = served?;
        println!("server, after set-up: {allocated} allocations, blocked {blocked} times");
        if allocated > 0 || blocked > BLOCKED { Err("the server allocated or blocked".into()) } else { Ok(()) }
    })
}

/// How often the server may have blocked, of what are 200,000 requests.
const BLOCKED: u64 = 20;

fn measure(address: &str) -> Outcome {
    let mut client = Client::connect(address)?;
    let key = |number: usize| format!("key {}", number % 1000);
    let mut times = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        let (key, value) = (key(number), format!("value {number}"));
        let start = std::time::Instant::now();
        client.put(key.as_bytes(), value.as_bytes())?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    print("PUTs", &mut times, "");
    for number in 0..ROUNDS {
        let key = key(number);
        let start = std::time::Instant::now();
        let value = client.get(key.as_bytes())?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        let expected = format!("value {}", ROUNDS - 1000 + number % 1000);
        if value.as_deref() != Some(expected.as_bytes()) {
            return Err(format!("{key} is {value:?}, not {expected}").into());
        }
    }
    print("GETs", &mut times, &format!(", {} read again", client.again));
    if client.get(b"no such key")?.is_some() {
        return Err("there is a key that nobody put".into());
    }
    client.close()
}

fn print(what: &str, times: &mut Vec<f64>, more: &str) {
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("{} {what}: {:6.2} us each (median), 99 % {:.2} us{more}", times.len(), at(50), at(99));
    times.clear();
}
