//! Ports, their GID tables, and the options of a path.

use qpair_verbs::{CreateError, GRH_BYTES, GidKind, LinkLayer, Mtu, PhysicalState, QpType, WcOpcode};

use crate::harness::{Command, Env, Fill, Mem, QpSpec, SrqId, Work, is_ours, is_soft};

one_sided! {
    a_port_that_is_not_there_is_refused,
    a_row_of_the_table_that_is_not_there_is_refused,
    on_ethernet_rocev2_goes_first,
    what_a_device_tells_is_plausible,
    options_of_the_path_are_taken,
    more_reads_than_the_device_has_are_cut,
}

two_sided! {
    the_lesser_mtu_holds,
    datagrams_find_receives_of_a_shared_queue,
}

fn a_port_that_is_not_there_is_refused(env: &Env) {
    let (ctx, pd) = (env.ctx(), env.ctx().alloc_pd().unwrap());
    let cq = ctx.create_cq(4).unwrap();
    let ports = ctx.attributes().ports;
    for number in [0, ports + 1, u8::MAX] {
        assert!(ctx.port(number).is_none(), "port {number}");
        let error = pd.rc(&cq).port(number).build().unwrap_err();
        assert!(
            matches!(error, CreateError::OutOfRange { asked, limit, .. }
                if (asked, limit) == (number.into(), ports.into())),
            "{error}"
        );
    }
    pd.rc(&cq).port(1).build().unwrap();
}

fn a_row_of_the_table_that_is_not_there_is_refused(env: &Env) {
    if !env.able("choosing a row of the GID table", !is_soft()) {
        return;
    }
    let (ctx, pd) = (env.ctx(), env.ctx().alloc_pd().unwrap());
    let cq = ctx.create_cq(4).unwrap();
    let gids = ctx.port(1).expect("ports count from 1").gids;
    let last = gids.iter().map(|row| row.index).max().expect("a row");
    let error = pd.rc(&cq).gid_index(last + 1).build().unwrap_err();
    assert!(matches!(error, CreateError::EmptyGid { index, .. } if index == last + 1), "{error}");
    for row in &gids {
        let made = pd.rc(&cq).gid_index(row.index).build().unwrap();
        assert_eq!(made.address().gid, row.gid, "row {}", row.index);
    }
}

fn on_ethernet_rocev2_goes_first(env: &Env) {
    let port = env.ctx().port(1).expect("ports count from 1");
    if !env.able("RoCE", port.link_layer == LinkLayer::Ethernet) {
        return;
    }
    let preferred = port.preferred_gid(None).expect("a row");
    assert_eq!(preferred.kind, GidKind::RoceV2, "{:?}", port.gids);
    assert!(preferred.netdev.is_some(), "{preferred:?}");
    let pd = env.ctx().alloc_pd().unwrap();
    let cq = env.ctx().create_cq(4).unwrap();
    assert_eq!(pd.rc(&cq).build().unwrap().address().gid, preferred.gid);
    for row in port.gids.iter().filter(|row| row.kind == GidKind::RoceV2) {
        assert_eq!(port.preferred_gid(Some(row.gid)).map(|it| it.gid), Some(row.gid), "towards itself");
    }
}

fn what_a_device_tells_is_plausible(env: &Env) {
    let (ctx, able) = (env.ctx(), env.ctx().attributes());
    assert!(able.ports >= 1, "{able:?}");
    // Zero is what a device does not tell.
    let told = [able.max_pd, able.max_cq, able.max_rd_atomic, able.max_init_rd_atomic];
    assert!(told.iter().all(|&count| count >= 1) || is_ours(), "{able:?}");
    assert!(able.max_inline <= 1 << 16 && able.max_sge_read <= able.max_sge, "{able:?}");
    let port = ctx.port(1).expect("ports count from 1");
    assert!(port.max_message >= 1 << 20 && !port.gids.is_empty(), "{port:?}");
    assert!(port.gids.len() <= port.gid_table_len as usize || is_soft(), "{port:?}");
    if port.link_layer == LinkLayer::Ethernet {
        assert_eq!(port.physical_state, PhysicalState::LinkUp);
        assert!(port.pkeys.contains(&0xffff), "{port:?}");
    }
}

