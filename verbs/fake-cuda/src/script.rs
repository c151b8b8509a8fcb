//! What tests have told a device to do wrong.

use crate::code::{Code, Outcome};

/// The script of one device, or of one thread.
#[derive(Debug, Default)]
pub(crate) struct Script {
    failures: Vec<Failure>,
    faults: Vec<(u32, Code)>,
}

#[derive(Debug)]
struct Failure {
    symbol: String,
    /// Calls that still succeed.
    before: u32,
    /// Calls that then fail; `None` is all.
    left: Option<u32>,
    code: Code,
}

impl Script {
    pub(crate) fn fail(&mut self, symbol: &str, nth: u32, times: u32, code: Code) {
        let left = (times > 0).then_some(times);
        let symbol = plain(symbol).to_owned();
        self.failures.push(Failure { symbol, before: nth.saturating_sub(1), left, code });
    }

    /// Whether this call of a function is to fail; counts it.
    pub(crate) fn call(&mut self, symbol: &str) -> Outcome<()> {
        let mut result = Ok(());
        for failure in self.failures.iter_mut().filter(|failure| failure.symbol == plain(symbol)) {
            match (&mut failure.before, &mut failure.left) {
                (0, _) if result.is_err() => {}
                (0, None) => result = Err(failure.code),
                (0, Some(left)) => {
                    *left -= 1;
                    result = Err(failure.code);
                }
                (before, _) => *before -= 1,
            }
        }
        self.failures.retain(|failure| failure.left != Some(0));
        result
    }

    pub(crate) fn fault(&mut self, nth: u32, code: Code) {
        self.faults.push((nth.saturating_sub(1), code));
    }

    /// How a kernel that is launched now is to end; counts it.
    pub(crate) fn launch(&mut self) -> Option<Code> {
        let mut fault = None;
        self.faults.retain_mut(|(before, code)| match before.checked_sub(1) {
            Some(fewer) => {
                *before = fewer;
                true
            }
            None => {
                fault = Some(*code);
                false
            }
        });
        fault
    }
}

/// A function's name without its version: `cuMemAlloc` for `cuMemAlloc_v2`.
pub(crate) fn plain(symbol: &str) -> &str {
    symbol.split_once("_v").map_or(symbol, |(name, _)| name)
}
