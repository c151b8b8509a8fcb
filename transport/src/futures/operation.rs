//! A future for the event that ends an operation.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::shared::{Shared, with};
use crate::worker::{EndpointId, Event, OpId};

/// What is waited for.
#[derive(Clone, Copy)]
enum What {
    Op(OpId),
    Endpoint(EndpointId),
}

/// The event of one operation, or the beginning of one connection. Dropped early, it cancels that.
pub(super) struct Operation {
    shared: Rc<RefCell<Shared>>,
    place: usize,
    what: What,
    over: bool,
}

impl Operation {
    pub(super) fn op(shared: &Rc<RefCell<Shared>>, op: OpId) -> Self {
        let place = with(shared, |shared| shared.await_op(op));
        Operation { shared: shared.clone(), place, what: What::Op(op), over: false }
    }

    pub(super) fn endpoint(shared: &Rc<RefCell<Shared>>, ep: EndpointId) -> Self {
        let place = with(shared, |shared| shared.await_endpoint(ep));
        Operation { shared: shared.clone(), place, what: What::Endpoint(ep), over: false }
    }
}

impl Future for Operation {
    /// `None`: the worker can not go on.
    type Output = Option<Event>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let waker = context.waker().clone();
        let polled = with(&self.shared, |shared| shared.poll_wait(self.place, waker));
        self.over = polled.is_ready();
        polled
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        with(&self.shared, |shared| match self.what {
            What::Op(op) => shared.drop_op(self.place, op),
            What::Endpoint(ep) => shared.drop_endpoint(self.place, ep),
        });
    }
}
