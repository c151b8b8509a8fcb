//! `qpair plan`: what plans take, their proofs, their pictures.

mod common;

use common::svg::{Element, elements, overlap};
use common::{File, finish, qpair, stderr, stdout};
use serde_json::{Value, json};

/// What the command prints, which must end well.
fn plan(args: &[&str]) -> String {
    let output = finish(qpair(&[&["plan"], args].concat()));
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

fn object(args: &[&str]) -> Value {
    serde_json::from_str(&plan(&[args, &["--json"]].concat())).expect("one object")
}

/// What it says when it refuses.
fn refused(args: &[&str]) -> String {
    let output = finish(qpair(&[&["plan"], args].concat()));
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

#[test]
fn a_small_plan_is_shown_with_its_steps() {
    let text = plan(&["show", "ring", "all-reduce", "-n", "4", "-c", "1000"]);
    for part in [
        "all-reduce among 4 ranks, 1000 elements of 4 B by ring\n",
        "  steps       48 of all ranks, 12 each\n",
        "  messages    24 of all ranks, 6 in a row\n",
        "  sent        5.86 KiB by each rank\n",
        "  in all      23.44 KiB sent, the least there can be\n",
        "  canonical   no: ",
        " us: latency 1.20, copies ",
        "\nrank 3, scratch of 0\n     0  send        to 0    data[500..750]\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn of_a_large_plan_one_rank_is_listed_where_asked() {
    let show = ["show", "direct", "all-reduce", "-n", "16", "-c", "1M"];
    assert!(!plan(&show).contains("\nrank "));
    let text = plan(&[&show[..], &["--rank", "3"]].concat());
    assert!(text.contains("\nrank 3, scratch of") && !text.contains("\nrank 4"), "{text}");
}

#[test]
fn numbers_are_those_of_the_plan() {
    let broadcast = object(&["show", "flat", "broadcast", "-n", "5", "-c", "100", "--dtype", "f64", "--root", "2"]);
    assert_eq!(broadcast["spec"]["collective"], json!({ "broadcast": { "root": 2 } }));
    assert_eq!(broadcast["sent"], json!({ "min": 0, "max": 3200 }));
    assert_eq!(broadcast["received"], json!({ "min": 0, "max": 800 }));
    assert_eq!([&broadcast["messages"], &broadcast["messages_in_a_row"]], [&json!(4), &json!(1)]);
    assert_eq!([&broadcast["total"], &broadcast["least_total"]], [&json!(3200), &json!(3200)]);
    let exchange = object(&["show", "exchange", "all-reduce", "-n", "4", "-c", "64", "--rank", "1"]);
    assert_eq!([&exchange["canonical"], &exchange["source"]], [&json!(true), &json!("algorithm")]);
    // 4 ranks send 3 vectors each, where 2 x 3 vectors do.
    assert_eq!([&exchange["total"], &exchange["least_total"]], [&json!(12 * 256), &json!(6 * 256)]);
    assert_eq!(
        exchange["program"].as_array().map(Vec::len),
        exchange["steps_per_rank"]["max"].as_u64().map(|n| n as usize)
    );
}

#[test]
fn auto_is_what_communicators_choose() {
    use qpair::collectives::tune::Tuner;
    use qpair::collectives::{Algorithm, Collective, Elements, Ranks, Spec};
    for (count, elements) in [("64", 64), ("1M", 1 << 20)] {
        let spec = Spec::new(Collective::AllReduce, Ranks(6), Elements(elements), 4);
        let chosen = Tuner::default().choose(&spec, Algorithm::Auto).expect("a choice");
        let shown = object(&["show", "auto", "all-reduce", "-n", "6", "-c", count]);
        assert_eq!(shown["algorithm"], chosen.name());
    }
}

#[test]
fn what_is_saved_is_proved_and_shown_as_before() {
    let show = ["show", "double-tree", "reduce", "-n", "6", "-c", "5000", "--root", "4", "--separate", "--finish"];
    let first = object(&show);
    for (what, more) in [("plan", &[][..]), ("recipe", &["--recipe"])] {
        let file = File::new(&format!("saved-{what}.json"));
        let text = plan(&[&show[..], &["--save", file.path()], more].concat());
        assert!(text.contains(&format!("\nsaved, as a {what}: ")), "{text}");
        let proved = plan(&["verify", file.path()]);
        assert!(
            proved.contains(&format!(", a {what}\n")) && proved.contains("\nProved, whatever the timing"),
            "{proved}"
        );
        let mut again = object(&["show", "--from", file.path()]);
        assert_eq!(again["source"], what);
        again["source"] = json!("algorithm");
        if what == "plan" {
            again["recipe_hash"] = first["recipe_hash"].clone();
        }
        assert_eq!(again, first);
    }
}

/// What a file's plan takes depends on where its ranks are: as its recipe says, or as is asked for.
#[test]
fn what_a_file_holds_is_priced_where_its_ranks_are() {
    let show = ["show", "hierarchical", "all-reduce", "-n", "8", "-c", "100K"];
    let on_nodes = [&show[..], &["--nodes", "4"]].concat();
    let (recipe, plain) = (File::new("on-nodes-recipe.json"), File::new("on-nodes-plan.json"));
    plan(&[&on_nodes[..], &["--save", recipe.path(), "--recipe"]].concat());
    plan(&[&on_nodes[..], &["--save", plain.path()]].concat());
    let predicted = |args: &[&str]| object(args)["predicted"].clone();
    let expected = predicted(&on_nodes);
    assert_eq!(predicted(&["show", "--from", recipe.path()]), expected);
    assert_eq!(predicted(&["show", "--from", plain.path(), "--nodes", "4"]), expected);
    let on_one = predicted(&["show", "--from", plain.path()]);
    assert_ne!(on_one, expected);
    assert_eq!(predicted(&["show", "--from", recipe.path(), "--nodes", "8"]), on_one);
    for verb in ["show", "verify"] {
        let args = if verb == "show" { vec![verb, "--from", recipe.path()] } else { vec![verb, recipe.path()] };
        assert!(plan(&args).contains("; 4 ranks a node\n"), "{verb}");
    }
}

/// A ring's plan of 4 ranks, changed.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> File {
    let file = File::new(&format!("right-{name}"));
    plan(&["show", "ring", "all-reduce", "-n", "4", "-c", "64", "--save", file.path()]);
    let mut value: Value = serde_json::from_str(&file.text()).expect("JSON");
    change(&mut value);
    File::with(name, &value.to_string())
}

#[test]
fn a_fault_is_told_with_rank_and_step_and_the_lines_around() {
    let file = changed("peer.json", |plan| plan["programs"][2][4]["kind"]["send"]["peer"] = json!(9));
    let error = refused(&["verify", file.path()]);
    for part in [
        "peer.json is refused: rank 2, step 4: peer 9 is no other rank\n\nrank 2, scratch of 0\n",
        "\n      3  recv-reduce of 1",
        "\n>     4  send        to 9    data[48..64]  after 3\n",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains("     8  "), "{error}");
    assert_eq!(refused(&["show", "--from", file.path()]), error);
    let file = changed("race.json", |plan| plan["programs"][1][2]["deps"] = json!([]));
    let error = refused(&["verify", file.path()]);
    assert!(error.contains("rank 1, step 2: races with step 1") && error.contains("\n>     2  "), "{error}");
    assert!(error.contains("\n-     1  "), "the other step is marked: {error}");
    // Nobody's step is at fault: something is missing.
    let file = changed("short.json", |plan| {
        plan["programs"] = json!([[], [], [], []]);
    });
    assert!(refused(&["verify", file.path()]).contains("rank 0: data[0..64] ends without rank 1's part"));
}

/// A plan that cuts vectors into twice as many pieces with each step.
fn explosive() -> String {
    let slice = |buffer: &str, offset: u64, len: u64| json!({ "buffer": buffer, "offset": offset, "len": len });
    let copy =
        |src: Value, dst: Value, deps: &[u64]| json!({ "kind": { "copy": { "src": src, "dst": dst } }, "deps": deps });
    let mut program = vec![
        copy(slice("data", 0, 1), slice("scratch", 0, 1), &[]),
        copy(slice("data", 9, 1), slice("scratch", 1, 1), &[]),
    ];
    for step in 1..38_u64 {
        let len = 1 << step;
        let deps: Vec<u64> = (0..=step).collect();
        program.push(copy(slice("scratch", 0, len), slice("scratch", len, len), &deps));
    }
    let spec = json!({ "collective": "all-reduce", "ranks": 1, "counts": { "even": 1_u64 << 40 }, "element_size": 4,
        "in_place": true });
    json!({ "format": 2, "spec": spec, "algorithm": "x", "programs": [program] }).to_string()
}

#[test]
fn files_that_mean_harm_are_refused_at_once() {
    let recipe = |ranks: u64, count: u64, channels: u64| {
        let spec = json!({ "collective": "all-reduce", "ranks": ranks, "counts": { "even": count }, "element_size": 4,
            "in_place": true });
        json!({ "format": 2, "spec": spec, "algorithm": "ring", "shape": { "channels": channels } }).to_string()
    };
    let many = |count: usize, what: &str| format!("[{}]", vec![what; count].join(","));
    let plan_of = |programs: &str| format!(r#"{{"format":2,"algorithm":"x","programs":{programs}}}"#);
    for (name, contents, part) in [
        ("garbage", "\u{1}neither this nor that".to_owned(), "is no plan and no recipe: expected"),
        ("empty", String::new(), "is no plan and no recipe: EOF"),
        ("object", "{}".to_owned(), "it has no `format`, `programs` or `shape`"),
        ("deep", "[".repeat(100_000), "is no plan and no recipe"),
        ("deep-inside", format!(r#"{{"x":{}"#, "[".repeat(100_000)), "is no plan and no recipe"),
        ("version", recipe(4, 64, 1).replace("\"format\":2", "\"format\":99"), "is of format 99, this build takes 2"),
        ("ranks", recipe(u64::from(u32::MAX), 64, 1), "4294967295 ranks are more than the 4096"),
        ("no-ranks", recipe(0, 64, 1), "give one to each, and at least one"),
        ("rings", recipe(4, 64, 4_000_000_000), "4000000000 rings are more than the 64"),
        ("counts", recipe(4, u64::MAX, 1), "are no vector for this collective"),
        ("large", recipe(4096, 1 << 40, 64), "more than 1048576 steps"),
        ("root", recipe(4, 64, 1).replace("\"all-reduce\"", r#"{"broadcast":{"root":7}}"#), "root 7 is no rank"),
        ("programs", plan_of(&many(5000, "[]")), "5000 ranks are more than the 4096"),
        ("steps", plan_of(&format!("[{}]", many((1 << 20) + 1, "0"))), "more than 1048576 steps"),
        ("nonsense", plan_of("[[7]]"), "is no plan and no recipe"),
    ] {
        let file = File::with(&format!("hostile-{name}.json"), &contents);
        let error = refused(&["verify", file.path()]);
        assert!(error.contains(part) && error.len() < 2000, "{name}: {error}");
    }
    assert!(refused(&["verify", "/dev/zero"]).contains("is longer than 256M: save the recipe instead"));
    assert!(refused(&["verify", "/no/such/file"]).contains("could not read /no/such/file"));
    let file = File::with("hostile-explosive.json", &explosive());
    let error = refused(&["verify", file.path()]);
    assert!(error.contains("of parts of buffers that other steps take otherwise"), "{error}");
}

#[test]
fn what_takes_too_long_is_given_up() {
    let large = ["show", "ring", "all-reduce", "-n", "256", "-c", "1M", "--time-limit", "1ms"];
    assert!(refused(&large).starts_with("error: gave up a"));
}

/// Draws, and gives the elements.
fn drawn(name: &str, args: &[&str]) -> Vec<Element> {
    let file = File::new(name);
    plan(&[&["draw"], args, &["--svg", file.path()]].concat());
    elements(&file.text())
}

fn of_class<'a>(all: &'a [Element], class: &'a str) -> impl Iterator<Item = &'a Element> + Clone {
    all.iter().filter(move |element| element.class() == class)
}

#[test]
fn a_drawing_has_a_lane_for_each_rank_and_an_arrow_for_each_message() {
    for (at, args) in [
        &["ring", "all-reduce", "-n", "4"][..],
        &["double-tree", "broadcast", "-n", "8", "--root", "3"],
        &["hierarchical", "all-reduce", "-n", "8", "--nodes", "4"],
        &["direct", "all-to-all", "-n", "6", "--separate", "-c", "7"],
        &["direct", "all-reduce", "-n", "16", "-c", "1K", "--finish"],
        &["dissemination", "barrier", "-n", "5"],
        &["ring", "all-reduce", "-n", "1"],
    ]
    .into_iter()
    .enumerate()
    {
        let shown = object(&[&["show"], args].concat());
        let all = drawn(&format!("lanes-{at}.svg"), args);
        let count = |class| of_class(&all, class).count() as u64;
        assert_eq!(Some(count("lane")), shown["spec"]["ranks"].as_u64(), "{args:?}");
        // One more stands in the legend, under another name.
        assert_eq!(Some(count("arrow")), shown["messages"].as_u64(), "{args:?}");
        legible(&all, args);
    }
}

/// No text covers what it does not belong to.
fn legible(all: &[Element], what: &[&str]) {
    let page = all[0].number("width");
    let lanes: Vec<[f64; 4]> = of_class(all, "lane").map(Element::edges).collect();
    let labels: Vec<[f64; 4]> = of_class(all, "label").map(Element::edges).collect();
    for (at, label) in labels.iter().enumerate() {
        assert!(!lanes.iter().any(|lane| overlap(*label, *lane)), "{what:?}: a label over a lane: {label:?}");
        assert!(!labels[..at].iter().any(|other| overlap(*label, *other)), "{what:?}: labels overlap: {label:?}");
    }
    assert!(lanes.windows(2).all(|pair| pair[0][3] < pair[1][1]), "{what:?}: lanes overlap");
    let bars =
        || ["recv", "recv-reduce", "reduce", "copy", "finish"].into_iter().flat_map(|class| of_class(all, class));
    for text in of_class(all, "in-bar").map(Element::edges) {
        let around = |bar: [f64; 4]| bar[0] <= text[0] && text[2] <= bar[2] && bar[1] <= text[1] && text[3] <= bar[3];
        assert!(bars().any(|bar| around(bar.edges())), "{what:?}: a text beyond its bar: {text:?}");
    }
    for bar in bars().chain(of_class(all, "send")) {
        let [left, top, right, bottom] = bar.edges();
        let around =
            |lane: &&[f64; 4]| lane[0] <= left && right <= lane[2] + 1.0 && lane[1] <= top && bottom <= lane[3];
        assert!(lanes.iter().any(|lane| around(&lane)), "{what:?}: a bar beyond its lane: {bar:?}");
    }
    for text in all.iter().filter(|element| element.name == "text") {
        let [left, _, right, _] = text.edges();
        assert!(left >= 0.0 && right <= page, "{what:?}: beyond the page: {text:?}");
    }
}

#[test]
fn a_drawing_tells_what_it_leaves_out() {
    let args = ["ring", "all-gather", "-n", "64", "-c", "1K"];
    let all = drawn("many.svg", &args);
    assert_eq!(of_class(&all, "lane").count(), 16);
    let note = of_class(&all, "note").map(|note| note.text.as_str()).collect::<Vec<_>>();
    assert_eq!(note[0], "left out: ranks 16 to 63, and 126 messages between them and those above");
    legible(&all, &args);
    assert_eq!(of_class(&drawn("all.svg", &[&args[..], &["--lanes", "64"]].concat()), "lane").count(), 64);
    // Far more steps than pixels.
    let long = drawn("long.svg", &["chain", "broadcast", "-n", "3", "-c", "16M", "--segment", "16K"]);
    assert!(long.len() < 20_000, "{}", long.len());
    legible(&long, &["chain"]);
}

#[test]
fn names_of_anyone_do_not_break_a_drawing() {
    let file = changed("script.json", |plan| plan["algorithm"] = json!("</text><script>\u{1b}[2J&\"'"));
    let all = drawn("script.svg", &["--from", file.path()]);
    assert!(all.iter().all(|element| element.name != "script"));
    assert!(!plan(&["show", "--from", file.path()]).contains('\u{1b}'));
}

#[test]
fn algorithms_are_compared() {
    let compare = ["compare", "all-reduce", "-n", "6", "-c", "256,64K"];
    let text = plan(&compare);
    for name in ["ring", "recursive-doubling", "halving-doubling", "direct", "exchange", "parameter-server", "chain"] {
        assert!(text.contains(&format!("\n{name} ")), "{name}: {text}");
    }
    assert!(text.contains("  256 (us)") && text.contains("  64K (us)") && text.contains("1.67 S"), "{text}");
    let object = object(&compare);
    let rows = object["algorithms"].as_array().expect("rows");
    for (at, count) in [256, 64 << 10].into_iter().enumerate() {
        assert_eq!(object["counts"][at], count);
        let marked = |mark: &str| rows.iter().filter(|row| row["points"][at][mark] == true).collect::<Vec<_>>();
        let seconds = |row: &Value| row["points"][at]["predicted"]["seconds"].as_f64().expect("seconds");
        let best = marked("best");
        assert!(rows.iter().all(|row| seconds(row) >= seconds(best[0])));
        assert_eq!(marked("auto").len(), 1);
    }
    let ring = rows.iter().find(|row| row["algorithm"] == "ring").expect("a ring");
    let shown = self::object(&["show", "ring", "all-reduce", "-n", "6", "-c", "64K"]);
    assert_eq!(ring["points"][1]["predicted"], shown["predicted"]);
    assert_eq!(ring["points"][1]["messages_in_a_row"], 10);
    let barrier = plan(&["compare", "barrier", "-n", "9"]);
    assert!(barrier.contains("time (us)") && barrier.contains("\ndissemination "), "{barrier}");
}

#[test]
fn a_model_that_is_measured_is_one_to_price_plans_by() {
    let file = File::with("model.json", &plan(&["model", "measure", "--json"]));
    assert_eq!(object(&["model", file.path()]), serde_json::from_str::<Value>(&file.text()).expect("a model"));
    let compare = ["compare", "broadcast", "-n", "3", "-c", "8", "--model"];
    assert!(plan(&[&compare[..], &[file.path()]].concat()).contains(&format!("the model in {}", file.path())));
    let default = plan(&[&compare[..], &["default"]].concat());
    assert!(default.contains("by the default model, a core for each rank"), "{default}");
    assert_eq!(default, plan(&compare[..compare.len() - 1]));
}

#[test]
fn what_goes_between_islands_of_gpus_counts() {
    let args = ["compare", "all-reduce", "-n", "8", "-c", "64M", "--gpu", "--islands", "4"];
    let ring = |args: &[&str]| {
        let object = object(args);
        let rows = object["algorithms"].as_array().expect("rows");
        let ring = rows.iter().find(|row| row["algorithm"] == "ring").expect("a ring");
        ring["points"][0]["predicted"]["seconds"].as_f64().expect("seconds")
    };
    assert!(ring(&args) > 10.0 * ring(&args[..args.len() - 2]));
    let refused = refused(&["compare", "all-reduce", "-n", "8", "--nodes", "4", "--islands", "3"]);
    assert!(refused.contains("give --islands a part of --nodes"), "{refused}");
    // A node that is one island is nothing else.
    let nodes = ["compare", "all-reduce", "-n", "8", "--nodes", "4"];
    assert_eq!(object(&[&nodes[..], &["--islands", "4"]].concat()), object(&nodes));
}

#[test]
fn what_an_algorithm_can_not_do_is_left_out_of_a_comparison_with_the_reason() {
    let text = plan(&["compare", "all-gather", "-n", "3", "-c", "8"]);
    assert!(text.contains("\nbruck ") && !text.contains("left out"), "{text}");
    let text = plan(&["compare", "broadcast", "-n", "140", "-c", "1M", "--segment", "4"]);
    assert!(text.contains("\nflat ") && text.contains("left out: "), "{text}");
}

#[test]
fn what_can_not_be_is_refused_with_what_to_do() {
    let file = File::new("refused.json");
    plan(&["show", "flat", "scatter", "-n", "3", "--save", file.path()]);
    let svg = "/no/such/folder/x.svg";
    for (args, parts) in [
        (&["show", "ring", "broadcast", "-n", "4"][..], &["ring does no broadcast: use one of", "chain"][..]),
        (&["show", "flat", "broadcast", "-n", "4", "--root", "4"], &["root 4 is no rank: name one below 4"]),
        (&["show", "flat", "broadcast", "-n", "4", "--separate"], &["a broadcast is in place"]),
        (&["show", "flat", "transfer", "-n", "1"], &["root 1 is no rank"]),
        (&["show", "ring", "all-reduce", "-n", "4", "--rank", "4"], &["there is no rank 4: name one below 4"]),
        (&["show", "--from", file.path(), "--save", svg, "--recipe"], &["has no compact form: leave out --recipe"]),
        (&["draw", "ring", "all-reduce", "-n", "4", "--svg", svg], &[svg, "name another file"]),
        (&["show", "pairwise", "all-to-all", "-n", "4096"], &["more than 1048576 steps: ask for fewer ranks"]),
        (&["compare", "broadcast", "-n", "4", "--root", "9"], &["root 9 is no rank"]),
    ] {
        let error = refused(args);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
    for (args, part) in [
        (&["show", "ring", "all-reduce"][..], "--ranks"),
        (&["show", "ring", "all-sum", "-n", "4"], "unknown collective `all-sum`: use one of all-reduce, "),
        (&["show", "rung", "all-reduce", "-n", "4"], "unknown algorithm `rung`: use one of"),
        (&["show", "listed", "all-reduce", "-n", "4"], "unknown algorithm `listed`: use one of auto, ring, "),
        (&["show", "--from", file.path(), "-n", "4"], "cannot be used with"),
        (&["show", "--from", file.path(), "--ordered"], "cannot be used with"),
        (&["show", "ring", "all-reduce", "-n", "4", "--recipe"], "--save"),
        (&["draw", "ring", "all-reduce", "-n", "4"], "--svg"),
    ] {
        let output = finish(qpair(&[&["plan"], args].concat()));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
    }
}
