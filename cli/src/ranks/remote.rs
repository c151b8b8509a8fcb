//! A rank of another host: started by ssh, or what stands in for it, and nothing else needed there but a shell and `setsid`.
//!
//! ssh runs `/bin/sh`, which reads what to do from its standard input. That stays open: it is what the rank lives by. Lines in it
//! are signals to pass on; when it ends, because the launcher did, or ssh, or the connection, all processes of the rank are
//! killed, by one that does nothing else and is in no group with them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// How other hosts are reached.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The command that is given a host and a command, and runs that there: `ssh` with options.
    pub ssh: Vec<OsString>,
    /// Variables that ranks have beside their own.
    pub variables: Vec<(String, OsString)>,
    /// How long a host may take to answer.
    pub answer: Duration,
}

impl Remote {
    /// For a job without other hosts.
    pub fn none() -> Self {
        Remote { ssh: Vec::new(), variables: Vec::new(), answer: Duration::ZERO }
    }

    /// What reaches other hosts, as people write it: of the options that [`SSH`] has, nobody needs to know.
    pub fn words(&self) -> String {
        let words = self.ssh.join(OsStr::new(" ")).to_string_lossy().into_owned();
        if words == SSH { "ssh".to_owned() } else { words }
    }
}

/// What `/bin/sh` is to read: becomes `command` in `folder`, with these variables. First it says `mark`:
/// the host was reached, and what fails from there on is the rank's.
pub fn script(folder: &OsStr, variables: &[(String, OsString)], command: &[OsString], mark: &str) -> Vec<u8> {
    let mut script = format!("{{\necho '{mark}'\ncd ").into_bytes();
    quote(folder, &mut script);
    script.extend_from_slice(b" || exit 1\n");
    for (name, value) in variables {
        script.extend_from_slice(format!("export {name}=").as_bytes());
        quote(value, &mut script);
        script.push(b'\n');
    }
    script.extend_from_slice(HEAD.as_bytes());
    for word in command {
        script.push(b' ');
        quote(word, &mut script);
    }
    script.extend_from_slice(TAIL.as_bytes());
    script
}

/// Whether a shell takes it for the name of a variable.
pub fn is_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| !c.is_ascii_digit() && is_word(c)) && name.chars().all(is_word)
}

fn quote(word: &OsStr, script: &mut Vec<u8>) {
    script.push(b'\'');
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(byte),
        }
    }
    script.push(b'\'');
}

/// A shell has what it starts in the background ignore SIGINT and SIGQUIT; newer `env` undoes that. Elsewhere SIGTERM stands in.
const HEAD: &str = "exec 3<&0
if env --default-signal=INT true 2>/dev/null; then fresh='env --default-signal=INT,QUIT'; else fresh=; fi
setsid $fresh";

const TAIL: &str = r#" </dev/null 3<&- &
rank=$!
setsid sh -c '
while IFS= read -r signal; do
    case $2$signal in INT|QUIT) signal=TERM ;; esac
    kill -s "$signal" -- "-$1"
done
kill -s KILL -- "-$1" || kill -s KILL "$1"
' watch "$rank" "$fresh" <&3 3<&- >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$rank" 2>/dev/null
code=$?
kill -s KILL -- "-$rank" 2>/dev/null
kill -s KILL "$watch"
exit "$code"
}
"#;

/// It does not ask for passwords, which nobody would see, and notices within 15 s that a host is gone.
pub const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn start(shell: &str, variables: &[(String, OsString)], command: &[&str]) -> Child {
        start_in("/", shell, variables, command)
    }

    fn start_in(folder: &str, shell: &str, variables: &[(String, OsString)], command: &[&str]) -> Child {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let script = script(OsStr::new(folder), variables, &command, "up");
        let mut child = Command::new(shell).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        child.stdin.as_mut().expect("a pipe").write_all(&script).expect("it reads");
        child
    }

    fn said(child: &mut Child) -> String {
        let mut text = String::new();
        child.stdout.as_mut().expect("a pipe").read_to_string(&mut text).expect("text");
        text
    }

    /// Those of the shells that are here.
    fn shells() -> impl Iterator<Item = &'static str> {
        ["sh", "dash", "bash"].into_iter().filter(|shell| Command::new(shell).args(["-c", ":"]).status().is_ok())
    }

    #[test]
    fn words_and_variables_arrive_as_they_are() {
        for shell in shells() {
            let odd = "it's \"$HOME\" `x` \\ * \n end";
            let variables = [("ODD".to_owned(), OsString::from(odd))];
            let mut child =
                start(shell, &variables, &["sh", "-c", "pwd; printf '%s|' \"$ODD\" \"$1\"; exit 7", "x", odd]);
            assert_eq!(said(&mut child), format!("up\n/\n{odd}|{odd}|"), "{shell}");
            assert_eq!(child.wait().expect("its end").code(), Some(7), "{shell}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_the_ranks_failure_and_not_the_hosts() {
        for shell in shells() {
            let mut child = start_in("/no/such/folder", shell, &[], &["echo", "run"]);
            assert_eq!(said(&mut child), "up\n", "{shell}");
            assert_eq!(child.wait().expect("its end").code(), Some(1), "{shell}");
        }
    }

    #[test]
    fn signals_are_passed_on() {
        for (shell, signal) in shells().flat_map(|shell| [(shell, "INT"), (shell, "QUIT"), (shell, "TERM")]) {
            let script = "trap 'echo got; exit 0' INT QUIT TERM; echo ready; while :; do sleep 1000 & wait; done";
            let mut child = start(shell, &[], &["sh", "-c", script]);
            let mut seen = Vec::new();
            while !seen.ends_with(b"ready\n") {
                let mut byte = [0];
                child.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("more");
                seen.push(byte[0]);
            }
            writeln!(child.stdin.as_mut().expect("a pipe"), "{signal}").expect("it reads");
            assert_eq!(said(&mut child), "got\n", "{shell} {signal}");
            assert!(child.wait().expect("its end").success());
        }
    }

    #[test]
    fn nothing_goes_on_when_the_input_ends() {
        for shell in shells() {
            // The output ends with the last process that has it.
            let mut child = start(shell, &[], &["sh", "-c", "trap '' TERM HUP INT; sleep 1000 & sleep 1000"]);
            drop(child.stdin.take());
            assert_eq!(said(&mut child), "up\n", "{shell}");
            assert_eq!(child.wait().expect("its end").code(), Some(137), "{shell}");
        }
    }

    #[test]
    fn names_of_variables_are_told_from_others() {
        assert!(is_name("QPAIR_DEVICE") && is_name("_x9"));
        assert!(!is_name("") && !is_name("9x") && !is_name("a-b") && !is_name("a b") && !is_name("é"));
    }
}
