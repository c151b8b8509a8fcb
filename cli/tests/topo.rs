//! `qpair topo`: this machine, and machines from files.

mod common;

use std::os::unix::ffi::OsStrExt;

use common::{File, finish, qpair, stderr, stdout};
use serde_json::{Value, json};

/// Two GPUs and two NICs below a switch each, as NCCL writes it.
const NCCL: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"/>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"/>
      </pci>
      <pci busid="0000:22:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_1" dev="1" speed="200000" port="1" guid="0x2" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
"#;

#[test]
fn this_machine_is_shown_and_a_capture_of_it_is_the_same() {
    let capture = File::new("capture.txt");
    let output = finish(qpair(&["topo", "--capture", capture.path()]));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("soft0") && text.contains("NUMA"), "{text}");
    let again = stdout(&finish(qpair(&["topo", "--from", capture.path()])));
    assert_eq!(text.replace(&format!("\ncaptured: {}\n", capture.path()), ""), again.trim_end());
}

/// Two pairs of GPUs, each joined by NVLink.
const PAIRS: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:31:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:41:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:31:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="90" rank="2" gdr="1"><nvlink target="0000:11:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:41:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="3" sm="90" rank="3" gdr="1"><nvlink target="0000:21:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"#;

#[test]
fn islands_of_gpus_are_told_where_there_are_several() {
    let from = File::with("pairs.xml", PAIRS);
    let text = stdout(&finish(qpair(&["topo", "--from", from.path()])));
    assert!(text.contains("  GPU 0, GPU 2 (NVL; 48 GB/s to others)\n  GPU 1, GPU 3 (NVL; 48 GB/s"), "{text}");
    let object: Value =
        serde_json::from_str(&stdout(&finish(qpair(&["topo", "--from", from.path(), "--json"])))).unwrap();
    let islands = object["gpu_islands"].as_array().unwrap();
    assert_eq!(islands.iter().map(|island| &island["gpus"]).collect::<Vec<_>>(), [&json!([0, 2]), &json!([1, 3])]);
    assert_eq!(islands[0]["outside_bytes_per_second"], 48_000_000_000_u64);
    // One alone is not worth a word.
    let one = File::with("one.xml", NCCL);
    assert!(!stdout(&finish(qpair(&["topo", "--from", one.path()]))).contains("Islands"));
}

#[test]
fn ranks_know_on_which_islands_their_gpus_are() {
    let from = File::with("ranks.xml", PAIRS);
    let mut bench = qpair(&["bench", "all-reduce", "-n", "4", "-b", "64", "-e", "64"]);
    bench.env("QPAIR_TOPOLOGY", from.path()).env("RUST_LOG", "qpair=info");
    let output = finish(bench);
    assert!(output.status.success() && stderr(&output).contains("on 2 islands of GPUs"), "{}", stderr(&output));
}

/// A NIC without a PCI device, of whose port no rate is told.
const RATELESS: &str = r#"<system version="1">
  <cpu numaid="0" affinity="f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <nic>
      <net name="usnic0" dev="0" speed="0" port="1" guid="0x1" maxconn="131072" gdr="0"/>
    </nic>
  </cpu>
</system>
"#;

