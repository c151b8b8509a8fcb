//! Which machine a plan is priced for.

use std::path::{Path, PathBuf};

use clap::Args;
use qpair::collectives::Nodes;
use qpair::collectives::cost::{CostModel, Seats};
use qpair::collectives::tune::{Fastest, Tuner, Tuning};
use qpair::transport::Config;
use qpair::verbs::Device;

use super::error::PlanError;

/// The machine that plans are priced for, and chosen by.
#[derive(Debug, Clone, Args)]
pub struct Setting {
    /// What operations cost: `default`; `here`, as communicators of this machine have it; `measure`, as measured now; or a file, as
    /// `qpair plan model --json` prints it
    #[arg(long, value_name = "MODEL", default_value = "default")]
    model: PathBuf,
    /// Cores that the ranks of a node share [default: one for each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,
}

impl Setting {
    /// What plans are chosen and priced by, where ranks are on those nodes and islands of them.
    ///
    /// # Errors
    /// [`PlanError::Model`] if there is no such model.
    pub fn tuner(&self, tuning: Tuning, nodes: Nodes, islands: Option<Nodes>) -> Result<Tuner, PlanError> {
        let cores = self.cores.map_or(f64::INFINITY, f64::from);
        let mut seats = Seats { nodes, gpu_islands: islands.clone(), islands, cores, ..Seats::default() };
        let mut fastest = Fastest::default();
        if self.model.to_str() == Some("here") {
            fastest = Fastest::of_this_machine().map_err(PlanError::Model)?;
            let placement = Config::default().placement();
            seats.by_software = placement.is_ok_and(|placement| placement.device == Device::SOFTWARE);
        }
        Ok(Tuner { tuning, model: model(&self.model)?, seats, fastest })
    }

    /// The model in words.
    pub fn name(&self) -> String {
        let name = match self.model.to_str() {
            Some("default") => "the default model".to_owned(),
            Some("here" | "measure") => "the model of this machine".to_owned(),
            _ => format!("the model in {}", self.model.display()),
        };
        match self.cores {
            None => format!("{name}, a core for each rank"),
            Some(cores) => format!("{name}, {cores} cores a node"),
        }
    }
}

/// The model that is named so.
///
/// # Errors
/// [`PlanError::Model`].
pub fn model(name: &Path) -> Result<CostModel, PlanError> {
    match name.to_str() {
        Some("default") => Ok(CostModel::default()),
        Some("here") => CostModel::of_this_machine().map_err(PlanError::Model),
        Some("measure") => Ok(CostModel::measured()),
        _ => CostModel::from_file(name).map_err(PlanError::Model),
    }
}
