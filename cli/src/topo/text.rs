//! The machine and the choice for people.

use qpair::topology::{Choice, GpuId, LinkLayer, Machine, Matrix, Nic, Port, PortState};

use crate::gpus::{ClosedGpu, Found, FoundGpu};
use crate::table;
use crate::text::count;

/// All of it: what there is, the NICs, the matrix, the choice with its reasons and `limits`, and how the memory of the GPUs that
/// were found is registered. `verbose`: with those that were not chosen.
pub fn text(machine: &Machine, choice: &Choice, limits: &[String], found: Option<&Found>, verbose: bool) -> String {
    let mut blocks = vec![headline(machine)];
    if machine.nics().iter().any(|nic| !nic.software) {
        blocks.push(nics(machine));
    }
    blocks.push(matrix(machine, choice));
    blocks.extend(islands(machine));
    let reasons = if verbose {
        choice.explain().to_string()
    } else {
        let lines = choice.assignments().iter();
        let mut lines: String = lines.map(|one| format!("{}: {}\n", machine.label(one.consumer), one.reason)).collect();
        if !choice.is_proven() {
            lines += &format!("\n{}", choice.proven());
        }
        lines
    };
    if !reasons.is_empty() {
        let more = if verbose { "" } else { " (-v tells of the others)" };
        let limits: String = limits.iter().map(|limit| format!("\n({limit})")).collect();
        blocks.push(format!("What serves what, and why{more}:\n\n{}{limits}", reasons.trim_end()));
    }
    if let Some(found) = found.filter(|found| !found.is_empty()) {
        blocks.push(memory(machine, found));
    }
    let hints: Vec<_> = machine.hints().iter().map(|hint| format!("  {hint}")).collect();
    if !hints.is_empty() {
        blocks.push(format!("Worth setting otherwise:\n{}", hints.join("\n")));
    }
    if !machine.warnings().is_empty() {
        let warnings: Vec<_> = machine.warnings().iter().map(|warning| format!("  {warning}")).collect();
        blocks.push(format!("Passed over:\n{}", warnings.join("\n")));
    }
    let blocks: Vec<_> = blocks.iter().map(|block| block.trim_end()).collect();
    blocks.join("\n\n")
}

/// How much there is of what.
fn headline(machine: &Machine) -> String {
    let name = machine.name().map(|name| format!("{name}: ")).unwrap_or_default();
    let nodes = machine.cpus().iter().filter(|cpu| cpu.numa.is_some()).count();
    let real = machine.nics().iter().filter(|nic| !nic.software).count();
    let counts =
        [counted(nodes, "NUMA node"), counted(machine.gpus().len(), "GPU"), counted(real, "RDMA NIC")].join(", ");
    let lost = if machine.cpus().iter().any(|cpu| cpu.numa.is_none()) {
        "; NUMA ? stands for where devices are whose place is not known"
    } else {
        ""
    };
    format!("{name}{counts}{lost}")
}

/// GPUs that reach each other better than others, where there are several islands of them.
fn islands(machine: &Machine) -> Option<String> {
    let islands = machine.gpu_islands();
    if islands.len() < 2 || islands.iter().all(|island| island.members.len() < 2) {
        return None;
    }
    let lines = islands.iter().map(|island| {
        let members: Vec<_> = island.members.iter().map(|&gpu| machine.label(gpu)).collect();
        format!("  {} ({}; {} to others)", members.join(", "), island.class, island.outside)
    });
    Some(format!("Islands, whose GPUs reach each other best:\n{}", lines.collect::<Vec<_>>().join("\n")))
}

/// The NICs with their ports. Software devices have none that tell anything.
fn nics(machine: &Machine) -> String {
    let real = machine.nics().iter().filter(|nic| !nic.software);
    let rows = real.flat_map(|nic| {
        let ports = nic.ports.iter().map(|port| row(nic, Some(port)));
        ports.chain(nic.ports.is_empty().then(|| row(nic, None)))
    });
    table::whole(&["NIC", "address", "PCIe", "port", "state", "rate", "link"], rows.collect())
}

fn row(nic: &Nic, port: Option<&Port>) -> Vec<String> {
    let address = nic.address.map_or_else(|| "no PCI device".to_owned(), |address| address.to_string());
    let of = nic.physfn.map(|physical| format!(", VF of {physical}")).unwrap_or_default();
    let pcie = if nic.address.is_some() { nic.pcie.to_string() } else { "-".to_owned() };
    let [number, state, rate, link] = match port {
        None => ["none", "-", "-", "-"].map(str::to_owned),
        Some(port) => [
            port.number.to_string(),
            state(port.state).to_owned(),
            port.mbit.map_or_else(|| "?".to_owned(), |mbit| format!("{} Gbit/s", mbit as f64 / 1000.0)),
            link(port.link_layer).to_owned(),
        ],
    };
    vec![nic.name.clone(), format!("{address}{of}"), pcie, number, state, rate, link]
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Active => "active",
        PortState::Down => "down",
        PortState::Init => "init, not configured",
        PortState::Unknown => "?",
    }
}

fn link(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Unknown => "?",
    }
}

/// The matrix, if it is of a size that anybody could look at.
fn matrix(machine: &Machine, choice: &Choice) -> String {
    let size = machine.gpus().len() + machine.nics().len();
    if size > MATRIX {
        return format!("The matrix would have {size} columns; --json has all, and -v the paths to NICs.");
    }
    Matrix::of(machine, Some(choice)).to_string()
}

/// By which path RDMA devices reach the memory of each GPU.
fn memory(machine: &Machine, found: &Found) -> String {
    let row = |gpu: &Result<FoundGpu, ClosedGpu>| match gpu {
        Ok(gpu) => vec![label(machine, gpu), gpu.gpu.to_string(), gpu.ways()],
        Err(gpu) => vec!["?".to_owned(), gpu.gpu.to_string(), format!("it can not be used: {}", gpu.why)],
    };
    let table = table::whole(&["GPU", "of CUDA", "memory registered"], found.iter().map(row).collect());
    format!("How devices reach memory of GPUs (qpair doctor -v says why):\n\n{table}")
}

/// What a GPU is called above: the machine and CUDA need not count alike. Its address, where it is not there.
fn label(machine: &Machine, gpu: &FoundGpu) -> String {
    let known = machine.gpus().iter().position(|known| known.address.to_string() == gpu.pci);
    known.map_or_else(|| gpu.pci.clone(), |at| machine.label(GpuId(at as u16)))
}

/// Columns of a matrix, several times what a screen shows.
const MATRIX: usize = 128;

fn counted(number: usize, what: &str) -> String {
    match number {
        0 => format!("no {what}"),
        some => count(some, what),
    }
}
