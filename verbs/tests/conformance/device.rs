//! Devices, their limits, and what can not be made.

use qpair_verbs::{Context, CreateError, Device, MemoryError, OpenError, PortState, QpType, Rkey, WcOpcode, WcStatus};

use crate::harness::{Env, is_soft};

one_sided! {
    the_device_is_listed_and_opens,
    an_unknown_device_is_refused,
    the_port_is_up_and_has_an_identifier,
    limits_hold_what_was_used,
    sizes_out_of_range_are_refused,
    objects_of_another_context_are_refused,
    shared_receive_queues_are_for_reliable_connections,
    keys_run_out_with_an_error,
    unknown_codes_print_and_do_no_harm,
}

fn the_device_is_listed_and_opens(env: &Env) {
    let devices = Device::list();
    let device = devices.iter().find(|device| device.name() == env.device()).expect("it is listed");
    let ctx = device.open().unwrap();
    assert_eq!(ctx.name(), env.device());
    assert_eq!(ctx.clone().attributes().max_qp, ctx.attributes().max_qp);
}

fn an_unknown_device_is_refused(env: &Env) {
    for name in ["", "soft", "soft0 ", "no such device"] {
        let error = Context::open(name).unwrap_err();
        // Where there is no libibverbs, the names that it would have are not known.
        let (OpenError::NotFound { name: asked, .. } | OpenError::Library { name: asked, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(asked, name);
        assert!(error.to_string().contains(env.device()), "{error}");
    }
}

fn the_port_is_up_and_has_an_identifier(env: &Env) {
    let port = env.ctx().port(1).expect("ports count from 1");
    assert_eq!(port.state, PortState::Active);
    assert!(port.active_mtu <= port.max_mtu);
    assert!(!port.gids.is_empty() && port.gids.iter().any(|entry| entry.gid.0 != [0; 16]));
    assert!(port.gids.is_sorted_by(|a, b| a.index < b.index), "{:?}", port.gids);
    let ports = env.ctx().attributes().ports;
    assert!(env.ctx().port(0).is_none() && env.ctx().port(ports + 1).is_none());
}

fn limits_hold_what_was_used(env: &Env) {
    let able = env.ctx().attributes();
    assert!(able.max_qp >= 16 && able.max_qp_wr >= 128 && able.max_sge >= 1 && able.max_cqe >= 256);
    assert!(able.max_mr >= 64 && able.max_mr_size >= 16 << 20 && able.max_message >= 16 << 20);
    assert!(!able.firmware.is_empty());
}

fn sizes_out_of_range_are_refused(env: &Env) {
    let ctx = env.ctx();
    let able = ctx.attributes();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(4).unwrap();
    let out_of_range = |result: Result<(), CreateError>, limit: u32| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, CreateError::OutOfRange { limit: most, .. } if most == u64::from(limit)),
            "{error:?}, not {limit}"
        );
    };
    for depth in [0, able.max_cqe.saturating_add(1), u32::MAX] {
        out_of_range(ctx.create_cq(depth).map(drop), able.max_cqe);
    }
    for depth in [0, able.max_srq_wr.saturating_add(1), u32::MAX] {
        out_of_range(pd.create_srq(depth).map(drop), able.max_srq_wr);
    }
    for depth in [able.max_qp_wr.saturating_add(1), u32::MAX] {
        out_of_range(pd.rc(&cq).send_depth(depth).build().map(drop), able.max_qp_wr);
        out_of_range(pd.rc(&cq).recv_depth(depth).build().map(drop), able.max_qp_wr);
    }
    assert!(matches!(pd.rc(&cq).retry_count(8).build(), Err(CreateError::OutOfRange { limit: 7, .. })));
    assert!(matches!(pd.rc(&cq).rnr_retry(8).build(), Err(CreateError::OutOfRange { limit: 7, .. })));
}

fn objects_of_another_context_are_refused(env: &Env) {
    let (ctx, other) = (env.ctx(), Context::open(env.device()).unwrap());
    let pd = ctx.alloc_pd().unwrap();
    let (cq, foreign) = (ctx.create_cq(4).unwrap(), other.create_cq(4).unwrap());
    let srq = other.alloc_pd().unwrap().create_srq(4).unwrap();
    for builder in [pd.rc(&foreign), pd.rc(&cq).recv_cq(&foreign), pd.rc(&cq).srq(&srq)] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, CreateError::ForeignObject { .. }), "{error}");
    }
    assert_eq!(pd.rc(&cq).build().unwrap().address().qp_type, QpType::Rc);
}

fn shared_receive_queues_are_for_reliable_connections(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let (cq, srq) = (ctx.create_cq(4).unwrap(), pd.create_srq(4).unwrap());
    for builder in [pd.uc(&cq).srq(&srq), pd.ud(&cq).srq(&srq)] {
        // Devices may do more, which cases of their own try.
        match builder.build() {
            Ok(prepared) => assert!(!is_soft(), "{prepared:?}"),
            Err(CreateError::NotSupported { .. }) => {}
            Err(error) => assert!(matches!(error, CreateError::System { .. }) && !is_soft(), "{error}"),
        }
    }
    pd.rc(&cq).srq(&srq).build().unwrap();
}

fn keys_run_out_with_an_error(env: &Env) {
    // A context of its own: the cases run at the same time.
    let ctx = Context::open(env.device()).unwrap();
    let limit = ctx.attributes().max_mr as usize;
    if !env.able("so few keys that they can be used up", limit <= 1 << 17) {
        return;
    }
    let pd = ctx.alloc_pd().unwrap();
    let mut regions = Vec::with_capacity(limit);
    let error = loop {
        match pd.expose(64, qpair_verbs::Access::REMOTE_READ) {
            Ok(region) => regions.push(region),
            Err(error) => break error,
        }
        assert!(regions.len() <= limit, "more keys than the device has");
    };
    assert_eq!(regions.len(), limit);
    assert!(matches!(error, MemoryError::NoKeys { limit: most } if most == limit), "{error}");
    let mut keys: Vec<Rkey> = regions.iter().map(|region| region.rkey()).collect();
    keys.sort_unstable_by_key(|key| key.0);
    keys.dedup();
    assert_eq!(keys.len(), limit, "each key once");
    regions.pop();
    let buffer = pd.alloc(64).unwrap();
    buffer.expose(qpair_verbs::Access::REMOTE_READ).expect("one key is free again");
}

fn unknown_codes_print_and_do_no_harm(_: &Env) {
    for code in [3, 22, 23, 1000, u32::MAX] {
        assert_eq!((WcStatus(code).name(), WcStatus(code).to_string()), (None, format!("code {code}")));
        assert!(!WcStatus(code).is_success());
    }
    for code in [7, 63, 130, u32::MAX] {
        assert_eq!((WcOpcode(code).name(), WcOpcode(code).to_string()), (None, format!("code {code}")));
    }
}
