//! Names that come from files and drivers: cut to a length, and without what can not be printed.

use super::builder::Description;
use super::limits;
use super::node::Warning;
use crate::escape::is_printable;

/// Cleans all names of a description. NICs that had two names keep two: what was changed ends with a
/// number made of the whole.
pub(super) fn clean(parts: &mut Description, warnings: &mut Vec<Warning>) {
    let mut told = |what: &str, changed: Option<&str>| {
        if let Some(name) = changed {
            let problem = "it was too long, or had control characters, and was changed to this";
            warnings.push(Warning::new(name, format!("{what}: {problem}")));
        }
    };
    told("the name of the machine", parts.name.as_mut().and_then(text));
    for cpu in &mut parts.cpus {
        told("the architecture of processors", cpu.arch.as_mut().and_then(text));
        told("the maker of processors", cpu.vendor.as_mut().and_then(text));
    }
    for gpu in &mut parts.gpus {
        told("the model of a GPU", gpu.model.as_mut().and_then(text));
    }
    for nic in &mut parts.nics {
        told("the name of a NIC", name(&mut nic.name));
        nic.bond.iter_mut().for_each(|member| told("the name of an interface", name(&mut member.name)));
    }
}

/// Cleans a text that nothing is found by. Gives it if it was changed.
fn text(text: &mut String) -> Option<&str> {
    if is_clean(text, limits::TEXT) {
        return None;
    }
    *text = printable(text).take(limits::TEXT).collect();
    Some(text)
}

/// Cleans a name that tells parts apart. Gives it if it was changed.
fn name(name: &mut String) -> Option<&str> {
    if is_clean(name, limits::NAME) {
        return None;
    }
    let mark = format!("~{:016x}", fingerprint(name));
    let kept: String = printable(name).take(limits::NAME - mark.len()).collect();
    *name = kept + &mark;
    Some(name)
}

fn is_clean(text: &str, limit: usize) -> bool {
    text.chars().take(limit + 1).all(is_printable) && text.chars().nth(limit).is_none()
}

fn printable(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().map(|c| if is_printable(c) { c } else { '?' })
}

/// The 64-bit FNV-1a of a text: the same in all processes, where that of the standard library is not
/// promised to be.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
