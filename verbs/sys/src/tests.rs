//! The size of what crosses the boundary, and what loading the wrong library says.

use std::mem::{offset_of, size_of};

use crate::*;

/// Sizes that a C compiler gives for rdma-core 44 on x86-64; what has no lock in it has them on aarch64 too.
#[test]
fn structures_have_the_sizes_of_c() {
    assert_eq!(size_of::<ibv_sge>(), 16);
    assert_eq!(size_of::<ibv_gid>(), 16);
    assert_eq!(size_of::<ibv_wc>(), 48);
    assert_eq!(size_of::<ibv_recv_wr>(), 32);
    assert_eq!(size_of::<ibv_send_wr>(), 128);
    assert_eq!(size_of::<ibv_qp_attr>(), 144);
    assert_eq!(size_of::<ibv_port_attr>(), 52);
    assert_eq!(size_of::<ibv_device_attr>(), 232);
    assert_eq!(size_of::<ibv_gid_entry>(), 32);
    assert_eq!(size_of::<ibv_mr>(), 48);
    assert_eq!(size_of::<ibv_context_ops>(), 256);
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(size_of::<ibv_context>(), 328);
        assert_eq!(size_of::<verbs_context>(), 648);
        assert_eq!(size_of::<ibv_cq>(), 128);
        assert_eq!(size_of::<ibv_qp>(), 160);
        assert_eq!(size_of::<ibv_srq>(), 128);
    }
    assert_eq!(offset_of!(verbs_context, context), offset_of!(verbs_context, sz) + size_of::<usize>());
    assert_eq!(size_of::<verbs_context>(), offset_of!(verbs_context, context) + size_of::<ibv_context>());
}

#[test]
fn a_library_that_is_not_there_is_named_with_what_to_install() {
    let error = Ibverbs::open("libibverbs-none-such.so.1").expect_err("no such library");
    assert!(matches!(&error, LoadError::NotFound { name, .. } if name == "libibverbs-none-such.so.1"), "{error:?}");
    let text = error.to_string();
    for part in ["libibverbs-none-such.so.1", "libibverbs1", "rdma-core", "QPAIR_LIBIBVERBS"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = Rdmacm::open("librdmacm-none-such.so.1").expect_err("no such library").to_string();
    assert!(text.contains("librdmacm1") && text.contains("QPAIR_LIBRDMACM"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let error = Ibverbs::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect_err("a text file");
    assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
}

#[test]
fn another_library_lacks_a_function_that_the_error_names() {
    for file in ["libc.so.6", "libm.so.6"] {
        let LoadError::MissingSymbol(missing) = Ibverbs::open(file).expect_err("another library") else {
            panic!("{file} was found, and lacks functions");
        };
        assert_eq!(missing.name, "ibv_get_device_list");
        assert_eq!(missing.library.as_os_str(), file);
        assert!(missing.to_string().contains("ibv_get_device_list"), "{missing}");
    }
    let LoadError::MissingSymbol(missing) = Rdmacm::open("libc.so.6").expect_err("another library") else {
        panic!("libc.so.6 was found, and lacks functions");
    };
    assert_eq!(missing.name, "rdma_create_event_channel");
}

#[test]
fn the_installed_library_loads_once_or_says_what_to_install() {
    match Ibverbs::load() {
        Ok(library) => {
            assert!(std::ptr::eq(library, Ibverbs::load().expect("loaded before")));
            assert!(library.library_path().is_absolute(), "{}", library.library_path().display());
            let version = library.rdma_core_version();
            for (since, newer) in [
                (24, library.ibv_qp_to_qp_ex().err()),
                (31, library.ibv_query_ece().err()),
                (32, library._ibv_query_gid_ex().err()),
                (34, library.ibv_reg_dmabuf_mr().err()),
                (35, library.ibv_is_fork_initialized().err()),
            ] {
                assert!(newer.is_none() || version.is_none_or(|version| version < since), "{newer:?} in {version:?}");
            }
        }
        Err(error) => assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}"),
    }
}

#[test]
fn the_low_byte_of_an_rkey_wraps_alone() {
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(0xffff_ffff), 0xffff_ff00);
    assert_eq!(ibv_inc_rkey(0x0000_0100), 0x0000_0101);
}
