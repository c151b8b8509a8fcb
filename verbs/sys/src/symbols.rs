use std::ffi::{OsStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::library::{self, Library, Origin};
use crate::{LoadError, MissingSymbol, cm_signature, signature};

/// Declares a library: the functions that each version has as fields, the newer ones as methods.
macro_rules! library {
    (
        $(#[$doc:meta])*
        struct $name:ident: $signature:ident, $origin:expr;
        each { $($required:ident)* }
        newer { $($newer:ident $since:literal)* }
    ) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "named as in C; the manual pages document the functions")]
        pub struct $name {
            $(pub $required: $signature::$required,)*
            $($newer: Option<$signature::$newer>,)*
            library_path: PathBuf,
        }

        /// Loading the library, and what is known of it.
        impl $name {
            /// The library of this process: found by its usual name, loaded once, kept for ever.
            ///
            /// # Errors
            /// As [`Self::open`]. A failure is not remembered: the next call tries again.
            pub fn load() -> Result<&'static $name, LoadError> {
                static LOADED: OnceLock<$name> = OnceLock::new();
                match LOADED.get() {
                    Some(loaded) => Ok(loaded),
                    // Two threads that come first both open it, which the loader counts; one result stays.
                    None => Self::open(library::usual(&$origin)).map(|opened| LOADED.get_or_init(|| opened)),
                }
            }

            /// Loads the library from a file, or by a name that the dynamic loader searches for. It stays loaded until
            /// the process ends.
            ///
            /// # Errors
            /// [`LoadError::NotFound`] where the loader finds or accepts no such file, [`LoadError::MissingSymbol`]
            /// where it lacks a function that each version has.
            pub fn open(path: impl AsRef<OsStr>) -> Result<$name, LoadError> {
                let (library, name) = (Library::open(path.as_ref(), &$origin)?, Path::new(path.as_ref()));
                let mut opened = $name {
                    // SAFETY: the signatures are generated from the header that declares these functions.
                    $($required: unsafe { library.function(stringify!($required)) }
                        .ok_or_else(|| library::missing(stringify!($required), 0, name))?,)*
                    // SAFETY: as above.
                    $($newer: unsafe { library.function(stringify!($newer)) },)*
                    library_path: PathBuf::new(),
                };
                opened.library_path = library::file_of(opened.any_function()).unwrap_or_else(|| name.to_path_buf());
                Ok(opened)
            }

            /// The file of the library, links resolved.
            pub fn library_path(&self) -> &Path {
                &self.library_path
            }

            /// The version of rdma-core that the library is of, by its file's name; `None` where that does not say.
            pub fn rdma_core_version(&self) -> Option<u32> {
                library::rdma_core_version(&self.library_path)
            }
        }

        /// Functions that not each version has, as pointers.
        #[allow(clippy::missing_errors_doc, reason = "one for all: MissingSymbol where the library lacks the function")]
        impl $name {
            $(
                #[doc = concat!("`", stringify!($newer), "`, since rdma-core ", $since, "; [`MissingSymbol`] before.")]
                pub fn $newer(&self) -> Result<$signature::$newer, MissingSymbol> {
                    self.$newer.ok_or_else(|| library::missing(stringify!($newer), $since, &self.library_path))
                }
            )*
        }
    };
}

library! {
    /// The functions that libibverbs exports, each a pointer under its C name.
    ///
    /// A field is a function that each version since rdma-core 17 has. A method yields a newer one, or an error that
    /// names it and the version it came with. `QPAIR_LIBIBVERBS` in the environment names another file than
    /// `libibverbs.so.1` for [`Ibverbs::load`].
    ///
    /// The field `ibv_query_port` is the exported function, which fills in less than [`crate::ibv_query_port`] does.
    struct Ibverbs: signature, IBVERBS;
    each {
        ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid ibv_open_device
        ibv_close_device ibv_get_async_event ibv_ack_async_event ibv_query_device ibv_query_port ibv_query_gid
        ibv_query_pkey ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_rereg_mr ibv_dereg_mr ibv_create_comp_channel
        ibv_destroy_comp_channel ibv_create_cq ibv_resize_cq ibv_destroy_cq ibv_get_cq_event ibv_ack_cq_events
        ibv_create_srq ibv_modify_srq ibv_query_srq ibv_destroy_srq ibv_create_qp ibv_modify_qp ibv_query_qp
        ibv_destroy_qp ibv_create_ah ibv_init_ah_from_wc ibv_create_ah_from_wc ibv_destroy_ah ibv_attach_mcast
        ibv_detach_mcast ibv_event_type_str ibv_wc_status_str ibv_node_type_str ibv_port_state_str
        ibv_rate_to_mbps mbps_to_ibv_rate ibv_rate_to_mult mult_to_ibv_rate ibv_fork_init
    }
    newer {
        ibv_get_pkey_index 20 ibv_qp_to_qp_ex 24 ibv_reg_mr_iova 25 ibv_reg_mr_iova2 28 ibv_get_device_index 30
        ibv_query_ece 31 ibv_set_ece 31 _ibv_query_gid_ex 32 _ibv_query_gid_table 32 ibv_reg_dmabuf_mr 34
        ibv_is_fork_initialized 35 ibv_query_qp_data_in_order 36
    }
}

library! {
    /// The functions that librdmacm exports, each a pointer under its C name.
    ///
    /// As [`Ibverbs`]; `QPAIR_LIBRDMACM` names another file than `librdmacm.so.1`.
    struct Rdmacm: cm_signature, RDMACM;
    each {
        rdma_create_event_channel rdma_destroy_event_channel rdma_create_id rdma_destroy_id rdma_bind_addr
        rdma_resolve_addr rdma_resolve_route rdma_create_qp rdma_destroy_qp rdma_connect rdma_listen rdma_accept
        rdma_reject rdma_notify rdma_disconnect rdma_get_cm_event rdma_ack_cm_event rdma_get_src_port
        rdma_get_dst_port rdma_get_devices rdma_free_devices rdma_event_str rdma_set_option rdma_migrate_id
        rdma_getaddrinfo rdma_freeaddrinfo rdma_join_multicast rdma_leave_multicast
    }
    newer {
        rdma_join_multicast_ex 16 rdma_establish 23 rdma_init_qp_attr 23 rdma_get_remote_ece 31
        rdma_set_local_ece 31 rdma_reject_ece 31
    }
}

impl Ibverbs {
    fn any_function(&self) -> *const c_void {
        self.ibv_get_device_list as *const c_void
    }
}

impl Rdmacm {
    fn any_function(&self) -> *const c_void {
        self.rdma_create_event_channel as *const c_void
    }
}

impl std::fmt::Debug for Ibverbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ibverbs").field("library_path", &self.library_path).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Rdmacm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rdmacm").field("library_path", &self.library_path).finish_non_exhaustive()
    }
}

const IBVERBS: Origin = Origin { file: "libibverbs.so.1", package: "libibverbs1", variable: "QPAIR_LIBIBVERBS" };
const RDMACM: Origin = Origin { file: "librdmacm.so.1", package: "librdmacm1", variable: "QPAIR_LIBRDMACM" };
