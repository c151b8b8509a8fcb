//! The drawing of a machine.

use super::layout::{BETWEEN, Column, GAP, Layout, MARGIN, across};
use super::svg::{Rect, Svg};
use crate::model::{GpuId, Link, LinkKind, LinkLayer, Machine, NicId, NodeId};
use crate::select::{Choice, Rail};

/// Draws a machine as SVG, for people: a column for each NUMA node, in it the switches and host
/// bridges with their GPUs and NICs, and lines from GPUs to the NICs that were chosen. Where such a NIC is at another NUMA
/// node, both say so in words: a line would pass below what stands between.
///
/// Names are made safe and cut to fit, wherever the machine comes from.
///
/// ```
/// use qpair_topology::{Machine, Selection, draw};
///
/// let machine = Machine::builder().build();
/// let choice = Selection::of(&machine).choose()?;
/// assert!(draw(&machine, Some(&choice)).starts_with("<svg"));
/// # Ok::<(), qpair_topology::SelectError>(())
/// ```
pub fn draw(machine: &Machine, choice: Option<&Choice>) -> String {
    let switched = joined_by_switch(machine);
    let top = if switched.is_some() { 108 } else { 64 };
    let layout = Layout::of(machine, top);
    let mut svg = Svg::default();
    let name = machine.name().unwrap_or("machine");
    let (gpus, nics) = (machine.gpus().len(), machine.nics().iter().filter(|nic| !nic.software).count());
    let inner = layout.width - 2 * MARGIN;
    svg.text(MARGIN, 34, inner, &format!("{name}: GPUs {gpus}, NICs {nics}"), true);
    if let Some(text) = switched {
        let bar = Rect { x: MARGIN, y: 52, w: inner, h: 32 };
        svg.rect(bar, "#e8f3dc", "#6a9a2c", 1);
        svg.text(bar.x + 10, bar.y + 21, inner - 20, &text, true);
    }
    for column in &layout.columns {
        draw_column(&mut svg, machine, choice, column);
    }
    sockets(&mut svg, machine, &layout);
    let rails = |gpu: GpuId| choice.and_then(|c| c.of(gpu)).map(|a| a.rails.as_slice()).unwrap_or_default();
    for (&gpu, rect) in &layout.gpus {
        draw_gpu(&mut svg, machine, gpu, *rect, choice);
        for rail in rails(gpu) {
            if let Some(nic) = layout.nics.get(&rail.nic).filter(|_| is_beside(machine, gpu, rail.nic)) {
                connect(&mut svg, *rect, *nic, rail);
            }
        }
    }
    for (&nic, rect) in &layout.nics {
        let users = machine.gpu_ids().filter(|&gpu| rails(gpu).iter().any(|rail| rail.nic == nic));
        let users: Vec<GpuId> = users.collect();
        let far = users.iter().filter(|&&gpu| !is_beside(machine, gpu, nic)).map(|gpu| gpu.0.to_string());
        draw_nic(&mut svg, machine, nic, *rect, !users.is_empty(), &far.collect::<Vec<_>>());
    }
    let height = layout.height + 20;
    if choice.is_some() {
        legend(&mut svg, layout.height - 8);
    }
    svg.finish(layout.width, height)
}

/// True of a GPU and a NIC of one column, with nothing between them but the gap.
fn is_beside(machine: &Machine, gpu: GpuId, nic: NicId) -> bool {
    machine.cpu_of(gpu) == machine.cpu_of(nic)
}

/// A line from a GPU to a NIC beside it. A curve stays between what it is drawn by, and so within the gap.
fn connect(svg: &mut Svg, gpu: Rect, nic: Rect, rail: &Rail) {
    let bend = ((gpu.y - nic.y).abs() / 12 + 50).min(GAP);
    svg.curve(gpu.right(), nic.left(), bend, colour(rail), !rail.gpu_direct);
}

