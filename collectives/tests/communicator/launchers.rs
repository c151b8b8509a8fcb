//! Ranks that other launchers start, played by hand: what they set, and what they offer.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, Mutex};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::port::Port;

/// A rank's process, with these variables and no others of a launcher.
fn rank(variables: &[(&str, String)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::rank", "--nocapture"]).env("QPAIR_TEST_ROLE", "work");
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (*name, value))).stdout(Stdio::piped());
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
    const RANKS: usize = 3;
    for local in [RANKS, 2] {
        let space = Mutex::new(HashMap::new());
        let barrier = Barrier::new(RANKS);
        std::thread::scope(|scope| {
            let start = |at: usize| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                // It is inherited, by other tests' processes too, which do nothing with it.
                fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
                let variables = [
                    ("PMI_RANK", at.to_string()),
                    ("PMI_SIZE", RANKS.to_string()),
                    ("PMI_FD", theirs.as_raw_fd().to_string()),
                    ("MPI_LOCALNRANKS", local.to_string()),
                ];
                let process = rank(&variables).spawn().unwrap();
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
        stream.read_line(&mut line).unwrap();
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
