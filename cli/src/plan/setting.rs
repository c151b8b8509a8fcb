//! Which machine a plan is priced for.

use std::path::PathBuf;

use clap::Args;
use qpair::collectives::Nodes;
use qpair::collectives::cost::{CostModel, Seats};
use qpair::collectives::tune::{Tuner, Tuning};

use super::error::PlanError;

/// The machine that plans are priced for, and chosen by.
#[derive(Debug, Clone, Default, Args)]
pub struct Setting {
    /// What operations cost: `default`; `here`, as measured on this machine; or a file, as `qpair plan model --json` prints it [default: default]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Cores that the ranks of a node share [default: one for each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,
}

impl Setting {
    /// What plans are chosen and priced by, where ranks are on those nodes.
    ///
    /// # Errors
    /// [`PlanError::Model`] if there is no such model.
    pub fn tuner(&self, tuning: Tuning, nodes: Nodes) -> Result<Tuner, PlanError> {
        let seats = Seats { nodes, cores: self.cores.unwrap_or(u32::MAX) };
        Ok(Tuner { tuning, model: model(self.model.as_ref())?, seats })
    }

    /// The model in words.
    pub fn name(&self) -> String {
        let name = match &self.model {
            None => "the default model".to_owned(),
            Some(path) if path.as_os_str() == "default" => "the default model".to_owned(),
            Some(path) if path.as_os_str() == "here" => "the model of this machine".to_owned(),
            Some(path) => format!("the model in {}", path.display()),
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
pub fn model(name: Option<&PathBuf>) -> Result<CostModel, PlanError> {
    match name {
        None => Ok(CostModel::default()),
        Some(path) if path.as_os_str() == "default" => Ok(CostModel::default()),
        Some(path) if path.as_os_str() == "here" => CostModel::of_this_machine().map_err(PlanError::Model),
        Some(path) => CostModel::from_file(path).map_err(PlanError::Model),
    }
}
