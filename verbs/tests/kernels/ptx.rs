//! The PTX that is committed. That it is what the kernels compile to, `kernels/regenerate --check` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qpair_verbs::calc::DataType;

use crate::values::every;

/// The architectures that there is PTX for.
const TARGETS: [&str; 2] = ["sm_60", "sm_90"];

pub fn read(target: &str) -> String {
    text("combine", target)
}

pub fn text(source: &str, target: &str) -> String {
    // Where the tests run elsewhere than they were built.
    let moved = std::env::var_os("QPAIR_TEST_GPU_PTX").map(PathBuf::from);
    let folder = moved.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/kernels"));
    std::fs::read_to_string(folder.join(format!("{source}.{target}.ptx"))).unwrap()
}

/// What comes before the first kernel, and the kernels.
fn parts(ptx: &str) -> (&str, Vec<&str>) {
    let (head, kernels) = ptx.split_at(ptx.find(".visible .entry ").unwrap());
    (head, kernels.split(".visible .entry ").skip(1).collect())
}

/// One kernel as a module.
pub fn alone(ptx: &str, name: &str) -> String {
    let (head, kernels) = parts(ptx);
    let kernel = kernels.into_iter().find(|kernel| kernel.split('(').next() == Some(name)).unwrap();
    format!("{head}.visible .entry {kernel}")
}

#[test]
fn has_a_kernel_for_each_operation_and_type_and_no_other() {
    let mut names: BTreeSet<String> =
        every().iter().map(|calc| format!("qpair_{}_{}", calc.name(), calc.data_type())).collect();
    for data_type in DataType::ALL {
        names.extend(["divide", "multiply"].map(|op| format!("qpair_{op}_{data_type}")));
    }
    assert_eq!(names.len(), 12 * 4 + 6 * 6 + 12 * 2);
    for target in TARGETS {
        let ptx = read(target);
        let (_, kernels) = parts(&ptx);
        assert_eq!(kernels.len(), names.len(), "{target}: a kernel is there twice");
        let found = kernels.iter().map(|kernel| kernel.split('(').next().unwrap().to_owned()).collect();
        assert_eq!(names, found, "{target}");
    }
}

#[test]
fn is_of_the_version_and_for_the_processor_that_it_says() {
    for target in TARGETS {
        let ptx = read(target);
        let lines: Vec<&str> = parts(&ptx).0.lines().filter(|line| !line.starts_with("//")).collect();
        assert_eq!(lines, [".version 7.8", &format!(".target {target}"), ".address_size 64"], "{target}");
    }
}

/// A kernel alone, after what comes before the first, is a module: nothing that two use is outside of them.
#[test]
fn a_kernel_needs_no_other() {
    for target in TARGETS {
        let ptx = read(target);
        for kernel in parts(&ptx).1 {
            let name = kernel.split('(').next().unwrap();
            let signature = kernel.split_once(')').unwrap().0;
            let expected = match name {
                _ if name.starts_with("qpair_divide_") => ["u64", "u64", "u32"].as_slice(),
                "qpair_multiply_f16" | "qpair_multiply_bf16" | "qpair_multiply_f32" | "qpair_multiply_f64" => {
                    &["u64", "u64", "f64"]
                }
                "qpair_multiply_f8e4m3" | "qpair_multiply_f8e5m2" => &["u64", "u64", "f64"],
                _ if name.starts_with("qpair_multiply_") => &["u64", "u64", "u64"],
                _ => &["u64", "u64", "u64", "u64"],
            };
            let types: Vec<&str> = signature.split(".param .").skip(1).map(|param| &param[..3]).collect();
            assert_eq!(types, expected, "{target}, {name}");
            assert!(kernel.trim_end().ends_with('}') && !kernel.contains("call"), "{target}, {name}");
        }
    }
}

#[test]
fn rounds_each_operation_by_itself_and_keeps_subnormal_numbers() {
    for target in TARGETS {
        let ptx = read(target);
        for unwanted in [".ftz", ".approx", "fma.", "mad.rn", "div.full"] {
            assert!(!ptx.contains(unwanted), "{target}: {unwanted}");
        }
    }
}

#[test]
fn accesses_pieces_of_16_bytes() {
    for target in TARGETS {
        let ptx = read(target);
        for kernel in parts(&ptx).1 {
            let name = kernel.split('(').next().unwrap();
            assert!(kernel.contains("ld.global.v4") || kernel.contains("ld.global.v2.u64"), "{target}, {name}");
            assert!(kernel.contains("st.global.v4") || kernel.contains("st.global.v2.u64"), "{target}, {name}");
            assert!(!kernel.contains(".local"), "{target}, {name}: an array is in memory");
        }
    }
}

#[test]
fn converts_8_bit_floats_in_hardware_where_that_can() {
    let (old, new) = (read("sm_60"), read("sm_90"));
    for conversion in
        ["cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.f16x2.e4m3x2", "cvt.rn.f16x2.e5m2x2"]
    {
        assert!(new.contains(conversion) && !old.contains(conversion), "{conversion}");
    }
}

/// The kernels of words, which every GPU since Pascal takes: one atomic instruction of the system's scope each, fenced.
#[test]
fn words_are_changed_by_one_instruction_between_fences() {
    let ptx = text("atomic", "sm_60");
    let (head, kernels) = parts(&ptx);
    assert!(head.contains(".version 7.8\n.target sm_60\n"), "{head}");
    let found: Vec<(&str, Vec<&str>)> = kernels
        .iter()
        .map(|kernel| {
            let (name, body) = kernel.split_once('(').unwrap();
            let memory = ["membar", "fence", "atom", "red", "ld.global", "st.global"];
            let lines = body.lines().map(str::trim).filter(|line| memory.iter().any(|begin| line.starts_with(begin)));
            (name, lines.map(|line| line.split_whitespace().next().unwrap().trim_end_matches(';')).collect())
        })
        .collect();
    let around = |atomic| vec!["membar.sys", atomic, "st.global.u64", "membar.sys"];
    let expected = [
        ("qpair_fetch_add", around("atom.global.sys.add.u64")),
        ("qpair_compare_swap", around("atom.global.sys.cas.b64")),
    ];
    assert_eq!(found, expected);
}

/// A field of bits that runs over the end of its word is filled with zeros, which no source has asked for: seen of NVRTC 11.8,
/// for what was to be filled with the sign.
#[test]
fn no_field_of_bits_runs_over_its_word() {
    for target in TARGETS {
        for line in read(target).lines().filter(|line| line.trim_start().starts_with("bfe.")) {
            let mut operands = line.trim().trim_end_matches(';').rsplit(", ").map(str::parse::<u32>);
            let (Some(Ok(len)), Some(Ok(start))) = (operands.next(), operands.next()) else { continue };
            let width = if line.contains("64") { 64 } else { 32 };
            assert!(start + len <= width, "{target}: {line}");
        }
    }
}
