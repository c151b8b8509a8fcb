//! Ids of librdmacm: what is left behind, or done wrong, is seen. A program of its own, with one test: ids without an address
//! count for each device, and other tests would see them.

use std::mem::zeroed;
use std::ptr::null_mut;

use qpair_fake_ibverbs::control::{Device, library_path};
use qpair_verbs_sys::*;

#[test]
fn what_is_left_or_used_after_its_end_is_seen() {
    let device = Device::new("ids0").expect("the library is there");
    let cm = Rdmacm::open(library_path().expect("it is built")).expect("it has all functions");
    // SAFETY: objects made here; those that are destroyed are used again, which this library takes note of.
    unsafe {
        let channel = (cm.rdma_create_event_channel)();
        let mut id = null_mut();
        assert_eq!((cm.rdma_create_id)(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        assert!(device.live().contains("cm_channel") && device.live().contains("cm_id"), "{}", device.live());

        // An event that is read and not acknowledged.
        device.cm_event(RDMA_CM_EVENT_TIMEWAIT_EXIT, -7, 0).expect("there is an id");
        let mut event = null_mut();
        assert_eq!((cm.rdma_get_cm_event)(channel, &raw mut event), 0);
        assert_eq!(((*event).id, (*event).event, (*event).status), (id, RDMA_CM_EVENT_TIMEWAIT_EXIT, -7));
        assert_eq!((cm.rdma_destroy_id)(id), -1);
        assert!(device.violations().contains("1 events not acknowledged"), "{}", device.violations());
        assert_eq!((cm.rdma_ack_cm_event)(event), 0);

        device.reset().expect("a device");
        assert_eq!((cm.rdma_ack_cm_event)(event), -1);
        assert!(device.violations().contains("was not read"), "{}", device.violations());

        device.reset().expect("a device");
        assert_eq!((cm.rdma_destroy_id)(id), 0);
        assert_eq!(device.violations(), "");
        let mut attr: ibv_qp_attr = zeroed();
        let mut mask = 0;
        let fill = cm.rdma_init_qp_attr().expect("a new one");
        assert_eq!(fill(id, &raw mut attr, &raw mut mask), -1);
        assert!(device.violations().contains("was destroyed before"), "{}", device.violations());

        device.reset().expect("a device");
        assert_eq!((cm.rdma_create_id)(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        (cm.rdma_destroy_event_channel)(channel);
        assert!(device.violations().contains("with 1 ids left"), "{}", device.violations());
        assert_eq!((cm.rdma_destroy_id)(id), 0);
        device.reset().expect("a device");
        device.assert_clean();
    }
}
