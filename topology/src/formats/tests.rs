//! Formats by the files of `tests/corpus`, and what is wrong in them.

use crate::{
    Bandwidth, BridgeRole, Format, GpuId, GpuLinkKind, GpuPeer, GpuVendor, HwlocError, JsonError, LinkKind, LinkLayer,
    LoadError, Machine, NcclError, NicId, NodeId, Parent, PathClass, PcieGeneration, PcieLink, PortState, ReadError,
    XmlError, format_limits,
};

const NVLINK: &str = include_str!("../../tests/corpus/nccl/nvlink.xml");
const GRACE: &str = include_str!("../../tests/corpus/nccl/grace.xml");
const UNKNOWN_NODE: &str = include_str!("../../tests/corpus/nccl/unknown_node.xml");
const VERSION_1: &str = include_str!("../../tests/corpus/hwloc/version1.xml");
const VERSION_2: &str = include_str!("../../tests/corpus/hwloc/version2.xml");
const VERSION_3: &str = include_str!("../../tests/corpus/hwloc/version3.xml");

fn nccl(text: &str) -> Machine {
    Machine::from_nccl_xml(text).unwrap()
}

fn hwloc(text: &str) -> Machine {
    Machine::from_hwloc_xml(text).unwrap()
}

/// Kind and count of the link of a GPU that is not PCIe, with its bandwidth.
fn link(machine: &Machine, a: impl Into<NodeId>, b: impl Into<NodeId>) -> Option<(LinkKind, Bandwidth)> {
    let (a, b) = (a.into(), b.into());
    let mut links = machine.links_of(a).filter(|link| link.other(a) == b && !link.is_towards_host());
    links.next().map(|link| (link.kind, link.bandwidth))
}

fn nvlinks(count: u32) -> Option<(LinkKind, Bandwidth)> {
    let each = GpuLinkKind::nvlink(4);
    Some((LinkKind::GpuLink { kind: GpuLinkKind::NvLink, count }, each.times(count.into())))
}

#[test]
fn nccl_switches_gpus_links_and_ports_are_read() {
    let machine = nccl(NVLINK);
    assert_eq!(machine.warnings(), []);
    assert_eq!((machine.gpus().len(), machine.nics().len(), machine.cpus().len()), (2, 3, 2));
    assert!(machine.bridges().iter().all(|bridge| bridge.role == BridgeRole::Switch));
    assert_eq!(link(&machine, GpuId(0), GpuId(1)), nvlinks(2));
    assert_eq!(link(&machine, GpuId(0), NodeId::NvSwitch), nvlinks(9));
    assert_eq!(machine.nv_switch().unwrap().addresses.len(), 2);
    let nic = &machine.nics()[0];
    assert_eq!(
        nic.ports.iter().map(|port| (port.number, port.mbit)).collect::<Vec<_>>(),
        [(1, Some(400_000)), (2, Some(400_000))]
    );
    assert_eq!((nic.guid, nic.gpu_direct), (Some(0x68ce_6000_03da_341c), Some(true)));
    assert_eq!(nic.ports[0].link_layer, LinkLayer::InfiniBand);
    assert_eq!(machine.path(GpuId(0), NicId(0)).unwrap().class, PathClass::Pix);
}

#[test]
fn nccl_devices_without_net_or_bus_are_nics_too() {
    let machine = nccl(NVLINK);
    let named = &machine.nics()[machine.nic_named("0000:24:00.0").unwrap().0 as usize];
    assert_eq!((named.ports[0].mbit, named.pcie), (None, PcieLink::UNKNOWN));
    let loose = &machine.nics()[machine.nic_named("usnic&0").unwrap().0 as usize];
    assert_eq!((loose.address, loose.parent, loose.ports[0].mbit), (None, Parent::Numa(0), None));
}

