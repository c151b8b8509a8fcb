//! For tests: what listens to the log for a program, and panics.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Does something where errors that this thread logs panic.
pub(crate) fn where_errors_panic<R>(act: impl FnOnce() -> R) -> std::thread::Result<R> {
    // Of the whole process: what another thread logs first is logged for nobody later if it is one thread's alone.
    SET.call_once(|| {
        tracing::subscriber::set_global_default(Bomb).expect("no test has another");
        tracing::callsite::rebuild_interest_cache();
    });
    IS_LIVE.set(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    IS_LIVE.set(false);
    done
}

/// A subscriber of the log that panics at an error, where that is wanted.
struct Bomb;

static SET: Once = Once::new();

thread_local! {
    static IS_LIVE: Cell<bool> = const { Cell::new(false) };
}

impl Subscriber for Bomb {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        assert!(!IS_LIVE.get(), "as a test wants it");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
