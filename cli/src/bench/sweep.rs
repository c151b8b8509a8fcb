//! One rank's run over all sizes.

use qpair::collectives::{Communicator, Environment};
use qpair::verbs::calc::{DataType, F8E4M3, F8E5M2, bf16, f16};

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
        DataType::I8 => sweep::<i8>(&comm, workload),
        DataType::U8 => sweep::<u8>(&comm, workload),
        DataType::I32 => sweep::<i32>(&comm, workload),
        DataType::U32 => sweep::<u32>(&comm, workload),
        DataType::I64 => sweep::<i64>(&comm, workload),
        DataType::U64 => sweep::<u64>(&comm, workload),
        DataType::F16 => sweep::<f16>(&comm, workload),
        DataType::Bf16 => sweep::<bf16>(&comm, workload),
        DataType::F8E4M3 => sweep::<F8E4M3>(&comm, workload),
        DataType::F8E5M2 => sweep::<F8E5M2>(&comm, workload),
        DataType::F32 => sweep::<f32>(&comm, workload),
        DataType::F64 => sweep::<f64>(&comm, workload),
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
