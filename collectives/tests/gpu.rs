//! Operations on vectors in memory of a GPU, between threads.
//!
//! They run on a CUDA driver in memory, whose device memory faults where a processor reaches it; with `QPAIR_TEST_GPU=1` on the
//! first GPU of this machine.

use std::fmt::Debug;

use qpair_collectives::cost::{CostModel, GpuModel};
use qpair_collectives::tune::Candidate;
use qpair_collectives::{
    Algorithm, BootstrapError, CollectiveError, Combine, CommBuffer, Communicator, Element, Elements, F8E4M3, OnGpu,
    Ranks, ReduceOp, Spec, UserOp, bf16, f16,
};
use qpair_verbs::Gpu;

/// The GPU that the tests use.
fn gpu() -> Gpu {
    if std::env::var_os("QPAIR_TEST_GPU").is_none() {
        qpair_fake_cuda::control::load().expect("the library is built beside the tests");
    }
    Gpu::open(0).expect("a GPU")
}

/// Runs each rank in a thread, and gives what they return.
fn ranks<R: Send>(count: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::group(count).expect("a group");
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// A vector on the GPU with those elements.
fn vector<T: Element>(comm: &Communicator, elements: &[T]) -> CommBuffer<T, OnGpu> {
    let mut vector = comm.gpu_buffer(gpu(), elements.len()).expect("memory");
    vector.write(0, elements).expect("its own memory");
    vector
}

/// What is in it.
fn elements<T: Element>(vector: &CommBuffer<T, OnGpu>) -> Vec<T> {
    let mut elements = vec![T::default(); vector.len()];
    vector.read(0, &mut elements).expect("its own memory");
    elements
}

/// The same operation on memory of the processor and of the GPU gives the same bits.
fn agrees<T: Element + Debug>(
    count: usize,
    algorithm: Algorithm,
    op: ReduceOp,
    make: impl Fn(usize, usize) -> T + Sync,
) {
    for len in [0, 1, count - 1, count, count + 1, 997, 20_000] {
        ranks(count, |comm| {
            comm.set_algorithm(algorithm);
            let own: Vec<T> = (0..len).map(|at| make(comm.rank(), at)).collect();
            let mut here = comm.buffer::<T>(len).expect("memory");
            here.copy_from_slice(&own);
            comm.all_reduce(&mut here, op).expect("on the processor");
            let mut there = vector(&comm, &own);
            comm.all_reduce(&mut there, op).expect("on the GPU");
            assert_eq!(elements(&there), here[..], "{op} of {len} {} by {algorithm} on {count} ranks", T::TYPE);
            // What is given stays as it is where the result goes elsewhere.
            let (mut input, mut output) = (vector(&comm, &own), vector(&comm, &own));
            comm.all_reduce_into(&mut input, &mut output, op).expect("on the GPU");
            assert_eq!((elements(&input), elements(&output)), (own, here.to_vec()));
        });
    }
}

#[test]
fn ranks_of_a_process_may_be_one_for_each_gpu() {
    let mut gpus = vec![gpu()];
    let is_fake = std::env::var_os("QPAIR_TEST_GPU").is_none();
    if is_fake {
        let more = qpair_fake_cuda::control::add_device().expect("the library is built beside the tests");
        gpus.push(Gpu::open(more.ordinal() as usize).expect("a GPU"));
    } else {
        gpus.push(gpu());
    }
    let counted = |what: &str| -> u64 {
        let of = |gpu: &Gpu| qpair_fake_cuda::control::Device::of(gpu.ordinal() as i32).count(what).expect("a device");
        gpus.iter().map(of).sum()
    };
    let comms = Communicator::group_on(&gpus).expect("a group");
    if is_fake {
        assert_eq!(counted("cuCtxEnablePeerAccess"), 2, "they reach each other from the start");
    }
    std::thread::scope(|scope| {
        for (comm, gpu) in comms.into_iter().zip(&gpus) {
            scope.spawn(move || {
                let mut own = comm.gpu_buffer(*gpu, 100).expect("memory");
                own.write(0, &[1.0 + comm.rank() as f32; 100]).expect("its own memory");
                comm.all_reduce(&mut own, ReduceOp::Sum).expect("on the GPU");
                assert_eq!(elements(&own), [3.0; 100]);
                let (address, text) = (gpu.attributes().pci_address.to_lowercase(), comm.explain().to_string());
                assert!(text.contains(&format!(", GPU {address}")), "{text}");
            });
        }
    });
    if is_fake {
        assert_eq!(counted("staged"), 0);
    }
    assert!(matches!(Communicator::group_on(&[]), Err(BootstrapError::Size { size: 0, .. })));
}

#[test]
fn all_reduce_has_the_bits_of_the_processors_by_every_algorithm() {
    let algorithms = [
        Algorithm::Auto,
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::RecursiveDoubling,
        Algorithm::DoubleTree,
        Algorithm::ParameterServer,
    ];
    for count in [1, 2, 3, 5] {
        for algorithm in algorithms {
            agrees::<i32>(count, algorithm, ReduceOp::Sum, |rank, at| (rank * 1000 + at) as i32);
        }
    }
}

#[test]
fn types_and_operations_have_the_bits_of_the_processors() {
    agrees::<f32>(2, Algorithm::Auto, ReduceOp::Sum, |rank, at| 1.0 / (1 + rank + at) as f32);
    agrees::<f64>(3, Algorithm::Direct, ReduceOp::Avg, |rank, at| (rank + at) as f64 / 7.0);
    agrees::<f16>(2, Algorithm::Auto, ReduceOp::Max, |rank, at| {
        f16::from_f32((at as f32) * if rank == 0 { 1.0 } else { -0.5 })
    });
    agrees::<bf16>(4, Algorithm::Ring, ReduceOp::Avg, |rank, at| bf16::from_f32((rank + at) as f32));
    agrees::<F8E4M3>(2, Algorithm::Auto, ReduceOp::Sum, |rank, at| F8E4M3::from_bits((rank * 16 + at % 100) as u8));
    agrees::<u8>(3, Algorithm::Auto, ReduceOp::BitXor, |rank, at| (rank * 91 + at) as u8);
    agrees::<i64>(2, Algorithm::Auto, ReduceOp::Min, |rank, at| at as i64 - 500 * rank as i64);
    agrees::<u32>(2, Algorithm::Auto, ReduceOp::pre_mul_sum(3.0), |rank, at| (rank + at) as u32);
}

/// Two bytes, behind two elements.
#[test]
fn what_is_left_at_the_end_of_memory_takes_no_part() {
    ranks(2, |comm| {
        let with_a_rest = || {
            let mut memory = gpu().alloc(10).expect("memory");
            let bytes: Vec<u8> = [3.0_f32, 5.0].iter().flat_map(|one| one.to_ne_bytes()).chain([7, 9]).collect();
            memory.write(0, &bytes).expect("its own memory");
            comm.gpu_vector::<f32>(memory)
        };
        let (mut own, mut sum) = (with_a_rest(), with_a_rest());
        comm.all_reduce_into(&mut own, &mut sum, ReduceOp::pre_mul_sum(2.0)).expect("all-reduce");
        assert_eq!((elements(&own), elements(&sum)), (vec![3.0, 5.0], vec![12.0, 20.0]));
        comm.all_reduce(&mut own, ReduceOp::pre_mul_sum(2.0)).expect("all-reduce");
        assert_eq!(elements(&own), [12.0, 20.0]);
    });
}

#[test]
fn the_other_operations_put_blocks_where_they_belong() {
    for count in [2, 3, 4] {
        ranks(count, |comm| {
            let (me, block) = (comm.rank() as i64, 1000);
            let mut gathered = vector(&comm, &vec![-1_i64; count * block]);
            let mut own = vector(&comm, &vec![me; block]);
            comm.all_gather_into(&mut own, &mut gathered).expect("all-gather");
            let expected: Vec<i64> = (0..count * block).map(|at| (at / block) as i64).collect();
            assert_eq!(elements(&gathered), expected);

            let mut exchanged = vector(&comm, &expected);
            comm.all_to_all(&mut exchanged).expect("all-to-all");
            assert_eq!(elements(&exchanged), vec![me; count * block]);

            let mut summed = vector(&comm, &expected);
            comm.reduce_scatter(&mut summed, ReduceOp::Sum).expect("reduce-scatter");
            let mine = comm.block(count * block, comm.rank());
            assert_eq!(elements(&summed)[mine], vec![count as i64 * me; block]);

            let mut spread = vector(&comm, &vec![me; block]);
            comm.broadcast(&mut spread, count - 1).expect("broadcast");
            assert_eq!(elements(&spread), vec![count as i64 - 1; block]);

            let mut token = vector(&comm, &vec![me; block]);
            match comm.rank() {
                0 => comm.send(&mut token, 1).expect("send"),
                1 => comm.recv(&mut token, 0).expect("receive"),
                _ => {}
            }
            assert_eq!(elements(&token), vec![if me == 1 { 0 } else { me }; block]);
        });
    }
}

#[test]
fn operations_that_were_started_give_the_vectors_back() {
    ranks(3, |comm| {
        let started: Vec<_> = (0..4)
            .map(|turn| comm.start().all_reduce(vector(&comm, &vec![turn; 5000]), ReduceOp::Sum).expect("started"))
            .collect();
        for (turn, pending) in started.into_iter().enumerate() {
            let vector = pending.wait().expect("done");
            assert_eq!(elements(&vector), vec![3 * turn as i32; 5000]);
        }
    });
}

#[test]
fn ranks_whose_vectors_are_elsewhere_are_named() {
    let errors = ranks(2, |comm| match comm.rank() {
        0 => comm.all_reduce(&mut vector(&comm, &[1.0_f32; 100]), ReduceOp::Sum).unwrap_err(),
        _ => comm.all_reduce(&mut comm.buffer::<f32>(100).expect("memory"), ReduceOp::Sum).unwrap_err(),
    });
    for error in errors {
        assert!(error.to_string().contains("on GPUs"), "{error}");
    }
}

#[test]
fn a_function_of_the_programs_own_is_refused() {
    struct Least;
    impl Combine for Least {
        type Element = i32;
        const NAME: &'static str = "least";
        fn combine(a: i32, b: i32) -> i32 {
            a.min(b)
        }
    }
    let op = UserOp::of::<Least>();
    ranks(2, |comm| {
        let error = comm.all_reduce(&mut vector(&comm, &[1_i32; 10]), ReduceOp::User(op)).unwrap_err();
        assert!(matches!(error, CollectiveError::NotOnGpu { .. }), "{error}");
        // The communicator goes on.
        comm.barrier().expect("the next operation");
    });
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let error = comm.gpu_buffer::<u8>(gpu(), 1 << 39).unwrap_err();
    assert!(error.to_string().contains("free some, or ask for less"), "{error}");
}

#[test]
fn algorithms_are_chosen_and_explained_by_what_gpus_cost() {
    ranks(4, |comm| {
        let spec = Spec::all_reduce(Ranks(4), Elements(4000), 4);
        for transfer in [1.0, 1e-6] {
            let gpu = GpuModel { transfer, ..GpuModel::default() };
            comm.set_cost_model(CostModel { gpu, ..CostModel::default() }).expect("a model");
            comm.all_reduce(&mut vector(&comm, &[1.0_f32; 4000]), ReduceOp::Sum).expect("on the GPU");
            let candidates = comm.tuner().where_vectors_are(true).candidates(&spec);
            assert!((candidates[0].price.seconds >= 1.0) == (transfer >= 1.0), "{candidates:?}");
            let text = comm.explain().to_string();
            let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("  predicted ")).skip(1).collect();
            // The first, or one with a plainer plan that takes about as long.
            let chosen = comm.tuner().where_vectors_are(true).choose(&spec, Algorithm::Auto).expect("there is one");
            let rows = table.iter().zip(&candidates);
            let told: Vec<_> =
                rows.filter(|(row, _)| row.ends_with("  chosen")).map(|(_, one)| one.algorithm).collect();
            assert_eq!(told, [chosen], "{text}");
            assert!(table.len() >= candidates.len(), "{text}");
            for (row, Candidate { algorithm, price }) in table.iter().zip(candidates) {
                let name = algorithm.name();
                assert!(row.starts_with(&format!("  {name:<20}{:>14.2}", price.seconds * 1e6)), "{name}: {text}");
            }
        }
    });
}
