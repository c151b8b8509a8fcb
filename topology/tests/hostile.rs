//! Readers and hostile input: any bytes, and files that were damaged, are a machine or an error.

mod fuzz;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 4] =
    [("json", fuzz::json), ("manifest", fuzz::manifest), ("nccl", fuzz::nccl), ("hwloc", fuzz::hwloc)];

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn each_input_of_the_corpus_passes() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name}");
        for (path, input) in inputs {
            println!("{}", path.display());
            target(&input);
            fuzz::any(&input);
        }
    }
}

#[test]
fn each_input_of_the_corpus_may_be_cut_off_anywhere() {
    for (name, target) in TARGETS {
        for (_, input) in corpus(name) {
            let step = input.len() / 200 + 1;
            (0..input.len()).step_by(step).for_each(|end| target(&input[..end]));
        }
    }
}

/// Far more than a machine has, of what takes most to look at.
#[test]
fn floods_come_to_an_end() {
    let flood = |piece: &dyn Fn(usize) -> String, count: usize| (0..count).map(piece).collect::<String>();
    let gpu = |i: usize| {
        let links = (0..4).map(|j| format!("<nvlink target='{:04x}:00:00.0' count='1'/>", i + j)).collect::<String>();
        format!("<pci busid='{i:04x}:00:00.0' class='0x030200'><gpu>{links}</gpu></pci>")
    };
    fuzz::nccl(format!("<system version='1'><cpu numaid='0'>{}</cpu></system>", flood(&gpu, 3_000)).as_bytes());
    let nets = flood(&|i| format!("<nic><net name='n{i}'/></nic>"), 6_000);
    fuzz::nccl(format!("<system version='1'><cpu numaid='0'>{nets}</cpu></system>").as_bytes());
    let device = |i: usize| {
        format!("<object type='PCIDev' gp_index='{i}' pci_busid='{i:04x}:00:00.0' pci_type='0302 [10de:1] [0:0] 0'/>")
    };
    let matrix = "<distances2 name='NVLinkBandwidth'><indexes>1</indexes><u64values>1</u64values></distances2>";
    let devices = flood(&device, 6_000);
    let machine = format!("<object type='Machine' cpuset='0x1'>{devices}</object>{}", matrix.repeat(3_000));
    fuzz::hwloc(format!("<topology version='2.0'>{machine}</topology>").as_bytes());
    let chain = flood(&|i| format!("a|l{i}=-> l{}\n", i + 1), 1000);
    let links = flood(&|i| format!("bus/pci/devices|{i:04x}:00:00.0=-> /a/l{}\n", i % 1000), 20_000);
    fuzz::manifest((chain + &links).as_bytes());
    let near = flood(&|i| format!("{},", i * 2), 15_000);
    let gpus = |i: usize| {
        let path = format!("devices/pci{i:04x}:00/{i:04x}:00:00.0");
        let list = if i < 20 { near.as_str() } else { "1" };
        format!("{path}|class=0x030200\n{path}|vendor=0x10de\n{path}|local_cpulist={list}\n")
    };
    let nodes = flood(&|i| format!("devices/system/node/node{i}|cpulist={near}{i}\n"), 20);
    fuzz::manifest((nodes + &flood(&gpus, 2_000)).as_bytes());
}

/// A change to a file.
#[derive(Clone, Debug)]
enum Damage {
    Set { at: prop::sample::Index, byte: u8 },
    Remove { at: prop::sample::Index, length: usize },
    Repeat { at: prop::sample::Index, length: usize, to: prop::sample::Index },
    Replace { at: prop::sample::Index, token: &'static str },
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let tokens = prop::sample::select(vec![
        "-1",
        "0",
        "99999999999999999999",
        "\"",
        "<",
        ">",
        "&x;",
        "&lt;",
        "=",
        "|",
        "-> ",
        "\n",
        "/",
        "..",
        "0xffffffff",
        "\"/>",
        "0000:13:00.0",
        "-> /devices",
        "{",
        "]",
        "null",
        "\u{fffd}",
        "\u{1}",
        "ffff:ff:1f.7",
        "0x060400",
    ]);
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Set { at, byte }),
        (index(), 1..200_usize).prop_map(|(at, length)| Damage::Remove { at, length }),
        (index(), 1..2000_usize, index()).prop_map(|(at, length, to)| Damage::Repeat { at, length, to }),
        (index(), tokens).prop_map(|(at, token)| Damage::Replace { at, token }),
    ]
}

fn apply(input: &mut Vec<u8>, damage: &[Damage]) {
    for change in damage {
        if input.is_empty() {
            return;
        }
        let range = |at: &prop::sample::Index, length: usize, of: usize| {
            let start = at.index(of);
            start..(start + length).min(of)
        };
        let length = input.len();
        match change {
            Damage::Set { at, byte } => input[at.index(length)] = *byte,
            Damage::Remove { at, length: cut } => drop(input.drain(range(at, *cut, length))),
            Damage::Repeat { at, length: piece, to } => {
                let piece = input[range(at, *piece, length)].to_vec();
                let to = to.index(length);
                input.splice(to..to, piece);
            }
            Damage::Replace { at, token } => drop(input.splice(range(at, token.len(), length), token.bytes())),
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_machine_or_an_error(input in prop::collection::vec(any::<u8>(), 0..500)) {
        fuzz::any(&input);
        for (_, target) in TARGETS {
            target(&input);
        }
    }

    #[test]
    fn any_text_of_the_right_kind_is_a_machine_or_an_error(
        input in "(<system|<topology|<cpu|<pci|<object|<gpu|</|/>|>|[{}|=\"' \n]|busid|type|0000:[0-9a-f]{2}:00.0|[a-z0-9:.]{0,4}){0,60}"
    ) {
        fuzz::any(input.as_bytes());
        for (_, target) in TARGETS {
            target(input.as_bytes());
        }
    }

    #[test]
    fn damaged_files_are_a_machine_or_an_error(
        target in 0..TARGETS.len(),
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec(damage(), 1..6),
    ) {
        let (name, target) = TARGETS[target];
        let inputs = corpus(name);
        let mut input = inputs[file.index(inputs.len())].1.clone();
        apply(&mut input, &changes);
        // Most damage leaves no UTF-8; what is left is still looked at.
        target(String::from_utf8_lossy(&input).as_bytes());
        fuzz::any(&input);
    }
}
