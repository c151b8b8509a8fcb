//! Slabs with the application: a queue whose push and pop are a few instructions.

use qpair_verbs::Slab;

use crate::worker::ids::EndpointId;

/// First in, first out. It grows when full, and never shrinks.
#[derive(Debug)]
pub(crate) struct LentRing {
    /// A power of two of them.
    places: Box<[Place]>,
    head: usize,
    len: usize,
}

#[derive(Debug)]
struct Place {
    slab: Option<Slab>,
    /// Whose slot is free once the slab is posted again; `None` if another slab took its place.
    owner: Option<EndpointId>,
}

impl LentRing {
    pub(crate) fn new() -> Self {
        LentRing::with_room(256)
    }

    fn with_room(room: usize) -> Self {
        LentRing { places: (0..room).map(|_| Place { slab: None, owner: None }).collect(), head: 0, len: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The slab that was pushed first.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> Option<&Slab> {
        self.places[self.at(0)].slab.as_ref()
    }

    /// The slab that was pushed last belongs to nobody any more.
    pub(crate) fn disown_newest(&mut self) {
        let at = self.at(self.len.wrapping_sub(1));
        self.places[at].owner = None;
    }

    /// No slab is that connection's any more.
    pub(crate) fn disown(&mut self, owner: EndpointId) {
        for place in self.places.iter_mut().filter(|place| place.owner == Some(owner)) {
            place.owner = None;
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, slab: Slab, owner: Option<EndpointId>) -> &Slab {
        if self.len == self.places.len() {
            self.grow();
        }
        let at = self.at(self.len);
        let place = &mut self.places[at];
        place.owner = owner;
        // Known to be empty: nothing to drop, and no code for it here.
        std::mem::forget(place.slab.take());
        self.len += 1;
        place.slab.insert(slab)
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(Slab, Option<EndpointId>)> {
        let at = self.at(0);
        let place = &mut self.places[at];
        let slab = place.slab.take()?;
        self.head = self.head.wrapping_add(1);
        self.len -= 1;
        Some((slab, place.owner))
    }

    #[inline(always)]
    fn at(&self, ahead: usize) -> usize {
        self.head.wrapping_add(ahead) & (self.places.len() - 1)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut bigger = LentRing::with_room(self.places.len() * 2);
        while let Some((slab, owner)) = self.pop() {
            bigger.push(slab, owner);
        }
        *self = bigger;
    }
}

#[cfg(test)]
mod tests {
    use qpair_verbs::Context;

    use super::*;

    #[test]
    fn it_keeps_the_order_while_it_wraps_and_grows() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let owner = |number| Some(EndpointId { index: number, generation: 0 });
        let mut ring = LentRing::with_room(2);
        let (mut pushed, mut popped) = (0, 0);
        for (pushes, pops) in [(2, 1), (1, 2), (3, 0), (5, 4), (0, 3), (0, 1)] {
            for _ in 0..pushes {
                ring.push(pd.alloc(64).unwrap().into_slab(), owner(pushed));
                pushed += 1;
            }
            for _ in 0..pops {
                assert!(ring.oldest().is_some());
                assert_eq!(ring.pop().unwrap().1, owner(popped));
                popped += 1;
            }
            assert_eq!(ring.len(), (pushed - popped) as usize);
        }
        assert!(ring.pop().is_none() && ring.oldest().is_none());
        ring.push(pd.alloc(64).unwrap().into_slab(), owner(7));
        ring.disown_newest();
        assert_eq!(ring.pop().unwrap().1, None);
    }
}
