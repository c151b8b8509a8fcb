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
use crate::panics;
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
            let watched = panics::as_error("the thread that reads them", || watch(&handle, &hub, &stopped));
            hub.last_receives.close();
            if let Err(why) = watched.and_then(|read| read) {
                lose(&handle, &hub, &why);
            }
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

/// Reads events until the watcher is to stop.
///
/// # Errors
/// Why it can not be read what the device tells.
fn watch(handle: &Handle, hub: &Hub, stop: &EventFd) -> io::Result<()> {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(async_fd(handle), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        let broken = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if !take_events(handle, hub) && broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

/// Nobody reads events any more: whoever waits for something of the device is told that it is gone.
fn lose(handle: &Handle, hub: &Hub, why: &io::Error) {
    handle.note_failure();
    // Each, whatever becomes of what logs that.
    let _ = panics::as_error("the log", || hub.events.raise(AsyncEvent::DeviceFatal));
    hub.fail();
    tracing::error!(device = handle.name, %why, "the device is taken to be gone: its events can not be read");
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
        let mut got = Got { handle, event: unsafe { event.assume_init() }, held: Held::default() };
        if got.event.event_type == sys::IBV_EVENT_DEVICE_FATAL {
            handle.note_failure();
        }
        dispatch(&got.event, hub, &mut got.held);
    }
}

/// An event that was got. It is acknowledged on drop, also where what logs it panics: destroying what it is about waits
/// for that.
struct Got<'a> {
    handle: &'a Handle,
    event: sys::ibv_async_event,
    /// Dropped after that: it may be the last hold on a queue.
    held: Held,
}

impl Drop for Got<'_> {
    fn drop(&mut self) {
        // SAFETY: an event that was got, acknowledged once. What it names is not destroyed before that.
        unsafe { (self.handle.library.ibv_ack_async_event)(&raw mut self.event) };
    }
}

/// What an event is about; held until it is acknowledged.
#[derive(Default)]
struct Held {
    qp: Option<Arc<dyn QpListener>>,
    cqs: Vec<Arc<dyn CqListener>>,
}

/// Tells of an event, and after that marks what it is about: who finds something failed finds the event there. What
/// logs that may panic: `held` has what it is about before.
fn dispatch(event: &sys::ibv_async_event, hub: &Hub, held: &mut Held) {
    // SAFETY: every reading of the union is valid: pointers that are compared and not followed, and a number.
    let (qp, cq, port) = unsafe { (event.element.qp, event.element.cq, event.element.port_num) };
    let mut qp_event = |make: fn(crate::Qpn) -> AsyncEvent, fails: bool| {
        held.qp = hub.qp(qp);
        if let Some(qp) = &held.qp {
            hub.events.raise(make(qp.qpn()));
            if fails {
                qp.fail();
            }
        }
    };
    let port = || u8::try_from(port).unwrap_or_default();
    let raised = match event.event_type {
        sys::IBV_EVENT_CQ_ERR => {
            held.cqs.extend(hub.cq(cq.cast()));
            hub.events.raise(AsyncEvent::CqError);
            return held.cqs.iter().for_each(|cq| cq.fail(CqFailure::Overrun));
        }
        sys::IBV_EVENT_QP_FATAL => return qp_event(AsyncEvent::QpFatal, true),
        sys::IBV_EVENT_QP_REQ_ERR => return qp_event(AsyncEvent::QpRequestError, true),
        sys::IBV_EVENT_QP_ACCESS_ERR => return qp_event(AsyncEvent::QpAccessError, true),
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
            qp_event(AsyncEvent::LastWqeReached, false);
            if let Some(qp) = &held.qp {
                hub.last_receives.tell(&**qp);
            }
            return;
        }
        sys::IBV_EVENT_COMM_EST => return qp_event(AsyncEvent::CommunicationEstablished, false),
        sys::IBV_EVENT_SQ_DRAINED => return qp_event(AsyncEvent::SendQueueDrained, false),
        sys::IBV_EVENT_PATH_MIG => return qp_event(AsyncEvent::PathMigrated, false),
        sys::IBV_EVENT_PATH_MIG_ERR => return qp_event(AsyncEvent::PathMigrationFailed, false),
        sys::IBV_EVENT_SRQ_ERR => AsyncEvent::SrqError,
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached,
        sys::IBV_EVENT_DEVICE_FATAL => {
            hub.events.raise(AsyncEvent::DeviceFatal);
            held.cqs = hub.fail();
            return;
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
}
