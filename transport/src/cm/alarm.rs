//! What other threads end a sleep over the sockets with: they have found out what they were asked.

use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};

use mio::{Registry, Token};

/// Such an alarm. A poll has one.
struct Alarm(mio::Waker);

/// A waker that raises an event of `token`.
pub(super) fn alarm(registry: &Registry, token: Token) -> io::Result<Waker> {
    Ok(Waker::from(Arc::new(Alarm(mio::Waker::new(registry, token)?))))
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Err(error) = self.0.wake() {
            tracing::warn!(%error, "could not announce an answer; it is found when the sockets are polled next");
        }
    }
}
