//! `qpair topo`: what hangs where in a machine, and which NIC serves which GPU: a matrix, the choice with its reasons, a
//! drawing, and files for other tools.

mod object;
mod text;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use qpair::topology::{Consumer, GpuId, LoadError, Machine, SelectError, Selection, Sysfs, draw};
use qpair::transport::{Near, NearError};
use qpair::verbs::Device;
use thiserror::Error;

use crate::gpus::{Found, find};
use crate::output::{PrintError, WriteError, print, print_object, write_file};
use object::Object;
use text::text;

/// Shows what hangs where in a machine, and which NIC serves which GPU.
///
/// Of this machine, or of a file: a folder that is laid out like /sys, what --capture wrote, NCCL's topology XML, hwloc's
/// XML, or JSON. The software device counts as a NIC at each NUMA node; it is chosen where there is no other. Workers choose
/// the same way: of NICs that libibverbs lists and QPAIR_NICS in the environment allows (mlx5_0,mlx5_3, or ^mlx5_2), and by the file
/// that QPAIR_TOPOLOGY names, if it does; so does this command where --from, --only, --exclude and --pin say nothing else.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair topo
  qpair topo -v                              also why other NICs were not chosen
  qpair topo --svg machine.svg               a drawing, for a browser
  qpair topo --capture machine.txt           to send along with a report
  qpair topo --from machine.txt              the same machine, elsewhere
  qpair topo --from topo.xml --exclude mlx5_4 --pin GPU0=mlx5_1
  qpair topo --json | jq '.choice[] | {consumer, nics}'")]
pub struct TopoArgs {
    /// Read the machine from this file or folder instead of the system
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Write what the system, or a folder that --from names, says of the machine as text, which --from reads
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Draw the machine
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the machine as NCCL's topology XML (NCCL_TOPO_FILE)
    #[arg(long, value_name = "FILE")]
    nccl: Option<PathBuf>,
    /// Choose for these GPUs only, by their numbers
    #[arg(long, value_name = "N", value_delimiter = ',')]
    gpus: Option<Vec<u16>>,
    /// Do not use this NIC, by name or PCI address
    #[arg(long, value_name = "NIC")]
    exclude: Vec<String>,
    /// Use this NIC, by name or PCI address, and others that this is said of, and no more
    #[arg(long, value_name = "NIC")]
    only: Vec<String>,
    /// Have a GPU or NUMA node use this NIC: GPU0=mlx5_1, NUMA1=mlx5_3
    #[arg(long, value_name = "WHO=NIC")]
    pin: Vec<Pin>,
    /// Tell of each NIC that was not chosen why
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object, with the machine, the choice, and what was passed over
    #[arg(long)]
    json: bool,
}

/// A NIC that one GPU or NUMA node is to use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pin {
    who: Who,
    nic: String,
}

/// A GPU by its place among the GPUs, or a NUMA node by the system's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Gpu(u16),
    Numa(u32),
}

impl Who {
    /// What it is on that machine.
    fn on(self, machine: &Machine) -> Result<Consumer, SelectError> {
        match self {
            Who::Gpu(number) => Consumer::gpu(machine, GpuId(number)),
            Who::Numa(number) => Consumer::numa(machine, number),
        }
    }
}

/// What is wrong with a pin.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no GPU or NUMA node with a NIC; write GPU0=mlx5_1 or NUMA1=mlx5_3")]
struct PinError(String);

