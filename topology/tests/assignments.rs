//! The NICs of each machine that people have, as the guide states them.

mod support;

use qpair_topology::{GpuId, NicId, PathClass, Selection};
use support::{machines, model, peers};

#[test]
fn show() {
    for machine in machines::all() {
        let t = std::time::Instant::now();
        let choice = Selection::of(&machine).choose().unwrap();
        println!("== {} {:?}", machine.name().unwrap(), t.elapsed());
        println!("total {} worst {}", choice.total(), choice.worst());
        for a in choice.assignments() {
            println!(
                "{:?} {:?} {}",
                a.consumer,
                a.rails.iter().map(|r| (r.nic.0, r.via)).collect::<Vec<_>>(),
                a.reason
            );
        }
        let gpus: Vec<GpuId> = machine.gpu_ids().collect();
        for (name, method) in peers::ALL {
            let nics = method(&machine, &gpus);
            println!(
                "{name} {} {:?}",
                model::bandwidths(&machine, &gpus, &nics).iter().sum::<u64>() as f64 / 1e9,
                nics.iter().map(|n| n.map(|n| n.0)).collect::<Vec<_>>()
            );
        }
    }
    let m = machines::pairs(16);
    let t = std::time::Instant::now();
    let c = Selection::of(&m).choose().unwrap();
    println!("16x16 {:?} {:?}", t.elapsed(), c.nics(GpuId(15)));
}
