//! The network as its device sees it.

use std::net::{IpAddr, Ipv4Addr};

use super::Network;
use crate::{Context, Gid, QpAddress};

/// A device with a datagram queue pair that is on the network.
fn datagrams(ctx: &Context, cq: &crate::CompletionQueue) -> (crate::DatagramQueuePair, std::sync::Arc<Network>) {
    let pd = ctx.alloc_pd().unwrap();
    let gid = Gid::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let row = ctx.port(1).unwrap().gids.iter().find(|row| row.gid == gid).expect("loopback is up").index;
    let qp = pd.ud(cq).gid_index(row).build().unwrap().activate().unwrap();
    let network = pd.node().network().unwrap();
    (qp, network)
}

/// Programs that keep to shared memory do not pay for the network with a system call per poll.
#[test]
fn a_network_that_is_not_used_is_not_polled() {
    let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
    let (near_cq, far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
    let ((mut a, here), (b, there)) = (datagrams(&near, &near_cq), datagrams(&far, &far_cq));
    assert!(!here.is_used() && !there.is_used());
    let to = a.address_handle(&QpAddress { soft: None, ..b.address() }).unwrap();
    a.send_inline(b"x", &to).post().unwrap();
    assert!(here.is_used());
    let start = std::time::Instant::now();
    while !there.is_used() {
        assert!(start.elapsed().as_secs() < 20, "nothing came");
        std::thread::yield_now();
    }
}
