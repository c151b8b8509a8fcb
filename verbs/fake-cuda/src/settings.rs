//! What a device claims to be and to be able to do: settings by name and attributes by number, which tests may change to
//! anything.

use std::collections::HashMap;
use std::ffi::c_int;

/// The settings of one device.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    changed: HashMap<&'static str, u64>,
    attributes: HashMap<u32, c_int>,
}

impl Settings {
    /// Those that a device of this ordinal has from the start.
    pub(crate) fn of(ordinal: usize) -> Settings {
        let mut settings = Settings::default();
        // Devices differ in their place on the bus.
        settings.attributes.insert(attribute::PCI_BUS_ID, ordinal as c_int + 1);
        settings
    }

    /// A setting that exists.
    ///
    /// # Panics
    /// If it does not: the name stands in this crate.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_else(|| panic!("no setting is called {name}"))
    }

    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        let (name, default) = DEFAULTS.iter().find(|(known, _)| *known == name)?;
        Some(*self.changed.get(name).unwrap_or(default))
    }

    /// Changes a setting; `None` if there is none of that name.
    pub(crate) fn set(&mut self, name: &str, value: u64) -> Option<()> {
        let (name, _) = DEFAULTS.iter().find(|(known, _)| *known == name)?;
        self.changed.insert(name, value);
        Some(())
    }

    /// An attribute; `None` if it was neither set nor has a value from the start.
    pub(crate) fn find_attribute(&self, number: u32) -> Option<c_int> {
        let from_start = || ATTRIBUTES.iter().find(|(known, _)| *known == number).map(|(_, value)| *value);
        self.attributes.get(&number).copied().or_else(from_start)
    }

    /// An attribute; 0 where there is none.
    pub(crate) fn attribute(&self, number: u32) -> c_int {
        self.find_attribute(number).unwrap_or(0)
    }

    pub(crate) fn set_attribute(&mut self, number: u32, value: c_int) {
        self.attributes.insert(number, value);
    }

    /// The compute capability, as `sm_90` counts it.
    pub(crate) fn capability(&self) -> u32 {
        (self.attribute(attribute::CAPABILITY_MAJOR) * 10 + self.attribute(attribute::CAPABILITY_MINOR)) as u32
    }
}

/// Numbers of `CUdevice_attribute` that this crate looks at.
pub(crate) mod attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(crate) const MAX_BLOCK_DIM_X: u32 = 2;
    pub(crate) const MAX_GRID_DIM_X: u32 = 5;
    pub(crate) const MAX_SHARED_MEMORY: u32 = 8;
    pub(crate) const PCI_BUS_ID: u32 = 33;
    pub(crate) const PCI_DEVICE_ID: u32 = 34;
    pub(crate) const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
    pub(crate) const PCI_DOMAIN_ID: u32 = 50;
    pub(crate) const CAPABILITY_MAJOR: u32 = 75;
    pub(crate) const CAPABILITY_MINOR: u32 = 76;
    pub(crate) const PAGEABLE_MEMORY_ACCESS: u32 = 88;
    pub(crate) const CAN_FLUSH_REMOTE_WRITES: u32 = 98;
    pub(crate) const HOST_REGISTER_SUPPORTED: u32 = 99;
    pub(crate) const VMM_SUPPORTED: u32 = 102;
    pub(crate) const POSIX_FD_SUPPORTED: u32 = 103;
    pub(crate) const RDMA_WITH_VMM_SUPPORTED: u32 = 110;
    pub(crate) const RDMA_SUPPORTED: u32 = 116;
    pub(crate) const RDMA_FLUSH_OPTIONS: u32 = 117;
    pub(crate) const STREAM_WAIT_VALUE_64: u32 = 122;
    pub(crate) const STREAM_WAIT_VALUE_NOR: u32 = 123;
    pub(crate) const DMA_BUF_SUPPORTED: u32 = 124;
}

/// Each setting with the value it has from the start.
const DEFAULTS: &[(&str, u64)] = &[
    // Bytes of device memory.
    ("memory", 1 << 30),
    // The query of a stream or event that finds it done, counted from when it was given something to do; 0 has all done
    // before the call that asks for it returns.
    ("queries", 2),
    // Whether a copy to host memory that is not pinned is done before the call returns, as the driver's documentation has
    // it and safe bindings rely on. With 0 it waits in the stream as any other.
    ("pageable_waits", 1),
    // Where in its pages an allocation begins. The real driver places small ones anywhere at a multiple of 512.
    ("alloc_offset", 0),
    // What sizes and addresses of virtual memory management are multiples of.
    ("granularity", 2 << 20),
    // Whether another library captures a graph, in CUDA's global mode, in this device's context: what is not safe then is refused to
    // threads that have not said that they know.
    ("capturing", 0),
    // Whether other devices can access this one's memory and this one theirs.
    ("peer", 1),
];

/// The attributes with a value from the start, which are those of a large device of capability 9.0.
const ATTRIBUTES: &[(u32, c_int)] = &[
    (attribute::MAX_THREADS_PER_BLOCK, 1024),
    (attribute::MAX_BLOCK_DIM_X, 1024),
    (3, 1024),
    (4, 64),
    (attribute::MAX_GRID_DIM_X, c_int::MAX),
    (6, 65535),
    (7, 65535),
    (attribute::MAX_SHARED_MEMORY, 49152),
    (9, 65536),
    // Warp size, registers, clock in kHz.
    (10, 32),
    (12, 65536),
    (13, 1_755_000),
    // Multiprocessors, whether integrated, whether host memory can be mapped, compute mode.
    (16, 132),
    (18, 0),
    (19, 1),
    (20, 0),
    (31, 1),
    (32, 1),
    (attribute::PCI_DEVICE_ID, 0),
    // Bytes of the second cache.
    (38, 50 << 20),
    (attribute::MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    // Copy engines, unified addressing.
    (40, 3),
    (41, 1),
    (attribute::PCI_DOMAIN_ID, 0),
    (attribute::CAPABILITY_MAJOR, 9),
    (attribute::CAPABILITY_MINOR, 0),
    (78, 1),
    (81, 228 << 10),
    (82, 65536),
    (83, 0),
    (attribute::PAGEABLE_MEMORY_ACCESS, 0),
    (90, 1),
    (91, 1),
    (95, 1),
    (97, 227 << 10),
    (attribute::CAN_FLUSH_REMOTE_WRITES, 1),
    (attribute::HOST_REGISTER_SUPPORTED, 1),
    (100, 0),
    (attribute::VMM_SUPPORTED, 1),
    (attribute::POSIX_FD_SUPPORTED, 1),
    (104, 0),
    (105, 0),
    (106, 32),
    (attribute::RDMA_WITH_VMM_SUPPORTED, 1),
    // Memory pools, which the fake does not have.
    (115, 0),
    (attribute::RDMA_SUPPORTED, 1),
    // Flushes by the host and by streams; writes are ordered for nobody without one.
    (attribute::RDMA_FLUSH_OPTIONS, 3),
    (118, 0),
    (119, 0),
    (attribute::STREAM_WAIT_VALUE_64, 1),
    (attribute::STREAM_WAIT_VALUE_NOR, 1),
    (attribute::DMA_BUF_SUPPORTED, 1),
];
