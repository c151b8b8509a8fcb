//! Things by queue pair number: open addressing, from a place that the number names.
//! Numbers that follow a rule, such as equal lowest bits, are spread all the same.

use std::fmt;

use crate::types::Qpn;

/// Things by queue pair number. Looking one up is a look at one or two places.
///
/// ```
/// use qpair_roce::{AddError, NumberTable, Qpn};
///
/// let mut names = NumberTable::new();
/// names.add(Qpn(0x1234), "east")?;
/// names.add(Qpn(0x1274), "west")?;
/// assert_eq!(names.add(Qpn(0x1234), "north"), Err(AddError::Taken));
/// assert_eq!((names.get(Qpn(0x1274)), names.len()), (Some(&"west"), 2));
/// assert_eq!(names.remove(Qpn(0x1234)), Some("east"));
/// assert!(names.iter().eq([(Qpn(0x1274), &"west")]));
/// # Ok::<_, AddError>(())
/// ```
pub struct NumberTable<T> {
    /// As many as a power of two, and at least half of them free. A thing is at its home, or behind it with none free between.
    places: Vec<Option<(Qpn, T)>>,
    count: usize,
}

/// Why a queue pair number can not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// It is 0 or 1, of management, or 0xffffff, of multicast, or has more than 24 bits. IBA 10.2.4.
    #[error("the queue pair number is reserved; take one of 2 to 0xfffffe")]
    Reserved,
    /// It is there already.
    #[error("the queue pair number is taken; take another")]
    Taken,
    /// There are as many as there can be.
    #[error("there are as many queue pairs as there can be, {}; remove one first", MOST)]
    Full,
}

impl<T> NumberTable<T> {
    /// Without things.
    pub fn new() -> Self {
        NumberTable { places: free(FEWEST), count: 0 }
    }

    /// Adds a thing.
    ///
    /// # Errors
    /// [`AddError`]: it is not taken.
    pub fn add(&mut self, qpn: Qpn, thing: T) -> Result<(), AddError> {
        if !(RESERVED..MULTICAST).contains(&qpn.0) {
            return Err(AddError::Reserved);
        }
        if self.find(qpn).is_ok() {
            return Err(AddError::Taken);
        }
        if self.count >= MOST {
            return Err(AddError::Full);
        }
        if (self.count + 1) * 2 > self.places.len() {
            self.grow();
        }
        self.put(qpn, thing);
        self.count += 1;
        Ok(())
    }

    /// Removes a thing.
    pub fn remove(&mut self, qpn: Qpn) -> Option<T> {
        let mut hole = self.find(qpn).ok()?;
        let (_, removed) = self.places[hole].take()?;
        self.count -= 1;
        // What is found by way of the hole moves there, and leaves another.
        let mut at = self.after(hole);
        while let Some((number, _)) = &self.places[at] {
            if self.steps(self.home(*number), at) >= self.steps(hole, at) {
                self.places.swap(hole, at);
                hole = at;
            }
            at = self.after(at);
        }
        Some(removed)
    }

    /// A thing.
    #[inline]
    pub fn get(&self, qpn: Qpn) -> Option<&T> {
        let place = self.find(qpn).ok()?;
        self.places[place].as_ref().map(|(_, thing)| thing)
    }

