//! On a libibverbs in memory, whose device reaches memory of GPUs by a DMA-buf, or not at all, or that of one GPU alone.

use std::sync::Arc;

use qpair_collectives::{Algorithm, Communicator, Environment, ReduceOp};
use qpair_fake_cuda::control as cuda;
use qpair_fake_ibverbs::control as ibverbs;
use qpair_fake_ibverbs::process::in_process;
use qpair_topology::{
    Bridge, BridgeRole, Cpu, GpuLink, GpuLinkKind, GpuPeer, LinkLayer, Machine, Nic, Parent, PciAddress,
    Port as NicPort,
};
use qpair_transport::Near;
use qpair_verbs::{Context, Gpu};

use crate::port::Port;
use crate::support::{elements, gpu, in_threads, vector};

/// The device that the libibverbs in memory has from the start.
const FAKE: &str = "fake0";

/// Runs the calling test in a process of its own, whose libibverbs is the one in memory, with these variables.
#[track_caller]
fn on_a_fake<F: FnOnce()>(variables: &[(&str, &str)], case: F) {
    let library = ibverbs::library_path().expect("the library is built beside the tests");
    let library = library.into_os_string().into_string().expect("a plain path");
    in_process(&[&[("QPAIR_LIBIBVERBS", &*library)], variables].concat(), case);
}

const ON_IT: &[(&str, &str)] = &[("QPAIR_DEVICE", FAKE)];

/// Ranks that are near to that.
fn ranks(count: u32, near: Option<Near>) -> Vec<Communicator> {
    let port = Port::keep();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (near, number) = (near.clone(), port.number);
            scope.spawn(move || {
                let mut environment = Environment::at(rank, count, "127.0.0.1", number);
                environment.near = near;
                environment.connect().expect("its peers")
            })
        };
        let all: Vec<_> = (0..count).map(rank).collect();
        all.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// All-reduce and all-to-all of vectors on a GPU, of few elements and of more than there are slots for; gives what rank 0 says.
fn work(comms: Vec<Communicator>, gpu: Gpu) -> String {
    let texts = in_threads(comms, |comm| {
        let (me, count) = (comm.rank(), comm.size());
        for len in [1, 1000, 3_000_001] {
            let mut sum = vector(&comm, gpu, &vec![me as f32 + 1.0; len]);
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(elements(&sum), vec![(1..=count).sum::<usize>() as f32; len]);
            let mut blocks = vector(&comm, gpu, &vec![me as i8; count * len]);
            comm.all_to_all(&mut blocks).unwrap();
            let expected: Vec<i8> = (0..count).flat_map(|from| vec![from as i8; len]).collect();
            assert_eq!(elements(&blocks), expected);
        }
        comm.explain().to_string()
    });
    texts.into_iter().next().expect("rank 0")
}

#[test]
fn where_the_device_reaches_the_memory_nothing_goes_by_slots() {
    on_a_fake(ON_IT, || {
        let (gpu, device) = (gpu(), ibverbs::Device::new(FAKE).unwrap());
        let domain = Context::open(FAKE).unwrap().alloc_pd().unwrap();
        assert!(domain.reaches_gpus());
        assert_eq!(domain.gpu_path(gpu).unwrap().name(), "dma-buf");
        drop(domain);
        let text = work(ranks(3, None), gpu);
        assert!(text.contains("device fake0") && !text.contains("by slots"), "{text}");
        assert!(device.calls().contains("ibv_reg_dmabuf_mr"), "{}", device.calls());
    });
}

