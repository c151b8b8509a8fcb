//! A process manager that speaks PMI-1, as MPICH's Hydra does: lines of `key=value` over a socket that it opened for this process.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::deadline::Deadline;
use crate::error::BootstrapError;

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub(super) port: u16,
    pub(super) ticket: String,
    pub(super) hosts: Vec<String>,
}

/// What this process heard before. A process manager lets go of a process that has finished with it, and takes one that ends
/// without having finished for a failure: so it is asked once, and who meets the others again does it where they met before.
pub(super) fn known() -> Option<Offer> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

static KNOWN: Mutex<Option<Offer>> = Mutex::new(None);

/// Rank 0 says what it offers; all hear it, once all have come.
pub(super) fn exchange(
    descriptor: i32,
    size: u32,
    offer: Option<Offer>,
    until: Deadline,
) -> Result<Offer, BootstrapError> {
    if let (1, Some(offer)) = (size, &offer) {
        return Ok(offer.clone());
    }
    let manager = open(descriptor);
    let manager = manager.map_err(|error| failed(format!("descriptor {descriptor} can not be had: {error}")))?;
    let heard = Manager::new(manager, until).exchange(offer)?;
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard.clone());
    Ok(heard)
}

/// A descriptor of this process by its number. The number stays open for others who know of it.
fn open(descriptor: i32) -> std::io::Result<UnixStream> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket: OwnedFd = pidfd_getfd(this, descriptor, PidfdGetfdFlags::empty())?;
    Ok(UnixStream::from(socket))
}

/// The process manager.
struct Manager {
    stream: BufReader<UnixStream>,
    until: Deadline,
}

impl Manager {
    fn new(stream: UnixStream, until: Deadline) -> Self {
        Manager { stream: BufReader::new(stream), until }
    }

    fn exchange(&mut self, offer: Option<Offer>) -> Result<Offer, BootstrapError> {
        self.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let name = self.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let name = field(&name, "kvsname").ok_or_else(|| failed("it names no space for keys"))?.to_owned();
        if let Some(offer) = &offer {
            let maxes = self.ask("cmd=get_maxes", "maxes")?;
            let room = field(&maxes, "vallen_max").and_then(|most| most.parse().ok()).unwrap_or(LEAST_ROOM);
            let value = offer.encode(room);
            self.ask(&format!("cmd=put kvsname={name} key={KEY} value={value}"), "put_result")?;
        }
        self.ask("cmd=barrier_in", "barrier_out")?;
        let heard = match offer {
            Some(offer) => offer,
            None => {
                let got = self.ask(&format!("cmd=get kvsname={name} key={KEY}"), "get_result")?;
                let value = field(&got, "value").and_then(Offer::decode);
                value.ok_or_else(|| failed("rank 0 did not say where it listens: use one release for all ranks"))?
            }
        };
        self.ask("cmd=finalize", "finalize_ack")?;
        // What the manager's other users of the socket find is as it was.
        let _ = self.stream.get_ref().set_read_timeout(None);
        Ok(heard)
    }

    fn ask(&mut self, question: &str, expected: &str) -> Result<String, BootstrapError> {
        let asked = self.stream.get_mut().write_all(format!("{question}\n").as_bytes());
        asked.map_err(|error| failed(format!("it can not be asked: {error}")))?;
        let line = self.line()?;
        let is_fine = field(&line, "rc").is_none_or(|code| code == "0");
        if field(&line, "cmd") == Some(expected) && is_fine {
            return Ok(line);
        }
        Err(failed(format!("it answers `{}` to `{question}`", line.chars().take(80).collect::<String>())))
    }

