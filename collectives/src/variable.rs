//! What the environment says.

use std::env::VarError;

/// The value of a variable of the environment; what is no text in it is replaced.
pub(crate) fn variable(name: &'static str) -> Option<String> {
    match std::env::var(name) {
        Ok(value) => Some(value),
        Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
        Err(VarError::NotPresent) => None,
    }
}
