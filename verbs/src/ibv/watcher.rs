//! The thread that reads a device's asynchronous events. It sleeps until there is one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use qpair_verbs_sys as sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::handle::Handle;
use super::hub::Hub;
use super::listeners::{CqFailure, CqListener, QpListener};
use crate::events::AsyncEvent;
use crate::soft::EventFd;

/// The watching thread; dropping this ends it.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(handle: &Arc<Handle>, hub: &Arc<Hub>) -> io::Result<Self> {
        let stop = Arc::new(EventFd::new()?);
        let flags = fcntl_getfl(async_fd(handle))?;
        fcntl_setfl(async_fd(handle), flags | OFlags::NONBLOCK)?;
        let (handle, hub, stopped) = (handle.clone(), hub.clone(), stop.clone());
        let thread = Builder::new().name("qpair-events".to_owned()).spawn(move || {
            watch(&handle, &hub, &stopped);
            hub.last_receives.close();
        })?;
        Ok(Watcher { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.ring();
        // The last hold on a device may be the thread's own; it ends by itself then.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

fn async_fd(handle: &Handle) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the context, which `handle` keeps.
    unsafe { BorrowedFd::borrow_raw((*handle.ctx()).async_fd) }
}

fn watch(handle: &Handle, hub: &Hub, stop: &EventFd) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(async_fd(handle), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::error!(%error, "events of the device are not watched any more"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        let broken = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if !take_events(handle, hub) && broken {
            tracing::error!(device = handle.name, "the device is gone: it tells no more events");
            handle.note_failure();
            hub.events.raise(AsyncEvent::DeviceFatal);
            hub.fail();
            return;
        }
    }
}

/// Takes the events that wait; false if there was none.
fn take_events(handle: &Handle, hub: &Hub) -> bool {
    let mut any = false;
    loop {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open; the library fills the event where it returns 0.
        if unsafe { (handle.library.ibv_get_async_event)(handle.ctx(), event.as_mut_ptr()) } != 0 {
            return any;
        }
        any = true;
        // SAFETY: filled above; all zeroes is a valid value besides.
        let mut event = unsafe { event.assume_init() };
        if event.event_type == sys::IBV_EVENT_DEVICE_FATAL {
            handle.note_failure();
        }
        let held = dispatch(&event, hub);
        // SAFETY: an event that was got, acknowledged once. What it names is not destroyed before that.
        unsafe { (handle.library.ibv_ack_async_event)(&raw mut event) };
        // Only now: this may be the last hold, and destroying a queue waits until its events are acknowledged.
        drop(held);
    }
}

/// What an event is about; held until it is acknowledged.
#[derive(Default)]
struct Held {
    qp: Option<Arc<dyn QpListener>>,
    _cqs: Vec<Arc<dyn CqListener>>,
}

/// Tells of an event, and after that marks what it is about: who finds something failed finds the event there.
fn dispatch(event: &sys::ibv_async_event, hub: &Hub) -> Held {
    // SAFETY: every reading of the union is valid: pointers that are compared and not followed, and a number.
    let (qp, cq, port) = unsafe { (event.element.qp, event.element.cq, event.element.port_num) };
    let qp_event = |make: fn(crate::Qpn) -> AsyncEvent, fails: bool| {
        let qp = hub.qp(qp);
        if let Some(qp) = &qp {
            hub.events.raise(make(qp.qpn()));
            if fails {
                qp.fail();
            }
        }
        Held { qp, _cqs: Vec::new() }
    };
    let port = || u8::try_from(port).unwrap_or_default();
    let raised = match event.event_type {
        sys::IBV_EVENT_CQ_ERR => {
            let cq = hub.cq(cq.cast());
            hub.events.raise(AsyncEvent::CqError);
            if let Some(cq) = &cq {
                cq.fail(CqFailure::Overrun);
            }
            return Held { qp: None, _cqs: cq.into_iter().collect() };
        }
        sys::IBV_EVENT_QP_FATAL => return qp_event(AsyncEvent::QpFatal, true),
        sys::IBV_EVENT_QP_REQ_ERR => return qp_event(AsyncEvent::QpRequestError, true),
        sys::IBV_EVENT_QP_ACCESS_ERR => return qp_event(AsyncEvent::QpAccessError, true),
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
            let held = qp_event(AsyncEvent::LastWqeReached, false);
            if let Some(qp) = &held.qp {
                hub.last_receives.tell(&**qp);
            }
            return held;
        }
        sys::IBV_EVENT_COMM_EST => return qp_event(AsyncEvent::CommunicationEstablished, false),
        sys::IBV_EVENT_SQ_DRAINED => return qp_event(AsyncEvent::SendQueueDrained, false),
        sys::IBV_EVENT_PATH_MIG => return qp_event(AsyncEvent::PathMigrated, false),
        sys::IBV_EVENT_PATH_MIG_ERR => return qp_event(AsyncEvent::PathMigrationFailed, false),
        sys::IBV_EVENT_SRQ_ERR => AsyncEvent::SrqError,
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached,
        sys::IBV_EVENT_DEVICE_FATAL => {
            hub.events.raise(AsyncEvent::DeviceFatal);
            return Held { qp: None, _cqs: hub.fail() };
        }
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port()),
        sys::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChanged(port()),
        sys::IBV_EVENT_PKEY_CHANGE => AsyncEvent::PkeysChanged(port()),
        sys::IBV_EVENT_GID_CHANGE => AsyncEvent::GidsChanged(port()),
        sys::IBV_EVENT_SM_CHANGE => AsyncEvent::SubnetManagerChanged(port()),
        sys::IBV_EVENT_CLIENT_REREGISTER => AsyncEvent::ClientReregister(port()),
        other => AsyncEvent::Unknown(other),
    };
    hub.events.raise(raised);
    Held::default()
}
