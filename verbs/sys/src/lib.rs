//! libibverbs and librdmacm: their declarations, and the libraries themselves, loaded at run time.
//!
//! The declarations were generated once from the headers of rdma-core 44.0 and are part of this crate (`generate` says
//! how), so it builds without rdma-core, without libclang and without a build script. [`Ibverbs::load`] finds
//! `libibverbs.so.1` when the program runs. A library, a symbol or an operation that is absent is an error that names
//! it: [`LoadError`], [`MissingSymbol`], [`Missing`].
//!
//! Types, constants and functions keep their C names. An enumeration of C is an integer here, since a newer library or
//! device may use values that these headers do not know.
//!
//! `oracle/` is a crate of its own beside this one that compares each size and offset with the system's headers, by way
//! of the crate `rdma-sys`. It needs `pkg-config`, `libclang-dev`, `libibverbs-dev` and `librdmacm-dev`:
//!
//! ```text
//! cargo test --manifest-path verbs/sys/oracle/Cargo.toml
//! ```

mod error;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    reason = "generated; rdma-core's manual pages document it"
)]
mod ibverbs;
mod inline;
mod library;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    reason = "generated; rdma-core's manual pages document it"
)]
mod rdmacm;
mod symbols;
#[cfg(test)]
mod tests;

pub use error::{LoadError, Missing, MissingSymbol};
pub use ibverbs::*;
pub use inline::{
    HotOps, PostRecv, ibv_advise_mr, ibv_alloc_dm, ibv_alloc_mw, ibv_alloc_null_mr, ibv_alloc_parent_domain,
    ibv_alloc_td, ibv_bind_mw, ibv_create_cq_ex, ibv_create_qp_ex, ibv_create_srq_ex, ibv_dealloc_mw, ibv_dealloc_td,
    ibv_free_dm, ibv_get_srq_num, ibv_inc_rkey, ibv_modify_cq, ibv_modify_qp_rate_limit, ibv_poll_cq, ibv_post_recv,
    ibv_post_send, ibv_post_srq_recv, ibv_query_device_ex, ibv_query_gid_ex, ibv_query_gid_table, ibv_query_port,
    ibv_query_rt_values_ex, ibv_reg_dm_mr, ibv_req_notify_cq, verbs_get_ctx,
};
pub use rdmacm::*;
pub use symbols::{Ibverbs, Rdmacm};
