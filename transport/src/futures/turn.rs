//! Futures for what belongs to no operation: the next connection, the next event, room for more.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::shared::{Shared, with};

/// Waits until `take` gives something. While it waits, the next event wakes it; dropped, it leaves nothing behind.
pub(super) struct Turn<F> {
    shared: Rc<RefCell<Shared>>,
    take: F,
    place: Option<usize>,
}

impl<T, F: FnMut(&mut Shared) -> Option<T> + Unpin> Turn<F> {
    pub(super) fn new(shared: &Rc<RefCell<Shared>>, take: F) -> Self {
        Turn { shared: shared.clone(), take, place: None }
    }
}

impl<T, F: FnMut(&mut Shared) -> Option<T> + Unpin> Future for Turn<F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Turn { shared, take, place } = &mut *self;
        let waker = context.waker().clone();
        with(shared, |shared| match take(shared) {
            Some(taken) => {
                shared.discard(waker);
                Poll::Ready(taken)
            }
            None => {
                *place = Some(shared.listen(*place, waker));
                Poll::Pending
            }
        })
    }
}

impl<F> Drop for Turn<F> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            with(&self.shared, |shared| shared.leave(place));
        }
    }
}
