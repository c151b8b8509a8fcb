//! Queue pairs by number: one look at a place that the number's lowest bits name.

use crate::types::Qpn;

/// Things by number. No two of them agree in as many of the lowest bits as there are places.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// As many as a power of two.
    places: Vec<Option<(Qpn, T)>>,
    count: usize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Table { places: std::iter::repeat_with(|| None).take(FEWEST).collect(), count: 0 }
    }

    /// Adds something under a number of `random`, which is asked until one is free.
    pub(super) fn add(&mut self, mut random: impl FnMut() -> u32, make: impl FnOnce(Qpn) -> T) -> Option<Qpn> {
        if self.count * 2 >= MOST {
            return None;
        }
        if self.count * 2 >= self.places.len() {
            self.grow();
        }
        let mut qpn = Qpn(random() & MASK);
        // At least half of all places are free.
        for _ in 0..ATTEMPTS {
            let place = self.place(qpn);
            if (RESERVED..MASK).contains(&qpn.0) && self.places.get(place).is_some_and(Option::is_none) {
                self.places[place] = Some((qpn, make(qpn)));
                self.count += 1;
                return Some(qpn);
            }
            qpn = Qpn(random() & MASK);
        }
        None
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<T> {
        let place = self.place(qpn);
        let (_, removed) = self.places.get_mut(place)?.take_if(|(number, _)| *number == qpn)?;
        self.count -= 1;
        Some(removed)
    }

    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&T> {
        match self.places.get(self.place(qpn)) {
            Some(Some((number, found))) if *number == qpn => Some(found),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        let place = self.place(qpn);
        match self.places.get_mut(place) {
            Some(Some((number, found))) if *number == qpn => Some(found),
            _ => None,
        }
    }

    #[inline]
    fn place(&self, qpn: Qpn) -> usize {
        qpn.0 as usize & (self.places.len() - 1)
    }

    /// Twice as many places. What differs in the lowest bits before, does so in one more.
    fn grow(&mut self) {
        let more = std::iter::repeat_with(|| None).take(self.places.len() * 2).collect();
        for (qpn, thing) in std::mem::replace(&mut self.places, more).into_iter().flatten() {
            let place = self.place(qpn);
            self.places[place] = Some((qpn, thing));
        }
    }
}

const FEWEST: usize = 16;
/// Places at most; half of them are taken.
const MOST: usize = 1 << 20;
/// Numbers of management, 0 and 1; 0xffffff is that of multicast. IBA 10.2.4.
const RESERVED: u32 = 2;
const MASK: u32 = 0x00ff_ffff;
/// With half of the places free, all of so many random numbers are taken once in 10^19 times.
const ATTEMPTS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_number_alone() {
        let mut table = Table::new();
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let numbers: Vec<_> = (0..1000).map(|at| table.add(&mut random, |qpn| (qpn, at)).unwrap()).collect();
        for (at, qpn) in numbers.iter().enumerate() {
            assert_eq!(table.get(*qpn), Some(&(*qpn, at)));
            assert_eq!(table.get(Qpn(qpn.0 ^ 1 << 23)), None, "the same place, another number");
        }
        for qpn in &numbers[..500] {
            assert!(table.remove(*qpn).is_some() && table.remove(*qpn).is_none() && table.get(*qpn).is_none());
        }
        assert_eq!(table.count, 500);
    }

    #[test]
    fn reserved_numbers_are_not_given_out() {
        let mut table = Table::new();
        let mut asked = [0, 1, 0x00ff_ffff, 5, 5, 7].into_iter();
        let mut next = || asked.next().unwrap();
        assert_eq!([(); 2].map(|()| table.add(&mut next, |_| ())), [Some(Qpn(5)), Some(Qpn(7))]);
        assert_eq!(table.add(|| 5, |_| ()), None, "nothing else to be had");
    }
}
