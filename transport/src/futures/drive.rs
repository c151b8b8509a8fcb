//! Driving: polling while something happens, giving way to other tasks, then sleeping.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::error::DriveResult;
use super::shared::{Shared, with};
use super::sleeper::Sleeper;
use crate::worker::{Armed, WorkerError};

/// Drives the worker until it can not go on.
pub(super) async fn drive(shared: Rc<RefCell<Shared>>, mut sleeper: impl Sleeper, spins: u32) -> DriveResult {
    let mut idle = 0;
    let driver = with(&shared, Shared::start);
    // Also when this is dropped: nobody shall wait for what does not come.
    let mut stop = Stop { shared: &shared, driver, is_over: false };
    let ended = loop {
        match with(&shared, Shared::advance) {
            Ok(true) => idle = 0,
            Ok(false) => idle += 1,
            Err(error) => break error,
        }
        if idle < spins {
            give_way().await;
            continue;
        }
        match nap(&shared, driver, &mut sleeper).await {
            Ok(()) => idle = 0,
            Err(error) => break error,
        }
    };
    stop.is_over = true;
    Err(ended)
}

/// The end of a driver.
struct Stop<'s> {
    shared: &'s RefCell<Shared>,
    driver: usize,
    /// The worker can not go on.
    is_over: bool,
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        with(self.shared, |shared| shared.stop(self.driver, self.is_over));
    }
}

/// Lets other tasks have their turn.
async fn give_way() {
    let mut given = false;
    poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sleeps until the worker has something to do, or is given something.
async fn nap(shared: &Rc<RefCell<Shared>>, driver: usize, sleeper: &mut impl Sleeper) -> DriveResult {
    let (armed, fd) = with(shared, |shared| -> Result<_, WorkerError> {
        let copy = |source| WorkerError::System { what: "copy a descriptor", source };
        Ok((shared.arm()?, shared.worker.as_fd().try_clone_to_owned().map_err(copy)?))
    })?;
    let Armed::Until(limit) = armed else { return Ok(()) };
    let mut sleep = pin!(sleeper.sleep(fd.as_fd(), limit));
    poll_fn(|context| {
        let waker = context.waker().clone();
        let poked = with(shared, |shared| {
            shared.set_driver(driver, waker);
            shared.poked
        });
        if poked {
            return Poll::Ready(Ok(()));
        }
        sleep.as_mut().poll(context).map_err(|source| WorkerError::System { what: "sleep", source })
    })
    .await
}
