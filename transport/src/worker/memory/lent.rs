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
    /// Whose message it has, if it is a connection's.
    owner: Option<EndpointId>,
    /// Another slab took its place. Else a slot of the owner is free once it is posted again.
    made_up: bool,
}

/// A slab that was with the application.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) slab: Slab,
    pub(crate) owner: Option<EndpointId>,
    pub(crate) made_up: bool,
}

impl LentRing {
    pub(crate) fn new() -> Self {
        LentRing::with_room(256)
    }

    fn with_room(room: usize) -> Self {
        LentRing {
            places: (0..room).map(|_| Place { slab: None, owner: None, made_up: false }).collect(),
            head: 0,
            len: 0,
        }
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

    /// Another slab takes the place of the one that was pushed last.
    pub(crate) fn make_up_newest(&mut self) {
        let at = self.at(self.len.wrapping_sub(1));
        self.places[at].made_up = true;
    }

    /// Others take the place of all slabs of that connection. How many had it.
    pub(crate) fn make_up_all(&mut self, owner: EndpointId) -> u32 {
        let mut count = 0;
        for place in self.places.iter_mut().filter(|place| place.slab.is_some() && place.owner == Some(owner)) {
            count += u32::from(!std::mem::replace(&mut place.made_up, true));
        }
        count
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, Lent { slab, owner, made_up }: Lent) -> &Slab {
        if self.len == self.places.len() {
            self.grow();
        }
        let at = self.at(self.len);
        let place = &mut self.places[at];
        (place.owner, place.made_up) = (owner, made_up);
        // Known to be empty: nothing to drop, and no code for it here.
        std::mem::forget(place.slab.take());
        self.len += 1;
        place.slab.insert(slab)
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Lent> {
        let at = self.at(0);
        let place = &mut self.places[at];
        let slab = place.slab.take()?;
        self.head = self.head.wrapping_add(1);
        self.len -= 1;
        Some(Lent { slab, owner: place.owner, made_up: place.made_up })
    }

    #[inline(always)]
    fn at(&self, ahead: usize) -> usize {
        self.head.wrapping_add(ahead) & (self.places.len() - 1)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut bigger = LentRing::with_room(self.places.len() * 2);
        while let Some(lent) = self.pop() {
            bigger.push(lent);
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
        let lent = |owner| Lent { slab: pd.alloc(64).unwrap().into_slab(), owner, made_up: false };
        let mut ring = LentRing::with_room(2);
        let (mut pushed, mut popped) = (0, 0);
        for (pushes, pops) in [(2, 1), (1, 2), (3, 0), (5, 4), (0, 3), (0, 1)] {
            for _ in 0..pushes {
                ring.push(lent(owner(pushed)));
                pushed += 1;
            }
            for _ in 0..pops {
                assert!(ring.oldest().is_some());
                assert_eq!(ring.pop().unwrap().owner, owner(popped));
                popped += 1;
            }
            assert_eq!(ring.len(), (pushed - popped) as usize);
        }
        assert!(ring.pop().is_none() && ring.oldest().is_none());
        ring.push(lent(owner(7)));
        ring.push(lent(owner(8)));
        ring.make_up_newest();
        let seven = EndpointId { index: 7, generation: 0 };
        assert_eq!([ring.make_up_all(seven), ring.make_up_all(seven)], [1, 0]);
        let ends = [(); 2].map(|()| ring.pop().map(|lent| (lent.owner, lent.made_up)));
        assert_eq!(ends, [Some((owner(7), true)), Some((owner(8), true))]);
    }
}