#[test]
fn a_rate_that_is_not_known_is_null_to_programs() {
    let choice = |text: &str| {
        let from = File::with("rate.xml", text);
        let object = stdout(&finish(qpair(&["topo", "--from", from.path(), "--json"])));
        let object: Value = serde_json::from_str(&object).unwrap();
        object["choice"][0].clone()
    };
    let unknown = choice(RATELESS);
    assert_eq!((&unknown["bytes_per_second"], &unknown["nics"][0]["bytes_per_second"]), (&Value::Null, &Value::Null));
    assert_eq!(unknown["nics"][0]["name"], "usnic0", "{unknown}");
    let known = choice(&RATELESS.replace(r#"speed="0""#, r#"speed="100000""#));
    assert_eq!(known["bytes_per_second"], 12_500_000_000_u64);
    assert_eq!(known["nics"][0]["bytes_per_second"], 12_500_000_000_u64);
}

#[test]
fn a_file_gives_the_matrix_the_choice_and_pictures() {
    let (from, svg, nccl) = (File::with("from.xml", NCCL), File::new("machine.svg"), File::new("out.xml"));
    let output = finish(qpair(&["topo", "--from", from.path(), "--svg", svg.path(), "--nccl", nccl.path()]));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "2 GPUs, 2 RDMA NICs",
        "mlx5_1  0000:22:00.0  PCIe 4 x16  1     ?      200 Gbit/s  InfiniBand\n",
        "PIX",
        "GPU 0: mlx5_0 (PIX",
        "GPU 1: mlx5_1 (PIX",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(svg.text().starts_with("<svg") && svg.text().contains("mlx5_1"));
    let again = stdout(&finish(qpair(&["topo", "--from", nccl.path()])));
    assert!(again.contains("GPU 1: mlx5_1 (PIX"), "{again}");
}

#[test]
fn the_variable_for_workers_is_heeded_and_told() {
    let from = File::with("variable.xml", NCCL);
    let topo = |args: &[&str]| {
        let mut command = qpair(&[&["topo"], args].concat());
        command.env("QPAIR_TOPOLOGY", from.path());
        stdout(&finish(command))
    };
    let text = topo(&[]);
    assert!(text.starts_with(&format!("By the file that QPAIR_TOPOLOGY names, {}:\n", from.path())), "{text}");
    // Its NICs are none of this machine's, so that workers do not take them.
    assert!(text.contains("\n(without mlx5_0, mlx5_1, which libibverbs does not list)"), "{text}");
    assert!(text.contains("GPU 1: no NIC"), "{text}");
    assert!(topo(&["--exclude", "mlx5_0"]).contains("GPU 0: mlx5_1"), "arguments go before");
    assert!(!topo(&["--from", "/sys"]).contains("QPAIR_TOPOLOGY"));
}

#[test]
fn a_file_whose_name_is_no_text_is_told_as_far_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"m\xff.xml"));
    std::fs::write(&path, NCCL).expect("a file");
    let mut command = qpair(&["topo", "--json"]);
    command.env("QPAIR_TOPOLOGY", &path);
    let output = finish(command);
    assert!(output.status.success(), "{}", stderr(&output));
    let object: Value = serde_json::from_str(&stdout(&output)).expect("an object");
    assert_eq!(object["topology_file"], path.display().to_string());
}

#[test]
fn nics_that_the_environment_names_are_checked() {
    let mut command = qpair(&["topo"]);
    command.env("QPAIR_NICS", "no-such-nic");
    let output = finish(command);
    assert!(stderr(&output).contains("no NIC is called or at `no-such-nic`: there is soft0"), "{}", stderr(&output));
    let mut command = qpair(&["topo"]);
    command.env("QPAIR_NICS", "soft0");
    assert!(stdout(&finish(command)).contains("(as QPAIR_NICS says: soft0)"));
    let mut command = qpair(&["topo", "--json"]);
    command.env("QPAIR_NICS", "soft0");
    let object: Value = serde_json::from_str(&stdout(&finish(command))).expect("an object");
    assert!(object["limits"].to_string().contains("as QPAIR_NICS says: soft0"), "{object}");
    assert!(object.get("topology_file").is_none(), "{object}");
}

#[test]
fn a_capture_may_go_to_a_pipe() {
    // Through a shell, whose pipe it is.
    let script = "\"$0\" topo --capture /dev/stderr 2>&1 >/dev/null | grep -c '|'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, common::QPAIR]);
    let lines = stdout(&finish(command));
    assert!(lines.trim().parse::<u32>().is_ok_and(|lines| lines > 0), "{lines}");
}

#[test]
fn a_folder_is_captured_and_a_file_is_not() {
    let (capture, file) = (File::new("of-folder.txt"), File::with("no-folder.xml", NCCL));
    let output = finish(qpair(&["topo", "--from", "/sys", "--capture", capture.path()]));
    assert!(output.status.success() && capture.text().contains("devices/system/node"), "{}", stderr(&output));
    let output = finish(qpair(&["topo", "--from", file.path(), "--capture", capture.path()]));
    assert!(stderr(&output).contains("is no folder like /sys"), "{}", stderr(&output));
}

#[test]
fn what_is_printed_for_programs_is_a_machine_that_can_be_read() {
    let from = File::with("to.xml", NCCL);
    let json = |args: &[&str]| -> Value {
        let output = finish(qpair(&[&["topo", "--json", "--from"], args].concat()));
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("one object")
    };
    let first = json(&[from.path()]);
    let copy = File::with("to.json", &first.to_string());
    assert_eq!(json(&[copy.path()]), first);
}

#[test]
fn what_is_said_of_nics_holds() {
    let from = File::with("said.xml", NCCL);
    let object = |more: &[&str]| -> Value {
        let output = finish(qpair(&[&["topo", "--from", from.path(), "--json"], more].concat()));
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("one object")
    };
    let nic_of = |object: &Value, at: usize| object["choice"][at]["nics"][0]["name"].as_str().map(str::to_owned);
    let chosen = object(&[]);
    assert_eq!([nic_of(&chosen, 0), nic_of(&chosen, 1)], ["mlx5_0", "mlx5_1"].map(|name| Some(name.to_owned())));
    assert_eq!(nic_of(&object(&["--pin", "GPU0=mlx5_1"]), 0).as_deref(), Some("mlx5_1"));
    assert_eq!(nic_of(&object(&["--exclude", "mlx5_0", "--gpus", "0"]), 0).as_deref(), Some("mlx5_1"));
}

