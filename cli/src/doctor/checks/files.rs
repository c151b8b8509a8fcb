//! Device files in /dev/infiniband, and what this user may do with them.

use super::super::finding::{Finding, Section};
use super::super::system::{DeviceFile, RdmaDevice, System};

/// Whether the files of the devices are there and may be opened.
pub fn check(system: &System) -> Vec<Finding> {
    let mut findings: Vec<Finding> = system.devices.iter().filter_map(|device| device_file(system, device)).collect();
    findings.extend(connection_file(system));
    findings
}

/// Through its file a process reaches the device.
fn device_file(system: &System, device: &RdmaDevice) -> Option<Finding> {
    let of = Section::Files;
    // Without the kernel's part there is no file to miss; that is told elsewhere.
    let name = device.uverbs.as_ref()?;
    let path = format!("/dev/infiniband/{name}");
    let Some(file) = system.files.iter().find(|file| file.name == *name) else {
        let finding = Finding::problem(of, "device-file", format!("{path} is missing")).on(&device.name);
        let finding = finding.because("Without it no process can open the device.");
        return Some(if system.machine.container.is_some() {
            finding.fix(CONTAINER, ["--device=/dev/infiniband"])
        } else {
            finding.fix("as root: have udev make it", ["udevadm trigger --subsystem-match=infiniband_verbs"])
        });
    };
    Some(match file.refused {
        None => Finding::ok(of, "device-file", format!("{path} can be opened")).on(&device.name),
        Some(errno) => refused(system, file, errno, &path).on(&device.name),
    })
}

fn refused(system: &System, file: &DeviceFile, errno: i32, path: &str) -> Finding {
    let reason = std::io::Error::from_raw_os_error(errno);
    let owner = file.group.clone().unwrap_or_else(|| file.gid.to_string());
    let finding = Finding::problem(
        Section::Files,
        "device-file",
        format!(
            "{path} can not be opened by user {}: {reason}; mode {:04o}, group {owner}",
            system.user.uid, file.mode
        ),
    );
    let group_may = file.mode & 0o060 == 0o060 && file.gid != 0 && !system.user.groups.contains(&file.gid);
    match (errno, &file.group) {
        (EPERM, _) => finding
            .because("The permission bits are not the reason: this group of processes may not use the device.")
            .fix(CONTAINER, ["--device=/dev/infiniband"])
            .fix("for a service: in its systemd unit, under [Service]", ["DeviceAllow=char-infiniband_verbs rw"]),
        (EACCES, Some(group)) if group_may => {
            finding.fix("as root; then log in again", [format!("usermod -aG {group} USER")])
        }
        (EACCES, _) => finding.fix(
            "as root",
            [
                "echo 'KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\"' > /etc/udev/rules.d/90-rdma.rules",
                "udevadm control --reload",
                "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc",
            ],
        ),
        _ => finding.because("The file is there, the device behind it is not, or fails.").fix(
            "as root: see what the kernel says, and have udev make the files anew",
            ["dmesg | tail", "udevadm trigger --subsystem-match=infiniband_verbs"],
        ),
    }
}

/// Only programs that connect by rdma_cm need it.
fn connection_file(system: &System) -> Option<Finding> {
    let of = Section::Files;
    if system.devices.is_empty() {
        return None;
    }
    let why = "Programs that connect by rdma_cm (rping, NFS, UCX where told so) need it; queue pairs that are connected \
               over TCP do not.";
    let file = system.files.iter().find(|file| file.name == "rdma_cm");
    Some(match file {
        Some(file) if file.refused.is_none() => {
            Finding::ok(of, "rdma-cm-file", "/dev/infiniband/rdma_cm can be opened")
        }
        Some(_) => Finding::note(of, "rdma-cm-file", "/dev/infiniband/rdma_cm can not be opened by this user")
            .because(why)
            .fix("as root", ["chmod 0666 /dev/infiniband/rdma_cm"]),
        None if system.machine.container.is_some() => {
            Finding::note(of, "rdma-cm-file", "/dev/infiniband/rdma_cm is missing")
                .because(why)
                .fix(CONTAINER, ["--device=/dev/infiniband"])
        }
        None => Finding::note(of, "rdma-cm-file", "/dev/infiniband/rdma_cm is missing").because(why).fix(
            "as root",
            [if system.kernel.has_rdma_cm { "udevadm trigger --subsystem-match=misc" } else { "modprobe rdma_ucm" }],
        ),
    })
}

