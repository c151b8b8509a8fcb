//! The same in folders, with links as the kernel has them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::super::memory::Entry;
use super::*;

/// Lays a manifest out as a folder.
fn lay_out(text: &str, root: &Path) {
    for (path, entry) in manifest::parse(text).unwrap().entries() {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File(value) => fs::write(path, format!("{value}\n")).unwrap(),
            Entry::Link(target) if target.starts_with('/') => symlink(root.join(&target[1..]), path).unwrap(),
            Entry::Link(target) => symlink(target, path).unwrap(),
            Entry::Folder => fs::create_dir_all(path).unwrap(),
        }
    }
}

fn lines() -> Lines {
    let mut lines = Lines::two_nodes();
    let (_, nic) = lines.switch(0x10, "0", "mlx5_0");
    lines.switch(0x40, "1", "mlx5_1");
    let function = nic.replace("14:00.0", "14:00.2");
    lines.pci(&function, "0x020700", "0x15b3", "0").set(&function, &[("physfn", "-> ../0000:14:00.0")]);
    lines.nic(&function, "mlx5_2", "200 Gb/sec (4X HDR)", "4: ACTIVE");
    lines
}

#[test]
fn a_folder_and_a_manifest_are_one_machine() {
    let root = tempfile::tempdir().unwrap();
    lay_out(&lines().0, root.path());
    let sysfs = Sysfs::at(root.path());
    let machine = Machine::discover(&sysfs);
    assert_eq!(machine, Machine::discover(&lines().sysfs().software_device(true)));
    assert_eq!(Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap()), machine);
    assert_eq!(Machine::load(root.path()).unwrap(), machine);
}

#[test]
fn a_folder_that_is_not_there_or_no_sysfs_is_told() {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine::discover(&Sysfs::at(root.path().join("nowhere")));
    assert!(warnings(&machine)[0].contains("no folder that can be read"), "{machine:?}");
    let machine = Machine::load(root.path()).unwrap();
    let told = warnings(&machine);
    assert!(told.len() == 1 && told[0].ends_with("neither bus/pci nor class nor devices, as a sysfs has"), "{told:?}");
    // The root of a system, where its sysfs is meant.
    fs::create_dir_all(root.path().join("sys/devices")).unwrap();
    let told = warnings(&Machine::load(root.path()).unwrap());
    assert!(told[0].ends_with(&format!("; use {}", root.path().join("sys").display())), "{told:?}");
    assert_eq!(Machine::load(root.path().join("sys")).unwrap(), Machine::builder().build());
}

#[test]
fn links_that_go_round_or_out_and_folders_for_files_are_passed_over() {
    let root = tempfile::tempdir().unwrap();
    lay_out(&lines().0, root.path());
    let devices = root.path().join("bus/pci/devices");
    symlink("0000:f0:00.1", devices.join("0000:f0:00.0")).unwrap();
    symlink("0000:f0:00.0", devices.join("0000:f0:00.1")).unwrap();
    // Out of the folder, to what looks like a device.
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("class"), "0x030200").unwrap();
    fs::write(outside.path().join("vendor"), "0x10de").unwrap();
    symlink(outside.path(), devices.join("0000:f1:00.0")).unwrap();
    // Upwards, so that it holds itself.
    symlink(root.path(), devices.join("0000:f2:00.0")).unwrap();
    let gpu = root.path().join("devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0");
    fs::remove_file(gpu.join("numa_node")).unwrap();
    fs::create_dir(gpu.join("numa_node")).unwrap();
    fs::remove_file(gpu.join("max_link_width")).unwrap();
    symlink("/dev/zero", gpu.join("max_link_width")).unwrap();
    let sysfs = Sysfs::at(root.path());
    let machine = Machine::discover(&sysfs);
    assert_eq!((machine.gpus().len(), machine.bridges().len()), (2, 8));
    assert_eq!(machine.gpus()[0].numa, None);
    assert_eq!(warnings(&machine).len(), 4);
    assert_eq!(Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap()), machine);
}

#[test]
fn files_that_are_long_no_text_or_for_others_are_not_known() {
    let root = tempfile::tempdir().unwrap();
    lay_out(&lines().0, root.path());
    let card = root.path().join("devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0");
    fs::write(card.join("numa_node"), vec![b'9'; 10 << 20]).unwrap();
    fs::write(card.join("current_link_speed"), [0xff, 0xfe]).unwrap();
    let guid = card.join("infiniband/mlx5_0/node_guid");
    fs::set_permissions(&guid, fs::Permissions::from_mode(0o000)).unwrap();
    let machine = Machine::discover(&Sysfs::at(root.path()));
    let nic = &machine.nics()[0];
    assert_eq!((nic.numa, nic.pcie), (None, X16));
    // Root reads it all the same.
    assert!(nic.guid.is_none() || fs::read(&guid).is_ok());
}

#[test]
fn the_configuration_space_of_a_bridge_tells_its_kind() {
    let root = tempfile::tempdir().unwrap();
    lay_out(&lines().0, root.path());
    let mut space = vec![0_u8; 4096];
    space[6] = 0x10;
    space[0x34] = 0x40;
    space[0x40..0x44].copy_from_slice(&[0x10, 0, 0x62, 0]);
    space[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    space[0x106] = 0x1d;
    let port = root.path().join("devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0");
    fs::write(port.join("config"), space).unwrap();
    let sysfs = Sysfs::at(root.path());
    let machine = Machine::discover(&sysfs);
    let bridge = machine.bridges().iter().find(|bridge| bridge.address == at("0000:12:00.0")).unwrap();
    assert_eq!((bridge.role, bridge.acs_redirect), (BridgeRole::DownstreamPort, Some(true)));
    assert_eq!(Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap()), machine);
}
