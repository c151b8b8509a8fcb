//! What tests of connections by rdma_cm have in common: both ends are of one device.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{CmError, Connecting, Context, Established, Listener, Prepared};

use crate::ground::{Ground, in_fake};

/// For what comes, and would be waited for without end if it did not.
pub const LIMIT: Duration = Duration::from_secs(10);

/// An opened device that listens.
pub struct Listening {
    pub ground: Ground,
    pub listener: Listener,
}

impl Listening {
    pub fn new() -> Listening {
        Listening::on(Ground::new())
    }

    pub fn on(ground: Ground) -> Listening {
        let listener = ground.ctx.listen(0).unwrap();
        Listening { ground, listener }
    }

    pub fn rc(&self) -> Prepared {
        rc(&self.ground)
    }

    pub fn peer(&self) -> SocketAddr {
        at(&self.ground.ctx, self.listener.port())
    }

    pub fn ask(&self, private: &[u8]) -> Connecting {
        self.ground.ctx.connect_to(self.peer(), self.rc(), private).unwrap()
    }

    /// A connection of the device to itself: the end that asked, and the other.
    pub fn connect(&self) -> (Established, Established) {
        let mut asking = self.ask(b"");
        let mut accepting = self.listener.wait(LIMIT).unwrap().accept(self.rc(), b"").unwrap();
        let near = asking.wait(LIMIT).unwrap();
        (near, accepting.wait(LIMIT).unwrap())
    }

    /// Closes everything, and asserts that nothing is left and nothing was done wrong.
    #[track_caller]
    pub fn close(self) -> Device {
        drop(self.listener);
        self.ground.close()
    }
}

pub fn rc(ground: &Ground) -> Prepared {
    ground.pd.rc(&ground.cq).send_depth(4).recv_depth(4).build().unwrap()
}

/// A port at the IPv4 address of a device, by its table of GIDs.
pub fn at(ctx: &Context, port: u16) -> SocketAddr {
    let gids = ctx.port(1).unwrap().gids;
    let mut mapped = gids.iter().filter_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    SocketAddr::new(mapped.next().unwrap().into(), port)
}

/// Why an attempt failed.
#[track_caller]
pub fn refused(mut asking: Connecting) -> CmError {
    asking.wait(LIMIT).map(|_| "a connection").unwrap_err()
}

#[test]
fn the_library_in_memory_is_the_one_that_connects() {
    in_fake(|| {
        let listening = Listening::new();
        let calls = listening.close().calls();
        for call in ["rdma_create_event_channel cm_channel", "rdma_listen cm_id", "rdma_destroy_id cm_id"] {
            assert!(calls.contains(call), "{call} is not in\n{calls}");
        }
    });
}
