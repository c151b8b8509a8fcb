//! The counters of a port, as the kernel shows them in files.

use std::fs;
use std::path::Path;

use crate::counters::Counter;

/// Those of port `number` of a device; none where the kernel shows none.
pub(super) fn read(device: &str, number: u8) -> Vec<Counter> {
    read_below(Path::new("/sys/class/infiniband"), device, number)
}

fn read_below(root: &Path, device: &str, number: u8) -> Vec<Counter> {
    let port = root.join(device).join("ports").join(number.to_string());
    let mut found: Vec<_> =
        ["counters", "hw_counters"].iter().flat_map(|folder| folder_of(&port.join(folder))).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup_by(|a, b| a.name == b.name);
    found
}

/// The files of a folder that hold a number. Some hold settings, such as `lifespan`, and some can not be read.
fn folder_of(folder: &Path) -> Vec<Counter> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let counter = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok().filter(|name| name != "lifespan")?;
        let value = fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Some(Counter { name: name.into(), value })
    };
    files.filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_and_other_files_are_not() {
        let root = std::env::temp_dir().join(format!("qpair-counters-{}", std::process::id()));
        let port = root.join("rxe0/ports/1");
        for (file, text) in [
            ("hw_counters/sent_pkts", "12\n"),
            ("hw_counters/lifespan", "10\n"),
            ("hw_counters/odd", "N/A (no PMA)\n"),
            ("counters/port_xmit_data", "7\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let counter = |name: &'static str, value| Counter { name: name.into(), value };
        assert_eq!(read_below(&root, "rxe0", 1), [counter("port_xmit_data", 7), counter("sent_pkts", 12)]);
        assert_eq!(read_below(&root, "rxe0", 2), []);
        fs::remove_dir_all(root).unwrap();
    }
}