/// What the NVSwitches join, in words.
fn joined_by_switch(machine: &Machine) -> Option<String> {
    machine.nv_switch()?;
    let links: Vec<_> = machine.links_of(NodeId::NvSwitch).collect();
    let first = links.first()?;
    let (link, each) = (&first.kind, first.bandwidth);
    Some(match links.len() {
        1 => format!("NVSwitch has one GPU, by {link}, {each} each way"),
        count => format!("NVSwitch joins {count} GPUs, the first by {link}, {each} each way"),
    })
}

fn draw_column(svg: &mut Svg, machine: &Machine, choice: Option<&Choice>, column: &Column) {
    let Rect { x, y, w, .. } = column.rect;
    svg.frame(column.rect, "#f4f6f8", "#8a97a3");
    let Some(cpu) = machine.cpu(column.cpu) else { return };
    let socket = cpu.package.map(|package| format!(", socket {package}")).unwrap_or_default();
    let cpus = if cpu.cpus.is_empty() { String::new() } else { format!(", CPUs {}", cpu.cpus) };
    svg.text(x + 12, y + 24, w - 24, &format!("{}{socket}{cpus}", machine.label(column.cpu)), true);
    let nics = choice.map(|choice| choice.nics(column.cpu)).unwrap_or_default();
    if !nics.is_empty() {
        let nics: Vec<String> = nics.into_iter().map(|nic| machine.label(nic)).collect();
        svg.text(x + 12, y + 46, w - 24, &format!("workers use {}", nics.join(", ")), false);
    }
    for frame in &column.frames {
        svg.frame(frame.rect, "#ffffff", "#b9c3cc");
        svg.text(frame.rect.x + 12, frame.rect.y + 19, frame.rect.w - 24, &frame.title, false);
    }
}

/// The links between columns that stand side by side, and from row to row.
fn sockets(svg: &mut Svg, machine: &Machine, layout: &Layout) {
    let link = |a: &Column, b: &Column| {
        let links = machine.links_of(a.cpu).filter(|link| link.other(a.cpu.into()) == b.cpu.into());
        links.into_iter().find(|link| matches!(link.kind, LinkKind::Package | LinkKind::Socket)).copied()
    };
    let words = |link: &Link| {
        let name = if link.kind == LinkKind::Socket { "SYS" } else { "NODE" };
        let rate = if link.bandwidth.is_unlimited() { String::new() } else { link.bandwidth.to_string() };
        (name, rate)
    };
    let across = across(layout.columns.len()).max(1);
    for row in layout.columns.chunks(across) {
        for pair in row.windows(2) {
            let Some(link) = link(&pair[0], &pair[1]) else { continue };
            let (x, y) = (pair[0].rect.x + pair[0].rect.w, pair[0].rect.y + 30);
            svg.line((x, y), (x + BETWEEN, y), "#8a97a3", false);
            let (name, rate) = words(&link);
            svg.text(x + 6, y - 8, BETWEEN - 8, &rate, false);
            svg.text(x + 6, y + 18, BETWEEN - 8, name, false);
        }
    }
    for (upper, lower) in layout.columns.iter().zip(layout.columns.iter().skip(across)) {
        let Some(link) = link(upper, lower) else { continue };
        let (x, y) = (upper.rect.x + 40, upper.rect.y + upper.rect.h);
        svg.line((x, y), (x, lower.rect.y), "#8a97a3", false);
        let (name, rate) = words(&link);
        svg.text(x + 10, lower.rect.y - 8, 160, &format!("{name} {rate}"), false);
    }
}

