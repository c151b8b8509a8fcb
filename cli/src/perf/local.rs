//! Both sides on this machine: the server as a child process, each bound to a CPU of its own where there are two.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use super::args::PerfArgs;
use super::client;
use super::error::PerfError;
use super::perftest;
use crate::machine;
use crate::ranks::{RankEnd, TiedChild, this_program, tied};

/// Starts a server, measures against it, and waits for its end.
///
/// # Errors
/// [`PerfError`] if the server does not start, or either side fails.
pub fn run(args: &PerfArgs, device: &str) -> Result<(), PerfError> {
    if args.is_perftest(device) {
        // What can fail here alone is told once.
        perftest::Ready::new(args, device)?;
    }
    let cpus = choose(&args.cpu, &machine::cpus())?;
    let machine = machine::describe();
    let (mut server, port) = start_server(args, device, cpus.map(|(_, server)| server)).map_err(PerfError::Local)?;
    let bound = match cpus {
        Some((client, server)) => {
            machine::pin_to(client)?;
            format!("client on cpu {client}, server on cpu {server}")
        }
        None => "not bound".to_owned(),
    };
    client::run(args, device, "127.0.0.1", port, &format!("{machine}; {bound}"))?;
    ended(&mut server, END_TIME)
}

/// Waits until the server has put all away, which it must do well too.
fn ended(server: &mut TiedChild, limit: Duration) -> Result<(), PerfError> {
    match server.wait_within(limit).map_err(PerfError::Local)?.map(RankEnd::from) {
        Some(RankEnd::Exited(0)) => Ok(()),
        Some(end) => Err(PerfError::ServerFailed(end)),
        None => Err(PerfError::ServerHangs(limit)),
    }
}

/// CPUs for client and server; none where there is but one.
fn choose(asked: &[usize], allowed: &[usize]) -> Result<Option<(usize, usize)>, PerfError> {
    match (asked, allowed) {
        ([], [client, server, ..]) => Ok(Some((*client, *server))),
        ([], _) => Ok(None),
        ([client, server], _) => Ok(Some((*client, *server))),
        _ => Err(PerfError::Options("--local takes two CPUs, for client and server: --cpu 0,1".to_owned())),
    }
}

fn start_server(args: &PerfArgs, device: &str, cpu: Option<usize>) -> io::Result<(TiedChild, u16)> {
    let program = this_program()?;
    let options = ["perf", args.test.name(), "--announce", "--port", "0", "--bind", "127.0.0.1", "--device"];
    let line = std::iter::once(program.into_os_string())
        .chain(options.iter().map(OsString::from))
        .chain([OsString::from(device)])
        .chain(args.gpu.map(|ordinal| format!("--gpu={ordinal}").into()))
        .chain(perftest::server_options(args, device).into_iter().map(OsString::from));
    let mut command = tied(cpu, line)?;
    let mut server = TiedChild::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let out = server.take_stdout().ok_or_else(|| io::Error::other("it has no standard output"))?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let port = line.trim_end().parse().map_err(|_| io::Error::other("it ended before it served"))?;
    Ok((server, port))
}

/// Far above what it takes to give back any amount of memory.
const END_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn child(script: &str) -> TiedChild {
        TiedChild::start(Command::new("sh").args(["-c", script])).expect("a shell")
    }

    #[test]
    fn a_server_must_end_well_and_in_time() {
        let limit = Duration::from_secs(60);
        ended(&mut child("exit 0"), limit).expect("it ends well");
        let failed = ended(&mut child("exit 3"), limit);
        assert!(matches!(failed, Err(PerfError::ServerFailed(RankEnd::Exited(3)))), "{failed:?}");
        let killed = ended(&mut child("kill -9 $$"), limit);
        assert!(matches!(killed, Err(PerfError::ServerFailed(RankEnd::Killed(9)))), "{killed:?}");
        let hangs = ended(&mut child("exec sleep 1000"), Duration::from_millis(20));
        assert!(matches!(hangs, Err(PerfError::ServerHangs(_))), "{hangs:?}");
    }

    #[test]
    fn each_side_gets_a_cpu_where_there_are_two() {
        assert_eq!(choose(&[], &[2, 5, 7]).expect("valid"), Some((2, 5)));
        assert_eq!(choose(&[], &[0]).expect("valid"), None);
        assert_eq!(choose(&[3, 1], &[0, 1, 2, 3]).expect("valid"), Some((3, 1)));
        assert!(matches!(choose(&[3], &[0, 3]), Err(PerfError::Options(_))));
    }
}
