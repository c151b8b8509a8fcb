//! What commands tell of GPUs, on a CUDA driver in memory.

mod common;

use std::process::{Command, Output};

use common::{File, QPAIR, finish, qpair, rows, stderr, stdout};
use serde_json::Value;

/// The command, with that driver.
fn on_gpu(args: &[&str]) -> Command {
    let mut command = qpair(args);
    command
        .env("QPAIR_LIBCUDA", qpair_fake_cuda::control::library_path().expect("the library is built beside the tests"));
    command
}

fn run(args: &[&str]) -> Output {
    finish(on_gpu(args))
}

#[test]
fn devices_lists_gpus_with_the_path_by_which_each_device_reaches_their_memory() {
    let output = run(&["devices", "--json"]);
    let rows = rows(&output);
    let gpu = rows.iter().find(|row| !row["gpu"].is_null()).expect("a GPU");
    assert_eq!((&gpu["gpu"], &gpu["usable"]), (&0.into(), &Value::Null));
    let ways = gpu["registration"].as_array().expect("a list");
    let soft = ways.iter().find(|way| way["device"] == "soft0").expect("the software device");
    assert_eq!((&soft["path"], &soft["reason"]), (&"software".into(), &"".into()));
    let text = stdout(&run(&["devices"]));
    assert!(text.contains("soft0 by software"), "{text}");
    let text = stdout(&run(&["devices", "-v"]));
    assert!(text.contains("\nGPU 0\n") && text.contains("compute capability"), "{text}");
}

#[test]
fn topo_shows_the_path_by_which_each_device_reaches_memory_of_the_gpus_of_this_machine() {
    let text = stdout(&run(&["topo"]));
    let table = text.split("How devices reach memory of GPUs").nth(1).expect("a table");
    let row = table.lines().find(|line| line.contains("soft0")).expect("a row");
    // The machine does not list it: it is known by its address.
    assert!(row.starts_with("0000:01:00.0  0 ") && row.contains("soft0 by software"), "{text}");
    let object: Value = serde_json::from_str(&stdout(&run(&["topo", "--json"]))).expect("an object");
    let gpu = &object["gpu_memory"][0];
    assert_eq!((&gpu["gpu"], &gpu["pci"]), (&0.into(), &"0000:01:00.0".into()));
    let ways = gpu["registration"].as_array().expect("a list");
    assert!(ways.iter().any(|way| way["device"] == "soft0" && way["path"] == "software"), "{object}");
    // What it prints can be read; and a machine from a file has no memory to register.
    let file = File::with("machine.json", &object.to_string());
    for from in [&["topo", "--from", file.path()][..], &["topo", "--json", "--from", file.path()]] {
        let output = run(from);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(!text.contains("gpu_memory") && !text.contains("memory of GPUs"), "{text}");
    }
    // Where there is no driver to ask, nothing is said.
    let mut none = on_gpu(&["topo"]);
    none.env("FAKE_CUDA_DRIVER_VERSION", "11040");
    assert!(!stdout(&finish(none)).contains("memory of GPUs"));
}

#[test]
fn doctor_says_how_memory_of_gpus_is_reached_and_what_is_wrong_with_a_driver() {
    let text = stdout(&run(&["doctor", "-v"]));
    assert!(text.contains("soft0 reaches its memory by software"), "{text}");
    let mut old = on_gpu(&["doctor", "--json"]);
    old.env("FAKE_CUDA_DRIVER_VERSION", "11040");
    // Whether there is a problem besides is the machine's affair.
    let text = stdout(&finish(old));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object per line"));
    let findings: Vec<Value> = lines.collect();
    let driver = findings.iter().find(|finding| finding["check"] == "gpu-driver").expect("a finding");
    assert!(driver["message"].as_str().expect("a text").contains("11.8 is needed"), "{driver}");
}

#[test]
fn a_benchmark_keeps_its_vectors_on_a_gpu() {
    let rows =
        rows(&run(&["bench", "all-reduce", "--gpu", "-n", "2", "-b", "64", "-e", "1K", "--iters", "2", "--json"]));
    assert!(!rows.is_empty() && rows.iter().all(|row| row["gpu"] == true && row["wrong"] == 0), "{rows:?}");
}