/// The machine could not be shown.
#[derive(Debug, Error)]
pub enum TopoError {
    /// The file is no machine.
    #[error("{}{}", .0, of_no_file(.0))]
    Load(#[from] LoadError),
    /// What workers choose of is not to be had.
    #[error(transparent)]
    Near(#[from] NearError),
    /// The choice can not be made as asked.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// What is to be captured is a file already.
    #[error("{} is no folder like /sys, and --capture writes what such a folder says; leave out one of the two", path.display())]
    Captured {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The list could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// What to do where there is no such file.
fn of_no_file(error: &LoadError) -> &'static str {
    match error {
        LoadError::File { .. } => "; name a file, or a folder like /sys, that may be read",
        LoadError::Content { .. } => "",
    }
}

/// Prints the machine and writes the files.
///
/// # Errors
/// [`TopoError`]; what could be written before is there.
pub fn run(args: &TopoArgs) -> Result<(), TopoError> {
    let machine = machine(args)?;
    let (selection, limits) = base(&machine, args)?;
    let choice = limited(selection, &machine, args)?.choose()?;
    if let Some(path) = &args.svg {
        write_file(path, &draw(&machine, Some(&choice)))?;
    }
    if let Some(path) = &args.nccl {
        write_file(path, &machine.to_nccl_xml())?;
    }
    let is_this = args.from.is_none() && args.capture.is_none();
    let named = Machine::named_by_environment().filter(|_| is_this);
    // Of a machine from a file there is nothing to register.
    let found = (is_this && named.is_none()).then(found).flatten();
    if args.json {
        let object = Object::of(&machine, (&choice, &limits), named.as_deref(), found.as_ref());
        return Ok(print_object(&object)?);
    }
    if let Some(path) = named {
        print(&format!("By the file that QPAIR_TOPOLOGY names, {}:\n", path.display()))?;
    }
    print(&text(&machine, &choice, &limits, found.as_ref(), args.verbose))?;
    let files = [("captured", &args.capture), ("drawn", &args.svg), ("for NCCL", &args.nccl)];
    for (what, path) in files {
        if let Some(path) = path {
            print(&format!("{what}: {}", path.display()))?;
        }
    }
    Ok(())
}

/// The machine that is asked for. What is captured is shown as it will be read.
fn machine(args: &TopoArgs) -> Result<Arc<Machine>, TopoError> {
    let Some(capture) = &args.capture else {
        let Some(path) = &args.from else { return Ok(Machine::this().map_err(NearError::from)?) };
        return Ok(Arc::new(Machine::load(path)?));
    };
    let sysfs = match &args.from {
        None => Sysfs::this_machine(),
        Some(folder) if folder.is_dir() => Sysfs::at(folder),
        Some(file) => return Err(TopoError::Captured { path: file.clone() }),
    };
    let captured = sysfs.capture();
    write_file(capture, &captured)?;
    // Not from the file: it may be a pipe.
    let read = Machine::read(captured.as_bytes());
    Ok(Arc::new(read.map_err(|source| LoadError::Content { path: capture.clone(), source })?))
}

/// The GPUs of this machine, with the paths by which devices reach their memory. None where this program has no driver to ask,
/// which `qpair doctor` tells of.
fn found() -> Option<Found> {
    let devices: Vec<String> = Device::list().iter().map(|device| device.name().to_owned()).collect();
    find(&devices).ok()
}

/// What is chosen of: on this machine what workers choose of, unless the arguments say; and what not, in words.
fn base<'a>(machine: &'a Machine, args: &TopoArgs) -> Result<(Selection<'a>, Vec<String>), NearError> {
    let are_named = !(args.only.is_empty() && args.exclude.is_empty() && args.pin.is_empty());
    if args.from.is_some() || args.capture.is_some() || are_named {
        return Ok((Selection::of(machine), Vec::new()));
    }
    Near::selection(machine)
}

fn limited<'a>(
    mut selection: Selection<'a>,
    machine: &'a Machine,
    args: &TopoArgs,
) -> Result<Selection<'a>, SelectError> {
    if let Some(gpus) = &args.gpus {
        selection = selection.gpus(gpus.iter().map(|&number| GpuId(number)));
    }
    let selection = args.exclude.iter().fold(selection, Selection::exclude);
    let selection = args.only.iter().fold(selection, Selection::only);
    args.pin.iter().try_fold(selection, |selection, pin| Ok(selection.pin(pin.who.on(machine)?, &pin.nic)))
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let error = || PinError(text.to_owned());
        let (who, nic) = text.split_once('=').filter(|(_, nic)| !nic.is_empty()).ok_or_else(error)?;
        let digits = who.find(|c: char| c.is_ascii_digit()).unwrap_or(who.len());
        let (kind, number) = who.split_at(digits);
        let who = match kind.to_ascii_lowercase().as_str() {
            "gpu" => number.parse().map(Who::Gpu),
            "numa" => number.parse().map(Who::Numa),
            _ => return Err(error()),
        };
        Ok(Pin { who: who.map_err(|_| error())?, nic: nic.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_a_consumer_and_a_nic() {
        let pin = |who, nic: &str| Ok(Pin { who, nic: nic.into() });
        assert_eq!("GPU3=mlx5_1".parse(), pin(Who::Gpu(3), "mlx5_1"));
        assert_eq!("numa0=0000:18:00.0".parse(), pin(Who::Numa(0), "0000:18:00.0"));
        for wrong in ["", "GPU0", "GPU0=", "GPU=x", "CARD0=x", "GPU99999=x", "=x"] {
            assert_eq!(wrong.parse::<Pin>(), Err(PinError(wrong.to_owned())));
        }
    }
}
