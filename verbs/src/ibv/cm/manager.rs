//! The thread that reads what the library tells, and takes the steps of a call that need no decision.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use qpair_roce::wire::cm::Reason;
use qpair_verbs_sys as sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::course::{Course, End, Loss};
use super::id::{self, Raw, heard, said};
use super::inbox::{Asked, Inbox};
use super::known::{About, Known};
use crate::error::{CmError, OTHER_DEVICE};
use crate::ibv::handle::{Handle, made, outcome};
use crate::panics;
use crate::soft::EventFd;

/// The connection manager of a device, and its thread. Connections and listeners keep it.
#[derive(Debug)]
pub(in crate::ibv) struct Manager {
    pub(super) core: Arc<Core>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has too.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) library: &'static sys::Rdmacm,
    pub(super) init_qp_attr: sys::cm_signature::rdma_init_qp_attr,
    pub(super) establish: sys::cm_signature::rdma_establish,
    pub(super) channel: NonNull<sys::rdma_event_channel>,
    pub(super) device: Arc<Handle>,
    pub(super) known: Known,
}

// SAFETY: the library's functions on a channel may be called from any thread.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Manager {
    pub(in crate::ibv) fn start(device: &Arc<Handle>) -> Result<Arc<Self>, CmError> {
        let missing = |source| CmError::NotSupported { device: device.name.clone(), source };
        // SAFETY: the context is open as long as the handle, and its device as long.
        if unsafe { (*(*device.ctx()).device).transport_type } == sys::IBV_TRANSPORT_IWARP {
            let source = io::Error::new(io::ErrorKind::Unsupported, "iWARP devices are not connected as others are");
            return Err(missing(source));
        }
        let library = sys::Rdmacm::load().map_err(|error| missing(io::Error::other(error)))?;
        let init_qp_attr = library.rdma_init_qp_attr().map_err(|error| missing(io::Error::other(error)))?;
        let establish = library.rdma_establish().map_err(|error| missing(io::Error::other(error)))?;
        // SAFETY: it takes nothing.
        let channel = made(unsafe { (library.rdma_create_event_channel)() }).map_err(missing)?;
        let (device, known) = (device.clone(), Known::default());
        let core = Arc::new(Core { library, init_qp_attr, establish, channel, device, known });
        let system = |source| CmError::System { what: "watch the connection manager", source };
        let stop = Arc::new(EventFd::new().map_err(system)?);
        let flags = fcntl_getfl(core.fd()).map_err(|error| system(error.into()))?;
        fcntl_setfl(core.fd(), flags | OFlags::NONBLOCK).map_err(|error| system(error.into()))?;
        let (watched, stopped) = (core.clone(), stop.clone());
        let thread = Builder::new().name("qpair-cm".to_owned()).spawn(move || watched.run(&stopped));
        let thread = Some(thread.map_err(system)?);
        Ok(Arc::new(Manager { core, stop, thread }))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: each id of it kept the manager, and is gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// An event that was got. It is acknowledged on drop, also where what logs it panics: whoever destroys an id waits for
/// that.
struct Got {
    library: &'static sys::Rdmacm,
    event: NonNull<sys::rdma_cm_event>,
}

impl Drop for Got {
    fn drop(&mut self) {
        // SAFETY: got, and acknowledged once.
        unsafe { (self.library.rdma_ack_cm_event)(self.event.as_ptr()) };
    }
}

/// What was told of a connection or a listener.
struct Told {
    event: sys::rdma_cm_event_type,
    status: i32,
    id: NonNull<sys::rdma_cm_id>,
    /// At which a request came.
    listener: usize,
    words: super::course::Words,
}

impl Core {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Reads events until it is to stop. Where that can not go on, whoever waits for one is told.
    fn run(&self, stop: &EventFd) {
        let watched = panics::as_error("the thread that reads them", || self.watch(stop));
        if let Err(why) = watched.and_then(|read| read) {
            self.end(&why);
        }
    }

    fn watch(&self, stop: &EventFd) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            let broken = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            if !self.take_events()? && broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Nobody reads events any more: whoever waits for one is told.
    fn end(&self, error: &io::Error) {
        self.known.end();
        // Only now: what logs for the program may panic.
        tracing::error!(device = self.device.name, %error, "connections by rdma_cm end: their events can not be read");
    }

    /// Takes the events that wait; false if there was none.
    fn take_events(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let mut event = std::ptr::null_mut();
            // SAFETY: the channel is there; the library fills the pointer where it returns 0.
            match outcome(unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) }) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What can not be read stays, and polling would tell of it for ever.
                Err(error) => return Err(error),
            }
            let Some(event) = NonNull::new(event).map(|event| Got { library: self.library, event }) else {
                return Ok(any);
            };
            any = true;
            // SAFETY: got above, and not acknowledged before it was read.
            let told = unsafe { read(event.event) };
            let unwanted = told.map_or_else(Vec::new, |told| self.handle(told));
            drop(event);
            for Raw(id) in unwanted {
                // SAFETY: the library made it for a request, and nobody else knows of it (any more). The peer is refused by that.
                unsafe { (self.library.rdma_destroy_id)(id.as_ptr()) };
            }
        }
    }

    /// Handles an event; what it gives back are requests for which there is nobody.
    fn handle(&self, told: Told) -> Vec<Raw> {
        if told.event == sys::RDMA_CM_EVENT_CONNECT_REQUEST {
            return self.take_request(told);
        }
        self.follow(told);
        Vec::new()
    }

    /// Takes a request to its listener, if there is one that has room.
    fn take_request(&self, told: Told) -> Vec<Raw> {
        let unwanted = Raw(told.id);
        let found = self.known.find(told.listener);
        let Some((entry, About::Listener(inbox))) = found.as_ref().map(|entry| (entry, &entry.about)) else {
            return vec![unwanted];
        };
        // Whoever stops listening waits until this is done, and refuses all who came before.
        entry.while_there(|| self.take_to(inbox, told)).unwrap_or_else(|| vec![unwanted])
    }

    fn take_to(&self, inbox: &Inbox, told: Told) -> Vec<Raw> {
        // SAFETY: the library made the id for this event.
        if unsafe { self.device_of(told.id) } != self.device.name {
            // SAFETY: as above; the length is the data's. Where that fails, the peer is refused without a reason.
            unsafe {
                (self.library.rdma_reject)(told.id.as_ptr(), OTHER_DEVICE.as_ptr().cast(), OTHER_DEVICE.len() as u8)
            };
            return vec![Raw(told.id)];
        }
        // SAFETY: who waits has its id, and is not taken out meanwhile.
        let gave_up =
            |asked: &Asked| unsafe { id::attributes(asked.id.0, self.init_qp_attr, sys::IBV_QPS_RTR) }.is_err();
        let (has_room, over) = inbox.make_room(gave_up);
        let mut unwanted: Vec<_> = over.into_iter().map(|asked| asked.id).collect();
        for Raw(id) in &unwanted {
            self.known.remove(id.addr().get());
        }
        if !has_room {
            tracing::debug!(device = self.device.name, "a request finds no room at its listener");
            unwanted.push(Raw(told.id));
            return unwanted;
        }
        let course = Arc::new(Course::default());
        match self.known.add(told.id.addr().get(), About::Connection(course.clone())) {
            Some(entry) => inbox.push(Asked { id: Raw(told.id), entry, course, words: told.words }),
            None => unwanted.push(Raw(told.id)),
        }
        unwanted
    }

    /// Has a connection know what happened.
    fn follow(&self, told: Told) {
        // Found, it is the one that the event is about: the library keeps an id until its events are acknowledged.
        let Some(entry) = self.known.find(told.id.addr().get()) else { return };
        entry.while_there(|| match &entry.about {
            About::Connection(course) => self.follow_course(told, course),
            About::Listener(inbox) if told.event == sys::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                inbox.end(Loss::Device);
                tracing::error!(
                    device = self.device.name,
                    "the device is removed: nobody comes to its listeners any more"
                );
            }
            About::Listener(_) => tracing::debug!(event = told.event, "an event of rdma_cm about a listener"),
        });
    }

    /// A step of a connection, whose entry's lock is held.
    fn follow_course(&self, told: Told, course: &Course) {
        match told.event {
            // SAFETY: the entry's lock is held, for which whoever destroys the id waits.
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => unsafe { self.found_address(told.id, course) },
            // SAFETY: as above.
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => unsafe { self.found_route(told.id, course) },
            sys::RDMA_CM_EVENT_ADDR_ERROR | sys::RDMA_CM_EVENT_ROUTE_ERROR => {
                course.ended(End::Unreachable(errno(told.status)))
            }
            sys::RDMA_CM_EVENT_CONNECT_RESPONSE => course.accepted(told.words),
            sys::RDMA_CM_EVENT_ESTABLISHED => course.established(),
            sys::RDMA_CM_EVENT_UNREACHABLE => course.ended(End::NoAnswer),
            sys::RDMA_CM_EVENT_CONNECT_ERROR => course.ended(End::System("connect", errno(told.status))),
            sys::RDMA_CM_EVENT_REJECTED => {
                let reason = Reason(u16::try_from(told.status).unwrap_or_default());
                course.ended(End::Rejected(reason, told.words.private));
            }
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => course.ended(End::Lost(Loss::Device)),
            sys::RDMA_CM_EVENT_DISCONNECTED => {
                // The peer waits for an answer.
                // SAFETY: as above.
                unsafe { (self.library.rdma_disconnect)(told.id.as_ptr()) };
                // Whoever asked the peer to end it may have had no answer.
                course.ended(if told.status == 0 { End::Disconnected } else { End::NoAnswer });
            }
            other => tracing::debug!(event = other, "an event of rdma_cm that says nothing new"),
        }
    }

    /// # Safety
    /// The id is alive.
    unsafe fn found_address(&self, id: NonNull<sys::rdma_cm_id>, course: &Course) {
        // SAFETY: by contract.
        let device = unsafe { self.device_of(id) };
        if device != self.device.name {
            return course.ended(End::OtherDevice(device));
        }
        // SAFETY: by contract.
        let begun = outcome(unsafe { (self.library.rdma_resolve_route)(id.as_ptr(), id::RESOLVE_MS) });
        if let Err(error) = begun {
            course.ended(End::Unreachable(error.raw_os_error().unwrap_or_default()));
        }
    }

    /// # Safety
    /// The id is alive.
    unsafe fn found_route(&self, id: NonNull<sys::rdma_cm_id>, course: &Course) {
        let Some(words) = course.take_words() else { return };
        let mut said = said(&words);
        // SAFETY: by contract; what is said is read before it returns.
        if let Err(error) = outcome(unsafe { (self.library.rdma_connect)(id.as_ptr(), &raw mut said) }) {
            course.ended(End::System("ask for a connection", error.raw_os_error().unwrap_or_default()));
        }
    }

    /// The name of the device that an id is on; empty if it is on none.
    ///
    /// # Safety
    /// The id is alive.
    unsafe fn device_of(&self, id: NonNull<sys::rdma_cm_id>) -> String {
        // SAFETY: by contract; the library opened the context, for good, before it told of the id.
        let device = unsafe { (*id.as_ptr()).verbs.as_ref() }.map(|context| context.device);
        // SAFETY: a context's device.
        let name = device.map(|device| unsafe { (self.device.library.ibv_get_device_name)(device) });
        match name {
            // SAFETY: it ends with a zero byte, and lives as long as the context.
            Some(name) if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => String::new(),
        }
    }
}

/// Reads an event; `None` for one that is about nothing.
///
/// # Safety
/// It was got, and not acknowledged.
unsafe fn read(event: NonNull<sys::rdma_cm_event>) -> Option<Told> {
    // SAFETY: by contract. Connected services, of which alone there are ids, have the union's first member.
    unsafe {
        let event = event.as_ref();
        Some(Told {
            event: event.event,
            status: event.status,
            id: NonNull::new(event.id)?,
            listener: event.listen_id.addr(),
            words: heard(&event.param.conn),
        })
    }
}

/// An event's status as an error's number.
fn errno(status: i32) -> i32 {
    status.saturating_abs()
}
