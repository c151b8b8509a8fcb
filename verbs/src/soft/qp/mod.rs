//! A queue pair of the software device: its parts (`core`), set-up, posting (`check`, `post`) and carrying out,
//! completions of receives, failing and closing, its face towards the control thread (`member`), towards the
//! network, and towards the connection manager (`managed`).

mod core;
mod fail;
mod managed;
mod member;
mod network;
mod on_network;
mod post;
mod receive;
mod setup;
#[cfg(test)]
mod tests;

pub(crate) use core::SoftQp;
pub(crate) use setup::OwnedQp;
