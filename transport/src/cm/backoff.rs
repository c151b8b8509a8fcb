//! How long to stay away from a peer that has no room now.

use core::time::Duration;

/// The time until the next attempt: what the peer asked for, and between half and all of a time that doubles with each
/// attempt before, from 20 ms to 2 s. The `dice` decide where between, so that those who were sent away together do not come
/// back together. What a peer asks for counts up to 2 s: it holds nobody off for longer.
pub(super) fn delay(attempts: u32, asked: Duration, dice: u64) -> Duration {
    let whole = BASE.saturating_mul(1 << attempts.min(16)).min(CAP);
    // The upper half of the dice, as a part of 2^32.
    let part = ((whole / 2).as_nanos() as u64 * (dice >> 32)) >> 32;
    asked.min(CAP) + whole / 2 + Duration::from_nanos(part)
}

/// A listener that is merely slow has taken in its backlog by then.
const BASE: Duration = Duration::from_millis(20);
/// Often enough that a listener that has room again is not idle, and seldom enough that ten thousand callers cost it little.
const CAP: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_its_limit_and_spreads() {
        let millis = Duration::from_millis;
        for (attempts, whole) in [(0, 20), (1, 40), (2, 80), (6, 1280), (7, 2000), (8, 2000), (u32::MAX, 2000)] {
            assert_eq!(delay(attempts, Duration::ZERO, 0), millis(whole) / 2);
            let most = delay(attempts, Duration::ZERO, u64::MAX);
            assert!(most > millis(whole) - millis(1) && most <= millis(whole), "{most:?}");
        }
        assert_eq!(delay(0, Duration::ZERO, 1 << 63), millis(15));
    }

    #[test]
    fn nobody_comes_back_earlier_than_asked_and_asking_has_a_limit() {
        let asked = Duration::from_millis(300);
        assert_eq!(delay(0, asked, 0), asked + BASE / 2);
        assert_eq!(delay(0, Duration::MAX, 0), CAP + BASE / 2);
    }
}
