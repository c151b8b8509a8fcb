//! Where everything stands in a drawing: a column for each NUMA node, in it a frame for each switch
//! or host bridge that devices hang under, in that GPUs on the left and NICs on the right.

use std::collections::BTreeMap;

use super::svg::Rect;
use crate::model::{BridgeRole, CpuId, GpuId, LinkKind, Machine, NicId, NodeId};

pub(super) const GPU_WIDTH: i32 = 220;
pub(super) const NIC_WIDTH: i32 = 200;
pub(super) const BOX_HEIGHT: i32 = 78;
/// Between GPUs and NICs: there the lines of chosen NICs run, and nothing else stands.
pub(super) const GAP: i32 = 130;
const SPACE: i32 = 12;
const TITLE: i32 = 26;
const HEAD: i32 = 66;
const FRAME: i32 = GPU_WIDTH + GAP + NIC_WIDTH + 2 * SPACE;
pub(super) const COLUMN: i32 = FRAME + 2 * SPACE;
/// Between columns: there the link between sockets has its label.
pub(super) const BETWEEN: i32 = 96;
pub(super) const MARGIN: i32 = 24;

/// Devices that hang under one outermost switch, host bridge or NUMA node.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) rect: Rect,
    pub(super) title: String,
}

/// A NUMA node with all that hangs under it.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) cpu: CpuId,
    pub(super) rect: Rect,
    pub(super) frames: Vec<Frame>,
}

/// Where everything stands.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) columns: Vec<Column>,
    pub(super) gpus: BTreeMap<GpuId, Rect>,
    pub(super) nics: BTreeMap<NicId, Rect>,
    pub(super) width: i32,
    pub(super) height: i32,
}

/// How many columns stand in a row: all, if they are few.
pub(super) fn across(columns: usize) -> usize {
    if columns <= 3 { columns } else { 2 }
}

impl Layout {
    /// The layout, below `top` pixels.
    pub(super) fn of(machine: &Machine, top: i32) -> Self {
        let mut layout = Self::default();
        let ids: Vec<CpuId> = machine.cpu_ids().collect();
        let mut y = top;
        for row in ids.chunks(across(ids.len()).max(1)) {
            let mut tallest = 0;
            let mut x = MARGIN;
            for &cpu in row {
                let height = layout.column(machine, cpu, x, y);
                tallest = tallest.max(height);
                x += COLUMN + BETWEEN;
            }
            layout.width = layout.width.max(x - BETWEEN + MARGIN);
            y += tallest + 2 * MARGIN;
        }
        layout.height = y;
        layout.width = layout.width.max(COLUMN + 2 * MARGIN);
        layout
    }

    fn column(&mut self, machine: &Machine, cpu: CpuId, x: i32, y: i32) -> i32 {
        let mut groups: BTreeMap<NodeId, (Vec<GpuId>, Vec<NicId>)> = BTreeMap::new();
        let own = |node: NodeId| machine.cpu_of(node) == Some(cpu);
        for gpu in machine.gpu_ids().filter(|&gpu| own(gpu.into())) {
            groups.entry(group(machine, gpu.into())).or_default().0.push(gpu);
        }
        for nic in machine.nic_ids().filter(|&nic| own(nic.into())) {
            groups.entry(group(machine, nic.into())).or_default().1.push(nic);
        }
        // By the first device, so that numbers run from the top down.
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups
            .sort_by_key(|(node, (gpus, nics))| (gpus.is_empty(), gpus.first().copied(), nics.first().copied(), *node));
        let mut frames = Vec::new();
        let mut inner = y + HEAD;
        for (node, (gpus, nics)) in groups {
            let rows = gpus.len().max(nics.len()) as i32;
            let height = TITLE + rows * (BOX_HEIGHT + SPACE) + SPACE;
            let rect = Rect { x: x + SPACE, y: inner, w: FRAME, h: height };
            let places = |count: usize, x: i32, w: i32| {
                // The shorter list stands in the middle.
                let start = rect.y + TITLE + (rows - count as i32) * (BOX_HEIGHT + SPACE) / 2 + SPACE / 2;
                (0..count as i32).map(move |i| Rect { x, y: start + i * (BOX_HEIGHT + SPACE), w, h: BOX_HEIGHT })
            };
            let left = rect.x + SPACE;
            self.gpus.extend(gpus.iter().copied().zip(places(gpus.len(), left, GPU_WIDTH)));
            self.nics.extend(nics.iter().copied().zip(places(nics.len(), left + GPU_WIDTH + GAP, NIC_WIDTH)));
            frames.push(Frame { rect, title: title(machine, node) });
            inner += height + SPACE;
        }
        let rect = Rect { x, y, w: COLUMN, h: inner - y };
        self.columns.push(Column { cpu, rect, frames });
        rect.h
    }
}

/// What a device hangs under: the outermost switch, and without one the host bridge or NUMA node. Devices of one switch are
/// drawn together, whatever switches are within it.
fn group(machine: &Machine, device: NodeId) -> NodeId {
    let mut outermost = None;
    let mut node = device;
    while let Some(parent) = machine.parent(node) {
        node = parent;
        match node {
            NodeId::Bridge(place) if machine.bridges()[usize::from(place)].role == BridgeRole::Switch => {
                outermost = Some(node);
            }
            NodeId::Bridge(_) => {}
            _ => break,
        }
    }
    outermost.unwrap_or(node)
}

/// The host bridge, the switch, and the link up.
fn title(machine: &Machine, node: NodeId) -> String {
    let mut names = Vec::new();
    let mut here = Some(node);
    while let Some(at) = here {
        match at {
            NodeId::Bridge(place) if machine.bridges()[usize::from(place)].role == BridgeRole::Switch => {
                names.push(machine.label(at));
            }
            NodeId::HostBridge(_) => names.push(machine.label(at)),
            _ => {}
        }
        here = machine.parent(at);
    }
    names.reverse();
    let up = machine.links_of(node).find(|link| link.b == node && link.is_towards_host());
    let up = up.filter(|link| matches!(link.kind, LinkKind::Pcie(_)));
    let up = up.map(|link| format!(", up {}", link.kind)).unwrap_or_default();
    if names.is_empty() { "at the processors".to_owned() } else { names.join(" > ") + &up }
}
