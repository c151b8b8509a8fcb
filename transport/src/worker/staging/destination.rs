//! The memory that a payload is read into, piece by piece.

use qpair_verbs::{DividedMemory, Gpu, GpuBuffer, Local};

/// The memory that a payload is read into.
#[derive(Debug)]
pub(super) enum Destination {
    /// A GPU's: pieces are read into slots, which the GPU drains.
    Gpu(GpuBuffer),
    /// Each piece that is being read has a part of it.
    Divided(DividedMemory),
    /// Memory that can not be divided: it is the device's while a piece is being read.
    Whole(Local),
}

impl Destination {
    pub(super) fn of(memory: Local) -> Destination {
        match memory {
            Local::Gpu(buffer) => Destination::Gpu(buffer),
            memory => DividedMemory::of(memory).map_or_else(Destination::Whole, Destination::Divided),
        }
    }

    pub(super) fn gpu(&self) -> Option<Gpu> {
        match self {
            Destination::Gpu(buffer) => Some(buffer.gpu()),
            Destination::Divided(_) | Destination::Whole(_) => None,
        }
    }

    /// What a piece was read into is back from the device: a part, or all.
    pub(super) fn take_back(&mut self, memory: Local) {
        if let Destination::Whole(own) = self {
            *own = memory;
        }
    }

    /// The memory as it came. `None` while a device has a part of it.
    pub(super) fn into_local(self) -> Option<Local> {
        match self {
            Destination::Gpu(buffer) => Some(Local::Gpu(buffer)),
            Destination::Divided(memory) => memory.join().ok(),
            Destination::Whole(memory) => Some(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use qpair_verbs::Context;

    use super::*;

    #[test]
    fn memory_is_given_back_once_no_device_has_a_part_of_it() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        for is_out in [false, true] {
            let Destination::Divided(memory) = Destination::of(pd.alloc(64).unwrap().into()) else {
                panic!("a buffer can be divided")
            };
            let part = Some(memory.part(0..32)).filter(|_| is_out);
            let back = Destination::Divided(memory).into_local();
            assert_eq!(back.map(|memory| memory.len()), (!is_out).then_some(64));
            drop(part);
        }
    }

    #[test]
    fn memory_that_can_not_be_divided_is_lent_as_a_whole() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let buffers = [pd.alloc(8).unwrap(), pd.alloc(8).unwrap()];
        let mut memory = Destination::of(Vec::from(buffers).into());
        let Destination::Whole(lent) = &mut memory else { panic!("there are two") };
        let lent = std::mem::take(lent);
        memory.take_back(lent);
        assert_eq!(memory.into_local().map(|memory| memory.len()), Some(16));
    }
}
