//! Ranks as threads.

use qpair_collectives::Communicator;
use qpair_collectives::cost::CostModel;

/// Runs `rank` on `ranks` threads, a communicator each, which choose by the default cost model, whatever machine this is;
/// gives what they return, by rank.
pub fn group<R: Send>(ranks: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let group = Communicator::group(ranks).expect("a group");
    for comm in &group {
        comm.set_cost_model(CostModel::default()).expect("a model that makes sense");
    }
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}
