//! How long it takes to make plans of many ranks, and to prove them, and how much memory one rank's part takes.
//!
//! ```text
//! cargo bench -p qpair-collectives --bench plans              # 1,024 ranks proved, 16,384 made
//! cargo bench -p qpair-collectives --bench plans -- 256 4096
//! cargo bench -p qpair-collectives --bench plans -- ring direct  # some algorithms
//! ```

use std::time::Instant;

use qpair_collectives::{Algorithm, Collective, Elements, Nodes, Ranks, Recipe, Shape, Spec};

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (proved, made) = (numbers.next().unwrap_or(1024), numbers.next().unwrap_or(16_384));
    println!(
        "{:<20} {:<15} {:>34} {:>40}",
        "",
        "",
        format!("{proved} ranks"),
        format!("{made} ranks, one rank's part")
    );
    println!(
        "{:<20} {:<15} {:>12} {:>10} {:>10} {:>18} {:>10} {:>10}",
        "algorithm", "collective", "steps of all", "made (s)", "proved (s)", "steps", "made (ms)", "KiB"
    );
    let named: Vec<Algorithm> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| named.is_empty() || named.contains(algorithm)) {
        for collective in Collective::ALL {
            if let Some(recipe) = recipe(algorithm, collective, proved) {
                one(&recipe, made);
            }
        }
    }
}

fn recipe(algorithm: Algorithm, collective: Collective, ranks: u32) -> Option<Recipe> {
    // One element per rank and block, so that nothing is cut into segments.
    let elements = if collective.has_blocks() { 1 } else { u64::from(ranks) };
    let spec = Spec::new(collective, Ranks(ranks), Elements(elements), 4);
    let shape = Shape { nodes: Nodes::Of(8), servers: 8, ..Shape::default() };
    Recipe::with(spec, algorithm, shape).ok()
}

fn one(whole: &Recipe, made: u32) {
    let start = Instant::now();
    let plan = whole.plan();
    let build = start.elapsed();
    let start = Instant::now();
    let proof = plan.verify();
    let verify = start.elapsed();
    let proof = proof.unwrap_or_else(|error| panic!("{} {}: {error}", whole.algorithm, whole.spec));
    print!(
        "{:<20} {:<15} {:>12} {:>10.3} {:>10.3}",
        whole.algorithm,
        whole.spec.collective.name(),
        proof.steps,
        build.as_secs_f64(),
        verify.as_secs_f64()
    );
    drop(plan);
    let large = recipe(whole.algorithm, whole.spec.collective, made).expect("it did fewer ranks");
    let start = Instant::now();
    let program = large.program(made / 3);
    let build = start.elapsed();
    println!(" {:>18} {:>10.2} {:>10.1}", program.len(), build.as_secs_f64() * 1e3, program.bytes() as f64 / 1024.0);
}