/// Two GPUs, where the driver in memory has its first two.
const TWO: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1"/>
    </pci>
  </cpu>
</system>
"#;

#[test]
fn ranks_that_see_their_own_gpu_alone_go_by_slots_and_say_what_to_do() {
    let machine = File::with("two.xml", TWO);
    // The GPU that a rank does not see is still that of its local rank where it sees all.
    let cases = [
        ("export CUDA_VISIBLE_DEVICES=$LOCAL_RANK", Some(0)),
        ("export CUDA_VISIBLE_DEVICES=0,1", None),
        // The other has its slots where this one reaches them.
        ("[ $LOCAL_RANK = 0 ] || export CUDA_VISIBLE_DEVICES=1", Some(1)),
    ];
    for (visible, misses) in cases {
        let bench = format!("{visible}; exec {QPAIR} bench all-reduce --gpu -b 64 -e 1M -f 128 --iters 2 --json");
        let mut command = on_gpu(&["launch", "-n", "2", "--", "sh", "-c", &bench]);
        command.env("QPAIR_TOPOLOGY", machine.path()).env("RUST_LOG", "qpair=info").env("FAKE_CUDA_DEVICES", "2");
        // It would be the reason.
        command.env_remove("QPAIR_GPU_STAGING");
        let output = finish(command);
        let (text, log) = (stdout(&output), stderr(&output));
        assert!(output.status.success() && text.contains("\"wrong\":0"), "{text} {log}");
        let why = |rank| {
            format!(
                "by slots of pinned memory, as rank {rank} does not see the GPUs of all ranks on its host: make all GPUs"
            )
        };
        assert!(misses.is_none_or(|rank: u32| log.contains(&why(rank))), "{visible}: {log}");
        let by_slots = log.matches("messages of GPUs go by pinned memory").count();
        assert_eq!(by_slots, if misses.is_some() { 2 } else { 0 }, "{visible}: {log}");
    }
}

#[test]
fn what_operations_take_on_a_gpu_is_measured_for_the_cost_model() {
    let text = stdout(&run(&["plan", "model", "default", "--gpu", "--json"]));
    let model: Value = serde_json::from_str(&text).expect("an object");
    let built_in: Value =
        serde_json::from_str(&stdout(&run(&["plan", "model", "default", "--json"]))).expect("an object");
    // No GPU moves as little as its stand-in here.
    for (name, own) in model["gpu"].as_object().expect("an object") {
        let is_measured = own != &built_in["gpu"][name];
        // That could be the same.
        assert!(name == "transfer" || is_measured == (name != "beside"), "{name}: {own}");
    }
    assert_eq!(model["start"], built_in["start"]);
    let none = run(&["plan", "model", "--gpu=9"]);
    let error = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && error.contains("there is no GPU 9"), "{error}");
}

#[test]
fn transfers_are_measured_between_memories_of_gpus() {
    for test in ["write-bw", "read-bw", "send-bw", "read-lat", "send-lat"] {
        let rows = rows(&run(&["perf", test, "--local", "--gpu", "-s", "8,64K", "-n", "20", "--json"]));
        let sizes: Vec<_> = rows.iter().map(|row| (row["size"].as_u64(), &row["gpu"])).collect();
        assert_eq!(sizes, [(Some(8), &true.into()), (Some(64 << 10), &true.into())], "{test}");
    }
    let text = stdout(&run(&["perf", "write-bw", "--local", "--gpu", "-n", "20"]));
    assert!(text.contains("data of both sides on GPUs, here Fake CUDA device 0"), "{text}");
}

#[test]
fn what_can_not_be_measured_on_a_gpu_says_so() {
    let refused = |args: &[&str]| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    assert!(refused(&["perf", "write-lat", "--local", "--gpu"]).contains("--gpu goes with write-bw"));
    assert!(refused(&["perf", "write-bw", "10.0.0.1", "--gpu"]).contains("--gpu goes with soft0 within a host"));
    let output = run(&["perf", "write-bw", "--local", "--gpu=7", "-n", "20"]);
    assert!(!output.status.success() && stderr(&output).contains("there is no GPU 7"), "{}", stderr(&output));
}
