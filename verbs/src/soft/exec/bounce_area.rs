//! A part of our shared mapping through which a request moves that can reach its peer's memory in no other way.

use std::sync::{Arc, Weak};

use crate::soft::control::Link;
use crate::soft::home::Home;

/// A request under way through the bounce area.
#[derive(Debug)]
pub(crate) struct Bouncing {
    /// `None` for atomics, which need none.
    area: Option<Area>,
    pub(super) done: usize,
    pub(super) part: usize,
    pub(super) request: Option<u32>,
}

/// The area, free again when dropped.
#[derive(Debug)]
struct Area {
    /// It may outlive the device, with a peer that does not answer.
    home: Weak<Home>,
    /// Its place in our shared mapping.
    offset: usize,
}

impl Bouncing {
    pub(super) fn new(home: &Arc<Home>, with_area: bool) -> Option<Self> {
        let area =
            if with_area { Some(Area { home: Arc::downgrade(home), offset: home.take_shared(AREA)? }) } else { None };
        Some(Bouncing { area, done: 0, part: 0, request: None })
    }

    /// Offset of the area in our shared mapping, and where it is.
    pub(super) fn area(&self, home: &Home) -> Option<(usize, *mut u8)> {
        let Area { offset, .. } = self.area.as_ref()?;
        // SAFETY: bytes have no invalid pattern; the area is ours and, during a part, the peer's.
        let at = unsafe { home.shared().array::<u8>(*offset, AREA) }?;
        Some((*offset, at.as_ptr()))
    }

    /// Ends it. The area is kept from others as long as the peer may still be about a part of it.
    pub(crate) fn abandon(self, link: &Link) {
        let Bouncing { area, request, .. } = self;
        if let Some(request) = request {
            link.give_up_bounce(request, area.map(|area| Box::new(area) as Box<dyn Send>));
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.give_shared(self.offset, AREA);
        }
    }
}

/// Size of the bounce area: large enough that a part's copying outweighs waking the owner's thread.
pub(in crate::soft) const AREA: usize = 64 << 10;
