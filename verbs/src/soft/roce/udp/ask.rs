//! Asks the processes that have a port's sockets for them.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::io::{Batch, send};
use super::place::{Place, What};
use super::serving::{ANSWER, REFUSAL, REQUEST, credentials, is_own_user};
use super::{SLOTS, SOCKETS, sockets};
use crate::soft::random_u32;

/// What became of it.
pub(super) enum Answer {
    /// One gave them.
    Sockets(Vec<OwnedFd>),
    /// One has them, but gives them to its own user alone.
    Refused,
    /// Some have them, but none answered.
    Silent,
    /// No one says that it has them.
    Nobody,
}

/// Asks those that serve the port, one after the other: a process that is stopped is not waited for long.
pub(super) fn for_sockets(place: Place) -> io::Result<Answer> {
    let number = u64::from(random_u32()) << 32 | u64::from(random_u32());
    let Some(own) = place.bind(What::Asking(number))? else { return Ok(Answer::Silent) };
    let mut inbox = Batch::new(1, 64, CONTROL_WORDS);
    let (mut asked, mut refused) = (false, false);
    let start = random_u32() % SLOTS;
    for slot in (0..SLOTS).map(|step| (start + step) % SLOTS) {
        let name = place.name(What::Serving(slot));
        for _ in 0..ATTEMPTS {
            let sent = send(own.as_fd(), name.as_bytes(), &[IoSlice::new(REQUEST)], credentials().as_bytes());
            // Else nobody has that name.
            if !matches!(&sent, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) {
                asked = true;
                if let Some(sockets) = wait(place, &own, &mut inbox, &mut refused, BEFORE_THE_NEXT)? {
                    return Ok(Answer::Sockets(sockets));
                }
            }
            // It may have no room just now, if others hand it packets.
            if !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
        }
    }
    if !asked {
        return Ok(Answer::Nobody);
    }
    if refused {
        return Ok(Answer::Refused);
    }
    Ok(wait(place, &own, &mut inbox, &mut refused, AFTER_THE_LAST)?
        .map_or(if refused { Answer::Refused } else { Answer::Silent }, Answer::Sockets))
}

/// Waits for sockets, or a refusal.
fn wait(
    place: Place,
    own: &OwnedFd,
    inbox: &mut Batch,
    refused: &mut bool,
    limit: Duration,
) -> io::Result<Option<Vec<OwnedFd>>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(descriptors) = inbox.receive_descriptors(own.as_fd())? {
            let message = inbox.get(0);
            // Anyone may send to the name here; what counts comes from the own user. A refusal comes from another.
            if message.bytes == ANSWER && is_own_user(message.control) {
                if sockets::are_of(place, &descriptors) {
                    return Ok(Some(descriptors));
                }
                if message.truncated && descriptors.len() < SOCKETS {
                    return Err(io::Error::from_raw_os_error(libc::EMFILE));
                }
            } else if message.bytes == REFUSAL {
                *refused = true;
                return Ok(None);
            }
            continue;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut [PollFd::new(own, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// For all sockets' descriptors, and who sends them.
const CONTROL_WORDS: usize = 64;
const _: () = assert!(CONTROL_WORDS * 8 >= 16 + SOCKETS * 4 + 4 + 32);
/// A process that runs answers at once, where the machine is not busy.
const BEFORE_THE_NEXT: Duration = Duration::from_millis(30);
/// How often one without room is asked.
const ATTEMPTS: u32 = 4;
/// How long a busy machine is given.
const AFTER_THE_LAST: Duration = Duration::from_secs(1);
