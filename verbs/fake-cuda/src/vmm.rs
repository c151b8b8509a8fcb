//! Physical memory with handles, as `cuMemCreate` makes it.

use std::sync::Arc;

use crate::abi::AllocationProp;
use crate::backing::Backing;
use crate::code::{self, Outcome};
use crate::world::{State, World};

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) backing: Arc<Backing>,
    /// `requestedHandleTypes`, and whether it is for RDMA.
    pub(crate) handle_types: u32,
    pub(crate) rdma_capable: u8,
    /// How often its handle was given and not released.
    pub(crate) handles: u32,
    /// Where it is mapped.
    pub(crate) mappings: u32,
}

impl Physical {
    pub(crate) fn prop(&self) -> AllocationProp {
        let mut prop = AllocationProp::of(self.backing.device as i32, self.handle_types);
        prop.rdma_capable = self.rdma_capable;
        prop
    }

    /// The name of its file, from which importers know it.
    pub(crate) fn file_name(device: usize, rdma_capable: u8) -> String {
        format!("{PREFIX}{device}:{rdma_capable}")
    }

    /// The device and the flag in what `/proc` calls such a file.
    pub(crate) fn parse_file_name(link: &str) -> Option<(usize, u8)> {
        let (device, flag) = link.strip_prefix("/memfd:")?.strip_prefix(PREFIX)?.split_once(':')?;
        Some((device.parse().ok()?, flag.trim_end_matches(" (deleted)").parse().ok()?))
    }
}

impl World {
    /// Physical memory by its handle, which has to be one not released.
    pub(crate) fn physical(&mut self, symbol: &str, handle: u64) -> Outcome<&mut Physical> {
        let object = self.object(symbol, handle).map_err(|_| code::INVALID_VALUE)?;
        let (device, name) = (object.device, object.name());
        if !matches!(&object.state, State::Physical(physical) if physical.handles > 0) {
            if matches!(object.state, State::Physical(_)) {
                self.violation(device, symbol, format_args!("{name} was released before"));
            }
            return Err(code::INVALID_VALUE);
        }
        Ok(self.mapped_physical(handle).expect("found above"))
    }

    /// The same, if it is there, released or not.
    pub(crate) fn mapped_physical(&mut self, handle: u64) -> Option<&mut Physical> {
        match self.objects.get_mut(&handle).map(|object| &mut object.state) {
            Some(State::Physical(physical)) => Some(physical),
            _ => None,
        }
    }

    /// Forgets it if nobody has its handle and nothing maps it.
    pub(crate) fn settle(&mut self, handle: u64) {
        let unused = |physical: &mut Physical| physical.handles == 0 && physical.mappings == 0;
        if self.mapped_physical(handle).is_some_and(unused) {
            self.remove(handle);
        }
    }
}

const PREFIX: &str = "fake-cuda:vmm:";
