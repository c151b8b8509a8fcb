//! What the user says about NICs.

mod support;

use qpair_topology::{CpuId, GpuId, NicId, PathClass, SelectError, Selection};
use support::machines;

#[test]
fn an_excluded_nic_is_not_used_by_name_or_address() {
    let machine = machines::dgx_a100();
    let address = machine.nics()[0].address.unwrap().to_string();
    for nic in ["mlx5_0", &address] {
        let choice = Selection::of(&machine).exclude(nic).choose().unwrap();
        assert!(choice.assignments().iter().all(|a| a.rails.iter().all(|rail| rail.nic != NicId(0))));
        assert!(choice.explain().to_string().contains("mlx5_0: PIX, at most 24 GB/s: excluded"));
    }
}

#[test]
fn only_named_nics_are_used() {
    let machine = machines::dgx_h100();
    let choice = Selection::of(&machine).only("mlx5_2").only("mlx5_3").choose().unwrap();
    for gpu in machine.gpu_ids() {
        assert!(choice.nics(gpu).iter().all(|nic| [NicId(2), NicId(3)].contains(nic)));
    }
}

#[test]
fn a_pinned_gpu_uses_all_its_pins_and_others_make_room() {
    let machine = machines::dgx_a100();
    let choice = Selection::of(&machine).pin(GpuId(0), "mlx5_1").choose().unwrap();
    assert_eq!(choice.nics(GpuId(0)), [NicId(1)]);
    assert_eq!(choice.nics(GpuId(1)), [NicId(0)]);
    let choice = Selection::of(&machine).pin(GpuId(0), "mlx5_1").pin(GpuId(0), "mlx5_7").choose().unwrap();
    assert_eq!(choice.nics(GpuId(0)), [NicId(1), NicId(7)]);
    assert!(choice.of(GpuId(0)).unwrap().reason.ends_with("as told"));
}

#[test]
fn a_pin_outweighs_gpu_direct_software_and_virtual_functions() {
    let machine = machines::far_and_fast();
    let choice = Selection::of(&machine).pin(GpuId(0), "mlx5_1").choose().unwrap();
    assert_eq!(choice.of(GpuId(0)).unwrap().rails[0].path.class, PathClass::Sys);
    let machine = machines::virtual_functions();
    let choice = Selection::of(&machine).pin(GpuId(3), "mlx5_1").choose().unwrap();
    assert_eq!(choice.nics(GpuId(3)), [NicId(1)]);
    let machine = machines::nics_only();
    let choice = Selection::of(&machine).pin(CpuId(1), "soft0").choose().unwrap();
    assert_eq!(machine.label(choice.nics(CpuId(1))[0]), "soft0");
}

#[test]
fn what_matches_nothing_lists_what_there_is() {
    let machine = machines::two_sockets();
    for selection in [Selection::of(&machine).exclude("mlx4_0"), Selection::of(&machine).pin(GpuId(0), "0000:ff:00.0")]
    {
        let error = selection.choose().unwrap_err();
        assert!(matches!(error, SelectError::NoSuchNic { .. }));
        assert!(error.to_string().ends_with(": there is mlx5_0 at 0000:07:00.0"), "{error}");
    }
    let error = Selection::of(&machine).gpus([GpuId(4)]).choose().unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no GPU 4: there are GPU 0 at 0000:03:00.0, GPU 1 at 0000:05:00.0, GPU 2 at 0000:0a:00.0, GPU 3 at 0000:0c:00.0"
    );
}

#[test]
fn contradictions_are_told() {
    let machine = machines::dgx_a100();
    let of = || Selection::of(&machine);
    let error = of().exclude("mlx5_0").pin(GpuId(0), "mlx5_0").choose().unwrap_err();
    assert!(matches!(error, SelectError::Contradiction { .. }), "{error}");
    let error = of().exclude("mlx5_0").only("mlx5_0").choose().unwrap_err();
    assert!(matches!(error, SelectError::Contradiction { .. }), "{error}");
    let error = of().gpus([GpuId(0)]).pin(GpuId(1), "mlx5_0").choose().unwrap_err();
    assert!(matches!(error, SelectError::PinnedOutside { .. }), "{error}");
    let error = of().only("mlx5_0").pin(GpuId(1), "mlx5_1").choose().unwrap_err();
    assert!(matches!(error, SelectError::PinnedUnusable { .. }), "{error}");
}

#[test]
fn a_pin_to_a_nic_that_is_down_is_told() {
    let mut parts = machines::two_sockets().description().clone();
    parts.nics[0].ports[0].state = qpair_topology::PortState::Down;
    let machine = parts.build();
    let error = Selection::of(&machine).pin(GpuId(0), "mlx5_0").choose().unwrap_err();
    assert!(error.to_string().contains("no port is active"), "{error}");
    assert_eq!(Selection::of(&machine).choose().unwrap().nics(GpuId(0)), []);
}

#[test]
fn without_any_nic_left_nothing_is_chosen_and_said_so() {
    let machine = machines::two_sockets();
    let choice = Selection::of(&machine).exclude("mlx5_0").choose().unwrap();
    assert_eq!(choice.nics(GpuId(0)), []);
    assert!(choice.of(GpuId(0)).unwrap().reason.contains("none of those there are can be used"));
}

#[test]
fn gpus_of_two_sockets_talk_over_their_nics_where_that_is_faster() {
    let mut parts = machines::pairs(2).description().clone();
    parts.gpu_links.clear();
    parts.nv_switch = None;
    let machine = parts.build();
    let choice = Selection::of(&machine).choose().unwrap();
    let path = choice.between(&machine, GpuId(0), GpuId(1)).unwrap();
    assert_eq!(path.class, PathClass::Net);
    assert!(path.bandwidth > machine.path(GpuId(0), GpuId(1)).unwrap().bandwidth);
}
