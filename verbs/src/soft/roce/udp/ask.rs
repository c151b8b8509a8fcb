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

/// Waits for sockets, or a refusal, no longer than `limit` whatever else comes.
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
            // Anyone may send to the name here; what counts comes from the own user. A refusal comes from another, and counts
            // from one who has a name that is asked: such a user could take the port, too.
            if message.bytes == ANSWER && is_own_user(message.control) {
                if sockets::are_of(place, &descriptors) {
                    return Ok(Some(descriptors));
                }
                if message.truncated && descriptors.len() < SOCKETS {
                    return Err(io::Error::from_raw_os_error(libc::EMFILE));
                }
            } else if message.bytes == REFUSAL && is_asked(place, message.name) {
                *refused = true;
                return Ok(None);
            }
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

/// True if that is the name of one who serves the port.
fn is_asked(place: Place, name: &[u8]) -> bool {
    (0..SLOTS).any(|slot| place.name(What::Serving(slot)).as_bytes() == name)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that are free, of one who asks, one who serves and a stranger.
    fn sockets() -> (Place, [OwnedFd; 3], What) {
        loop {
            let place = Place { port: random_u32() as u16 };
            let asking = What::Asking(random_u32().into());
            let names = [asking, What::Serving(random_u32() % SLOTS), What::Asking(u64::MAX)];
            let [Some(own), Some(serving), Some(stranger)] = names.map(|name| place.bind(name).unwrap()) else {
                continue;
            };
            return (place, [own, serving, stranger], asking);
        }
    }

    #[test]
    fn messages_that_say_nothing_do_not_prolong_the_wait() {
        let (place, [own, _, stranger], name) = sockets();
        let junk = || send(stranger.as_fd(), place.name(name).as_bytes(), &[IoSlice::new(b"junk")], &[]);
        for _ in 0..3 {
            junk().unwrap();
        }
        let mut inbox = Batch::new(1, 64, CONTROL_WORDS);
        assert!(wait(place, &own, &mut inbox, &mut false, Duration::ZERO).unwrap().is_none());
        assert!(inbox.receive_descriptors(own.as_fd()).unwrap().is_some(), "it read on after its time");
    }

    #[test]
    fn only_one_who_is_asked_refuses() {
        let (place, [own, serving, stranger], name) = sockets();
        let mut inbox = Batch::new(1, 64, CONTROL_WORDS);
        for (from, counts) in [(stranger, false), (serving, true)] {
            let mut refused = false;
            send(from.as_fd(), place.name(name).as_bytes(), &[IoSlice::new(REFUSAL)], credentials().as_bytes())
                .unwrap();
            assert!(wait(place, &own, &mut inbox, &mut refused, Duration::ZERO).unwrap().is_none());
            assert_eq!(refused, counts);
        }
    }
}