fn draw_gpu(svg: &mut Svg, machine: &Machine, gpu: GpuId, rect: Rect, choice: Option<&Choice>) {
    svg.rect(rect, "#eaf4df", "#5b8a1f", 1);
    let (x, y, w) = (rect.x + 8, rect.y, rect.w - 16);
    let Some(device) = machine.gpu(gpu) else { return };
    svg.text(x, y + 17, w, &format!("GPU {} {}", gpu.0, device.address), true);
    svg.text(x, y + 35, w, &links(machine, gpu), false);
    let told = choice.and_then(|choice| choice.of(gpu)).map(|assignment| match assignment.rails.as_slice() {
        [] => "no NIC".to_owned(),
        [rail] => format!("{} {}", rail.path.class, machine.label(rail.nic)),
        rails => format!("{} NICs", rails.len()),
    });
    svg.text(x, y + 53, w, &told.unwrap_or_default(), false);
    let rate = choice.and_then(|choice| choice.of(gpu)).filter(|assignment| !assignment.rails.is_empty());
    svg.text(x, y + 70, w, &rate.map(|assignment| assignment.bandwidth.to_string()).unwrap_or_default(), false);
}

/// The link up, and those to other GPUs.
fn links(machine: &Machine, gpu: GpuId) -> String {
    let mut peers = Vec::new();
    let mut text = String::new();
    for link in machine.links_of(gpu) {
        match (link.kind, link.other(gpu.into())) {
            (LinkKind::Pcie(pcie), _) => text = pcie.to_string(),
            (LinkKind::GpuLink { .. }, NodeId::Gpu(other)) => peers.push(other.0.to_string()),
            (LinkKind::GpuLink { kind, .. }, NodeId::Cpu(_)) => peers.insert(0, kind.name().to_owned()),
            _ => {}
        }
    }
    match peers.len() {
        0 => text,
        all if all > 2 && all + 1 == machine.gpus().len() => format!("{text}, to all GPUs"),
        _ => format!("{text}, to {}", peers.join(" ")),
    }
}

/// `far`: the GPUs that it serves and that no line leads to.
fn draw_nic(svg: &mut Svg, machine: &Machine, nic: NicId, rect: Rect, chosen: bool, far: &[String]) {
    let Some(device) = machine.nic(nic) else { return };
    let (fill, stroke) = match (device.is_usable(), chosen) {
        (false, _) => ("#eeeeee", "#aaaaaa"),
        (true, true) => ("#cfe3fa", "#1f5fae"),
        (true, false) => ("#f2f7fd", "#8fb3dc"),
    };
    svg.rect(rect, fill, stroke, if chosen { 3 } else { 1 });
    let (x, y, w) = (rect.x + 8, rect.y, rect.w - 16);
    svg.text(x, y + 17, w, &device.name, true);
    let place = device.address.map_or_else(|| "no PCI device".to_owned(), |address| address.to_string());
    let virtual_function = if device.physfn.is_some() { " VF" } else { "" };
    svg.text(x, y + 35, w, &format!("{place}{virtual_function}"), false);
    let layer = match device.ports.first().map(|port| port.link_layer) {
        Some(LinkLayer::InfiniBand) => " IB",
        Some(LinkLayer::Ethernet) if !device.software => " Ethernet",
        _ => "",
    };
    let rate = match device.bandwidth() {
        _ if !device.is_usable() => "down".to_owned(),
        // Files leave it out.
        rate if rate.is_unlimited() => format!("rate not known{layer}"),
        rate => format!("{rate}{layer}"),
    };
    svg.text(x, y + 53, w, &rate, false);
    if !far.is_empty() {
        svg.text(x, y + 70, w, &format!("serves GPU {}", far.join(", ")), true);
    }
}

fn colour(rail: &Rail) -> &'static str {
    match (rail.gpu_direct, rail.via) {
        (false, _) => "#d97706",
        (true, Some(_)) => "#7c3aed",
        (true, None) => "#1f5fae",
    }
}

fn legend(svg: &mut Svg, y: i32) {
    let entries =
        [("#1f5fae", "GPUDirect", false), ("#7c3aed", "over a neighbour", false), ("#d97706", "host memory", true)];
    for (place, (colour, text, dashed)) in entries.into_iter().enumerate() {
        let x = MARGIN + place as i32 * 190;
        svg.line((x, y), (x + 36, y), colour, dashed);
        svg.text(x + 44, y + 4, 140, text, false);
    }
}