    fn line(&mut self) -> Result<String, BootstrapError> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.until.is_over() {
                return Err(failed("it does not answer in time: are all ranks started?"));
            }
            let left = self.until.left().map(|left| left.max(LEAST_WAIT));
            let wait = self.stream.get_ref().set_read_timeout(left);
            wait.map_err(|error| failed(format!("it can not be waited for: {error}")))?;
            let room = LONGEST.saturating_sub(line.len() as u64);
            match self.stream.by_ref().take(room).read_until(b'\n', &mut line) {
                Ok(0) => return Err(failed("it hung up: has something else in this process asked it before?")),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(failed(format!("it can not be heard: {error}"))),
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

impl Offer {
    /// As a value of so many bytes at most, without spaces; addresses that have no room are left out.
    fn encode(&self, room: usize) -> String {
        let mut value = format!("{}/{}/", self.port, self.ticket);
        for (at, host) in self.hosts.iter().enumerate() {
            if at > 0 && value.len() + host.len() + 2 > room {
                break;
            }
            value += if at > 0 { "," } else { "" };
            value += host;
        }
        value
    }

    fn decode(value: &str) -> Option<Self> {
        let mut parts = value.splitn(3, '/');
        let (port, ticket, hosts) = (parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?);
        Some(Offer { port, ticket, hosts: hosts.split(',').map(str::to_owned).collect() })
    }
}

/// What a line says of a key.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
}

fn failed(what: impl Into<String>) -> BootstrapError {
    BootstrapError::Pmi { what: what.into() }
}

const KEY: &str = "qpair-rank-0";
/// What each process manager takes.
const LEAST_ROOM: usize = 256;
/// Bytes of a line.
const LONGEST: u64 = 4096;
const LEAST_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn offer() -> Offer {
        Offer { port: 4242, ticket: "ab12".into(), hosts: vec!["10.0.0.1".into(), "fd00::2".into(), "node1".into()] }
    }

    /// What a rank asks of a process manager that answers so, and what comes of it.
    fn with(answers: &[&str], offer: Option<Offer>) -> (Vec<String>, Result<Offer, BootstrapError>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let rank = scope.spawn(|| Manager::new(ours, Deadline::after(LIMIT)).exchange(offer));
            let mut manager = BufReader::new(theirs);
            let mut asked = Vec::new();
            for answer in answers {
                let mut line = String::new();
                manager.read_line(&mut line).unwrap();
                asked.push(line.trim_end().to_owned());
                manager.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
            drop(manager);
            (asked, rank.join().unwrap())
        })
    }

    #[test]
    fn rank_0_puts_what_the_others_get() {
        let (asked, heard) = with(
            &[
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "cmd=my_kvsname kvsname=kvs_7",
                "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
                "cmd=put_result rc=0 msg=success",
                "cmd=barrier_out",
                "cmd=finalize_ack",
            ],
            Some(offer()),
        );
        assert_eq!(heard.unwrap(), offer());
        assert_eq!(asked[3], "cmd=put kvsname=kvs_7 key=qpair-rank-0 value=4242/ab12/10.0.0.1,fd00::2,node1");
        let (asked, heard) = with(
            &[
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "cmd=my_kvsname rc=0 kvsname=kvs_7",
                "cmd=barrier_out rc=0",
                "cmd=get_result rc=0 msg=success value=4242/ab12/10.0.0.1,fd00::2,node1",
                "cmd=finalize_ack rc=0",
            ],
            None,
        );
        assert_eq!(heard.unwrap(), offer());
        assert_eq!(asked[3], "cmd=get kvsname=kvs_7 key=qpair-rank-0");
    }

    #[test]
    fn a_manager_that_refuses_or_hangs_up_is_an_error_that_says_what_else_there_is() {
        for answers in [&["cmd=response_to_init rc=-1"][..], &["what?"], &[]] {
            let error = with(answers, None).1.unwrap_err();
            assert!(matches!(error, BootstrapError::Pmi { .. }), "{error}");
            assert!(error.to_string().contains("MASTER_ADDR"), "{error}");
        }
    }

    #[test]
    fn addresses_that_have_no_room_are_left_out() {
        assert_eq!(Offer::decode(&offer().encode(1024)), Some(offer()));
        let short = Offer::decode(&offer().encode(20)).unwrap();
        assert_eq!(short.hosts, ["10.0.0.1"]);
    }
}
