//! A sequence kept short: where records repeat, each time as much further as the time before, as loops.
//!
//! What regular algorithms do to thousands of ranks is a few loops, whatever the number of ranks. Nothing is lost: a loop is
//! only made of records, and goes on with records, that are to the bit what it says. What is no loop is kept as it is.

use std::fmt::Debug;
use std::hash::Hash;

use super::deps::Deps;

/// A record of which some are others moved on.
pub(super) trait Repeats: Copy + Eq {
    /// How far one is from another.
    type Stride: Copy + Eq + Hash + Debug;

    /// What most of them are kept as.
    type Packed: Copy + Eq + Hash + Debug;

    /// As it is kept; `None` if it is one of those that can not be kept so.
    fn pack(&self) -> Option<Self::Packed>;

    /// What was kept.
    fn unpack(packed: &Self::Packed) -> Self;

    /// How far it is from here to `next`; `None` if that is no other record moved on.
    fn stride(&self, next: &Self) -> Option<Self::Stride>;

    /// The record so many strides from here.
    fn moved(&self, by: &Self::Stride, times: u32) -> Self;
}

/// Records, each with a list of numbers. Equal sequences are kept alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Loops<R: Repeats> {
    len: u32,
    sections: Vec<Section>,
    singles: Vec<Single<R>>,
    /// Those of singles, one after the other.
    lists: Vec<u32>,
    /// Singles that can not be packed.
    wide: Vec<R>,
    bodies: Vec<Body<R>>,
    /// Those of bodies, one after the other: each the numbers of the first time, and then how far each of them moves from one
    /// time to the next.
    body_lists: Vec<u32>,
}

/// Some records in a row, up to where the next section begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Section {
    first: u32,
    /// Where they begin in `singles`, or in `bodies`.
    start: u32,
    /// Records of a loop's body; 0 for singles.
    period: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Single<R: Repeats> {
    record: Kept<R>,
    /// Where its list begins; it ends where the next one's begins.
    list: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kept<R: Repeats> {
    Packed(R::Packed),
    /// Which of `wide` it is.
    Wide(u32),
}

/// A record of a loop's body: what it is the first time, and how far it moves from one time to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Body<R: Repeats> {
    record: R,
    by: R::Stride,
    /// Where its list begins, and how long it is.
    list: u32,
    listed: u32,
}

/// Records of a loop's body, at most. Hierarchical algorithms among nodes of sixteen ranks repeat after 32 to 34 steps.
const LONGEST: usize = 36;

/// Records that a loop stands for, at least, and times: so that loops within the body of another are left to that, and no
/// loop takes more memory than its records would.
const FEWEST: usize = 18;
const FEWEST_TIMES: usize = 3;

impl<R: Repeats> Default for Loops<R> {
    fn default() -> Self {
        Self {
            len: 0,
            sections: Vec::new(),
            singles: Vec::new(),
            lists: Vec::new(),
            wide: Vec::new(),
            bodies: Vec::new(),
            body_lists: Vec::new(),
        }
    }
}