#[test]
fn nccl_files_are_the_same_once_they_are_written_and_read() {
    let machine = nccl(NVLINK);
    assert_eq!(nccl(&machine.to_nccl_xml()), machine);
    let grace = nccl(GRACE);
    assert_eq!(nccl(&grace.to_nccl_xml()).description(), grace.description());
    // A link that one end alone tells is written for both.
    let one_sided = nccl(UNKNOWN_NODE);
    let written = nccl(&one_sided.to_nccl_xml());
    assert_eq!(
        (written.gpus(), written.nics(), written.links()),
        (one_sided.gpus(), one_sided.nics(), one_sided.links())
    );
    assert_eq!(nccl(&written.to_nccl_xml()), written);
}

#[test]
fn nccl_processors_that_are_not_known_are_left_out() {
    let written = nccl("<system version='1'><cpu numaid='0' affinity='f'/><cpu numaid='1'/></system>").to_nccl_xml();
    assert_eq!(written.matches("affinity").count(), 1, "{written}");
}

#[test]
fn nccl_nics_that_were_fused_count_once() {
    let file = |keep: &str, fused: &str| {
        let nic = |bus: &str, net: &str| {
            format!("<pci busid='0000:{bus}:00.0' class='0x020700'>\n<nic><net {net}/></nic></pci>")
        };
        let one = nic("12", &format!("name='mlx5_0' dev='0' speed='200000' {keep}"));
        let two = nic("13", &format!("name='mlx5_1' dev='1' speed='200000' {keep}"));
        let both = nic("1f", &format!("name='{fused}' dev='2' speed='400000' keep='1'"));
        let machine = nccl(&format!("<system version='1'><cpu numaid='0'>{one}{two}{both}</cpu></system>"));
        let names: Vec<_> = machine.nics().iter().map(|nic| nic.name.clone()).collect();
        (names, machine.warnings().len())
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(file("keep='0'", "mlx5_0+mlx5_1"), (names(&["mlx5_0+mlx5_1"]), 2));
    assert_eq!(file("", "mlx5_0+mlx5_1"), (names(&["mlx5_0", "mlx5_1"]), 1));
    // What only looks like it.
    assert_eq!(file("keep='1'", "mlx5_0+mlx5_7"), (names(&["mlx5_0", "mlx5_1", "mlx5_0+mlx5_7"]), 0));
}

#[test]
fn nccl_bridges_stay_bridges_whatever_hangs_under_them() {
    let machine = nccl(
        "<system version='1'><cpu numaid='0'><pci busid='0000:11:00.0' class='0x060400'>\
         <nic><net name='virtual0' dev='0' speed='100000'/></nic>\
         <pci busid='0000:12:00.0' class='0x030200'><gpu dev='0' sm='90'/></pci></pci></cpu></system>",
    );
    assert_eq!((machine.bridges().len(), machine.gpus().len(), machine.warnings()), (1, 1, &[][..]));
    let bridge = Parent::Bridge("0000:11:00.0".parse().unwrap());
    assert_eq!((machine.gpus()[0].parent, machine.nics()[0].parent), (bridge, bridge));
    assert_eq!((machine.nics()[0].name.as_str(), machine.nics()[0].address), ("virtual0", None));
    assert_eq!(nccl(&machine.to_nccl_xml()), machine);
}

#[test]
fn nccl_c2c_leads_to_the_processor_and_only_the_first_host_is_read() {
    let machine = nccl(GRACE);
    let cpu = machine.cpu_numa(0).unwrap();
    let (kind, bandwidth) = link(&machine, GpuId(0), cpu).unwrap();
    assert_eq!(kind, LinkKind::GpuLink { kind: GpuLinkKind::C2c, count: 10 });
    assert_eq!(bandwidth, Bandwidth::from_mb(372_600));
    assert_eq!(link(&machine, GpuId(0), NodeId::NvSwitch), nvlinks(18));
    assert_eq!(machine.nv_switch().unwrap().addresses, []);
    assert_eq!((machine.cpus().len(), machine.warnings().len()), (1, 1));
}

#[test]
fn nccl_devices_of_no_known_node_are_there() {
    let machine = nccl(UNKNOWN_NODE);
    assert_eq!((machine.gpus().len(), machine.nics().len(), machine.cpus().len()), (2, 1, 1));
    assert_eq!(machine.cpus()[0].numa, None);
    assert_eq!((machine.gpus()[0].vendor, machine.gpus()[0].gpu_direct), (GpuVendor::Amd, Some(false)));
    assert_eq!(link(&machine, GpuId(0), GpuId(1)).unwrap().1, GpuLinkKind::xgmi(3));
}

#[test]
fn what_is_wrong_in_a_file_of_nccl_is_told_with_its_line_and_the_rest_is_read() {
    let text = "<system version='3'>\n<cpu numaid='0' affinity='xyz'>\n<pci busid='none' class='0x060400'>\n\
        <pci busid='0000:01:00.0' class='0x030200'><gpu>\n<nvlink count='-1'/>\n<warp/></gpu></pci></pci>\n\
        <gin/></cpu><net/></system>";
    let machine = nccl(text);
    assert_eq!((machine.gpus().len(), machine.gpus()[0].parent), (1, Parent::Numa(0)));
    let about: Vec<_> = machine.warnings().iter().map(|warning| warning.about.as_str()).collect();
    assert_eq!(
        about,
        [
            "line 1, system",
            "line 2, cpu",
            "line 3, pci",
            "line 5, nvlink",
            "line 6, warp",
            "line 7, gin",
            "line 7, net"
        ]
    );
}

#[test]
fn hwloc_2_has_the_tree_the_devices_and_the_links() {
    let machine = hwloc(VERSION_2);
    assert_eq!(machine.warnings(), []);
    assert_eq!(machine.name(), Some("node7"));
    // The port to the disk leads to nothing that matters.
    assert_eq!((machine.gpus().len(), machine.nics().len(), machine.bridges().len()), (2, 1, 4));
    use BridgeRole::{DownstreamPort, RootPort, Switch};
    let roles: Vec<_> = machine.bridges().iter().map(|bridge| bridge.role).collect();
    assert_eq!(roles, [RootPort, Switch, DownstreamPort, DownstreamPort]);
    let cpu = &machine.cpus()[1];
    assert_eq!((cpu.package, cpu.cpus.to_string(), cpu.family), (Some(1), "4-7".to_owned(), Some(25)));
    assert_eq!(machine.path(GpuId(0), NicId(0)).unwrap().class, PathClass::Pix);
    assert_eq!(machine.gpus()[0].model.as_deref(), Some("GH100 [H100 SXM5 80GB]"));
    assert_eq!((machine.gpus()[0].device, machine.gpus()[1].numa), (Some(0), Some(1)));
    assert_eq!(link(&machine, GpuId(0), GpuId(1)), nvlinks(2));
    assert_eq!(link(&machine, GpuId(1), NodeId::NvSwitch), nvlinks(18));
}

#[test]
fn hwloc_ports_and_links_are_as_far_known_as_it_says() {
    let machine = hwloc(VERSION_2);
    let nic = &machine.nics()[0];
    assert_eq!((nic.name.as_str(), nic.guid), ("mlx5_0", Some(0xb8ce_f603_00a1_b2c3)));
    let ports: Vec<_> = nic.ports.iter().map(|port| (port.number, port.mbit, port.state)).collect();
    assert_eq!(ports, [(1, None, PortState::Active), (2, None, PortState::Down)]);
    assert_eq!(nic.pcie, PcieLink::new(PcieGeneration::Gen5, 16));
    // It idled as the file was written.
    assert_eq!(machine.gpus()[0].pcie, PcieLink { generation: None, width: Some(16) });
    assert_eq!(machine.gpus()[1].pcie, PcieLink::new(PcieGeneration::Gen5, 16));
}

#[test]
fn hwloc_1_has_packages_in_its_nodes() {
    let machine = hwloc(VERSION_1);
    assert_eq!(machine.warnings(), []);
    let cpus: Vec<_> = machine.cpus().iter().map(|cpu| (cpu.numa, cpu.package)).collect();
    assert_eq!(cpus, [(Some(0), Some(4)), (Some(1), Some(5))]);
    assert_eq!((machine.gpus().len(), machine.nics()[0].name.as_str()), (1, "mlx5_0"));
    assert_eq!(machine.nics()[0].pcie, PcieLink::new(PcieGeneration::Gen3, 8));
    assert_eq!(machine.path(GpuId(0), NicId(0)).unwrap().class, PathClass::Phb);
}

#[test]
fn hwloc_3_has_bits_for_kinds_of_devices() {
    let machine = hwloc(VERSION_3);
    assert_eq!(machine.warnings(), []);
    assert_eq!(machine.nics().iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["mlx5_0", "mlx5_1"]);
    assert_eq!(machine.cpus().iter().map(|cpu| cpu.numa).collect::<Vec<_>>(), [Some(0)]);
    // It says of the root what versions before say of the machine.
    assert_eq!((machine.name(), machine.cpus()[0].arch.as_deref()), (Some("node9"), Some("arm64")));
    assert_eq!(machine.gpus()[0].model.as_deref(), Some("NVIDIA GH200 480GB"));
    let c2c = &machine.description().gpu_links[0];
    assert_eq!((c2c.kind, c2c.to), (GpuLinkKind::C2c, GpuPeer::Cpu(0)));
}

#[test]
fn hwloc_virtual_functions_share_the_ports_of_the_physical_one_if_there_is_one() {
    let file = |functions: &[(&str, &str)]| {
        let function = |(at, kind): &(&str, &str)| {
            format!(
                "<object type='PCIDev' pci_busid='0000:01:00.{at}' pci_type='0207 [15b3:101b] [15b3:1] 00 00'>\n\
                 <info name='PCIDevice' value='MT28908 Family [ConnectX-6{kind}]'/>\n\
                 <object type='OSDev' name='mlx5_{at}' osdev_type='3'/></object>\n"
            )
        };
        let functions: String = functions.iter().map(function).collect();
        hwloc(&format!("<topology version='2.0'><object type='Machine' cpuset='0xf'>{functions}</object></topology>"))
    };
    let physical = |machine: &Machine, nic: usize| machine.nics()[nic].physfn.map(|at| at.function);
    let machine = file(&[("0", ""), ("1", " Virtual Function"), ("2", " Virtual Function")]);
    assert_eq!((0..3).map(|nic| physical(&machine, nic)).collect::<Vec<_>>(), [None, Some(0), Some(0)]);
    assert_eq!(machine.warnings(), []);
    let machine = file(&[("0", ""), ("1", ""), ("2", " Virtual Function")]);
    assert_eq!((physical(&machine, 2), machine.warnings().len()), (None, 1));
    // As in a virtual machine.
    let machine = file(&[("0", " Virtual Function")]);
    assert_eq!((physical(&machine, 0), machine.warnings().len()), (None, 0));
}

#[test]
fn a_machine_of_hwloc_without_nodes_has_one() {
    let text = "<topology version='1.0'><object type='Machine' cpuset='0xf'><object type='PCIDev' \
        pci_busid='0000:01:00.0' pci_type='0302 [10de:20b0] [0:0] 00'/></object></topology>";
    let machine = hwloc(text);
    assert_eq!((machine.cpus()[0].numa, machine.cpus()[0].cpus.len()), (Some(0), 4));
    assert_eq!(machine.cpu_of(GpuId(0)), machine.cpu_numa(0));
}

#[test]
fn json_is_the_same_machine_with_its_warnings() {
    for machine in [nccl(NVLINK), nccl(GRACE), nccl(UNKNOWN_NODE), hwloc(VERSION_1), hwloc(VERSION_2), hwloc(VERSION_3)]
    {
        assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine);
    }
}

