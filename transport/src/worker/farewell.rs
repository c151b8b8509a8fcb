//! The end of a worker: what it was told to send is with its peers before they see it go.

use std::time::Duration;

use super::Worker;
use super::endpoint::{Endpoint, Stage};

impl Drop for Worker {
    /// Waits until the peers' devices have what was posted, no longer than [`Config::close_timeout`](crate::Config).
    ///
    /// A queue pair that is dropped takes back what its device has not sent, or would have to send again; and the sockets,
    /// which end with the worker, tell of that faster than a device may send.
    fn drop(&mut self) {
        self.sockets.stop_all_listening();
        let deadline = self.now().saturating_add(self.config.close_timeout);
        let mut polls = 0;
        while self.endpoints.iter().any(is_behind) {
            self.signal_ends();
            let now = self.now();
            if now >= deadline {
                return tracing::warn!("a peer's device did not answer: what was sent last may be lost");
            }
            // What is awaited is no event, and may be taken on the way to sleep: hence a look in between.
            let until = deadline.min(now.saturating_add(LOOK));
            let polled = if polls < POLLS { self.poll() } else { self.sleep(now, Some(until)) };
            match polled {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::yield_now(),
                Err(error) => return tracing::warn!(%error, "what was sent last may be lost"),
            }
            polls += 1;
        }
    }
}

impl Worker {
    /// Sees to it that the last of what each connection has posted completes: most messages do so with later ones.
    fn signal_ends(&mut self) {
        for index in 0..self.endpoints.bound() {
            let silent = |endpoint: &mut Endpoint| is_behind(endpoint) && !endpoint.link.is_end_signaled();
            if self.endpoints.at(index).is_some_and(silent) {
                // Without room for it, completions are on their way.
                let _ = self.post_probe(index);
            }
        }
    }
}

/// True if the peer's device may not have all that was posted, and there is no reason why it should not get it.
fn is_behind(endpoint: &Endpoint) -> bool {
    matches!(endpoint.stage, Stage::Up) && endpoint.broken.is_none() && !endpoint.link.is_acknowledged()
}

/// Polls before this side sleeps in between. On shared memory, where what is posted is done, the first will do.
const POLLS: u32 = 1000;
/// How long to sleep at most.
const LOOK: Duration = Duration::from_millis(1);
