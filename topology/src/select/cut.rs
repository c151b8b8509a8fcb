//! What users get together at most, by the resources that they have to pass.

/// Users that want something, and what each passes in any case. It is filled many thousand times, so
/// its space is kept.
#[derive(Debug, Default)]
pub(super) struct Cut {
    /// What each wants, and where what it passes starts in the list.
    demands: Vec<(u64, usize)>,
    over: Vec<u16>,
    wanted: Vec<u64>,
    left: Vec<u64>,
    counted: Vec<bool>,
}

impl Cut {
    pub(super) fn clear(&mut self) {
        self.demands.clear();
        self.over.clear();
    }

    /// Adds one that wants so much, and passes these.
    pub(super) fn add(&mut self, over: impl Iterator<Item = usize>, most: u64) {
        self.demands.push((most, self.over.len()));
        self.over.extend(over.map(|r| r as u16));
    }

    /// What they get together at most, where each has at least `each`, and those that pass one
    /// resource have no more than it carries. Less than `enough` is not worked out further.
    ///
    /// Resources are taken in the order of what they take away. Who wants something is counted at one
    /// of them; others that it passes still carry the least that it has.
    pub(super) fn most(&mut self, capacity: &[u64], each: u64, enough: u64) -> u64 {
        let Self { demands, over, wanted, left, counted } = self;
        let end = |place: usize| demands.get(place + 1).map_or(over.len(), |next| next.1);
        wanted.clear();
        wanted.resize(capacity.len(), 0);
        left.clear();
        left.extend_from_slice(capacity);
        counted.clear();
        counted.resize(demands.len(), false);
        let mut sum = 0_u64;
        for (place, &(most, start)) in demands.iter().enumerate() {
            sum = sum.saturating_add(most);
            for &r in &over[start..end(place)] {
                wanted[usize::from(r)] = wanted[usize::from(r)].saturating_add(most);
            }
        }
        while sum >= enough {
            let beyond = |r: usize| wanted[r].saturating_sub(left[r]);
            let Some(r) = (0..wanted.len()).max_by_key(|&r| beyond(r)).filter(|&r| beyond(r) > 0) else { break };
            sum = sum.saturating_sub(beyond(r));
            for (place, &(most, start)) in demands.iter().enumerate() {
                let passed = &over[start..end(place)];
                if counted[place] || !passed.contains(&(r as u16)) {
                    continue;
                }
                counted[place] = true;
                for &r in passed {
                    wanted[usize::from(r)] = wanted[usize::from(r)].saturating_sub(most);
                    left[usize::from(r)] = left[usize::from(r)].saturating_sub(each);
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(demands: &[(&[usize], u64)], each: u64, enough: u64) -> u64 {
        let mut cut = Cut::default();
        demands.iter().for_each(|(over, most)| cut.add(over.iter().copied(), *most));
        cut.most(&[10, 24], each, enough)
    }

    #[test]
    fn who_passes_a_narrow_place_has_no_more_than_it_carries() {
        assert_eq!(cut(&[(&[0], 8), (&[0], 8), (&[1], 8)], 0, 0), 18);
    }

    #[test]
    fn who_is_counted_elsewhere_leaves_less_to_others() {
        let demands: [(&[usize], u64); 4] = [(&[0, 1], 10), (&[0], 10), (&[1], 24), (&[1], 24)];
        assert_eq!(cut(&demands, 0, 0), 34);
        assert_eq!(cut(&demands, 3, 0), 31);
    }

    #[test]
    fn what_is_too_little_already_is_not_worked_out() {
        assert!(cut(&[(&[0], 8), (&[0], 8)], 0, 17) < 17);
    }
}
