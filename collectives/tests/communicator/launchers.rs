//! Ranks that other launchers start, played by hand: what they set, and what they offer.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::port::Port;
use crate::processes::process;

/// A rank's process that works.
fn rank(variables: &[(&str, String)]) -> Command {
    let mut command = process("work", variables);
    command.stdout(Stdio::piped());
    command
}

/// All do their work to the end.
fn assert_done(ranks: Vec<Child>) {
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("done"), "{said}");
    }
}

#[test]
fn ranks_of_open_mpi_on_one_host_meet_by_a_file_that_is_gone_afterwards() {
    let folder = Folder::new("open-mpi");
    let start = |at: usize| {
        let variables = [
            ("OMPI_COMM_WORLD_RANK", at.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "3".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", at.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3".into()),
            ("PMIX_NAMESPACE", "4711".into()),
            ("PMIX_SERVER_TMPDIR", folder.0.display().to_string()),
        ];
        rank(&variables).spawn().unwrap()
    };
    // Two jobs of that name, one after the other.
    for _ in 0..2 {
        assert_done((0..3).map(start).collect());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
    }
}

#[test]
fn ranks_of_slurm_meet_at_the_port_that_is_asked_for() {
    let port = Port::keep();
    let start = |at: usize| {
        let variables = [
            ("SLURM_PROCID", at.to_string()),
            ("SLURM_STEP_NUM_TASKS", "2".into()),
            ("SLURM_STEP_ID", "0".into()),
            ("SLURM_JOB_ID", "17".into()),
            ("SLURM_STEP_NODELIST", "here".into()),
            ("QPAIR_PORT", port.number.to_string()),
        ];
        rank(&variables).spawn().unwrap()
    };
    assert_done((0..2).map(start).collect());
}

#[test]
fn ranks_of_a_process_manager_ask_it() {
    for local in [RANKS, 2] {
        let space = Mutex::new(HashMap::new());
        let barrier = Barrier::default();
        std::thread::scope(|scope| {
            let start = |at: usize| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                ours.set_read_timeout(Some(LIMIT)).unwrap();
                let variables = [
                    ("PMI_RANK", at.to_string()),
                    ("PMI_SIZE", RANKS.to_string()),
                    // Its standard input: other descriptors would be inherited by other tests' processes too, and the end of
                    // this one would not be seen.
                    ("PMI_FD", "0".into()),
                    ("MPI_LOCALNRANKS", local.to_string()),
                ];
                let process = rank(&variables).stdin(OwnedFd::from(theirs)).spawn().unwrap();
                let (space, barrier) = (&space, &barrier);
                scope.spawn(move || manage(ours, space, barrier));
                process
            };
            assert_done((0..RANKS).map(start).collect());
        });
        let space = space.into_inner().unwrap();
        assert_eq!(space.keys().collect::<Vec<_>>(), ["qpair-rank-0"]);
    }
}

/// What a process manager does for one rank.
fn manage(stream: UnixStream, space: &Mutex<HashMap<String, String>>, barrier: &Barrier) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the rank ended before it had finished");
        let fields: HashMap<&str, &str> = line.split_whitespace().filter_map(|field| field.split_once('=')).collect();
        let answer = match fields["cmd"] {
            "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_owned(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=space".to_owned(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".to_owned(),
            "put" => {
                space.lock().unwrap().insert(fields["key"].to_owned(), fields["value"].to_owned());
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "barrier_in" => {
                barrier.wait();
                "cmd=barrier_out".to_owned()
            }
            "get" => format!("cmd=get_result rc=0 msg=success value={}", space.lock().unwrap()[fields["key"]]),
            "finalize" => "cmd=finalize_ack".to_owned(),
            other => panic!("{other}"),
        };
        stream.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
        if fields["cmd"] == "finalize" {
            return;
        }
    }
}

/// Where all ranks wait for each other once, and not for ever: one may have failed.
#[derive(Default)]
struct Barrier {
    come: Mutex<usize>,
    changed: Condvar,
}

impl Barrier {
    fn wait(&self) {
        let mut come = self.come.lock().unwrap();
        *come += 1;
        self.changed.notify_all();
        let (come, _) = self.changed.wait_timeout_while(come, LIMIT, |come| *come < RANKS).unwrap();
        let come = *come;
        assert!(come >= RANKS, "{come} of {RANKS} ranks came");
    }
}

const RANKS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// A folder of this test's own, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("qpair-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