fn options_of_the_path_are_taken(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let mut cq = env.ctx().create_cq(16).unwrap();
    let make = || pd.rc(&cq).traffic_class(106).hop_limit(3).service_level(1).mtu(Mtu::B256).build().unwrap();
    let (a, b) = (make(), make());
    let (addr_a, addr_b) = (a.address(), b.address());
    assert!(addr_a.mtu == Mtu::B256 || is_soft(), "{addr_a:?}");
    let (mut a, mut b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
    b.recv(pd.alloc(5000).unwrap()).post().unwrap();
    a.send(pd.alloc(5000).unwrap()).signaled().post().unwrap();
    for _ in 0..2 {
        cq.wait_for(crate::harness::LIMIT).unwrap().ok().unwrap();
    }
}

fn more_reads_than_the_device_has_are_cut(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let mut cq = env.ctx().create_cq(64).unwrap();
    let most = env.ctx().attributes().max_rd_atomic;
    let many = pd.rc(&cq).max_rd_atomic(u8::MAX).build().unwrap();
    assert!(u32::from(many.address().max_rd_atomic) <= most);
    let few = pd.rc(&cq).max_rd_atomic(1).build().unwrap();
    let (addr_many, addr_few) = (many.address(), few.address());
    let (mut many, _few) = (many.connect(&addr_few).unwrap(), few.connect(&addr_many).unwrap());
    // More than the other side answers at once: the device holds them back.
    let target = pd.expose(4096, qpair_verbs::Access::REMOTE_READ).unwrap();
    for _ in 0..32 {
        many.read(pd.alloc(4096).unwrap(), target.remote(0..4096)).signaled().post().unwrap();
    }
    for _ in 0..32 {
        cq.wait_for(crate::harness::LIMIT).unwrap().ok().unwrap();
    }
}

fn the_lesser_mtu_holds(env: &Env) {
    let small = QpSpec { mtu: Some(Mtu::B256), ..QpSpec::rc() };
    for (near, far) in [(&small, &QpSpec::rc()), (&QpSpec::rc(), &small)] {
        let mut pair = env.pair(near, far);
        let target = pair.far.expose(10_000, qpair_verbs::Access::REMOTE_ALL);
        pair.near.post(Work::write(Mem::seeded(10_000, 1), target.remote).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
        pair.near.post(Work::read(target.remote).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(1).bytes(10_000));
    }
}

fn datagrams_find_receives_of_a_shared_queue(env: &Env) {
    if !env.able("shared receive queues of datagrams", !is_soft()) {
        return;
    }
    let (mut near, mut far) = (env.near(), env.far());
    let srq: SrqId = far.new_srq(16);
    let ours = near.new_qp(&QpSpec { qkey: Some(5), ..QpSpec::new(QpType::Ud) });
    let spec = QpSpec { qkey: Some(5), srq: Some(srq), ..QpSpec::new(QpType::Ud) };
    let made: Result<_, String> = far.try_new_qp(&spec);
    if !env.able("shared receive queues of datagrams", made.is_ok()) {
        return;
    }
    let theirs = made.expect("just looked");
    near.ask::<()>(Command::Activate { qp: ours.qp });
    far.ask::<()>(Command::Activate { qp: theirs.qp });
    let to = near.new_handle(theirs.address);
    for wr_id in 0..4 {
        far.srq_post(srq, Mem::blank(GRH_BYTES + 100), wr_id);
        near.post(Work::send_to(to, Mem::seeded(100, wr_id)).signaled());
        near.done().assert_success(WcOpcode::SEND);
        let received = far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.wr_id, received.src_qpn), (wr_id, Some(ours.address.qpn)));
        received.memory.assert_is(&Fill::Seed(wr_id).bytes(100));
    }
}
