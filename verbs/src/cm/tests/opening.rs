//! How connections begin, or do not.

use std::net::SocketAddr;
use std::time::Duration;

use super::ground::{LIMIT, Side, accept, at, loopbacks, sides, soon, talk};
use crate::{Access, CmError, ConnectError, Mtu, QpType, RejectReason};

#[test]
fn both_are_told_what_the_other_says_and_offers() {
    let Some((mut a, mut b)) = sides() else { return };
    for address in loopbacks() {
        let listener = b.ctx.listen(0).unwrap();
        let peer = SocketAddr::new(address, listener.port());
        let asks = a.pd.rc(&a.cq).max_rd_atomic(7).retry_count(5).rnr_retry(3).build().unwrap();
        let qpn = asks.number();
        let mut asking = a.ctx.connect_to(peer, asks, b"may I?").unwrap();
        assert!(asking.poll().unwrap().is_none());
        let request = listener.wait(LIMIT).unwrap();
        assert_eq!((request.local(), request.peer().ip().is_ipv4()), (address, address.is_ipv4()));
        assert_eq!((&request.private_data()[..7], request.private_data().len()), (&b"may I?\0"[..], 56));
        let offer = request.offer();
        assert_eq!((offer.qp_type, offer.qpn, offer.mtu), (QpType::Rc, qpn, Mtu::B4096));
        assert_eq!((offer.max_reads, offer.reads_answered, offer.retry_count, offer.rnr_retry), (7, 7, 5, 3));
        let mut accepting = request.accept(b.rc(), b"you may").unwrap();
        let mut near = asking.wait(LIMIT).unwrap();
        let mut far = accepting.wait(LIMIT).unwrap();
        assert_eq!((&near.private_data[..8], near.private_data.len()), (&b"you may\0"[..], 196));
        assert_eq!(&far.private_data[..7], b"may I?\0");
        assert_eq!((near.connection.peer(), far.connection.local()), (peer, address));
        assert!(near.queue_pair.explain().contains("roce wire"), "{}", near.queue_pair.explain());
        talk((&mut near, &mut a), (&mut far, &mut b));
        assert!(matches!(asking.poll(), Err(CmError::Over)));
        assert_eq!((near.connection.poll(), far.connection.poll()), (None, None));
    }
}

#[test]
fn memory_is_read_and_written_over_it() {
    let Some((mut a, b)) = sides() else { return };
    let (mut near, _far) = super::ground::connect(&a, &b);
    let window = b.pd.expose(1 << 16, Access::REMOTE_ALL).unwrap();
    let mut buffer = a.pd.alloc(1 << 16).unwrap();
    buffer.fill(7);
    near.queue_pair.write(buffer, window.remote(0..1 << 16)).signaled().post().unwrap();
    assert!(a.cq.wait_for(LIMIT).unwrap().status().is_success());
    near.queue_pair.read(a.pd.alloc(1 << 16).unwrap(), window.remote(0..1 << 16)).signaled().post().unwrap();
    let read = a.cq.wait_for(LIMIT).unwrap().into_buffer().unwrap();
    assert!(read.iter().all(|&byte| byte == 7));
}

#[test]
fn a_device_connects_to_itself() {
    let Some((mut a, _)) = sides() else { return };
    let listener = a.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    let mut accepting = accept(&a, &listener);
    let (mut near, mut far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    far.queue_pair.recv(a.pd.alloc(8).unwrap()).post().unwrap();
    near.queue_pair.send_inline(b"self").post().unwrap();
    assert!(a.cq.wait_for(LIMIT).unwrap().status().is_success());
}

#[test]
fn unreliable_connections_are_made_too() {
    let Some((mut a, mut b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let uc = |side: &Side| side.pd.uc(&side.cq).build().unwrap();
    let mut asking = a.ctx.connect_to(at(listener.port()), uc(&a), b"").unwrap();
    let request = listener.wait(LIMIT).unwrap();
    assert_eq!(request.offer().qp_type, QpType::Uc);
    let mut accepting = request.accept(uc(&b), b"").unwrap();
    let (mut near, mut far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    talk((&mut near, &mut a), (&mut far, &mut b));
    // And one of another kind is refused.
    let mut asking = a.ctx.connect_to(at(listener.port()), uc(&a), b"").unwrap();
    let error = listener.wait(LIMIT).unwrap().accept(b.rc(), b"").unwrap_err();
    assert!(matches!(error, CmError::Connect(ConnectError::TypeMismatch { .. })), "{error}");
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { reason: RejectReason::CONSUMER, .. })));
}

#[test]
fn a_refusal_says_why() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    listener.wait(LIMIT).unwrap().reject(b"not today").unwrap();
    let Err(CmError::Rejected { reason, private, peer }) = asking.wait(LIMIT) else { panic!("it is refused") };
    assert_eq!((reason, &private[..10], peer), (RejectReason::CONSUMER, &b"not today\0"[..], at(listener.port())));
    // What nobody answers is refused too.
    let mut asking = a.ask(listener.port());
    drop(listener.wait(LIMIT).unwrap());
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { reason: RejectReason::CONSUMER, .. })));
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Over)));
}

