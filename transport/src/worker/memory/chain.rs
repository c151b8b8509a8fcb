//! Places in the order that they were put in, any of which can be taken out at once.

/// A list of places. Each is in it once at most.
#[derive(Debug)]
pub(super) struct Chain {
    /// The places before and behind each that is in it.
    links: Vec<(u32, u32)>,
    first: u32,
    last: u32,
}

impl Chain {
    pub(super) fn new() -> Self {
        Chain { links: Vec::new(), first: NONE, last: NONE }
    }

    /// The place that was put in first.
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts a place in, which is not in it, behind all others.
    pub(super) fn push(&mut self, place: u32) {
        if self.links.len() <= place as usize {
            self.links.resize(place as usize + 1, (NONE, NONE));
        }
        self.links[place as usize] = (self.last, NONE);
        self.join(self.last, place);
        self.last = place;
    }

    /// Takes a place out, which is in it.
    pub(super) fn remove(&mut self, place: u32) {
        let (before, behind) = self.links[place as usize];
        self.join(before, behind);
        if behind == NONE {
            self.last = before;
        } else {
            self.links[behind as usize].0 = before;
        }
    }

    /// `behind` comes next after `before`.
    fn join(&mut self, before: u32, behind: u32) {
        match self.links.get_mut(before as usize) {
            Some(link) => link.1 = behind,
            None => self.first = behind,
        }
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn all(chain: &mut Chain) -> Vec<u32> {
        std::iter::from_fn(|| chain.first().inspect(|&first| chain.remove(first))).collect()
    }

    #[test]
    fn places_come_in_their_order_whichever_are_taken_out() {
        let mut chain = Chain::new();
        assert_eq!(chain.first(), None);
        for gone in 0..5 {
            [3, 0, 7, 1, 2].into_iter().for_each(|place| chain.push(place));
            let left: Vec<_> = [3, 0, 7, 1, 2].into_iter().filter(|&place| place != [3, 0, 7, 1, 2][gone]).collect();
            chain.remove([3, 0, 7, 1, 2][gone]);
            assert_eq!(all(&mut chain), left);
        }
        chain.push(7);
        chain.push(0);
        chain.remove(0);
        chain.push(0);
        chain.remove(7);
        chain.push(7);
        assert_eq!(all(&mut chain), [0, 7]);
    }
}
