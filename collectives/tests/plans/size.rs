//! What plans of thousands of ranks take: memory of one rank's program.

use qpair_collectives::{Algorithm, Collective, Elements, Nodes, Program, Ranks, Recipe, Shape, Spec};

const RANKS: u32 = 16_384;

fn program(algorithm: Algorithm, collective: Collective, in_place: bool, elements: u64, rank: u32) -> Option<Program> {
    by_nodes_of(8, algorithm, collective, in_place, elements, rank)
}

fn by_nodes_of(
    ranks: u32,
    algorithm: Algorithm,
    collective: Collective,
    in_place: bool,
    elements: u64,
    rank: u32,
) -> Option<Program> {
    let spec = Spec { in_place, ..Spec::new(collective, Ranks(RANKS), Elements(elements), 4) };
    let shape = Shape { nodes: Nodes::Of(ranks), ..Shape::default() };
    Some(Recipe::with(spec, algorithm, shape).ok()?.program(rank))
}

/// Some steps for each of the other ranks, in a few loops.
#[test]
fn regular_programs_of_many_ranks_take_little_memory() {
    let regular = [Algorithm::Ring, Algorithm::Direct, Algorithm::Pairwise, Algorithm::Hierarchical];
    let mut programs = 0;
    for (algorithm, collective) in regular.into_iter().flat_map(|a| Collective::ALL.into_iter().map(move |c| (a, c))) {
        for in_place in [true, false] {
            // Parts of one length, and parts of which some are one longer.
            for elements in [u64::from(RANKS), 3 * u64::from(RANKS) + 1234] {
                for rank in [0, 1, RANKS / 3, RANKS - 1] {
                    let Some(program) = program(algorithm, collective, in_place, elements, rank) else { continue };
                    let many = program.len() >= 2 * (RANKS as usize - 1);
                    assert!(
                        many || algorithm == Algorithm::Hierarchical,
                        "{algorithm} {collective}: {}",
                        program.len()
                    );
                    assert!(program.bytes() < 16 << 10, "{algorithm} {collective}, rank {rank}: {}", program.bytes());
                    programs += 1;
                }
            }
        }
    }
    assert!(programs >= 100, "{programs}");
}

/// Nodes may have up to sixteen ranks.
#[test]
fn hierarchical_programs_take_little_memory_whatever_the_node() {
    for ranks in [2, 4, 8, 16] {
        for collective in [Collective::AllToAll, Collective::AllGather, Collective::ReduceScatter] {
            for rank in [0, RANKS / 3, RANKS - 1] {
                let program =
                    by_nodes_of(ranks, Algorithm::Hierarchical, collective, false, u64::from(RANKS), rank).unwrap();
                assert!(program.bytes() < 16 << 10, "{collective}, nodes of {ranks}: {}", program.bytes());
            }
        }
    }
}

/// Those that repeat by nodes too, and no other takes more than its steps one by one.
#[test]
fn no_program_of_many_ranks_takes_more_than_its_steps() {
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            // The first, by which some have all go; the first of four, which sorts for these; and one that is neither.
            for rank in [0, 4, RANKS / 3] {
                let Some(program) = program(algorithm, collective, true, u64::from(RANKS), rank) else { continue };
                let deps: usize = program.steps().iter().map(|step| step.deps.len()).sum();
                let most = 32 * program.len() + 4 * deps + 1024;
                let what = format!("{algorithm} {collective}, rank {rank}");
                assert!(program.bytes() <= most, "{what}: {} of {most}", program.bytes());
                assert!(program.bytes() < 1 << 20, "{what}: {}", program.bytes());
                assert!(deps <= 4 * program.len() + RANKS as usize, "{what}: {deps} of {}", program.len());
            }
        }
    }
}
