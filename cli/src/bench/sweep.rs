//! One rank's run over all types, operations, sizes, algorithms and placements.

use qpair::collectives::{Communicator, Environment};
use qpair::verbs::Gpu;
use qpair::verbs::calc::{DataType, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use super::error::BenchError;
use super::measure::{Meter, on_any};
use super::operation::Call;
use super::report::Report;
use super::scalar::Scalar;
use super::workload::Workload;

/// Joins the other ranks and measures everything; rank 0 prints.
///
/// # Errors
/// [`BenchError`] if the ranks do not find each other, an operation fails or a result is wrong.
pub fn run(workload: &Workload, environment: &Environment) -> Result<(), BenchError> {
    let comm = environment.connect()?;
    comm.set_tuning(workload.tuner.tuning);
    tracing::info!(rank = comm.rank(), "{}", comm.explain());
    let tuner = comm.tuner().where_vectors_are(workload.gpu).into_owned();
    let workload = &Workload { tuner, ..workload.clone() };
    workload.check_kept(comm.size())?;
    let gpu = if workload.gpu { Some(gpu_of(comm.local_rank())?) } else { None };
    let mut report = Report::begin(workload, comm.rank(), comm.size(), gpu);
    for &(dtype, op) in &workload.kinds {
        let sweep = match dtype {
            DataType::I8 => sweep::<i8>,
            DataType::U8 => sweep::<u8>,
            DataType::I32 => sweep::<i32>,
            DataType::U32 => sweep::<u32>,
            DataType::I64 => sweep::<i64>,
            DataType::U64 => sweep::<u64>,
            DataType::F16 => sweep::<f16>,
            DataType::Bf16 => sweep::<bf16>,
            DataType::F8E4M3 => sweep::<F8E4M3>,
            DataType::F8E5M2 => sweep::<F8E5M2>,
            DataType::F32 => sweep::<f32>,
            DataType::F64 => sweep::<f64>,
            other => return Err(BenchError::NotMeasurable(other)),
        };
        if !sweep(&comm, workload, (op, gpu), &mut report)? {
            break;
        }
    }
    report.end()
}

/// The GPU of a rank: those of a host are taken in turn.
fn gpu_of(local_rank: usize) -> Result<Gpu, BenchError> {
    let count = Gpu::count()?;
    Ok(Gpu::open(local_rank % count.max(1))?)
}

/// All sizes of one type. False where nobody reads the results any more, so that all ranks stop together.
fn sweep<T: Scalar>(
    comm: &Communicator,
    workload: &Workload,
    (op, gpu): (Option<ReduceOp>, Option<Gpu>),
    report: &mut Report<'_>,
) -> Result<bool, BenchError> {
    let meter = Meter::<T>::new(comm, workload, op, gpu)?;
    for count in workload.counts(T::TYPE, comm.size()) {
        if on_any(comm, report.is_broken())? {
            return Ok(false);
        }
        let mut points = Vec::new();
        for &placement in &workload.placements {
            let call = Call { dtype: T::TYPE, op, placement, root: 0, count };
            points.extend(meter.measure(call, &workload.algorithms, || report.measured())?);
        }
        report.add(points);
    }
    Ok(true)
}
