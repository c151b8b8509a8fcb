use std::path::PathBuf;

/// Why a library could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No such library, or not one that this machine can load; the source says which.
    #[error(
        "can not load {name}: {source}; install it (Debian: {package}; Fedora and RHEL: rdma-core), or name the file in {variable}"
    )]
    NotFound {
        /// The name or path that was asked for.
        name: String,
        /// The Debian package that holds it.
        package: &'static str,
        /// The environment variable that may name another file.
        variable: &'static str,
        /// What the dynamic loader says.
        source: libloading::Error,
    },
    /// The library lacks a function without which nothing works.
    #[error(transparent)]
    MissingSymbol(#[from] MissingSymbol),
}

/// The library lacks a function: it is another library, or older than the function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has no {name}, which came with {}; install a newer rdma-core", .library.display(), Since(*.since))]
pub struct MissingSymbol {
    /// The function.
    pub name: &'static str,
    /// The file of the library, or the name it was asked for by.
    pub library: PathBuf,
    /// The version of rdma-core that first had the function; 0 where each version has it.
    pub since: u32,
}

/// The provider of this device lacks an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device's provider has no {what}")]
pub struct Missing {
    /// The function, by its C name.
    pub what: &'static str,
}

struct Since(u32);

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => write!(f, "the first rdma-core"),
            version => write!(f, "rdma-core {version}"),
        }
    }
}
