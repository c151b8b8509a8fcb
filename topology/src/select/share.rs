//! How flows share what they pass: max-min fair.

/// What one flow passes: places in the list of capacities.
pub(super) type Over = Vec<u16>;

/// The rate of each flow, where all send as fast as they can and divide every resource fairly: the
/// rates of all rise together until a resource is full; its flows stay, the others rise on. Whole
/// numbers, so that the outcome is exact. Each flow must pass at least one resource.
///
/// One process needs the scratch space many thousand times, so it is kept.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    left: Vec<u64>,
    flows: Vec<u32>,
    rates: Vec<u64>,
    /// The flows without a rate yet, and the resources that they pass, in order.
    open: Vec<u16>,
    busy: Vec<u16>,
}

impl Sharing {
    pub(super) fn rates(&mut self, flows: &[&[u16]], capacity: &[u64]) -> &[u64] {
        self.left.clear();
        self.left.extend_from_slice(capacity);
        self.flows.clear();
        self.flows.resize(capacity.len(), 0);
        self.rates.clear();
        self.rates.resize(flows.len(), 0);
        self.open.clear();
        self.open.extend(0..flows.len() as u16);
        for over in flows {
            over.iter().for_each(|&r| self.flows[usize::from(r)] += 1);
        }
        self.busy.clear();
        self.busy.extend((0..capacity.len() as u16).filter(|&r| self.flows[usize::from(r)] > 0));
        let Self { left, flows: count, rates, open, busy } = self;
        let share = |left: &[u64], count: &[u32], r: u16| left[usize::from(r)] / u64::from(count[usize::from(r)]);
        while let Some(full) = busy.iter().copied().min_by_key(|&r| share(left, count, r)) {
            let rate = share(left, count, full);
            open.retain(|&flow| {
                let over = flows[usize::from(flow)];
                let fixed = over.contains(&full);
                if fixed {
                    rates[usize::from(flow)] = rate;
                    for &r in over {
                        left[usize::from(r)] -= rate;
                        count[usize::from(r)] -= 1;
                    }
                }
                !fixed
            });
            busy.retain(|&r| count[usize::from(r)] > 0);
        }
        &self.rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(capacity: &[u64], flows: &[&[u16]]) -> Vec<u64> {
        Sharing::default().rates(flows, capacity).to_vec()
    }

    #[test]
    fn flows_over_one_resource_have_equal_shares() {
        assert_eq!(rates(&[12], &[&[0], &[0], &[0]]), [4, 4, 4]);
    }

    #[test]
    fn what_a_slow_flow_leaves_goes_to_the_others() {
        assert_eq!(rates(&[12, 2], &[&[0, 1], &[0]]), [2, 10]);
    }

    #[test]
    fn a_flow_is_held_by_the_narrowest_of_what_it_passes() {
        assert_eq!(rates(&[10, 4, 100], &[&[0, 2], &[0, 1], &[1, 2]]), [8, 2, 2]);
    }
}
