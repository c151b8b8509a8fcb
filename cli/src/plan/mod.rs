//! `qpair plan`: what an algorithm does, step by step: shown, proved, drawn and compared. Nothing runs; a plan is data, and
//! all numbers come from it.

mod args;
mod compare;
mod draw;
mod error;
mod examined;
mod figures;
mod limits;
mod load;
mod model;
mod picture;
mod setting;
mod show;
mod verify;
mod words;

use clap::Subcommand;

pub use error::PlanError;

/// Shows, proves, draws and compares the plans of collectives. Nothing runs.
///
/// A plan is what each rank does for one collective, step by step. Times are predicted by the cost model by which communicators
/// choose: --model says which parameters, --nodes, --islands, --cores and --gpu where ranks and vectors are.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  qpair plan compare all-reduce -n 8                     which algorithm, at which size
  qpair plan show ring all-reduce -n 4                   what it takes, and each step
  qpair plan draw ring all-reduce -n 4 --svg ring.svg    a lane per rank, time to the right
  qpair plan show auto broadcast -n 8 --save plan.json
  qpair plan model                                       what messages and bytes cost here
  qpair plan verify plan.json")]
pub enum PlanCommand {
    Show(show::ShowArgs),
    Verify(verify::VerifyArgs),
    Draw(draw::DrawArgs),
    Compare(compare::CompareArgs),
    Model(model::ModelArgs),
}

/// Does what is asked for.
///
/// # Errors
/// [`PlanError`]; what could be written before is there.
pub fn run(command: PlanCommand) -> Result<(), PlanError> {
    match command {
        PlanCommand::Show(args) => show::run(args),
        PlanCommand::Verify(args) => verify::run(args),
        PlanCommand::Draw(args) => draw::run(args),
        PlanCommand::Compare(args) => compare::run(args),
        PlanCommand::Model(args) => model::run(args),
    }
}