#[test]
fn where_nobody_listens_it_is_said() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let port = listener.port();
    drop(listener);
    let Err(error) = a.ask(port).wait(LIMIT) else { panic!("nobody is there") };
    assert!(matches!(error, CmError::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }), "{error}");
    assert!(error.to_string().contains("nobody listens at that port"), "{error}");
}

#[test]
fn a_port_has_one_listener() {
    let Some((a, b)) = sides() else { return };
    let listener = a.ctx.listen(0).unwrap();
    let port = listener.port();
    for side in [&a, &b] {
        assert!(matches!(side.ctx.listen(port), Err(CmError::AddressInUse { port: other }) if other == port));
    }
    drop(listener);
    let listener = b.ctx.listen(port).unwrap();
    assert!(listener.poll().is_none());
    assert!(matches!(listener.wait(Duration::from_millis(5)), Err(CmError::TimedOut { .. })));
}

#[test]
fn what_can_not_be_asked_for_is_refused_here() {
    let Some((a, b)) = sides() else { return };
    let connect = |prepared, said: &[u8]| a.ctx.connect_to(at(9), prepared, said).map(drop).unwrap_err();
    assert!(matches!(connect(a.rc(), &[0; 57]), CmError::PrivateTooLong { len: 57, limit: 56 }));
    assert!(matches!(connect(b.rc(), b""), CmError::ForeignObject));
    let ud = || a.pd.ud(&a.cq).build().unwrap();
    assert!(matches!(connect(ud(), b""), CmError::NotConnected));
    let off = a.pd.rc(&a.cq).gid_index(0).build().unwrap();
    assert!(matches!(connect(off, b""), CmError::Connect(ConnectError::NoRoute { .. })));
    // Each of these ends the request.
    let listener = b.ctx.listen(0).unwrap();
    for mistake in 0..3 {
        let mut asking = a.ask_with(listener.port(), &soon());
        let request = listener.wait(LIMIT).unwrap();
        let error = match mistake {
            0 => request.accept(b.rc(), &[0; 197]).unwrap_err(),
            1 => request.accept(a.rc(), b"").unwrap_err(),
            _ => request.reject(&[0; 149]).unwrap_err(),
        };
        assert!(matches!(error, CmError::PrivateTooLong { .. } | CmError::ForeignObject), "{error}");
        assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { .. })));
    }
}

#[test]
fn packets_are_as_long_as_both_take() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    let short = b.pd.rc(&b.cq).mtu(Mtu::B512).build().unwrap();
    let error = listener.wait(LIMIT).unwrap().accept(short, b"").unwrap_err();
    assert!(matches!(error, CmError::MtuTooLong { asked: Mtu::B4096, limit: Mtu::B512 }), "{error}");
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { reason: RejectReason::INVALID_MTU, .. })));
    let short = a.pd.rc(&a.cq).mtu(Mtu::B512).build().unwrap();
    let mut asking = a.ctx.connect_to(at(listener.port()), short, b"").unwrap();
    let mut accepting = accept(&b, &listener);
    let (near, far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    for end in [near, far] {
        assert!(end.queue_pair.explain().contains("path MTU 512"), "{}", end.queue_pair.explain());
    }
}
