//! Size, alignment and offset of each field, here and in C.

use std::mem::{align_of, offset_of, size_of};

use qpair_verbs_sys as ours;
use rdma_sys as theirs;

/// What differs, as lines to print.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn compare(&mut self, what: &str, ours: usize, theirs: usize) {
        if ours != theirs {
            self.0.push(format!("{what}: {ours} here, {theirs} in C"));
        }
    }
}

/// A test that compares each type, and those fields of it that both sides give the same name.
macro_rules! compare {
    ($($name:ident { $($field:ident)* })*) => {
        #[test]
        fn each_type_and_field_lies_where_c_has_it() {
            let mut findings = Findings::default();
            $(
                let name = stringify!($name);
                findings.compare(&format!("size of {name}"), size_of::<ours::$name>(), size_of::<theirs::$name>());
                findings.compare(&format!("alignment of {name}"), align_of::<ours::$name>(), align_of::<theirs::$name>());
                $(
                    findings.compare(
                        &format!("offset of {name}.{}", stringify!($field)),
                        offset_of!(ours::$name, $field),
                        offset_of!(theirs::$name, $field),
                    );
                )*
            )*
            assert!(findings.0.is_empty(), "{}", findings.0.join("\n"));
        }
    };
}

include!("list.rs");

/// The fields that hold an unnamed union of C, which each side names in its own way.
#[test]
fn unions_without_a_name_lie_where_c_has_them() {
    macro_rules! same {
        ($($name:ident: $ours:ident as $theirs:ident;)*) => { $(
            assert_eq!(
                offset_of!(ours::$name, $ours),
                offset_of!(theirs::$name, $theirs),
                "{}.{}", stringify!($name), stringify!($theirs),
            );
        )* };
    }
    same! {
        ibv_wc: __bindgen_anon_1 as imm_data_invalidated_rkey_union;
        ibv_send_wr: __bindgen_anon_1 as imm_data_invalidated_rkey_union;
        ibv_send_wr: __bindgen_anon_2 as bind_mw_tso_union;
        ibv_flow_spec: __bindgen_anon_1 as ibv_flow_spec_union;
        rdma_addr: __bindgen_anon_1 as src_addr_union;
        rdma_addr: __bindgen_anon_2 as dst_addr_union;
    }
}