impl<R: Repeats> Loops<R> {
    /// Appends a record and its list.
    pub(super) fn push(&mut self, record: R, list: &[u32]) {
        let at = self.len;
        self.len += 1;
        match self.sections.last() {
            Some(section) if section.period == 0 => {}
            Some(section) if self.goes_on(section, at, &record, list) => return,
            _ => self.sections.push(Section { first: at, start: self.singles.len() as u32, period: 0 }),
        }
        let record = match record.pack() {
            Some(packed) => Kept::Packed(packed),
            None => {
                self.wide.push(record);
                Kept::Wide(self.wide.len() as u32 - 1)
            }
        };
        self.singles.push(Single { record, list: self.lists.len() as u32 });
        self.lists.extend_from_slice(list);
        self.fold();
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The record at a place; `None` past the end.
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<(R, Deps<'_>)> {
        if at >= self.len {
            return None;
        }
        let section = match &self.sections[..] {
            [only] => only,
            all => &all[all.partition_point(|section| section.first <= at) - 1],
        };
        let after = at - section.first;
        Some(if section.period == 0 {
            self.single(section.start + after)
        } else {
            self.in_loop(section.start + after % section.period, after / section.period)
        })
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> Iter<'_, R> {
        let section = self.sections.first().copied().unwrap_or(Section { first: 0, start: 0, period: 0 });
        Iter { loops: self, at: 0, number: 0, section, end: self.end(0), turn: 0, place: 0 }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.sections.capacity() * size_of::<Section>()
            + self.singles.capacity() * size_of::<Single<R>>()
            + self.lists.capacity() * size_of::<u32>()
            + self.wide.capacity() * size_of::<R>()
            + self.bodies.capacity() * size_of::<Body<R>>()
            + self.body_lists.capacity() * size_of::<u32>()
    }

    /// Gives back memory that is kept for more to come.
    pub(super) fn shrink(&mut self) {
        self.sections.shrink_to_fit();
        self.singles.shrink_to_fit();
        self.lists.shrink_to_fit();
        self.wide.shrink_to_fit();
        self.bodies.shrink_to_fit();
        self.body_lists.shrink_to_fit();
    }

    /// Where a section ends.
    fn end(&self, section: usize) -> u32 {
        self.sections.get(section + 1).map_or(self.len, |next| next.first)
    }

    #[inline]
    fn single(&self, at: u32) -> (R, Deps<'_>) {
        (self.record(at as usize), Deps::listed(self.list(at as usize)))
    }

    #[inline]
    fn record(&self, single: usize) -> R {
        match &self.singles[single].record {
            Kept::Packed(packed) => R::unpack(packed),
            Kept::Wide(at) => self.wide[*at as usize],
        }
    }

    #[inline]
    fn in_loop(&self, at: u32, turn: u32) -> (R, Deps<'_>) {
        let body = &self.bodies[at as usize];
        let (start, listed) = (body.list as usize, body.listed as usize);
        let (numbers, by) = self.body_lists[start..start + 2 * listed].split_at(listed);
        (body.record.moved(&body.by, turn), Deps::moved(numbers, by, turn))
    }

    /// Whether the loop at the end says that this comes next.
    fn goes_on(&self, section: &Section, at: u32, record: &R, list: &[u32]) -> bool {
        let after = at - section.first;
        let (said, numbers) = self.in_loop(section.start + after % section.period, after / section.period);
        said == *record && numbers == *list
    }

    /// Makes a loop of the last singles, if they are one.
    fn fold(&mut self) {
        let Some(section) = self.sections.last().copied() else { return };
        let count = self.singles.len() - section.start as usize;
        for period in 1..=LONGEST {
            let times = FEWEST_TIMES.max(FEWEST.div_ceil(period));
            if times * period > count {
                // Longer ones take as many records, or more.
                if FEWEST_TIMES * period >= FEWEST {
                    return;
                }
                continue;
            }
            if self.repeats(period, times) {
                self.make_loop(section, period, times);
                return;
            }
        }
    }

    /// Whether the last `times * period` singles are a loop.
    fn repeats(&self, period: usize, times: usize) -> bool {
        let len = self.singles.len();
        (0..period).all(|back| {
            let last = len - 1 - back;
            let Some(stride) = self.stride(last - period, last) else { return false };
            (1..times - 1).all(|turn| {
                let next = last - turn * period;
                self.stride(next - period, next) == Some(stride)
                    && self.lists_by(next - period, next).eq(self.lists_by(last - period, last))
            })
        })
    }

    /// How far it is from one single to another with as long a list.
    #[inline]
    fn stride(&self, from: usize, to: usize) -> Option<R::Stride> {
        if self.list(from).len() != self.list(to).len() {
            return None;
        }
        self.record(from).stride(&self.record(to))
    }

    /// How far it is from each number of one single's list to the other's.
    fn lists_by(&self, from: usize, to: usize) -> impl Iterator<Item = u32> + '_ {
        self.list(from).iter().zip(self.list(to)).map(|(from, to)| to.wrapping_sub(*from))
    }

    #[inline]
    fn list(&self, single: usize) -> &[u32] {
        let end = self.singles.get(single + 1).map_or(self.lists.len(), |next| next.list as usize);
        &self.lists[self.singles[single].list as usize..end]
    }

    fn make_loop(&mut self, section: Section, period: usize, times: usize) {
        let (base, start) = (self.singles.len() - period * times, self.bodies.len() as u32);
        for at in base..base + period {
            let Some(by) = self.stride(at, at + period) else { return };
            let (list, record) = (self.body_lists.len() as u32, self.record(at));
            let numbers = [self.list(at), &self.lists_by(at, at + period).collect::<Vec<_>>()].concat();
            let listed = numbers.len() as u32 / 2;
            self.body_lists.extend(numbers);
            self.bodies.push(Body { record, by, list, listed });
        }
        self.lists.truncate(self.singles[base].list as usize);
        let wide = self.singles[base..].iter().find_map(|single| match single.record {
            Kept::Wide(at) => Some(at as usize),
            Kept::Packed(_) => None,
        });
        self.wide.truncate(wide.unwrap_or(self.wide.len()));
        self.singles.truncate(base);
        if base == section.start as usize {
            self.sections.pop();
        }
        self.sections.push(Section { first: self.len - (period * times) as u32, start, period: period as u32 });
    }
}