#[test]
fn json_that_is_no_machine_is_told() {
    let error = |text: &str| Machine::from_json(text).unwrap_err();
    assert!(matches!(error("{\"format\": \"other\", \"version\": 1}"), JsonError::Format { .. }));
    assert!(matches!(error("{\"format\": \"qpair-machine\", \"version\": 2}"), JsonError::Version { version: 2 }));
    let cut = nccl(NVLINK).to_json();
    assert!(error(&cut[..cut.len() / 2]).to_string().contains("line"));
    assert!(matches!(error(&"[".repeat(100_000)), JsonError::Syntax { .. }));
    let flood =
        format!("{{\"format\":\"qpair-machine\",\"version\":1,\"machine\":{{\"cpus\":[{}{{}}]}}}}", "{},".repeat(1000));
    assert!(error(&flood).to_string().contains("more than 128"), "{}", error(&flood));
}

#[test]
fn json_has_the_names_that_people_know_and_generations_by_number() {
    let text = nccl(NVLINK).to_json();
    for piece in ["\"generation\": 5", "\"link_layer\": \"infiniband\"", "\"kind\": \"nvlink\"", "\"nvswitch\""] {
        assert!(text.contains(piece), "{piece}\n{text}");
    }
    let error = Machine::from_json(&text.replace("\"generation\": 5", "\"generation\": 9")).unwrap_err().to_string();
    assert!(error.contains("9 is no generation of PCIe"), "{error}");
    // The form of the corpus is the form that is written.
    let written = include_str!("../../tests/corpus/json/nvlink.json");
    assert_eq!(Machine::from_json(written).unwrap().to_json(), written);
}

