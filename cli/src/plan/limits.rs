//! Bounds on what plans of anyone may cost: size of the file, ranks, steps, time and memory.

use std::fs;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::error::PlanError;

/// The longest file that is read: twice what [`MAX_STEPS`] steps of an algorithm take.
pub const MAX_FILE: u64 = 256 << 20;
/// The most ranks: a drawing or listing of more is of no use, and recipes are for them.
pub const MAX_RANKS: u32 = 4096;
/// The most rings: each goes round all ranks, whatever there is to carry.
pub const MAX_CHANNELS: u32 = 64;
/// The most steps of all ranks. They take 64 MiB, and some ten seconds to prove.
pub const MAX_STEPS: u64 = 1 << 20;
/// The most memory: eight times what 978,600 steps, of a direct all-gather among 700 ranks, were seen to take.
pub const MAX_MEMORY: u64 = 2 << 30;
/// How often time and memory are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How long work may take.
#[derive(Debug, Clone, Copy)]
pub struct Limit(pub Duration);

impl Limit {
    /// Does the work, unless it takes too long or too much memory. It is then left behind; the process is to end.
    ///
    /// # Errors
    /// Those of the work; [`PlanError::Time`], [`PlanError::Memory`]; [`PlanError::Failed`] if it panics.
    pub fn within<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, PlanError> + Send + 'static,
    ) -> Result<T, PlanError> {
        let (give, take) = channel();
        let until = Instant::now() + self.0;
        thread::spawn(move || {
            // Nobody listens any more where it took too long.
            let _ = give.send(work());
        });
        loop {
            match take.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(PlanError::Failed),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => return Err(PlanError::Time(self.0)),
                Err(RecvTimeoutError::Timeout) if resident() > MAX_MEMORY => return Err(PlanError::Memory),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Bytes of memory that this process has; 0 if the system does not tell.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_given_up_when_its_time_is_over_and_told_when_it_panics() {
        let limit = Limit(Duration::from_secs(60));
        assert_eq!(limit.within(|| Ok(7)).expect("at once"), 7);
        assert!(matches!(limit.within::<()>(|| Err(PlanError::Steps)), Err(PlanError::Steps)));
        assert!(matches!(limit.within::<()>(|| panic!("on purpose")), Err(PlanError::Failed)));
        let forever = || loop {
            thread::park();
        };
        assert!(matches!(Limit(Duration::ZERO).within::<()>(forever), Err(PlanError::Time(_))));
        assert!(resident() > 0);
    }
}
