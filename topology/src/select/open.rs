//! What users can still choose, as far as others have chosen.

use super::problem::Bundle;
use super::search::UNIT;

/// Bits, one for each resource or NIC.
pub(super) type Bits = Vec<u64>;

/// A rate that all are to have.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) rate: u64,
    /// How many users with that rate each resource holds.
    pub(super) users: Vec<u64>,
}

impl Level {
    /// The least rate that is so much in units.
    pub(super) fn new(units: u64, capacity: &[u64]) -> Self {
        let rate = least(units);
        let users = capacity.iter().map(|capacity| capacity.checked_div(rate).unwrap_or(u64::MAX));
        Self { rate, users: users.collect() }
    }

    /// Says which resources hold no user more than pass them in any case. False if one holds fewer.
    pub(super) fn full(&self, passing: &[u64], full: &mut Bits) -> bool {
        full.fill(0);
        let mut holds = true;
        for (r, (passing, users)) in passing.iter().zip(&self.users).enumerate() {
            holds &= passing <= users;
            full[r / 64] |= u64::from(passing >= users) << (r % 64);
        }
        holds
    }
}

/// The least rate, in bytes, that is so much in units.
pub(super) fn least(units: u64) -> u64 {
    units.saturating_mul(UNIT).saturating_sub(UNIT / 2)
}

/// A row of bits for each choice of each user.
#[derive(Debug)]
pub(super) struct Rows {
    words: usize,
    users: Vec<Bits>,
}

impl Rows {
    pub(super) fn new<'b>(count: usize, bundles: &'b [Vec<Bundle>], set: impl Fn(&'b Bundle) -> &'b [u16]) -> Self {
        let words = count.div_ceil(64).max(1);
        let rows = |bundles: &'b Vec<Bundle>| {
            let mut rows = vec![0; bundles.len() * words];
            for (row, bundle) in rows.chunks_mut(words).zip(bundles) {
                set(bundle).iter().for_each(|&bit| row[usize::from(bit) / 64] |= 1 << (bit % 64));
            }
            rows
        };
        Self { words, users: bundles.iter().map(rows).collect() }
    }

    fn of(&self, user: usize, choice: u16) -> &[u64] {
        let start = usize::from(choice) * self.words;
        &self.users[user][start..start + self.words]
    }

    /// A row without any bit.
    pub(super) fn none(&self) -> Bits {
        vec![0; self.words]
    }
}

/// The places of the bits that are set.
pub(super) fn bits(row: &[u64]) -> impl Iterator<Item = usize> + '_ {
    row.iter().enumerate().flat_map(|(word, &bits)| {
        let rest = std::iter::successors(Some(bits), |&left| Some(left & left.wrapping_sub(1)));
        rest.take_while(|&left| left != 0).map(move |left| word * 64 + left.trailing_zeros() as usize)
    })
}

/// The NICs that have users, and those that one has alone.
#[derive(Debug)]
pub(super) struct Taken {
    used: Bits,
    own: Bits,
}

impl Taken {
    pub(super) fn new(nics: &Rows) -> Self {
        Self { used: nics.none(), own: nics.none() }
    }

    pub(super) fn set(&mut self, nic_users: &[u32], nic_own: &[bool]) {
        self.used.fill(0);
        self.own.fill(0);
        for (nic, (users, own)) in nic_users.iter().zip(nic_own).enumerate() {
            self.used[nic / 64] |= u64::from(*users > 0) << (nic % 64);
            self.own[nic / 64] |= u64::from(*own) << (nic % 64);
        }
    }
}

/// What users can still choose when the first of them have chosen.
#[derive(Clone, Debug)]
pub(super) struct Open {
    /// For each user its choices, in order. Those who have chosen have none.
    pub(super) choices: Vec<Vec<u16>>,
    /// For each user what it passes whichever of these it chooses.
    pub(super) common: Vec<Bits>,
    /// How many users pass each resource in any case.
    pub(super) passing: Vec<u64>,
}

