//! Ends what a launcher leaves behind that is killed. The kernel kills its ranks then, but not what these started: a process of
//! its own is told which groups there are, and kills them when it hears that the launcher is gone.

use std::collections::HashSet;
use std::io::{self, BufRead, Write};
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, setsid};

use super::child::{TiedChild, this_program};
use super::rank::signal_group;

/// The process that outlives the launcher by a moment. It ends when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    /// Dropped, and killed by that, before its input ends: numbers of groups that are gone may be others' by then.
    _child: TiedChild,
    /// What tells it of groups. Its end is that of the launcher.
    input: ChildStdin,
}

impl Watcher {
    /// Starts it.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        let mut command = Command::new(this_program()?);
        // It holds nothing open that someone may wait for.
        command.arg(WATCH).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = TiedChild::start(&mut command)?;
        let input = child.take_stdin().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Watcher { _child: child, input })
    }

    /// Has it kill this group when the launcher is gone.
    pub fn add(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// Has it leave this group alone, whose number may soon be another's.
    pub fn remove(&mut self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&mut self, what: char, group: Pid) {
        // Without it, the job goes on as well.
        if let Err(error) = self.input.write_all(format!("{what}{}\n", group.as_raw_nonzero()).as_bytes()) {
            tracing::debug!(%error, "who ends ranks after the launcher is gone itself");
        }
    }
}

/// What that process does: reads which groups there are, and kills them when its input ends.
pub fn watch() {
    // Signals for the launcher's group and terminal are no concern of it.
    let _ = setsid();
    groups(io::stdin().lock()).into_iter().for_each(|group| signal_group(group, Signal::KILL));
}

/// The groups that were added and not removed.
fn groups(told: impl BufRead) -> HashSet<Pid> {
    let mut groups = HashSet::new();
    for line in told.lines().map_while(Result::ok) {
        let Some((what, number)) = line.split_at_checked(1) else { continue };
        let number = number.parse::<u32>().ok().and_then(|number| i32::try_from(number).ok());
        match (what, number.and_then(Pid::from_raw)) {
            ("+", Some(group)) => drop(groups.insert(group)),
            ("-", Some(group)) => drop(groups.remove(&group)),
            _ => {}
        }
    }
    groups
}

/// Name of the hidden subcommand that runs [`watch`].
const WATCH: &str = "__watch";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_were_added_and_not_removed() {
        let group = |number| Pid::from_raw(number).expect("not 0");
        assert_eq!(groups(&b"+7\n+8\n+9\n-8\n"[..]), HashSet::from([group(7), group(9)]));
        assert_eq!(groups(&b"+7\n-7\n+7\n"[..]), HashSet::from([group(7)]));
        // No line of the launcher's; 0 would be this process's own group.
        assert_eq!(groups(&b"\n+\n+0\n+-9\n+x\n8\n"[..]), HashSet::new());
    }
}
