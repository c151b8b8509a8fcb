//! One rank's run over all sizes.

use qpair::collectives::Communicator;
use qpair::verbs::calc::DataType;

use super::args::Plan;
use super::check::Scalar;
use super::error::BenchError;
use super::measure::Meter;
use super::report::Report;

/// Joins the other ranks and measures all sizes of the plan; rank 0 prints.
///
/// # Errors
/// [`BenchError`] if the ranks do not find each other, an operation fails or a result is wrong.
pub fn run(plan: &Plan) -> Result<(), BenchError> {
    let comm = Communicator::from_env()?;
    plan.check_root(comm.size())?;
    comm.set_algorithm(plan.algorithm);
    tracing::info!(rank = comm.rank(), "{}", comm.explain());
    match plan.dtype {
        DataType::F32 => sweep::<f32>(&comm, plan),
        DataType::F64 => sweep::<f64>(&comm, plan),
        DataType::I32 => sweep::<i32>(&comm, plan),
        DataType::I64 => sweep::<i64>(&comm, plan),
        other => Err(BenchError::NotMeasurable(other)),
    }
}

fn sweep<T: Scalar>(comm: &Communicator, plan: &Plan) -> Result<(), BenchError> {
    let meter = Meter::<T>::new(comm, plan)?;
    let mut report = Report::begin(plan, comm.rank(), comm.size(), "device soft0")?;
    for &count in &plan.counts {
        report.add(&meter.measure(count)?)?;
    }
    report.end()
}
