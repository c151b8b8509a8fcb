//! The matrix that `nvidia-smi topo -m` has made known.

use std::fmt;

use crate::Bandwidth;
use crate::model::{GpuLinkKind, LinkKind, Machine, NodeId};
use crate::path::{Path, PathClass};
use crate::select::Choice;

/// How near each GPU and NIC is to each other. Printed, it is a table with a legend.
///
/// ```
/// use qpair_topology::{Cpu, Gpu, Machine, Matrix, Parent};
///
/// let mut machine = Machine::builder();
/// machine.cpu(Cpu::numa(0));
/// for gpu in ["0000:17:00.0", "0000:65:00.0"] {
///     machine.gpu(Gpu::at(gpu.parse()?, Parent::Numa(0)));
/// }
/// let matrix = Matrix::of(&machine.build(), None);
/// assert_eq!(matrix.rows[0].cells[1].to_string(), "PHB");
/// # Ok::<(), qpair_topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// A row for each GPU, then each NIC. Columns are the same.
    pub rows: Vec<Row>,
}

/// A row of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The GPU or NIC.
    pub node: NodeId,
    /// Its name.
    pub label: String,
    /// What it is to each GPU and NIC, itself included.
    pub cells: Vec<Cell>,
    /// The processors beside it, as a list; empty if they are not known.
    pub cpus: String,
    /// Its NUMA node; empty if it is not known.
    pub numa: String,
    /// The NICs chosen for it; empty of NICs, and where no choice was given.
    pub nics: String,
}

/// What two parts are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How near they are. `None` if nothing joins them.
    pub class: Option<PathClass>,
    /// The links of GPUs between them, if those join them: the kind and how many.
    pub links: Option<(GpuLinkKind, u32)>,
    /// What passes between them in one direction.
    pub bandwidth: Bandwidth,
}

impl Matrix {
    /// The matrix of a machine, with what was chosen where it is given.
    pub fn of(machine: &Machine, choice: Option<&Choice>) -> Self {
        let gpus = machine.gpu_ids().map(NodeId::from);
        let nodes: Vec<NodeId> = gpus.chain(machine.nic_ids().map(NodeId::from)).collect();
        // Paths lead back as they lead there; half of them are looked for.
        let mut cells: Vec<Vec<Cell>> = vec![Vec::with_capacity(nodes.len()); nodes.len()];
        for (place, &node) in nodes.iter().enumerate() {
            let known: Vec<Cell> = cells[..place].iter().map(|row| row[place]).collect();
            let new = nodes[place..].iter().map(|&other| Cell::of(machine.path(node, other).as_ref()));
            cells[place] = known.into_iter().chain(new).collect();
        }
        let row = |(&node, cells): (&NodeId, Vec<Cell>)| {
            let cpu = machine.cpu_of(node).and_then(|id| machine.cpu(id));
            let nics = match (node, choice) {
                (NodeId::Gpu(gpu), Some(choice)) => {
                    choice.nics(gpu).into_iter().map(|nic| machine.label(nic)).collect::<Vec<_>>().join(" ")
                }
                _ => String::new(),
            };
            Row {
                node,
                label: machine.label(node).replace("GPU ", "GPU"),
                cells,
                cpus: cpu.map(|cpu| cpu.cpus.to_string()).unwrap_or_default(),
                numa: cpu.and_then(|cpu| cpu.numa).map(|numa| numa.to_string()).unwrap_or_default(),
                nics,
            }
        };
        Self { rows: nodes.iter().zip(cells).map(row).collect() }
    }
}

impl Cell {
    fn of(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self { class: None, links: None, bandwidth: Bandwidth::ZERO } };
        let links = path.hops.iter().filter_map(|hop| match hop.link.kind {
            LinkKind::GpuLink { kind, count } => Some((kind, count)),
            _ => None,
        });
        let links = links.min_by_key(|(_, count)| *count).filter(|_| path.class == PathClass::Nvl);
        Self { class: Some(path.class), links, bandwidth: path.bandwidth }
    }
}

/// `X` of a part to itself, `NV18` over 18 NVLinks, else the class; `-` if nothing joins them.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.class, self.links) {
            (None, _) => f.pad("-"),
            (Some(PathClass::Loc), _) => f.pad("X"),
            (_, Some((GpuLinkKind::NvLink, count))) => f.pad(&format!("NV{count}")),
            (_, Some((kind, count))) => f.pad(&format!("{}{count}", kind.name())),
            (Some(class), None) => f.pad(class.name()),
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return writeln!(f, "no GPU and no NIC");
        }
        let chosen = self.rows.iter().any(|row| !row.nics.is_empty());
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        let head = std::iter::once("").chain(self.rows.iter().map(|row| row.label.as_str())).chain(["CPUs", "NUMA"]);
        table.set_header(head.chain(chosen.then_some("NICs")));
        for row in &self.rows {
            let cells = row.cells.iter().map(ToString::to_string);
            let all = std::iter::once(row.label.clone()).chain(cells).chain([row.cpus.clone(), row.numa.clone()]);
            table.add_row(all.chain(chosen.then(|| row.nics.clone())));
        }
        for line in table.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f)?;
        let has = |class: PathClass| self.rows.iter().any(|row| row.cells.iter().any(|cell| cell.class == Some(class)));
        let kinds = self.rows.iter().flat_map(|row| &row.cells).filter_map(|cell| cell.links);
        let link = match kinds.map(|(kind, _)| kind).next() {
            Some(GpuLinkKind::Xgmi) => "xGMI#",
            Some(GpuLinkKind::C2c) => "C2C#",
            _ => "NV#",
        };
        for class in PathClass::ALL.into_iter().filter(|&class| has(class)) {
            let name = match class {
                PathClass::Loc => "X",
                PathClass::Nvl => link,
                class => class.name(),
            };
            writeln!(f, "  {name:<5}  {}", class.meaning())?;
        }
        Ok(())
    }
}
