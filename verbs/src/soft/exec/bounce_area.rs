//! A part of our shared mapping through which a request moves that can reach its peer's memory in no other way.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::soft::control::Link;
use crate::soft::home::Home;

/// A request under way through the bounce area.
#[derive(Debug)]
pub(crate) struct Bouncing {
    home: Arc<Home>,
    /// Offset of the area in our shared mapping; `None` for atomics, which need none.
    pub(super) area: Option<usize>,
    pub(super) done: usize,
    pub(super) part: usize,
    pub(super) request: Option<u32>,
}

impl Bouncing {
    pub(super) fn new(home: &Arc<Home>, with_area: bool) -> Option<Self> {
        let area = if with_area { Some(home.take_shared(AREA)?) } else { None };
        Some(Bouncing { home: home.clone(), area, done: 0, part: 0, request: None })
    }

    pub(super) fn area_ptr(&self) -> Option<*mut u8> {
        // SAFETY: bytes have no invalid pattern; the area is ours and, during a part, the peer's.
        unsafe { self.home.shared().array::<u8>(self.area?, AREA) }.map(NonNull::as_ptr)
    }

    /// Ends it. The area is kept from others for good if the peer may still be writing it.
    pub(crate) fn abandon(self, link: &Link) {
        match (self.request, self.area) {
            (Some(request), _) if !link.is_dead() => link.forget_bounce(request),
            (_, Some(area)) => self.home.give_shared(area, AREA),
            (_, None) => {}
        }
    }
}

/// Size of the bounce area: large enough that a part's copying outweighs waking the owner's thread.
pub(super) const AREA: usize = 64 << 10;