/// Ten GPUs and ten NICs that are all different: links of GPUs here and there, and four rates.
fn odd_machine() -> String {
    use qpair::topology::{Bridge, BridgeRole, PcieGeneration, PcieLink};
    use qpair::topology::{Cpu, Gpu, GpuLink, GpuLinkKind, GpuPeer, LinkLayer, Machine, Nic, Parent, PciAddress, Port};
    let mut machine = Machine::builder();
    machine.cpu(Cpu::numa(0)).cpu(Cpu::numa(1));
    let x16 = PcieLink::new(PcieGeneration::Gen4, 16);
    for place in 0..10_u8 {
        let at = |device| PciAddress::new(0, 16 + place, device, 0);
        let under = Parent::Bridge(at(0));
        let role = BridgeRole::Switch;
        machine.bridge(Bridge { role, pcie: x16, ..Bridge::at(at(0), Parent::Numa(u32::from(place) % 2)) });
        machine.gpu(Gpu { pcie: x16, ..Gpu::at(at(1), under) });
        if place % 3 > 0 {
            for port in 0..2 {
                let mbit = 100_000 * u64::from(1 + (place * 7 + port * 3) % 5);
                let ports = vec![Port::active(1, mbit, LinkLayer::InfiniBand)];
                let name = format!("mlx5_{place}_{port}");
                machine.nic(Nic { ports, pcie: x16, ..Nic::at(name, at(2 + port), under) });
            }
        }
        for other in (0..place).filter(|other| (place * 5 + other * 3) % 4 > 0) {
            let (to, kind) = (GpuPeer::Gpu(PciAddress::new(0, 16 + other, 1, 0)), GpuLinkKind::NvLink);
            let count = u32::from(1 + (place + other) % 3);
            machine.gpu_link(GpuLink { gpu: at(1), to, kind, count, each: GpuLinkKind::nvlink(3) });
        }
    }
    machine.build().to_json()
}

#[test]
fn a_choice_that_is_not_proven_says_so() {
    let (odd, plain) = (File::with("odd.json", &odd_machine()), File::with("plain.xml", NCCL));
    let text = |file: &File| stdout(&finish(qpair(&["topo", "--from", file.path()])));
    assert!(text(&odd).contains("The choice of GPUs is good, and not proven to be the best"), "{}", text(&odd));
    assert!(!text(&plain).contains("proven"), "{}", text(&plain));
    let proven = |file: &File| -> Value {
        let output = finish(qpair(&["topo", "--from", file.path(), "--json"]));
        serde_json::from_slice::<Value>(&output.stdout).expect("one object")["proven"].clone()
    };
    assert_eq!(proven(&odd), serde_json::json!({ "gpus": false, "cpus": true }));
    assert_eq!(proven(&plain), serde_json::json!({ "gpus": true, "cpus": true }));
}

#[test]
fn what_can_not_be_is_refused_with_what_there_is() {
    let (from, nonsense) = (File::with("refused.xml", NCCL), File::with("nonsense.txt", "neither this nor that"));
    for (args, parts) in [
        (&["--from", from.path(), "--exclude", "mlx5_9"][..], &["mlx5_9", "mlx5_0", "mlx5_1"][..]),
        (&["--from", from.path(), "--gpus", "7"], &["GPU 7", "GPU 1"]),
        (&["--from", from.path(), "--pin", "NUMA7=mlx5_0"], &["there is no NUMA node 7", "NUMA 0"]),
        (&["--from", from.path(), "--pin", "GPU9=mlx5_0"], &["there is no GPU 9", "GPU 0 at 0000:11:00.0, GPU 1 at"]),
        (&["--from", nonsense.path()], &["nonsense.txt"]),
        (&["--from", "/no/such/file"], &["/no/such/file"]),
        (&["--from", from.path(), "--svg", "/no/such/folder/x.svg"], &["/no/such/folder/x.svg"]),
    ] {
        let output = finish(qpair(&[&["topo"], args].concat()));
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stdout(&output));
        let error = stderr(&output);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
    let output = finish(qpair(&["topo", "--pin", "GPU0"]));
    assert!(output.status.code() == Some(2) && stderr(&output).contains("GPU0=mlx5_1"), "{}", stderr(&output));
}
