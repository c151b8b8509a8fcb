//! How many rows each rank may give to an expert whose capacity is bounded.

/// Divides `capacity` among those who want, as evenly as can be: who wants less than an even part gets all, what is left goes
/// to the others, and the last rows to the lowest ranks.
pub(super) fn grant(wanted: &[usize], capacity: usize) -> Vec<usize> {
    let mut granted = vec![0; wanted.len()];
    let mut left = capacity.min(wanted.iter().sum());
    while left > 0 {
        let unsatisfied = wanted.iter().zip(&granted).filter(|(wanted, granted)| wanted > granted).count();
        let share = (left / unsatisfied.max(1)).max(1);
        for (wanted, granted) in wanted.iter().zip(&mut granted) {
            let more = share.min(wanted - *granted).min(left);
            *granted += more;
            left -= more;
        }
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_divided_evenly() {
        assert_eq!(grant(&[5, 5, 5], 9), [3, 3, 3]);
        assert_eq!(grant(&[1, 9, 9], 9), [1, 4, 4]);
        assert_eq!(grant(&[0, 9, 2], 8), [0, 6, 2]);
        assert_eq!(grant(&[4, 4], 1), [1, 0]);
        assert_eq!(grant(&[4, 4], 0), [0, 0]);
        assert_eq!(grant(&[4, 4], 100), [4, 4]);
        assert_eq!(grant(&[], 3), [0; 0]);
    }
}
