//! `qpair plan draw`: a picture of a plan.

use std::path::PathBuf;

use clap::Args;

use super::args::Asked;
use super::error::PlanError;
use super::examined::Examined;
use super::picture::draw;
use super::words::time;
use crate::output::{print, write_file};

/// Draws a plan as SVG: a lane for each rank, time to the right, arrows for messages.
///
/// The time is predicted by the model that `qpair plan show` goes by. A browser tells of each bar, under the pointer, which
/// step it is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair plan draw ring all-reduce -n 4 --svg ring.svg
  qpair plan draw double-tree broadcast -n 8 -c 1M --svg tree.svg
  qpair plan draw hierarchical all-reduce -n 8 --nodes 4 --svg nodes.svg
  qpair plan draw --from plan.json --svg plan.svg")]
pub struct DrawArgs {
    #[command(flatten)]
    asked: Asked,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
    /// Draw so many ranks at most, from 0 on
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    lanes: u32,
}

/// Draws it.
///
/// # Errors
/// [`PlanError`] if there is no such plan, it is not right, or the file can not be written.
pub fn run(args: DrawArgs) -> Result<(), PlanError> {
    let examined = Examined::asked(&args.asked)?;
    let picture = draw(&examined, args.lanes);
    write_file(&args.svg, &picture.svg)?;
    let time = time(examined.timeline.cost().seconds);
    print(&format!("{}: {time}, drawn: {}", examined.plan().spec, args.svg.display()))?;
    picture.left_out.iter().try_for_each(|what| print(&format!("left out: {what}")))?;
    Ok(())
}
