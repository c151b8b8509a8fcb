//! Both sides on this machine: the server as a child process, each bound to a core of its own where there are two.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::process::Stdio;

use super::args::PerfArgs;
use super::client;
use super::error::PerfError;
use crate::machine;
use crate::ranks::{TiedChild, tied};

/// Starts a server, measures against it, and waits for its end.
///
/// # Errors
/// [`PerfError`] if the server does not start, or either side fails.
pub fn run(args: &PerfArgs) -> Result<(), PerfError> {
    let cpus = choose(&args.cpu, &machine::allowed_cpus())?;
    let (mut server, port) = start_server(args, cpus.map(|(_, server)| server)).map_err(PerfError::Local)?;
    if let Some((client, _)) = cpus {
        machine::pin_to(client)?;
    }
    client::run(args, "127.0.0.1", port, cpus)?;
    server.wait().map(drop).map_err(PerfError::Local)
}

/// Cores for client and server; none where there is but one.
fn choose(asked: &[usize], allowed: &[usize]) -> Result<Option<(usize, usize)>, PerfError> {
    match (asked, allowed) {
        ([], [client, server, ..]) => Ok(Some((*client, *server))),
        ([], _) => Ok(None),
        ([client, server], _) => Ok(Some((*client, *server))),
        _ => Err(PerfError::Options("--local takes two cores, for client and server: --cpu 0,1".to_owned())),
    }
}

fn start_server(args: &PerfArgs, cpu: Option<usize>) -> io::Result<(TiedChild, u16)> {
    let program = std::env::current_exe()?;
    let options = ["perf", args.test.name(), "--announce", "--port", "0", "--bind", "127.0.0.1", "--device"];
    let line = std::iter::once(program.into_os_string())
        .chain(options.iter().map(OsString::from))
        .chain([OsString::from(&args.device)]);
    let mut command = tied(cpu, line)?;
    let mut server = TiedChild::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let out = server.take_stdout().ok_or_else(|| io::Error::other("it has no standard output"))?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let port = line.trim_end().parse().map_err(|_| io::Error::other("it ended before it served"))?;
    Ok((server, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_gets_a_core_where_there_are_two() {
        assert_eq!(choose(&[], &[2, 5, 7]).expect("valid"), Some((2, 5)));
        assert_eq!(choose(&[], &[0]).expect("valid"), None);
        assert_eq!(choose(&[3, 1], &[0, 1, 2, 3]).expect("valid"), Some((3, 1)));
        assert!(matches!(choose(&[3], &[0, 3]), Err(PerfError::Options(_))));
    }
}