/// Goes through [`Loops`].
#[derive(Debug, Clone)]
pub(super) struct Iter<'a, R: Repeats> {
    loops: &'a Loops<R>,
    at: u32,
    /// The section, its number and its end, and where in it.
    section: Section,
    number: usize,
    end: u32,
    turn: u32,
    place: u32,
}

impl<'a, R: Repeats> Iterator for Iter<'a, R> {
    type Item = (R, Deps<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.end {
            self.section = *self.loops.sections.get(self.number + 1)?;
            self.number += 1;
            (self.end, self.turn, self.place) = (self.loops.end(self.number), 0, 0);
        }
        self.at += 1;
        let at = self.section.start + self.place;
        self.place += 1;
        if self.section.period == 0 {
            return Some(self.loops.single(at));
        }
        let item = self.loops.in_loop(at, self.turn);
        if self.place == self.section.period {
            (self.place, self.turn) = (0, self.turn + 1);
        }
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.loops.len - self.at) as usize;
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Repeats for (bool, u32) {
        type Stride = u32;
        type Packed = (bool, u16);

        fn pack(&self) -> Option<(bool, u16)> {
            Some((self.0, u16::try_from(self.1).ok()?))
        }

        fn unpack(packed: &(bool, u16)) -> Self {
            (packed.0, packed.1.into())
        }

        fn stride(&self, next: &Self) -> Option<u32> {
            (self.0 == next.0).then(|| next.1.wrapping_sub(self.1))
        }

        fn moved(&self, by: &u32, times: u32) -> Self {
            (self.0, self.1.wrapping_add(by.wrapping_mul(times)))
        }
    }

    type Record = (bool, u32);

    fn kept(records: &[(Record, Vec<u32>)]) -> Loops<Record> {
        let mut loops = Loops::default();
        for (number, (record, list)) in records.iter().enumerate() {
            loops.push(*record, list);
            assert_eq!(loops.len() as usize, number + 1);
        }
        for (at, (record, list)) in (0..).zip(records) {
            let (found, numbers) = loops.get(at).unwrap();
            assert_eq!((found, numbers.to_vec()), (*record, list.clone()), "{at}");
        }
        assert!(loops.get(loops.len()).is_none());
        loops.shrink();
        let all: Vec<_> = loops.iter().map(|(record, list)| (record, list.to_vec())).collect();
        assert_eq!(all, records);
        assert_eq!(loops.iter().size_hint(), (records.len(), Some(records.len())));
        loops
    }

    #[test]
    fn what_is_regular_takes_the_same_memory_whatever_its_length() {
        let two = |i: u32| [((true, 5 * i), vec![i]), ((false, 7), vec![3 * i, u32::MAX - i])];
        let some = |count| (0..count).flat_map(two).collect::<Vec<_>>();
        let (short, long) = (kept(&some(20)), kept(&some(2000)));
        assert_eq!((short.bytes(), long.sections.len()), (long.bytes(), 1));
        assert!(long.bytes() < 256, "{}", long.bytes());
        // The last time round may be cut short.
        let mut odd = some(100);
        odd.pop();
        odd.extend([((true, 1), vec![]), ((true, 2), vec![])]);
        assert_eq!(kept(&odd).sections.len(), 2);
    }

    #[test]
    fn a_loop_within_a_loop_is_left_to_that() {
        let body = |i: u32| (0..9).map(move |j| ((true, 100 * i + j), vec![])).chain([((false, i), vec![])]);
        let records: Vec<_> = (0..50).flat_map(body).collect();
        assert_eq!(kept(&records).sections, [Section { first: 0, start: 0, period: 10 }]);
    }

    #[test]
    fn lists_may_be_long() {
        let records: Vec<_> = (0..100).map(|i| ((true, i), vec![i, i + 1, i + 2, i + 3, 7])).collect();
        let kept = kept(&records);
        assert_eq!((kept.singles.len(), kept.bodies.len(), kept.body_lists.len()), (0, 1, 10));
        // One number that moves otherwise is no loop.
        let squares: Vec<_> = (0..100).map(|i| ((true, i), vec![i, i * i])).collect();
        assert_eq!(self::kept(&squares).singles.len(), 100);
    }

    proptest! {
        #[test]
        fn whatever_is_put_in_comes_out(
            runs in prop::collection::vec(
                (
                    prop_oneof![0..4_u32, 65_500..65_540_u32],
                    prop::collection::vec((any::<bool>(), 0..3_u32, 0..5_usize), 1..6),
                    1..40_u32,
                ),
                0..8,
            )
        ) {
            let mut records = Vec::new();
            for (base, body, times) in runs {
                for turn in 0..times {
                    records.extend(body.iter().map(|&(flag, by, listed)| {
                        let number = base.wrapping_add(by * turn);
                        ((flag, number), vec![number; listed])
                    }));
                }
            }
            kept(&records);
        }
    }
}
