//! The end of a worker: what it was told to send is with its peers before they see it go.

use std::time::Duration;

use super::Worker;
use super::endpoint::Stage;
use super::ids::EndpointId;
use super::watch::Watch;

impl Drop for Worker {
    /// Waits until the peers' devices have what was posted, no longer than [`Config::close_timeout`](crate::Config).
    ///
    /// A queue pair that is dropped takes back what its device has not sent, or would have to send again; and the sockets,
    /// which end with the worker, tell of that faster than a device may send. While unwinding it does not wait.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.sockets.stop_all_listening();
        // What is posted up to now: peers that send on are answered meanwhile, which would have no end.
        let last: Vec<_> = self.endpoints.iter().map(|endpoint| (endpoint.id, endpoint.link.posted())).collect();
        let (limit, mut watch) = (self.config.close_timeout, Watch::new(self.now()));
        let mut polls = 0;
        while last.iter().any(|&(ep, count)| self.is_behind(ep, count)) {
            self.signal_ends(&last);
            let now = self.now();
            if watch.is_over(now, limit) {
                return tracing::warn!("a peer's device did not answer: what was sent last may be lost");
            }
            // What is awaited is no event, and may be taken on the way to sleep: hence a look in between.
            let until = watch.due(limit).min(now.saturating_add(LOOK));
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
    /// True if the peer's device may not have the first `count` requests of a connection, and there is no reason why it
    /// should not get them.
    fn is_behind(&mut self, ep: EndpointId, count: u32) -> bool {
        self.endpoints.get_mut(ep).is_some_and(|endpoint| {
            let lives = match endpoint.stage {
                Stage::Up => endpoint.broken.is_none() || endpoint.link.retains(),
                Stage::Recovering(_) => true,
                _ => false,
            };
            lives && !endpoint.link.is_acknowledged(count)
        })
    }

    /// Sees to it that the last of what each connection had posted completes: most messages do so with later ones.
    fn signal_ends(&mut self, last: &[(EndpointId, u32)]) {
        for &(ep, count) in last {
            let silent = self.endpoints.get_mut(ep).is_some_and(|endpoint| !endpoint.link.will_acknowledge(count));
            if silent && self.is_behind(ep, count) {
                // Without room for it, completions are on their way.
                let _ = self.post_probe(ep.index as usize);
            }
        }
    }
}

/// Polls before this side sleeps in between. On shared memory, where what is posted is done, the first will do.
const POLLS: u32 = 1000;
/// How long to sleep at most.
const LOOK: Duration = Duration::from_millis(1);
