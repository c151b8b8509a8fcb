//! The signals that a launcher passes on to its ranks.

use std::fs;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Those that were not ignored when this process started. To listen for one that is, as `nohup` and shells have it, would make
/// it end the job.
pub fn heeded() -> Vec<i32> {
    heeded_by(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn heeded_by(status: &str) -> Vec<i32> {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_left_out() {
        let heeded = |mask| heeded_by(&format!("Name:\tqpair\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n"));
        // Rust has programs ignore SIGPIPE.
        assert_eq!(heeded("0000000000001000"), [SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
        assert_eq!(heeded("0000000000001001"), [SIGINT, SIGQUIT, SIGTERM]);
        assert_eq!(heeded("0000000000001006"), [SIGHUP, SIGTERM]);
        assert_eq!(heeded_by(""), [SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    }
}
