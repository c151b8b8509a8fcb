//! A queue pair of the software device: its parts (`core`), set-up, posting (`check`, `post`) and carrying out,
//! completions of receives, failing and closing, and its face towards the control thread (`member`).

mod core;
mod fail;
mod member;
mod post;
mod receive;
mod setup;
#[cfg(test)]
mod tests;

pub(crate) use core::SoftQp;
pub(crate) use setup::OwnedQp;
