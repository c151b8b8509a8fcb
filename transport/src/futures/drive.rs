//! Driving: polling while something happens, giving way to other tasks, then sleeping.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::error::DriveResult;
use super::shared::{Shared, with};
use super::sleeper::Sleeper;
use crate::cm::is_out_of_descriptors;
use crate::worker::{Armed, WorkerError};

/// Drives the worker until it can not go on.
pub(super) fn drive<S: Sleeper>(
    shared: Rc<RefCell<Shared>>,
    mut sleeper: S,
    spins: u32,
) -> impl Future<Output = DriveResult> + use<S> {
    // From now on, so that those who wait are told also if this is dropped before it runs.
    let mut driver = Driver::new(shared);
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
            match nap(&mut driver, &mut sleeper).await {
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
    /// The worker's, to sleep with: it stays the same, and there may be none left later.
    fd: Option<OwnedFd>,
    /// The worker can not go on.
    is_over: bool,
}

impl Driver {
    fn new(shared: Rc<RefCell<Shared>>) -> Self {
        let number = with(&shared, Shared::start);
        let fd = with(&shared, |shared| shared.worker.as_fd().try_clone_to_owned().ok());
        Driver { shared, number, fd, is_over: false }
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

/// Sleeps until the worker has something to do, or is given something. Where there is no descriptor to be had to sleep with, others have
/// their turn, and may close some.
async fn nap(driver: &mut Driver, sleeper: &mut impl Sleeper) -> DriveResult {
    let Driver { shared, number, fd, .. } = driver;
    let Armed::Until(limit) = with(shared, Shared::arm)? else {
        // What is to come may take a while.
        give_way().await;
        return Ok(());
    };
    let slept = async {
        let fd = match fd {
            Some(fd) => &*fd,
            none => none.insert(with(shared, |shared| shared.worker.as_fd().try_clone_to_owned())?),
        };
        let mut sleep = pin!(sleeper.sleep(fd.as_fd(), limit));
        poll_fn(|context| {
            let waker = context.waker().clone();
            let poked = with(shared, |shared| {
                shared.set_driver(*number, waker);
                shared.poked
            });
            if poked { Poll::Ready(Ok(())) } else { sleep.as_mut().poll(context) }
        })
        .await
    };
    match slept.await {
        Err(source) if !is_out_of_descriptors(&source) => Err(WorkerError::System { what: "sleep", source }),
        Err(_) => {
            give_way().await;
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
