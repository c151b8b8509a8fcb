//! The manual: what holds, what does not, and what to choose. One chapter each for ordering, memory, failures, waiting, many
//! peers, several NICs, connecting without TCP, who may connect, and what to expect of speed.
//!
//! | question | chapter |
//! |---|---|
//! | What comes before what? When is a put in place? | [`ordering`] |
//! | What is copied, and how not to? | [`memory`] |
//! | What if a peer dies, stops, lies? What is an operation's end worth? | [`failures`] |
//! | Poll loop, event loop, futures? | [`waiting`] |
//! | Thousands of peers? | [`many_peers`] |
//! | Which NIC? Several of them, or several networks? | [`rails`] |
//! | No TCP from one host to the other? | [`rdma_cm`] |
//! | Who may connect, and what is encrypted? | [`security`] |
//! | How fast is it, and beside what? | [`performance`] |

#[doc = include_str!("failures.md")]
pub mod failures {}
#[doc = include_str!("many_peers.md")]
pub mod many_peers {}
#[doc = include_str!("memory.md")]
pub mod memory {}
#[doc = include_str!("ordering.md")]
pub mod ordering {}
#[doc = include_str!("performance.md")]
pub mod performance {}
#[doc = include_str!("rails.md")]
pub mod rails {}
#[doc = include_str!("rdma_cm.md")]
pub mod rdma_cm {}
#[doc = include_str!("security.md")]
pub mod security {}
#[doc = include_str!("waiting.md")]
pub mod waiting {}
