//! `qpair plan model`: what operations, messages and bytes cost.

use std::path::PathBuf;

use clap::Args;
use qpair::collectives::cost::GpuModel;
use qpair::topology::Machine;
use qpair::verbs::{Context, Device, Gpu};

use super::error::PlanError;
use super::setting::model;
use crate::output::{print, print_object};

/// Shows the parameters of the cost model, by which algorithms are chosen.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair plan model                                  as communicators of this machine have it
  qpair plan model default --json > model.json      to be changed, for --model or QPAIR_COST_MODEL
  qpair plan model --gpu --json > model.json        with what a GPU takes here, measured now
  qpair plan compare all-reduce -n 8 --model model.json")]
pub struct ModelArgs {
    /// `here`, what QPAIR_COST_MODEL names, or else what is measured and kept; `measure`; `default`; or a file
    #[arg(value_name = "MODEL", default_value = "here")]
    model: PathBuf,
    /// Measure what operations take on this GPU, the first unless its number is given, and between it and one of another island
    #[arg(long, value_name = "GPU", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    gpu: Option<usize>,
    /// Print one JSON object, as --model and QPAIR_COST_MODEL take it
    #[arg(long)]
    json: bool,
}

/// Prints it.
///
/// # Errors
/// [`PlanError`] if there is no such model.
pub fn run(args: ModelArgs) -> Result<(), PlanError> {
    let mut model = model(&args.model)?;
    if let Some(ordinal) = args.gpu {
        model.gpu = measured(ordinal)?;
    }
    if args.json { Ok(print_object(&model)?) } else { Ok(print(&model.to_string())?) }
}

/// What operations take on a GPU.
fn measured(ordinal: usize) -> Result<GpuModel, PlanError> {
    let gpu = Gpu::open(ordinal).map_err(|error| PlanError::Gpu(error.into()))?;
    let domain = Context::open(Device::SOFTWARE).map_err(PlanError::Open)?;
    let domain = domain.alloc_pd().map_err(PlanError::Create)?;
    GpuModel::measured(gpu, beyond(gpu), &domain).map_err(PlanError::Gpu)
}

/// A GPU that this process sees on another island of the machine.
fn beyond(gpu: Gpu) -> Option<Gpu> {
    let machine = Machine::this().ok()?;
    let own = machine.gpu_at(gpu.attributes().pci_address.parse().ok()?)?;
    let islands = machine.gpu_islands();
    let others = islands.iter().filter(|island| !island.members.contains(&own)).flat_map(|island| &island.members);
    let mut others = others.filter_map(|&other| Gpu::at(&machine.gpu(other)?.address.to_string()).ok().flatten());
    others.next()
}