/// Before kernels of the operations read it, and before their ends are told.
#[test]
fn what_a_nic_writes_is_made_visible_or_does_not_go_straight() {
    // Whose kernels see writes in order: nobody's, or the owner's. And whether the processor can flush.
    for (ordering, flush, flushes, by_slots) in [(100, 0, false, false), (0, 1, true, false), (0, 0, false, true)] {
        const CASE: &str = "QPAIR_STAGING_TEST_CASE";
        let case = format!("{ordering} {flush}");
        if std::env::var(CASE).is_ok_and(|other| other != case) {
            continue;
        }
        on_a_fake(&[ON_IT, &[(CASE, &*case)]].concat(), || {
            let gpu = {
                qpair_fake_cuda::control::load().unwrap();
                let fake = cuda::Device::of(0);
                fake.set_attribute(118, ordering).unwrap();
                fake.set_attribute(117, flush).unwrap();
                gpu()
            };
            let domain = Context::open(FAKE).unwrap().alloc_pd().unwrap();
            assert_eq!(domain.reaches_gpus(), !by_slots);
            drop(domain);
            let comms = ranks(2, None);
            let before = count_flushes();
            let text = work(comms, gpu);
            assert_eq!(text.contains("by slots of pinned memory"), by_slots, "{case}: {text}");
            // Two operations of three lengths on two ranks, with a copy or a reduction in each that goes straight.
            let flushed = count_flushes() - before;
            assert!(if flushes { flushed >= 12 } else { flushed == 0 }, "{case}: {flushed} flushes");
            let before = count_flushes();
            in_threads(ranks(4, None), |comm| {
                comm.set_algorithm(Algorithm::RecursiveDoubling);
                let mut sum = vector(&comm, gpu, &[1.0_f32; 1000]);
                comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(elements(&sum), [4.0; 1000]);
            });
            // Four ranks combine twice with what they had, which may have come as well, and do three other things each.
            let flushed = count_flushes() - before;
            assert!(if flushes { flushed >= 20 } else { flushed == 0 }, "{case}: {flushed} flushes of four ranks");
        });
    }

    fn count_flushes() -> usize {
        cuda::Device::of(0).calls().matches("cuFlushGPUDirectRDMAWrites").count()
    }
}

#[test]
fn where_it_does_not_messages_go_by_pinned_memory() {
    on_a_fake(ON_IT, || {
        let (gpu, device) = (gpu(), ibverbs::Device::new(FAKE).unwrap());
        device.set("dmabuf", 0).unwrap();
        let domain = Context::open(FAKE).unwrap().alloc_pd().unwrap();
        assert!(!domain.reaches_gpus());
        let path = domain.gpu_path(gpu).unwrap();
        assert_eq!((path.name(), path.is_direct()), ("staging", false));
        assert!(path.reason().contains("DMA-buf") && path.reason().contains("peermem"), "{path}");
        drop(domain);
        let text = work(ranks(3, None), gpu);
        assert!(
            text.contains("messages of GPUs: by slots of pinned memory, as the device of rank 0 does not reach"),
            "{text}"
        );
        assert_eq!(device.violations(), "");
    });
}

#[test]
fn a_gpu_that_exports_no_memory_makes_all_ranks_take_slots() {
    on_a_fake(ON_IT, || {
        let gpu = gpu();
        cuda::Device::of(0).set_attribute(124, 0).unwrap();
        let text = work(ranks(2, None), gpu);
        assert!(text.contains("messages of GPUs: by slots of pinned memory, as the device of rank 0"), "{text}");
    });
}

/// A NIC under a switch with one GPU, to which another has links that reaches the NIC by the processor alone.
fn neighbours(near: PciAddress, far: PciAddress) -> Machine {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..1024).collect(), ..Cpu::numa(0) });
    let switch = PciAddress::new(0, 0xf0, 0, 0);
    let root = Parent::HostBridge { domain: 0, bus: 0xe0 };
    machine.bridge(Bridge { role: BridgeRole::Switch, ..Bridge::at(switch, root) });
    let (above, beside) = (Parent::Bridge(switch), Parent::HostBridge { domain: 0, bus: 0xe1 });
    machine.gpu(qpair_topology::Gpu { numa: Some(0), ..qpair_topology::Gpu::at(near, above) });
    machine.gpu(qpair_topology::Gpu { numa: Some(0), ..qpair_topology::Gpu::at(far, beside) });
    let ports = vec![NicPort::active(1, 200_000, LinkLayer::Ethernet)];
    let address = PciAddress::new(0, 0xf1, 0, 0);
    machine.nic(Nic { numa: Some(0), ports, ..Nic::at(FAKE, address, above) });
    let (kind, each) = (GpuLinkKind::NvLink, GpuLinkKind::nvlink(3));
    machine.gpu_link(GpuLink { gpu: near, to: GpuPeer::Gpu(far), kind, count: 4, each });
    machine.build()
}

