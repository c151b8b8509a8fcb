//! What fuzz targets do with their input: each reader takes any bytes, and what it makes a machine of
//! comes back from the formats that are written.

use qpair_topology::{Machine, Matrix, Selection, Sysfs, draw};

/// Input of any format.
pub fn any(input: &[u8]) {
    if let Ok(machine) = Machine::read(input) {
        check(&machine);
    }
}

/// JSON.
pub fn json(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(machine) = Machine::from_json(text) {
        check(&machine);
    }
}

/// Topology files of NCCL.
pub fn nccl(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(machine) = Machine::from_nccl_xml(text) {
        check(&machine);
    }
}

/// XML of hwloc.
pub fn hwloc(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(machine) = Machine::from_hwloc_xml(text) {
        check(&machine);
    }
}

/// Manifests, and discovery from what is in them.
pub fn manifest(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(sysfs) = Sysfs::from_manifest(text) else { return };
    let machine = Machine::discover(&sysfs);
    let captured = sysfs.capture();
    let again = Sysfs::from_manifest(&captured);
    let again = again.unwrap_or_else(|error| panic!("a capture can not be read: {error}\n{captured}"));
    same(&Machine::discover(&again), &machine, &captured);
    check(&machine);
}

/// A machine, whatever it was read from, is the same after JSON; and what is written for NCCL can be
/// read, and is the same from then on.
fn check(machine: &Machine) {
    let json = machine.to_json();
    let again = Machine::from_json(&json).unwrap_or_else(|error| panic!("{error}\n{json}"));
    same(&again, machine, &json);
    let xml = machine.to_nccl_xml();
    let read = |xml: &str| Machine::from_nccl_xml(xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
    // Names that are no names, and what has the address of another, may change once.
    let once = read(&xml);
    let twice = read(&once.to_nccl_xml());
    same(&read(&twice.to_nccl_xml()), &twice, &xml);
    show(machine);
    for node in machine.nodes() {
        assert!(machine.links_of(node).all(|link| machine.label(link.other(node)).len() < 100_000));
    }
}

/// What is shown of it, whatever its names are: text without marks for a terminal, and a drawing that is sound XML. Of large
/// machines not, which take long.
fn show(machine: &Machine) {
    if machine.nodes().count() > 64 {
        return;
    }
    let choice = Selection::of(machine).choose().unwrap_or_else(|error| panic!("nothing was asked for: {error}"));
    let clean = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    let (matrix, reasons) = (Matrix::of(machine, Some(&choice)).to_string(), choice.explain().to_string());
    assert!(clean(&matrix) && clean(&reasons), "{matrix:?} {reasons:?}");
    let svg = draw(machine, Some(&choice));
    assert!(clean(&svg) && !svg.contains(['\u{fffe}', '\u{ffff}']), "{svg:?}");
    assert_eq!(svg.matches('<').count(), svg.matches('>').count(), "{svg}");
    let tags = svg.matches("<text").count();
    assert_eq!((svg.matches("</text>").count(), svg.matches("</svg>").count()), (tags, 1), "{svg}");
}

/// Panics if the machines differ, with the first line in which they do.
fn same(a: &Machine, b: &Machine, written: &str) {
    if a != b {
        let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
        let (a, b): (Vec<_>, Vec<_>) = (a.lines().collect(), b.lines().collect());
        let place = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
        let around = |lines: &[&str]| lines[place.saturating_sub(3)..(place + 3).min(lines.len())].join("\n");
        panic!("{written}\nis another machine:\n{}\ninstead of\n{}", around(&a), around(&b));
    }
}
