//! How near all users can be at once, where near NICs do not hold all of them.

use super::problem::Bundle;

/// What choices cost with prices on resources that hold few users.
///
/// Whatever the prices are: the cheapest choices with them, less what all places of those resources
/// together would bring in, cost no more than any division does, since none sells a place twice.
/// Good prices come near to what the best division costs.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// For each user and choice its cost with the prices of what it passes.
    costs: Vec<Vec<u64>>,
    /// For each user the least of them.
    least: Vec<u64>,
    /// What all places together would bring in.
    places: u64,
}

impl Prices {
    /// Prices with which all users together cost `enough`, or as near to it as was found. `holds` says
    /// how many users each resource holds.
    pub(super) fn new(bundles: &[Vec<Bundle>], holds: &[u64], enough: u64) -> Self {
        let mut prices = vec![0_u64; holds.len()];
        let mut now = Self::with(bundles, holds, &prices);
        let mut best = now.clone();
        let (mut part, mut since) = (1, 0);
        for _ in 0..ROUNDS {
            if best.cheapest() >= enough {
                break;
            }
            let wanted = now.wanted(bundles, holds.len());
            let beyond = |r: usize| wanted[r] - i64::try_from(holds[r]).unwrap_or(i64::MAX);
            let changed: Vec<usize> = (0..holds.len()).filter(|&r| beyond(r) > 0 || prices[r] > 0).collect();
            let squares = changed.iter().map(|&r| beyond(r).unsigned_abs().saturating_pow(2));
            let squares = squares.fold(0, u64::saturating_add);
            if squares == 0 {
                break;
            }
            let missing = enough.saturating_sub(now.cheapest()).saturating_mul(SCALE);
            let step = (missing / part / squares).clamp(1, 1 << 40) as i64;
            for r in changed {
                let price = prices[r].saturating_add_signed(beyond(r).saturating_mul(step));
                prices[r] = price.min(enough.saturating_mul(SCALE));
            }
            now = Self::with(bundles, holds, &prices);
            since += 1;
            if now.cheapest() > best.cheapest() {
                (best, since) = (now.clone(), 0);
            } else if since > PATIENCE {
                (part, since) = (part * 2, 0);
            }
        }
        best
    }

    fn with(bundles: &[Vec<Bundle>], holds: &[u64], prices: &[u64]) -> Self {
        let cost = |bundle: &Bundle| {
            let prices = bundle.common.iter().map(|&r| prices[usize::from(r)]);
            prices.fold(bundle.cost.saturating_mul(SCALE), u64::saturating_add)
        };
        let costs: Vec<Vec<u64>> = bundles.iter().map(|bundles| bundles.iter().map(cost).collect()).collect();
        let places = prices.iter().zip(holds).map(|(price, holds)| price.saturating_mul(*holds));
        let places = places.fold(0, u64::saturating_add);
        Self { least: costs.iter().map(|costs| costs.iter().copied().min().unwrap_or(0)).collect(), costs, places }
    }

    /// How many users pass each resource when each chooses the cheapest.
    fn wanted(&self, bundles: &[Vec<Bundle>], count: usize) -> Vec<i64> {
        let mut wanted = vec![0; count];
        for ((bundles, costs), least) in bundles.iter().zip(&self.costs).zip(&self.least) {
            let cheapest = bundles.iter().zip(costs).find(|(_, cost)| *cost == least);
            cheapest.iter().flat_map(|(bundle, _)| &bundle.common).for_each(|&r| wanted[usize::from(r)] += 1);
        }
        wanted
    }

    fn cheapest(&self) -> u64 {
        self.all(self.least.iter().copied().fold(0, u64::saturating_add))
    }

    /// What a user's choice costs with prices.
    pub(super) fn of(&self, user: usize, choice: usize) -> u64 {
        self.costs[user][choice]
    }

    /// The least that any choice of a user costs with prices.
    pub(super) fn least(&self, user: usize) -> u64 {
        self.least[user]
    }

    /// All users cost no less without prices, if they cost so much with them.
    pub(super) fn all(&self, priced: u64) -> u64 {
        priced.saturating_sub(self.places).div_ceil(SCALE)
    }
}

/// Prices are in parts of the unit of costs: the right ones are not whole.
const SCALE: u64 = 64;

/// In how many rounds prices rise and fall, and after how many without success they do so less.
const ROUNDS: usize = 120;
const PATIENCE: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(over: u16, cost: u64) -> Bundle {
        Bundle { ways: vec![over], nics: vec![over], common: vec![over], most: 1, cost, off_rail: 0 }
    }

    #[test]
    fn what_near_places_do_not_hold_is_seen_to_cost_more() {
        // Three users whose near NIC holds one of them; the far one costs 10 more.
        let bundles = vec![vec![bundle(0, 5), bundle(1, 15)]; 3];
        assert_eq!(Prices::new(&bundles, &[3, 3], 35).cheapest(), 15);
        assert_eq!(Prices::new(&bundles, &[1, 3], 35).cheapest(), 35);
        assert!(Prices::new(&bundles, &[2, 3], 25).cheapest() <= 25);
    }
}