#[test]
fn a_gpu_whose_nic_is_a_neighbours_sends_by_the_neighbours_memory() {
    on_a_fake(&[], || {
        let near = gpu();
        let more = cuda::add_device().unwrap();
        let far = Gpu::open(more.ordinal() as usize).unwrap();
        let address = |gpu: Gpu| gpu.attributes().pci_address.parse().expect("a PCI address");
        let machine = Arc::new(neighbours(address(near), address(far)));
        let text = work(ranks(2, Some(Near::gpu_at(address(far)).on(machine))), far);
        let by = format!("messages of GPUs: by slots of memory of GPU {}", near.attributes().pci_address);
        assert!(text.contains(&format!("{by}, as the NIC of rank 0 is another GPU's")), "{text}");
        // The far one's memory is not exported to the device, the near one's is.
        assert!(!more.calls().contains("cuMemGetHandleForAddressRange"), "{}", more.calls());
        assert!(cuda::Device::of(0).calls().contains("cuMemGetHandleForAddressRange"));
    });
}

#[test]
fn what_a_nic_writes_to_a_neighbour_is_made_visible_to_others_or_pinned_memory_is_taken() {
    for (ordering, flush, expected) in
        [(200, 0, "slots of memory of GPU"), (100, 1, "slots of memory of GPU"), (100, 0, "slots of pinned memory")]
    {
        // A case for each, by the child's own word.
        const CASE: &str = "QPAIR_STAGING_TEST_CASE";
        let case = format!("{ordering} {flush}");
        if std::env::var(CASE).is_ok_and(|other| other != case) {
            continue;
        }
        on_a_fake(&[(CASE, &case)], || {
            qpair_fake_cuda::control::load().unwrap();
            let fake = cuda::Device::of(0);
            fake.set_attribute(118, ordering).unwrap();
            fake.set_attribute(117, flush).unwrap();
            let near = gpu();
            let far = Gpu::open(cuda::add_device().unwrap().ordinal() as usize).unwrap();
            let address = |gpu: Gpu| gpu.attributes().pci_address.parse().expect("a PCI address");
            let machine = Arc::new(neighbours(address(near), address(far)));
            let text = work(ranks(2, Some(Near::gpu_at(address(far)).on(machine))), far);
            assert!(text.contains(expected), "{ordering}, {flush}: {text}");
            let flushes = fake.calls().contains("cuFlushGPUDirectRDMAWrites");
            assert_eq!(flushes, (ordering, flush) == (100, 1), "{ordering}, {flush}: {}", fake.calls());
        });
    }
}

#[test]
fn a_neighbour_that_is_not_seen_makes_it_pinned_memory() {
    on_a_fake(&[], || {
        let far = gpu();
        let machine = neighbours(PciAddress::new(0, 0xf3, 0, 0), far.attributes().pci_address.parse().unwrap());
        let near = Near::gpu_at(far.attributes().pci_address.parse().unwrap()).on(Arc::new(machine));
        let text = work(ranks(2, Some(near)), far);
        assert!(text.contains("by slots of pinned memory, as the NIC of rank 0 is another GPU's"), "{text}");
    });
}

#[test]
fn a_rank_that_reaches_its_gpu_has_slots_there_for_one_that_does_not() {
    on_a_fake(&[], || {
        let (near, more) = (gpu(), cuda::add_device().unwrap());
        let far = Gpu::open(more.ordinal() as usize).unwrap();
        let address = |gpu: Gpu| gpu.attributes().pci_address.parse().expect("a PCI address");
        let machine = Arc::new(neighbours(address(near), address(far)));
        let port = Port::keep();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (number, machine) = (port.number, machine.clone());
                scope.spawn(move || {
                    let mut environment = Environment::at(rank, 2, "127.0.0.1", number);
                    let gpu = if rank == 0 { near } else { far };
                    environment.near = Some(Near::gpu_at(address(gpu)).on(machine));
                    let comm = environment.connect().expect("its peer");
                    let mut sum = vector(&comm, gpu, &vec![1.0_f64; 1_000_000]);
                    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    assert_eq!(elements(&sum), vec![2.0; 1_000_000]);
                    let text = comm.explain().to_string();
                    let own = if rank == 0 { "slots of the GPU's memory" } else { "slots of memory of GPU" };
                    assert!(text.contains(own), "{text}");
                });
            }
        });
    });
}