const CONTAINER: &str = "when the container is started (docker, podman)";
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EACCES: i32 = rustix::io::Errno::ACCESS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::{fixes, only};
    use super::*;

    fn with_refused(errno: i32, mode: u32, group: Option<(u32, &str)>) -> Vec<Finding> {
        let mut system = Fixture::rxe_host().system();
        let file = system.files.iter_mut().find(|file| file.name == "uverbs0").expect("the device's file");
        let (gid, group) = group.map_or((0, None), |(gid, name)| (gid, Some(name.to_owned())));
        *file = DeviceFile { name: "uverbs0".to_owned(), mode, uid: 0, gid, group, refused: Some(errno) };
        check(&system)
    }

    #[test]
    fn a_missing_file_is_made_by_udev_or_given_to_the_container() {
        let fixture = Fixture::rxe_host();
        let mut system = fixture.remove("dev/infiniband").system();
        let findings = check(&system);
        let finding = only(&findings, "device-file");
        assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0")));
        assert_eq!(finding.message, "/dev/infiniband/uverbs0 is missing");
        assert!(fixes(finding).contains("udevadm trigger"), "{finding:?}");
        assert!(fixes(only(&findings, "rdma-cm-file")).contains("udevadm trigger --subsystem-match=misc"));
        system.kernel.has_rdma_cm = false;
        assert!(fixes(only(&check(&system), "rdma-cm-file")).contains("modprobe rdma_ucm"));
        system.machine.container = Some("docker".to_owned());
        let findings = check(&system);
        assert!(fixes(only(&findings, "device-file")).contains("--device=/dev/infiniband"));
        assert!(fixes(only(&findings, "rdma-cm-file")).contains("--device=/dev/infiniband"));
    }

    #[test]
    fn a_file_of_a_group_wants_membership() {
        let findings = with_refused(EACCES, 0o660, Some((4242, "rdma")));
        let finding = only(&findings, "device-file");
        assert!(finding.message.contains("by user 1000: Permission denied"), "{finding:?}");
        assert!(finding.message.ends_with("mode 0660, group rdma"), "{finding:?}");
        assert_eq!(fixes(finding), "as root; then log in again| usermod -aG rdma USER\n");
    }

    #[test]
    fn a_file_of_root_alone_wants_a_rule() {
        let findings = with_refused(EACCES, 0o600, Some((0, "root")));
        assert!(fixes(only(&findings, "device-file")).contains("MODE=\"0666\""));
    }

    #[test]
    fn a_device_forbidden_to_the_group_of_processes_is_not_a_matter_of_bits() {
        let findings = with_refused(EPERM, 0o666, None);
        let text = fixes(only(&findings, "device-file"));
        assert!(text.contains("--device=/dev/infiniband") && text.contains("DeviceAllow="), "{text}");
    }

    #[test]
    fn a_file_without_its_device_is_told() {
        let findings = with_refused(rustix::io::Errno::NXIO.raw_os_error(), 0o666, None);
        let finding = only(&findings, "device-file");
        assert!(finding.why.as_ref().is_some_and(|why| why.contains("the device behind it is not")), "{finding:?}");
        assert!(fixes(finding).contains("dmesg"), "{finding:?}");
    }

    #[test]
    fn a_refused_rdma_cm_is_a_note() {
        let mut system = Fixture::rxe_host().system();
        system.files.iter_mut().filter(|file| file.name == "rdma_cm").for_each(|file| file.refused = Some(EACCES));
        let findings = check(&system);
        let finding = only(&findings, "rdma-cm-file");
        assert_eq!(finding.severity, Severity::Note);
        assert!(fixes(finding).contains("chmod 0666 /dev/infiniband/rdma_cm"));
    }
}