#[test]
fn json_of_a_later_minor_form_is_read() {
    let text =
        "{\"format\":\"qpair-machine\",\"version\":1,\"new\":[1],\"machine\":{\"cpus\":[{\"numa\":3,\"new\":{}}]}}";
    assert_eq!(Machine::from_json(text).unwrap().cpus()[0].numa, Some(3));
}

#[test]
fn formats_are_found_by_how_they_begin() {
    assert_eq!(Format::of(NVLINK), Some(Format::NcclXml));
    assert_eq!(Format::of(VERSION_2), Some(Format::HwlocXml));
    assert_eq!(Format::of("\u{feff}\n {\"a\": 1}"), Some(Format::Json));
    assert_eq!(Format::of("# a comment\n\ndevices/x|class=1"), Some(Format::Manifest));
    assert_eq!(Format::of("# qpair machine manifest 1\n"), Some(Format::Manifest));
    for text in ["", "<html><system/></html>", "<!-- <system>", "plain text", "<", "# only a comment"] {
        assert_eq!(Format::of(text), None, "{text}");
    }
}

#[test]
fn what_can_not_be_read_is_told_with_what_to_do() {
    let error = |bytes: &[u8]| Machine::read(bytes).unwrap_err();
    assert!(matches!(error(b" \n"), ReadError::Empty));
    assert!(error(b"<html/>").to_string().contains("begins with `<html/>`"));
    assert!(matches!(error(b"{\xff"), ReadError::NotUtf8 { offset: 1 }));
    assert!(matches!(error(&vec![b' '; format_limits::FILE + 1]), ReadError::TooLong { .. }));
    let entities = b"<!DOCTYPE x [<!ENTITY a 'b'>]><system/>";
    assert!(matches!(error(entities), ReadError::Nccl(NcclError::Xml(XmlError::Entity { line: 1, .. }))));
    let version = error(b"<topology version='9.0'/>");
    assert!(matches!(version, ReadError::Hwloc(HwlocError::Version { .. })), "{version}");
    assert!(matches!(Machine::from_nccl_xml("<x/>"), Err(NcclError::Root { .. })));
    assert!(matches!(Machine::load("/nowhere/at/all"), Err(LoadError::File { .. })));
}

#[test]
fn a_file_is_loaded_and_an_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.xml");
    std::fs::write(&path, NVLINK).unwrap();
    assert_eq!(Machine::load(&path).unwrap(), nccl(NVLINK));
    std::fs::write(&path, &NVLINK[..1000]).unwrap();
    let error = Machine::load(&path).unwrap_err().to_string();
    assert!(error.contains("machine.xml") && error.contains("line"), "{error}");
}
