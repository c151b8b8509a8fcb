//! Ranks as grids and graphs, and what neighbours give each other.

use qpair_collectives::{Cartesian, Communicator, Neighbors};

use crate::support::group;

#[test]
fn neighbours_of_a_grid() {
    let grid = Cartesian::new(&[3, 4], &[true, false]);
    for rank in 0..12 {
        assert_eq!(grid.rank(&grid.coordinates(rank)), Some(rank));
        for (dimension, by) in [(0, 1), (0, -4), (1, 1), (1, -2)] {
            let (from, to) = grid.shift(rank, dimension, by);
            if let Some(to) = to {
                assert_eq!(grid.shift(to, dimension, by).0, Some(rank));
            }
            assert!(from.is_some() && to.is_some() || dimension == 1);
        }
    }
    assert_eq!(grid.rank(&[3, 0]), None);
    assert_eq!(grid.rank(&[0]), None);
}

#[test]
fn grids_are_as_square_as_the_number_allows() {
    /// All lengths, the longest first, whose product is `ranks`.
    fn all(ranks: usize, dimensions: usize) -> Vec<Vec<usize>> {
        if dimensions == 0 {
            return if ranks == 1 { vec![Vec::new()] } else { Vec::new() };
        }
        let first = (1..=ranks).filter(|length| ranks.is_multiple_of(*length));
        let with =
            |length| all(ranks / length, dimensions - 1).into_iter().map(move |rest| [vec![length], rest].concat());
        first.flat_map(with).filter(|dims| dims.is_sorted_by(|one, other| one >= other)).collect()
    }
    for ranks in 1..=256 {
        for dimensions in 1..=4 {
            let best = all(ranks, dimensions).into_iter().min().unwrap();
            assert_eq!(Cartesian::balanced(ranks, dimensions), best);
        }
    }
    assert_eq!(Cartesian::balanced(180, 2), [15, 12]);
}

#[test]
fn on_short_rings_both_ways_lead_to_one_neighbour_or_to_oneself() {
    let two = Neighbors::from(&Cartesian::new(&[2], &[true]));
    assert_eq!((two.destinations(0), two.sources(0)), (&[1][..], &[1][..]));
    let one = Neighbors::from(&Cartesian::new(&[1, 3], &[true, false]));
    assert_eq!((one.destinations(0), one.destinations(1)), (&[0, 1][..], &[0, 1, 2][..]));
}

/// What rank `from` gives to rank `to`, element by element.
fn given(from: usize, to: usize, element: usize) -> i64 {
    (from * 10_000 + to * 100 + element) as i64
}

/// Exchanges along a graph, with blocks whose lengths `length` gives by edge, and checks what came.
fn exchange(comm: &Communicator, graph: &Neighbors, length: impl Fn(usize, usize) -> usize) {
    let me = comm.rank();
    let gives: Vec<_> = graph.destinations(me).iter().map(|&to| length(me, to)).collect();
    let gets: Vec<_> = graph.sources(me).iter().map(|&from| length(from, me)).collect();
    let mut input = comm.buffer::<i64>(gives.iter().sum()).unwrap();
    let block = |from, to, length| (0..length).map(move |element| given(from, to, element));
    let values = graph.destinations(me).iter().zip(&gives).flat_map(|(&to, &length)| block(me, to, length));
    input.iter_mut().zip(values).for_each(|(place, value)| *place = value);
    let mut output = comm.buffer::<i64>(gets.iter().sum()).unwrap();
    comm.neighbor_all_to_all_v(graph, &mut input, &gives, &mut output, &gets).unwrap();
    let expected = graph.sources(me).iter().zip(&gets).flat_map(|(&from, &length)| block(from, me, length));
    assert_eq!(output.to_vec(), expected.collect::<Vec<_>>(), "rank {me} of {graph:?}");
}

#[test]
fn neighbours_of_a_graph_exchange_their_blocks() {
    let graphs = [
        Neighbors::new(6, []),
        Neighbors::new(6, [(0, 1), (0, 2), (0, 5), (1, 1), (2, 0), (4, 5), (5, 4), (4, 5)]),
        Neighbors::from(&Cartesian::new(&[2, 3], &[true, true])),
        Neighbors::from(&Cartesian::new(&Cartesian::balanced(6, 1), &[false])),
    ];
    group(6, move |comm: Communicator| {
        for graph in &graphs {
            exchange(&comm, graph, |_, _| 7);
            exchange(&comm, graph, |from, to| (3 * from + to) % 4);
        }
        // Blocks of one length are cut from the vectors.
        let ring = Neighbors::from(&Cartesian::new(&[6], &[true]));
        let (mut edges, mut halo) = (comm.buffer::<i64>(8).unwrap(), comm.buffer::<i64>(8).unwrap());
        edges.fill(comm.rank() as i64);
        comm.neighbor_all_to_all(&ring, &mut edges, &mut halo).unwrap();
        let from: Vec<_> = ring.sources(comm.rank()).iter().map(|&rank| rank as i64).collect();
        assert_eq!((&halo[..4], &halo[4..]), (&[from[0]; 4][..], &[from[1]; 4][..]));
        comm.barrier().unwrap();
    });
}

#[test]
fn graphs_that_fit_no_communicator_and_no_vector_are_refused() {
    group(2, |comm: Communicator| {
        let (mut three, mut two) = (comm.buffer::<f32>(3).unwrap(), comm.buffer::<f32>(2).unwrap());
        let both = Neighbors::new(2, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let error = comm.neighbor_all_to_all(&Neighbors::new(3, []), &mut two, &mut three).unwrap_err();
        assert!(error.to_string().starts_with("the graph of neighbours has 3 where 2 fit"), "{error}");
        let error = comm.neighbor_all_to_all(&both, &mut three, &mut two).unwrap_err();
        assert!(error.to_string().starts_with("the input has 3 where 2 fit"), "{error}");
        let error = comm.neighbor_all_to_all_v(&both, &mut two, &[2], &mut three, &[1, 2]).unwrap_err();
        assert!(error.to_string().starts_with("the list of lengths to give has 1 where 2 fit"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_with_other_graphs_are_named() {
    group(2, |comm: Communicator| {
        let graph = if comm.rank() == 0 { Neighbors::new(2, [(0, 1), (1, 0)]) } else { Neighbors::new(2, [(1, 0)]) };
        let mut input = comm.buffer::<f32>(graph.destinations(comm.rank()).len()).unwrap();
        let mut output = comm.buffer::<f32>(graph.sources(comm.rank()).len()).unwrap();
        let error = comm.neighbor_all_to_all(&graph, &mut input, &mut output).unwrap_err();
        assert!(error.to_string().contains("rank 0") && error.to_string().contains("rank 1"), "{error}");
    });
}
