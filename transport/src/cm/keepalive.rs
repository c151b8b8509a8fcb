//! Streams whose other end is gone without a word: the system asks, and gives up in a bounded time.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// How the system finds that a stream's other host is gone: it asks where nothing is heard, and gives up in a bounded time. What
/// reads the stream gets an error then.
///
/// It is what streams of [`Worker`](crate::Worker)s have, for streams beside them.
///
/// ```
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
/// use qpair_transport::Keepalive;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let stream = TcpStream::connect(listener.local_addr()?)?;
/// // Asks after 4 s of silence, and then each 2 s; gives up after 20 s.
/// let keepalive = Keepalive::new(Duration::from_secs(4), Duration::from_secs(2), Duration::ZERO);
/// keepalive.expect("neither is for ever").watch(&stream)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which it asks.
    idle: Duration,
    /// Time between questions.
    interval: Duration,
    /// How long something may stay without an acknowledgment.
    limit: Duration,
}

impl Keepalive {
    /// Asks after `interval` of silence, and then each `detection`, in the whole seconds that the system counts in: as long as a
    /// probe of the queue pair has, and so many questions that a stream stays where a queue pair still works, though the network
    /// loses many; and `recovery` more, as long as a connection may be without a queue pair that does. `None` if one of them is
    /// for ever: beyond 9 hours, or two weeks of `recovery`.
    pub fn new(interval: Duration, detection: Duration, recovery: Duration) -> Option<Self> {
        let seconds = |time: Duration, most: u64| {
            let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
            (whole <= most).then(|| Duration::from_secs(whole.max(1)))
        };
        let (idle, interval) = (seconds(interval, LONGEST)?, seconds(detection, LONGEST)?);
        let more = if recovery.is_zero() { recovery } else { seconds(recovery, LONGEST_RECOVERY)? };
        Some(Keepalive { idle, interval, limit: idle + QUESTIONS * interval + more })
    }

    /// From now on, of this stream, which is TCP's.
    ///
    /// # Errors
    /// The system's, of a descriptor that is no TCP stream.
    pub fn watch(&self, stream: impl AsFd) -> io::Result<()> {
        let stream = stream.as_fd();
        sockopt::set_tcp_keepidle(stream, self.idle)?;
        sockopt::set_tcp_keepintvl(stream, self.interval)?;
        sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
        sockopt::set_tcp_user_timeout(stream, self.limit.as_millis() as u32)?;
        sockopt::set_socket_keepalive(stream, true)?;
        Ok(())
    }
}

/// Of a network that loses one packet in 20, in either direction, one in ten is not answered, and eight in a row once in years. The
/// system counts by the limit, where there is one.
const QUESTIONS: u32 = 8;
/// What the system takes, in seconds.
const LONGEST: u64 = 32_767;
/// Two weeks, in seconds: with the questions the limit is less than the system's, which counts it in milliseconds.
const LONGEST_RECOVERY: u64 = 14 * 24 * 3600;
const _: () = assert!((LONGEST_RECOVERY + (1 + QUESTIONS as u64) * LONGEST) * 1000 < i32::MAX as u64);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_system_is_told_the_workers_limits_in_whole_seconds() {
        let millis = Duration::from_millis;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (interval, detection, recovery, expected) in [
            (500, 1000, 0, (1, 1, 9_000)),
            (1, 1, 1, (1, 1, 10_000)),
            (2500, 7001, 20_000, (3, 8, 87_000)),
            (1, 1, 40_000_000, (1, 1, 40_009_000)),
        ] {
            Keepalive::new(millis(interval), millis(detection), millis(recovery)).unwrap().watch(&stream).unwrap();
            let (idle, interval, limit) = expected;
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(idle));
            assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), Duration::from_secs(interval));
            assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), QUESTIONS);
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), limit);
        }
        let (ms, ever) = (millis(1), Duration::MAX);
        for (interval, detection, recovery) in [(ever, ms, ms), (ms, ever, ms), (ms, ms, ever)] {
            assert_eq!(Keepalive::new(interval, detection, recovery), None);
        }
    }
}