impl Open {
    /// Before anybody has chosen.
    pub(super) fn all(bundles: &[Vec<Bundle>], resources: usize, common: &Rows) -> Self {
        let choices = bundles.iter().map(|bundles| (0..bundles.len() as u16).collect()).collect();
        let mut all = Self { choices, common: vec![common.none(); bundles.len()], passing: vec![0; resources] };
        for user in 0..bundles.len() {
            all.pass(user, common);
        }
        all
    }

    /// Takes over what was open before a user chose.
    pub(super) fn follow(&mut self, before: &Self, user: usize, choice: Option<usize>, common: &Rows) {
        self.choices.clone_from(&before.choices);
        self.common.clone_from(&before.common);
        self.passing.clone_from(&before.passing);
        self.choices[user].clear();
        self.choices[user].extend(choice.map(|choice| choice as u16));
        self.pass(user, common);
        self.choices[user].clear();
    }

    /// Counts what a user passes in any case by the choices that it has left. True if that is more
    /// than before.
    fn pass(&mut self, user: usize, common: &Rows) -> bool {
        let Some((&first, others)) = self.choices[user].split_first() else { return false };
        let mut more = false;
        for word in 0..common.words {
            let all = others.iter().fold(common.of(user, first)[word], |all, &c| all & common.of(user, c)[word]);
            let new = all & !self.common[user][word];
            more |= new != 0;
            bits(&[new]).for_each(|bit| self.passing[word * 64 + bit] += 1);
            self.common[user][word] |= new;
        }
        more
    }

    /// Leaves out choices of NICs that others have. False if a user has none left.
    pub(super) fn leave_taken(
        &mut self,
        users: impl Iterator<Item = usize>,
        bundles: &[Vec<Bundle>],
        nics: &Rows,
        taken: &Taken,
        common: &Rows,
    ) -> bool {
        for user in users {
            let before = self.choices[user].len();
            self.choices[user].retain(|&choice| {
                // Who has several NICs has them alone.
                let several = bundles[user][usize::from(choice)].nics.len() > 1;
                let taken = if several { &taken.used } else { &taken.own };
                nics.of(user, choice).iter().zip(taken).all(|(nics, taken)| nics & taken == 0)
            });
            if self.choices[user].is_empty() {
                return false;
            }
            if self.choices[user].len() < before {
                self.pass(user, common);
            }
        }
        true
    }

    /// Leaves out choices with which not all can have a rate, and what follows from that. False if a
    /// user has none left, or a resource does not hold those that have to pass it.
    pub(super) fn leave_full(
        &mut self,
        users: &[usize],
        bundles: &[Vec<Bundle>],
        level: &Level,
        common: &Rows,
        full: &mut Bits,
    ) -> bool {
        if !level.full(&self.passing, full) {
            return false;
        }
        for _ in 0..ROUNDS {
            let mut again = false;
            for &user in users {
                let own = &self.common[user];
                let before = self.choices[user].len();
                self.choices[user]
                    .retain(|&choice| fits(&bundles[user], choice, level, common.of(user, choice), own, full));
                if self.choices[user].is_empty() {
                    return false;
                }
                if self.choices[user].len() < before && self.pass(user, common) {
                    again = true;
                    if !level.full(&self.passing, full) {
                        return false;
                    }
                }
            }
            if !again {
                break;
            }
        }
        true
    }

    /// True if a user has a choice that leaves all this rate, where these are full.
    pub(super) fn can(&self, user: usize, bundles: &[Bundle], level: &Level, common: &Rows, full: &Bits) -> bool {
        let own = &self.common[user];
        self.choices[user].iter().any(|&choice| fits(bundles, choice, level, common.of(user, choice), own, full))
    }
}

/// True if a choice gives the rate, and passes nothing that is full but what its user passes anyway.
fn fits(bundles: &[Bundle], choice: u16, level: &Level, row: &[u64], own: &[u64], full: &[u64]) -> bool {
    bundles[usize::from(choice)].most >= level.rate
        && row.iter().zip(own).zip(full).all(|((row, own), full)| row & !own & full == 0)
}

/// How often what follows is followed; few need a third time.
const ROUNDS: usize = 3;
