//! Workers whose device and rails topology names, on a libibverbs in memory whose devices a described machine has as NICs.

mod support;

use std::sync::Arc;

use bytes::Bytes;
use qpair_fake_ibverbs::control::Device;
use qpair_topology::{Cpu, Gpu, GpuId, LinkLayer, Machine, Nic, Parent, PciAddress, Port};
use qpair_transport::{Config, Near, NearError, Rail, Tag, Worker, WorkerError};
use qpair_verbs::Context;
use support::*;

/// Another device.
const BESIDE: &str = "beside0";

/// A GPU and a NIC under each of two host bridges of one node, which has all processors.
fn machine() -> Machine {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..1024).collect(), ..Cpu::numa(0) });
    for (bus, name) in [(1, FAKE), (2, BESIDE)] {
        let above = Parent::HostBridge { domain: 0, bus };
        machine.gpu(Gpu { numa: Some(0), ..Gpu::at(PciAddress::new(0, bus, 1, 0), above) });
        let ports = vec![Port::active(1, 100_000, LinkLayer::Ethernet)];
        machine.nic(Nic { numa: Some(0), ports, ..Nic::at(name, PciAddress::new(0, bus, 2, 0), above) });
    }
    machine.build()
}

fn near(near: Near) -> Config {
    Config::default().near(near.on(Arc::new(machine())))
}

fn name(worker: &Worker) -> &str {
    worker.context().name()
}

#[test]
fn workers_are_on_the_nic_of_their_gpu() {
    on_a_fake(|| {
        for name in [FAKE, BESIDE] {
            Device::new(name).unwrap();
        }
        let mut pair = Pair::with(near(Near::gpu(GpuId(1))), near(Near::gpu_at("0000:02:01.0".parse().unwrap())));
        for worker in [&pair.a, &pair.b] {
            assert_eq!(name(worker), BESIDE);
            assert!(worker.placed().starts_with("GPU 1: beside0 (PHB"), "{}", worker.placed());
        }
        // One rail alone is the device, and nothing more.
        assert!(pair.a.explain(pair.ep_a).unwrap().rails.is_empty());
        pair.a.send(pair.ep_a, Tag(1), Bytes::from_static(b"over there")).unwrap();
        pair.until(|of_a, of_b| !of_a.is_empty() && !of_b.is_empty());
        assert_eq!(name(&Worker::new(near(Near::gpu(GpuId(0)))).unwrap()), FAKE);
    });
}

#[test]
fn long_messages_go_over_all_nics_that_a_node_has() {
    on_a_fake(|| {
        let devices = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
        let mut pair = Pair::with(near(Near::numa(0)), near(Near::thread()));
        let long = pattern(4_000_000, 1);
        while pair.b.explain(pair.ep_b).unwrap().rails.iter().any(|rail| rail.bytes == 0) {
            pair.a.send(pair.ep_a, Tag(1), Bytes::from(long.clone())).unwrap();
            pair.until(|of_a, of_b| !of_a.is_empty() && !of_b.is_empty());
        }
        assert_eq!(pair.b.explain(pair.ep_b).unwrap().rails.len(), 2);
        // The second worker for the node begins with the other.
        assert_eq!(name(&Worker::new(near(Near::numa(0).turn(1))).unwrap()), BESIDE);
        drop(pair);
        devices.iter().for_each(Device::assert_clean);
    });
}

#[test]
fn what_the_settings_name_goes_before_what_topology_does() {
    on_a_fake(|| {
        Device::new(BESIDE).unwrap();
        let gpu = || near(Near::gpu(GpuId(1)));
        let of = |config| name(&Worker::new(config).unwrap()).to_owned();
        assert_eq!(of(gpu().device("soft0")), "soft0");
        assert_eq!(of(gpu().rails([Rail::device(FAKE)])), FAKE);
        // A rail without a device is on the one that topology names for what is said, and else on the software device.
        assert_eq!(of(gpu().rails([Rail::port(1)])), BESIDE);
        assert_eq!(of(Config::default().rails([Rail::port(1)])), "soft0");
        // On a device that is open already, rails begin with it.
        let on = |device, config| Worker::on(Context::open(device).unwrap(), config);
        assert_eq!(name(&on(BESIDE, gpu()).unwrap()), BESIDE);
        let error = on(FAKE, gpu()).unwrap_err().to_string();
        assert!(error.starts_with("fake0 is none of the rails that topology names (GPU 1: beside0"), "{error}");
        assert_eq!(name(&on(BESIDE, near(Near::numa(0))).unwrap()), BESIDE);
        assert_eq!(on(FAKE, Config::default()).unwrap().placed(), "opened by the application");
        let error = Worker::new(near(Near::gpu(GpuId(2)))).unwrap_err();
        assert!(error.to_string().starts_with("there is no GPU 2: there are GPU 0 at 0000:01:01.0"), "{error}");
    });
}

#[test]
fn a_worker_of_which_nothing_is_said_is_near_its_thread() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let file = format!("{folder}/near-{}.json", std::process::id());
    std::fs::write(&file, machine().to_json()).unwrap();
    on_a_fake_with(&[("QPAIR_TOPOLOGY", &file), ("QPAIR_NICS", "^fake0")], || {
        Device::new(BESIDE).unwrap();
        let worker = Worker::new(Config::default()).unwrap();
        assert_eq!(name(&worker), BESIDE);
        assert!(worker.placed().starts_with("NUMA 0: beside0"), "{}", worker.placed());
    });
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn who_did_not_choose_the_device_is_told_who_did() {
    on_a_fake(|| {
        let device = Device::new(BESIDE).unwrap();
        device.fail_times("ibv_alloc_pd", 1, 0, 12).unwrap();
        let error = Worker::new(near(Near::gpu(GpuId(1)))).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, WorkerError::Chosen { .. }), "{text}");
        assert!(text.contains("beside0 is what qpair takes by itself here (GPU 1: beside0"), "{text}");
        assert!(text.ends_with("QPAIR_DEVICE names another, such as soft0"), "{text}");
        // What is wrong with the settings is so on any device.
        let settings = Worker::new(near(Near::gpu(GpuId(1))).window(0)).unwrap_err();
        assert!(matches!(settings, WorkerError::Config { .. }), "{settings}");
        let named = Worker::new(Config::default().device(BESIDE)).unwrap_err();
        assert!(!matches!(named, WorkerError::Chosen { .. }), "{named}");
    });
}

#[test]
fn the_device_that_the_environment_names_goes_before_what_topology_does() {
    on_a_fake_with(&[("QPAIR_DEVICE", "soft0")], || {
        Device::new(BESIDE).unwrap();
        let worker = Worker::new(near(Near::gpu(GpuId(1)))).unwrap();
        assert_eq!((name(&worker), worker.placed()), ("soft0", "as QPAIR_DEVICE says"));
        assert_eq!(name(&Worker::new(near(Near::numa(0)).device(BESIDE)).unwrap()), BESIDE);
    });
}

#[test]
fn a_topology_file_that_is_not_there_is_an_error_that_names_it() {
    on_a_fake_with(&[("QPAIR_TOPOLOGY", "/nowhere/machine.xml")], || {
        let error = Worker::new(Config::default()).unwrap_err();
        assert!(matches!(&error, WorkerError::Near(near) if matches!(**near, NearError::Topology { .. })), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("QPAIR_TOPOLOGY: /nowhere/machine.xml can not be read: No such file"), "{text}");
    });
}
