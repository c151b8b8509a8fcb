//! The sockets of a port in this process: got from a process that has them, or made. One set is shared by all devices of
//! the process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::ask::{self, Answer};
use super::place::{Place, What};
use super::sockets;
use crate::error::NetworkError;
use crate::soft::random_u32;
use crate::sync::lock;

/// The sockets of a port.
#[derive(Debug)]
pub(super) struct Group {
    sockets: Vec<OwnedFd>,
}

/// The right to look who has the sockets and to make them: one process at a time has it, until this is dropped.
pub(super) struct Gate {
    place: Place,
    _name: OwnedFd,
}

/// Those that this process has, by network namespace.
static GROUPS: Mutex<Vec<(u64, Place, Weak<Group>)>> = Mutex::new(Vec::new());

impl Gate {
    pub(super) fn enter(place: Place, patience: Duration) -> Result<Self, NetworkError> {
        let start = Instant::now();
        loop {
            if let Some(name) =
                place.bind(What::Gate).map_err(NetworkError::system("bind a name beside UDP port 4791"))?
            {
                return Ok(Gate { place, _name: name });
            }
            if start.elapsed() > patience {
                return Err(NetworkError::Busy { seconds: patience.as_secs() });
            }
            // Nothing tells when it is free. Those that wait do not look all at once.
            std::thread::sleep(Duration::from_micros(u64::from(500 + random_u32() % 1500)));
        }
    }
}

impl Group {
    pub(super) fn join(gate: &Gate) -> Result<Arc<Self>, NetworkError> {
        let place = gate.place;
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |found| found.st_ino());
        let mut groups = lock(&GROUPS);
        groups.retain(|(_, _, group)| group.strong_count() > 0);
        let known = groups.iter().find(|(found, at, _)| (*found, *at) == (namespace, place));
        if let Some(group) = known.and_then(|(_, _, group)| group.upgrade()) {
            return Ok(group);
        }
        let group = Arc::new(Group { sockets: obtain(place)? });
        groups.push((namespace, place, Arc::downgrade(&group)));
        Ok(group)
    }

    /// The socket of a slot, or that for management.
    pub(super) fn socket(&self, place: u32) -> BorrowedFd<'_> {
        self.sockets[place as usize].as_fd()
    }

    pub(super) fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }
}

/// Gets the sockets from one that has them, or makes them. One that ends closes them one by one, so this takes a while
/// before it says that the port is taken.
fn obtain(place: Place) -> Result<Vec<OwnedFd>, NetworkError> {
    let start = Instant::now();
    loop {
        let is_silent =
            match ask::for_sockets(place).map_err(NetworkError::system("ask other processes for sockets"))? {
                Answer::Sockets(sockets) => return Ok(sockets),
                Answer::Refused => return Err(NetworkError::OtherUser { port: place.port }),
                Answer::Silent => true,
                Answer::Nobody => false,
            };
        match sockets::make(place) {
            Ok(sockets) => return Ok(sockets),
            Err(error) if error.raw_os_error() != Some(libc::EADDRINUSE) => {
                return Err(NetworkError::System { what: "make UDP sockets", source: error });
            }
            Err(_) if start.elapsed() < LINGER => std::thread::sleep(Duration::from_millis(5)),
            Err(_) if is_silent => return Err(NetworkError::NoAnswer { port: place.port }),
            Err(source) => return Err(NetworkError::PortTaken { port: place.port, source }),
        }
    }
}

/// How long the gate is waited for. The one who has it takes half of that at most.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process may take from its last answer to its last socket's end.
const LINGER: Duration = Duration::from_secs(1);
