//! Datagrams of 40 bytes to and fro between two processes by plain UDP sockets that both poll: what the network of this
//! machine takes at least, for `benches/network/run` to hold an 8-byte WRITE against, whose packet is as long.
//!
//! ```text
//! udp_pingpong ADDRESS PORT                 # answers at that address
//! udp_pingpong ADDRESS PORT ROUND_TRIPS     # prints half of the median and mean round trip
//! ```

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [address, port] => serve(&UdpSocket::bind((address, port.parse()?))?),
        [address, port, round_trips] => {
            let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect((address, port.parse()?))?;
            measure(&socket, round_trips.parse()?)
        }
        _ => {
            println!("skipped: benches/network/run measures with this program");
            Ok(())
        }
    }
}

/// Until nothing came for a while.
fn serve(socket: &UdpSocket) -> Result<(), Box<dyn Error>> {
    socket.set_nonblocking(true)?;
    let (mut bytes, mut last) = ([0; LEN], Instant::now());
    while last.elapsed() < IDLE {
        match socket.recv_from(&mut bytes) {
            Ok((len, from)) => {
                socket.send_to(&bytes[..len], from)?;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn measure(socket: &UdpSocket, round_trips: usize) -> Result<(), Box<dyn Error>> {
    socket.set_nonblocking(true)?;
    let (mut bytes, mut times) = ([0; LEN], Vec::with_capacity(round_trips));
    for _ in 0..round_trips {
        let start = Instant::now();
        socket.send(&bytes)?;
        loop {
            match socket.recv(&mut bytes) {
                Ok(_) => break,
                // One that is lost is no measurement, and holds up nothing.
                Err(_) if start.elapsed() > LOST => {
                    socket.send(&bytes)?;
                    break;
                }
                Err(_) => {}
            }
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    let half = |time: Duration| time.as_secs_f64() * 1e6 / 2.0;
    println!("{{\"typical_us\": {:.3}, \"mean_us\": {:.3}}}", half(median), half(mean));
    Ok(())
}

/// As a WRITE of 8 bytes: BTH, RETH, payload, CRC.
const LEN: usize = 12 + 16 + 8 + 4;
const IDLE: Duration = Duration::from_secs(2);
const LOST: Duration = Duration::from_millis(200);
