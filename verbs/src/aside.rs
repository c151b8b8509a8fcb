//! Drops what may wait for a driver, or run code of the program, on a thread of its own: peers need the control threads, which
//! may not wait for what a peer has to bring about.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::panics;
use crate::sync::{self, lock};

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// What is to be dropped, each once its function says so, in order otherwise. The thread ends when there is nothing that may be, so
/// that nobody has to end it.
struct Reaper {
    waiting: VecDeque<(May, Box<dyn Send>)>,
    runs: bool,
}

type May = Box<dyn Fn() -> bool + Send>;

/// Told when the thread ends.
static IDLE: Condvar = Condvar::new();

static REAPER: Mutex<Reaper> = Mutex::new(Reaper { waiting: VecDeque::new(), runs: false });

/// Whether something waits: a look without the lock.
static WAITS: AtomicBool = AtomicBool::new(false);

/// Says that what this thread drops by [`drop`] is dropped elsewhere from now on.
pub(crate) fn do_not_wait_here() {
    MAY_WAIT.set(false);
}

/// Whether this thread may wait for a driver, and run code of the program.
pub(crate) fn may_wait_here() -> bool {
    MAY_WAIT.get()
}

/// Whether this is the thread that drops what others may not wait for.
pub(crate) fn is_here() -> bool {
    std::thread::current().name() == Some(NAME)
}

/// Drops a value: here, unless this thread [may not wait](may_wait_here).
pub(crate) fn drop<T: Send + 'static>(value: T) {
    drop_once(|| true, value);
}

/// The same, once `may` says so. Whoever changes what that says [says so](look_again).
pub(crate) fn drop_once<T: Send + 'static>(may: impl Fn() -> bool + Send + 'static, value: T) {
    if may_wait_here() && may() {
        std::mem::drop(value);
    } else {
        give_once(may, value);
    }
}

/// Drops what `next` gives of `all`, and does `after`, whatever a drop does: that of what a program owns may panic. The others are
/// [given](give) then, since two panics at once would end the process.
#[inline]
pub(crate) fn drop_each<A, T: Send + 'static>(all: &mut A, next: impl Fn(&mut A) -> Option<T>, after: impl Fn(&mut A)) {
    struct ToTheEnd<'a, A, T: Send + 'static, N: Fn(&mut A) -> Option<T>, E: Fn(&mut A)>(&'a mut A, N, E);

    impl<A, T: Send + 'static, N: Fn(&mut A) -> Option<T>, E: Fn(&mut A)> Drop for ToTheEnd<'_, A, T, N, E> {
        fn drop(&mut self) {
            while let Some(value) = (self.1)(self.0) {
                give(value);
            }
            (self.2)(self.0);
        }
    }

    let to_the_end = ToTheEnd(all, next, after);
    while (to_the_end.1)(to_the_end.0).is_some() {}
}

/// Has a value dropped on the thread for that. A panic of its drop ends there.
pub(crate) fn give<T: Send + 'static>(value: T) {
    give_once(|| true, value);
}

/// The same, once `may` says so. Whoever changes what that says [says so](look_again).
pub(crate) fn give_once<T: Send + 'static>(may: impl Fn() -> bool + Send + 'static, value: T) {
    let mut reaper = lock(&REAPER);
    reaper.waiting.push_back((Box::new(may), Box::new(value)));
    WAITS.store(true, Ordering::SeqCst);
    reaper.start();
}

/// What waits may be dropped now, perhaps.
#[inline]
pub(crate) fn look_again() {
    if WAITS.load(Ordering::SeqCst) {
        attend();
    }
}

/// Starts the thread if it could not be started when something was given.
pub(crate) fn attend() {
    lock(&REAPER).start();
}

/// Waits until all that was given is dropped, some time at most: it may wait for what the caller is about to do.
pub(crate) fn wait_a_while() {
    if !is_here() {
        sync::wait(&REAPER, &IDLE, Some(Instant::now() + A_WHILE), |reaper| (!reaper.runs).then_some(()));
    }
}

impl Reaper {
    /// The place of what is to be dropped next.
    fn place(&self) -> Option<usize> {
        self.waiting.iter().position(|(may, _)| may())
    }

    fn next(&mut self) -> Option<Box<dyn Send>> {
        let next = self.place().and_then(|place| self.waiting.remove(place));
        WAITS.store(!self.waiting.is_empty(), Ordering::SeqCst);
        next.map(|(_, value)| value)
    }

    fn start(&mut self) {
        if self.runs || self.place().is_none() {
            return;
        }
        match std::thread::Builder::new().name(NAME.to_owned()).spawn(reap) {
            Ok(_) => self.runs = true,
            Err(error) => tracing::warn!(%error, "no thread gives memory back; it is tried again"),
        }
    }
}

fn reap() {
    loop {
        let next = {
            let mut reaper = lock(&REAPER);
            let next = reaper.next();
            reaper.runs = next.is_some();
            next
        };
        let Some(next) = next else { return IDLE.notify_all() };
        if let Err(error) = panics::as_error("the owner of memory that was dropped", || std::mem::drop(next)) {
            tracing::error!(%error, "memory is let go of all the same");
        }
    }
}

const NAME: &str = "qpair-reaper";
/// What closing some memory takes, many times.
const A_WHILE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    use super::*;

    /// Tells where it is dropped.
    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as the test wants it");
        }
    }

    #[test]
    fn a_thread_that_may_not_wait_drops_elsewhere() {
        let (to, from) = channel();
        let here = std::thread::spawn(move || {
            drop(Tells(to.clone()));
            do_not_wait_here();
            drop(Tells(to));
            std::thread::current().id()
        });
        let here = here.join().unwrap();
        assert_eq!(from.recv().unwrap(), here);
        assert_ne!(from.recv_timeout(LIMIT).unwrap(), here);
    }

    #[test]
    fn what_panics_takes_nothing_along() {
        let (to, from) = channel();
        give((Panics, Tells(to.clone())));
        give(Tells(to));
        for _ in 0..2 {
            from.recv_timeout(LIMIT).unwrap();
        }
    }

    #[test]
    fn what_has_a_time_waits_for_it_and_holds_up_nothing() {
        static MAY: AtomicBool = AtomicBool::new(false);
        let may = || MAY.load(Ordering::SeqCst);
        let (to, from) = channel();
        let (late, soon) = (channel(), channel());
        give_once(may, (Tells(late.0), to.clone()));
        give_once(|| true, Tells(soon.0));
        give(Tells(to));
        for tells in [&from, &soon.1] {
            tells.recv_timeout(LIMIT).unwrap();
        }
        look_again();
        assert!(late.1.try_recv().is_err(), "it is not its time");
        MAY.store(true, Ordering::SeqCst);
        look_again();
        late.1.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn what_does_not_end_is_not_waited_for() {
        struct Waits(std::sync::mpsc::Receiver<()>);
        impl Drop for Waits {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let (to, from) = channel();
        give(Waits(from));
        wait_a_while();
        assert!(lock(&REAPER).runs);
        std::mem::drop(to);
        while lock(&REAPER).runs {
            wait_a_while();
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);
}