    /// A thing.
    #[inline]
    pub fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        let place = self.find(qpn).ok()?;
        self.places[place].as_mut().map(|(_, thing)| thing)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Qpn, &T)> {
        self.places.iter().flatten().map(|(qpn, thing)| (*qpn, thing))
    }

    /// Where a number is, or else the free place that the search for it ends at.
    #[inline]
    fn find(&self, qpn: Qpn) -> Result<usize, usize> {
        let mut place = self.home(qpn);
        loop {
            match &self.places[place] {
                Some((number, _)) if *number == qpn => return Ok(place),
                Some(_) => place = self.after(place),
                None => return Err(place),
            }
        }
    }

    /// Puts a thing that is not there where it is found.
    fn put(&mut self, qpn: Qpn, thing: T) {
        let (Ok(place) | Err(place)) = self.find(qpn);
        self.places[place] = Some((qpn, thing));
    }

    fn grow(&mut self) {
        let more = free(self.places.len() * 2);
        for (qpn, thing) in std::mem::replace(&mut self.places, more).into_iter().flatten() {
            self.put(qpn, thing);
        }
    }

    /// The place where the search for a number begins: the highest bits of a product that all bits of the number count in.
    #[inline]
    fn home(&self, qpn: Qpn) -> usize {
        (qpn.0.wrapping_mul(GOLDEN) >> (u32::BITS - self.places.len().trailing_zeros())) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Places from one to another, the way that a search goes.
    fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.places.len() - 1)
    }
}

impl<T> Default for NumberTable<T> {
    fn default() -> Self {
        NumberTable::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for NumberTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn free<T>(places: usize) -> Vec<Option<(Qpn, T)>> {
    std::iter::repeat_with(|| None).take(places).collect()
}

const FEWEST: usize = 16;
/// Things at most.
const MOST: usize = 1 << 19;
/// Numbers of management are below.
const RESERVED: u32 = 2;
const MULTICAST: u32 = 0x00ff_ffff;
/// 2^32 over the golden ratio, as an odd number: Fibonacci hashing (Knuth, volume 3, 6.4).
const GOLDEN: u32 = 0x9e37_79b1;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_as_a_hash_map(ops in prop::collection::vec((0u8..4, 2u32..200, any::<bool>()), 0..400)) {
            let (mut table, mut model) = (NumberTable::new(), HashMap::new());
            for (at, (op, number, is_far)) in ops.into_iter().enumerate() {
                // Numbers of one process agree in their lowest bits; some are far apart.
                let qpn = Qpn(if is_far { number << 15 | 5 } else { number << 6 | 5 });
                if op > 0 {
                    let expected = if model.contains_key(&qpn) { Err(AddError::Taken) } else { Ok(()) };
                    prop_assert_eq!(table.add(qpn, at), expected);
                    model.entry(qpn).or_insert(at);
                } else {
                    prop_assert_eq!(table.remove(qpn), model.remove(&qpn));
                }
                prop_assert_eq!((table.get(qpn), table.len()), (model.get(&qpn), model.len()));
            }
            prop_assert_eq!(table.iter().map(|(qpn, at)| (qpn, *at)).collect::<HashMap<_, _>>(), model.clone());
            for (qpn, at) in &mut model {
                prop_assert_eq!(table.get_mut(*qpn), Some(at));
            }
        }
    }

    #[test]
    fn numbers_that_follow_a_rule_are_near_their_homes() {
        for step in [1, 2, 3, 16, 64, 192, 256, 512, 1024, 2048] {
            let mut table = NumberTable::new();
            for count in 0..8190 {
                table.add(Qpn(2 + count * step), ()).unwrap();
            }
            let behind = table.iter().map(|(qpn, ())| table.steps(table.home(qpn), table.find(qpn).unwrap()));
            let (sum, most) = behind.fold((0, 0), |(sum, most), steps| (sum + steps, most.max(steps)));
            assert!(sum < 2 * 8190 && most < 8, "step {step}: {sum} in all, {most} at most");
        }
    }

    #[test]
    fn it_is_full_at_last_and_has_room_again() {
        let mut table = NumberTable::new();
        for count in 0..MOST as u32 {
            table.add(Qpn(2 + count), ()).unwrap();
        }
        assert_eq!(table.add(Qpn(2), ()), Err(AddError::Taken));
        let next = Qpn(0x00ff_fffe);
        assert_eq!(table.add(next, ()), Err(AddError::Full));
        assert_eq!((table.remove(Qpn(7)), table.add(next, ()), table.len()), (Some(()), Ok(()), MOST));
    }
}
