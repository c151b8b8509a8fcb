//! The inputs that fuzzing came to, once more.

use std::path::Path;

use crate::fuzz;

/// Puts each input of a target through it; how many there are.
fn replay(target: &str, run: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the folder is part of the tests");
    let mut count = 0;
    for file in files {
        let path = file.expect("a file").path();
        println!("{}", path.display());
        run(&std::fs::read(path).expect("it can be read"));
        count += 1;
    }
    count
}

#[test]
fn inputs_of_the_wire_formats() {
    assert!(replay("wire", fuzz::wire) > 20);
}

#[test]
fn inputs_of_the_engines() {
    assert!(replay("engine", fuzz::engine) > 20);
}
