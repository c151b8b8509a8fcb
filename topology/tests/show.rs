//! The matrix and the drawing.

mod support;

use qpair_topology::{Machine, Matrix, Selection, draw};
use support::machines;

#[test]
fn the_matrix_is_the_one_people_know() {
    let machine = machines::p4d();
    let choice = Selection::of(&machine).choose().unwrap();
    let matrix = Matrix::of(&machine, Some(&choice));
    let cell = |row: usize, column: usize| matrix.rows[row].cells[column].to_string();
    assert_eq!(
        (cell(0, 0), cell(0, 1), cell(0, 8), cell(0, 9), cell(0, 10)),
        ("X".to_owned(), "NV12".to_owned(), "PIX".to_owned(), "PHB".to_owned(), "SYS".to_owned())
    );
    assert_eq!((matrix.rows[4].numa.as_str(), matrix.rows[4].nics.as_str()), ("1", "mlx5_2"));
    let text = matrix.to_string();
    assert!(text.lines().nth(1).unwrap().trim_start().starts_with("GPU0"), "{text}");
    assert!(text.contains("  SYS    the link between sockets"), "{text}");
}

#[test]
fn the_matrix_is_symmetric() {
    for machine in machines::all() {
        let matrix = Matrix::of(&machine, None);
        for (i, row) in matrix.rows.iter().enumerate() {
            for (j, cell) in row.cells.iter().enumerate() {
                assert_eq!(*cell, matrix.rows[j].cells[i], "{:?} {i} {j}", machine.name());
            }
        }
    }
}

#[test]
fn a_switch_with_one_gpu_joins_no_others() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/manifest/captured.txt");
    let svg = draw(&Machine::load(file).unwrap(), None);
    assert!(svg.contains("NVSwitch has one GPU, by 3 x NVLink, ") && !svg.contains("joins"), "{svg}");
}

/// Boxes and texts of a drawing, as left, top, width, height.
fn shapes(svg: &str, tag: &str) -> Vec<[f32; 4]> {
    let value = |line: &str, name: &str| {
        let rest = line.split_once(&format!(" {name}=\"")).map(|(_, rest)| rest)?;
        rest.split_once('"')?.0.parse::<f32>().ok()
    };
    let lines = svg.lines().filter(|line| line.starts_with(tag) && line.contains(" x="));
    lines
        .map(|line| {
            let (x, y) = (value(line, "x").unwrap(), value(line, "y").unwrap());
            if tag == "<text" {
                let text = line.split_once('>').unwrap().1.split_once('<').unwrap().0;
                let length = text.replace("&gt;", ">").chars().count() as f32;
                [x, y - 10.0, length * 7.23, 12.0]
            } else {
                [x, y, value(line, "width").unwrap(), value(line, "height").unwrap()]
            }
        })
        .collect()
}

#[test]
fn labels_never_overlap_and_nothing_leaves_the_picture() {
    for machine in machines::all() {
        let choice = Selection::of(&machine).choose().unwrap();
        let svg = draw(&machine, Some(&choice));
        let texts = shapes(&svg, "<text");
        for (i, a) in texts.iter().enumerate() {
            for b in &texts[i + 1..] {
                let apart = a[0] + a[2] <= b[0] || b[0] + b[2] <= a[0] || a[1] + a[3] <= b[1] || b[1] + b[3] <= a[1];
                assert!(apart, "{:?}: {a:?} {b:?}", machine.name());
            }
        }
        let head = svg.split_once("width=\"").unwrap().1;
        let width: f32 = head.split_once('"').unwrap().0.parse().unwrap();
        let all = texts.iter().chain(&shapes(&svg, "<rect")).map(|s| s[0] + s[2]).fold(0.0, f32::max);
        assert!(all <= width, "{:?}: {all} of {width}", machine.name());
    }
}

/// The points of a drawing's curves, some steps apart.
fn curves(svg: &str) -> Vec<Vec<[f32; 2]>> {
    let paths = svg.lines().filter_map(|line| line.strip_prefix("<path d=\"M")?.split_once('"').map(|(path, _)| path));
    let curve = |path: &str| {
        let numbers: Vec<f32> = path.replace('C', "").split(' ').map(|number| number.parse().unwrap()).collect();
        let point = |t: f32, axis: usize| {
            let [a, b, c, d] = [0, 2, 4, 6].map(|place| numbers[place + axis]);
            let s = 1.0 - t;
            a * s * s * s + 3.0 * b * s * s * t + 3.0 * c * s * t * t + d * t * t * t
        };
        (1..50).map(|step| step as f32 / 50.0).map(|t| [point(t, 0), point(t, 1)]).collect()
    };
    paths.map(curve).collect()
}

#[test]
fn no_line_passes_below_a_device_and_what_no_line_tells_is_told_in_words() {
    for machine in machines::all() {
        let choice = Selection::of(&machine).choose().unwrap();
        let svg = draw(&machine, Some(&choice));
        let devices: Vec<_> = shapes(&svg, "<rect").into_iter().filter(|shape| shape[3] == 78.0).collect();
        assert_eq!(devices.len(), machine.gpus().len() + machine.nics().len());
        for [x, y] in curves(&svg).into_iter().flatten() {
            let under = devices.iter().find(|d| d[0] < x && x < d[0] + d[2] && d[1] < y && y < d[1] + d[3]);
            assert!(under.is_none(), "{:?}: {x} {y} is under {under:?}", machine.name());
        }
        let assignments = machine.gpu_ids().filter_map(|gpu| choice.of(gpu));
        let far = assignments
            .filter(|own| own.rails.iter().any(|rail| machine.cpu_of(rail.nic) != machine.cpu_of(own.consumer)));
        assert!(far.count() == 0 || svg.contains("serves GPU"), "{:?}", machine.name());
    }
}

#[test]
fn hostile_names_stay_text() {
    let mut parts = machines::two_sockets().description().clone();
    parts.name = Some("</svg><script>".to_owned());
    parts.nics[0].name = "\"<b>&".repeat(1000);
    let machine = parts.build();
    let svg = draw(&machine, None);
    assert!(!svg.contains("<script") && !svg.contains("<b>"));
    assert_eq!(svg.matches("</svg>").count(), 1);
}

#[test]
#[ignore = "needs QPAIR_DRAWINGS: writes the drawings into the folder that it names"]
fn write_the_drawings() {
    let folder = std::env::var("QPAIR_DRAWINGS").expect("QPAIR_DRAWINGS");
    for (place, machine) in machines::all().into_iter().enumerate() {
        let choice = Selection::of(&machine).choose().unwrap();
        std::fs::write(format!("{folder}/{place:02}.svg"), draw(&machine, Some(&choice))).unwrap();
        println!("{}\n{}", machine.name().unwrap(), Matrix::of(&machine, Some(&choice)));
    }
}
