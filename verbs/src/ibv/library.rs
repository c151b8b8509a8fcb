//! The library itself: whether it is there, where from, and how new.

use std::path::PathBuf;

use qpair_verbs_sys::{Ibverbs, LoadError};
use thiserror::Error;

use crate::error::OpenError;

/// The libibverbs of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Library {
    /// Its file, links resolved.
    pub path: PathBuf,
    /// The version of rdma-core that it is of; `None` where its file's name does not tell.
    pub rdma_core: Option<u32>,
    /// Functions that newer versions have and this one does not; what rests on them is not to be had.
    pub missing: Vec<&'static str>,
}

/// There is no libibverbs that can be used.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LibraryError(#[from] Box<LoadError>);

/// The libibverbs of this process, loaded now if it was not before. It opens no device.
///
/// # Errors
/// [`LibraryError`] if it is not installed or lacks what each version has.
pub fn library() -> Result<Library, LibraryError> {
    let library = Ibverbs::load().map_err(Box::new)?;
    let newer = [
        library.ibv_qp_to_qp_ex().map(drop),
        library.ibv_reg_mr_iova2().map(drop),
        library.ibv_query_ece().map(drop),
        library._ibv_query_gid_table().map(drop),
        library.ibv_reg_dmabuf_mr().map(drop),
    ];
    Ok(Library {
        path: library.library_path().to_owned(),
        rdma_core: library.rdma_core_version(),
        missing: newer.into_iter().filter_map(|found| found.err().map(|missing| missing.name)).collect(),
    })
}

/// The library, for opening the device `name`.
pub(super) fn load(name: &str) -> Result<&'static Ibverbs, OpenError> {
    Ibverbs::load().map_err(|source| OpenError::Library { name: name.to_owned(), source: Box::new(source).into() })
}
