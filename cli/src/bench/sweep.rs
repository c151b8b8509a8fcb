//! One rank's run over all sizes.

use qpair::collectives::{Communicator, Environment};
use qpair::verbs::calc::DataType;

use super::args::Workload;
use super::check::Scalar;
use super::error::BenchError;
use super::measure::Meter;
use super::report::Report;

/// Joins the other ranks and measures all sizes; rank 0 prints.
///
/// # Errors
/// [`BenchError`] if the ranks do not find each other, an operation fails or a result is wrong.
pub fn run(workload: &Workload, environment: &Environment) -> Result<(), BenchError> {
    let comm = environment.connect()?;
    comm.set_algorithm(workload.algorithm);
    tracing::info!(rank = comm.rank(), "{}", comm.explain());
    match workload.dtype {
        DataType::F32 => sweep::<f32>(&comm, workload),
        DataType::F64 => sweep::<f64>(&comm, workload),
        DataType::I32 => sweep::<i32>(&comm, workload),
        DataType::I64 => sweep::<i64>(&comm, workload),
        other => Err(BenchError::NotMeasurable(other)),
    }
}

fn sweep<T: Scalar>(comm: &Communicator, workload: &Workload) -> Result<(), BenchError> {
    let meter = Meter::<T>::new(comm, workload)?;
    let mut report = Report::begin(workload, comm.rank(), comm.size());
    for &count in &workload.counts {
        // Where nobody reads the results any more, all ranks stop together.
        if meter.on_any(report.is_broken())? {
            break;
        }
        report.add(&meter.measure(count)?);
    }
    report.end()
}
