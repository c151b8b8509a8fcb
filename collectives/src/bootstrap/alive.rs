//! Streams between ranks and the store whose other host is gone without a word: the system asks, and gives up within seconds.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// From now on, of this stream. A process that is stopped still answers: its system does.
pub(super) fn watch(stream: impl AsFd) -> io::Result<()> {
    let stream = stream.as_fd();
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    sockopt::set_tcp_user_timeout(stream, LIMIT.as_millis() as u32)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Silence after which the system asks, and time between questions.
const IDLE: Duration = Duration::from_secs(4);
const INTERVAL: Duration = Duration::from_secs(2);
/// Of a network that loses one packet in 20, in either direction, one in ten is not answered, and eight in a row once in years.
const QUESTIONS: u32 = 8;
/// How long anything may stay without an acknowledgment.
const LIMIT: Duration = Duration::from_secs(20);
