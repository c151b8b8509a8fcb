//! What readers have in common: a list of parts and warnings that becomes a machine.

use crate::{Description, Machine, MachineBuilder, Warning};

/// Makes a machine of parts, with what was passed over as they were read.
pub(super) fn machine(parts: Description, warnings: Vec<Warning>) -> Machine {
    let mut machine = MachineBuilder::from(parts);
    warnings.into_iter().for_each(|warning| _ = machine.warn(warning));
    machine.build()
}

/// A number that may be written in hexadecimal, with `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Adds a part, unless there is one more than there may be already, which the builder tells. What
/// looks through a list then takes a bounded time, whatever a file has.
pub(super) fn push<T>(list: &mut Vec<T>, part: T, limit: usize) {
    if list.len() <= limit {
        list.push(part);
    }
}
