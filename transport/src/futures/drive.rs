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
pub(super) fn drive<S: Sleeper>(
    shared: Rc<RefCell<Shared>>,
    mut sleeper: S,
    spins: u32,
) -> impl Future<Output = DriveResult> + use<S> {
    // From now on, so that those who wait are told also if this is dropped before it runs.
    let driver = Driver::new(shared);
    async move {
        let mut idle = 0;
        let ended = loop {
            match with(&driver.shared, Shared::advance) {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => break error,
            }
            if idle < spins {
                give_way().await;
                continue;
            }
            match nap(&driver, &mut sleeper).await {
                Ok(()) => idle = 0,
                Err(error) => break error,
            }
        };
        driver.end(ended)
    }
}

/// One that drives, or is to. When it is dropped, nobody shall wait for what does not come.
struct Driver {
    shared: Rc<RefCell<Shared>>,
    number: usize,
    /// The worker can not go on.
    is_over: bool,
}

impl Driver {
    fn new(shared: Rc<RefCell<Shared>>) -> Self {
        let number = with(&shared, Shared::start);
        Driver { shared, number, is_over: false }
    }

    fn end(mut self, why: WorkerError) -> DriveResult {
        self.is_over = true;
        Err(why)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        with(&self.shared, |shared| shared.stop(self.number, self.is_over));
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
async fn nap(Driver { shared, number, .. }: &Driver, sleeper: &mut impl Sleeper) -> DriveResult {
    let (armed, fd) = with(shared, |shared| -> Result<_, WorkerError> {
        let copy = |source| WorkerError::System { what: "copy a descriptor", source };
        Ok((shared.arm()?, shared.worker.as_fd().try_clone_to_owned().map_err(copy)?))
    })?;
    let Armed::Until(limit) = armed else {
        // What is to come may take a while.
        give_way().await;
        return Ok(());
    };
    let mut sleep = pin!(sleeper.sleep(fd.as_fd(), limit));
    poll_fn(|context| {
        let waker = context.waker().clone();
        let poked = with(shared, |shared| {
            shared.set_driver(*number, waker);
            shared.poked
        });
        if poked {
            return Poll::Ready(Ok(()));
        }
        sleep.as_mut().poll(context).map_err(|source| WorkerError::System { what: "sleep", source })
    })
    .await
}
