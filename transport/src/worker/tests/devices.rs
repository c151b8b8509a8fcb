//! Rails on several devices that know nothing of each other: messages, and what is under way with them, go from one to another.

use std::collections::BTreeSet;

use qpair_fake_ibverbs::control::Device;

use super::rails::{config, stages, until};
use super::recovery::{to_error, two};
use super::storm::Storm;
use super::*;

/// Over two devices that know nothing of each other: messages and what is under way go from one to the other.
#[test]
fn nothing_is_lost_and_nothing_comes_twice_between_devices() {
    fake::on_a_fake(|| {
        let devices = [fake::FAKE, "beside0"].map(|name| Device::new(name).unwrap());
        let rails = devices.each_ref().map(|device| Rail::device(device.name()));
        let config = config(0).rails(rails).recovery(PATIENCE);
        let seed = crate::soak::seed();
        for (round, config) in [config.clone(), config.shared_receives(4, 16)].into_iter().enumerate() {
            let mut storm = Storm::new(config, seed + round as u64);
            storm.longest = 600_000;
            let (mut seen, begin) = (BTreeSet::new(), Instant::now());
            // Who is at the other end of a path is asked by another thread: it may not have had a turn all the while.
            let mut turns = 0;
            while turns < 2000 || seen.len() < 2 || storm.worker.counters().recovered < 2 {
                turns += 1;
                assert!(begin.elapsed() < PATIENCE, "{:?}", storm.worker.counters());
                storm.act();
                let side = storm.below(2) as usize;
                match storm.below(50) {
                    0 => storm.fail(side),
                    1 => {
                        let rail = storm.below(2) as usize;
                        storm.fail_rail(side, rail);
                    }
                    _ => {}
                }
                for _ in 0..storm.below(4) {
                    if let Some(event) = storm.worker.poll().unwrap() {
                        storm.handle(event);
                    }
                }
                seen.extend(storm.worker.endpoints.get(storm.ends[0]).map(|endpoint| endpoint.device));
            }
            storm.run_until(Storm::is_over);
            storm.region_is_whole();
            storm.worker.close(storm.ends[0]);
            storm.run_until(|storm| storm.closed.len() == 2);
            assert!(storm.closed.iter().all(CloseReason::is_orderly), "{:?}", storm.closed);
        }
        devices.iter().for_each(Device::assert_clean);
    });
}

/// Two workers with rails on three devices, of which the one that called has barred the first for messages.
fn three_devices(test: fn(Worker, EndpointId, Worker, EndpointId)) {
    let devices = [fake::FAKE, "beside0", "third0"].map(|name| Device::new(name).unwrap());
    let rails = || devices.each_ref().map(|device| Rail::device(device.name()));
    let config = || config(0).rails(rails()).recovery(PATIENCE);
    let (mut a, at_a, mut b, at_b) = two(config(), config());
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 3] && stages(workers[1], at_b) == ["up"; 3]
    });
    a.endpoints.get_mut(at_a).unwrap().lanes.as_mut().unwrap().bar(0);
    test(a, at_a, b, at_b);
    devices.iter().for_each(Device::assert_clean);
}

/// A message comes, and goes over that device.
fn goes_over(a: &mut Worker, at_a: EndpointId, b: &mut Worker, at_b: EndpointId, device: usize) {
    a.send(at_a, Tag(1), vec![3; 400]).unwrap();
    let events = until(&mut [&mut *a, &mut *b], |workers| workers[1].counters().eager_received == 1);
    assert!(events.iter().any(|event| matches!(event, Event::Received { message, .. } if *message == [3; 400])));
    let devices = [a.endpoints.get(at_a).unwrap().device, b.endpoints.get(at_b).unwrap().device];
    assert_eq!(devices, [device; 2]);
}

/// Left to itself it would try the first rail once more.
#[test]
fn the_side_that_was_called_follows_to_the_rail_that_the_other_chose() {
    fake::on_a_fake(|| {
        three_devices(|mut a, at_a, mut b, at_b| {
            to_error(&mut b, at_b);
            goes_over(&mut a, at_a, &mut b, at_b, 1);
        });
    });
}

#[test]
fn a_rail_that_one_side_can_not_have_is_passed_by() {
    fake::on_a_fake(|| {
        for lost in [[true, false], [false, true], [true, true]] {
            three_devices(match lost {
                [true, true] => |a, at_a, b, at_b| passed_by(a, at_a, b, at_b, [true, true]),
                [true, false] => |a, at_a, b, at_b| passed_by(a, at_a, b, at_b, [true, false]),
                _ => |a, at_a, b, at_b| passed_by(a, at_a, b, at_b, [false, true]),
            });
        }
    });
}

fn passed_by(mut a: Worker, at_a: EndpointId, mut b: Worker, at_b: EndpointId, lost: [bool; 2]) {
    for (worker, _) in [&mut a, &mut b].into_iter().zip(lost).filter(|(_, lost)| *lost) {
        worker.rails.lose_device(1);
    }
    to_error(&mut a, at_a);
    goes_over(&mut a, at_a, &mut b, at_b, 2);
}

#[test]
fn a_connection_ends_where_no_rail_is_left_for_messages() {
    fake::on_a_fake(|| {
        three_devices(|mut a, at_a, mut b, _| {
            a.rails.lose_device(1);
            b.rails.lose_device(2);
            to_error(&mut a, at_a);
            let events = until(&mut [&mut a, &mut b], |workers| workers.iter().all(|one| one.endpoints.len() == 0));
            let reasons = events.iter().filter_map(|event| match event {
                Event::Closed { reason, .. } => Some(reason.to_string()),
                _ => None,
            });
            assert_eq!(reasons.count(), 2, "{events:?}");
        });
    });
}

/// A device that gives no completions any more keeps the buffers that messages went out of.
#[test]
fn what_was_copied_for_a_device_that_is_gone_goes_out_over_another() {
    fake::on_a_fake(|| {
        three_devices(|mut a, at_a, mut b, at_b| {
            to_error(&mut a, at_a);
            until(&mut [&mut a, &mut b], |workers| {
                workers[0].endpoints.get(at_a).is_some_and(|one| one.device == 1 && one.up)
            });
            a.send(at_a, Tag(1), vec![3; 400]).unwrap();
            assert!(a.endpoints.get(at_a).unwrap().copied > 0, "it was too long to go inline");
            a.lose_device(1, &qpair_verbs::CqError::DeviceGone);
            let is_over = |worker: &Worker| {
                let endpoint = worker.endpoints.iter().next().unwrap();
                endpoint.device == 2 && endpoint.up
            };
            let mut events = until(&mut [&mut a, &mut b], |workers| workers.iter().all(|one| is_over(one)));
            a.send(at_a, Tag(2), vec![4; 400]).unwrap();
            events.extend(until(&mut [&mut a, &mut b], |workers| workers[1].counters().eager_received == 2));
            let came = events.iter().filter_map(|event| match event {
                Event::Received { ep, message, .. } if *ep == at_b => Some(message[0]),
                _ => None,
            });
            assert!(came.eq([3, 4]), "{events:?}");
        });
    });
}

/// Nor does it keep memory from being registered with the others.
#[test]
fn a_device_that_is_removed_takes_no_message_with_it() {
    fake::on_a_fake(|| {
        three_devices(|mut a, at_a, mut b, at_b| {
            Device::new("third0").unwrap().remove().unwrap();
            until(&mut [&mut a, &mut b], |workers| workers.iter().all(|worker| worker.rails.is_gone(2)));
            let mut buffer = a.domain().alloc(LONG).unwrap();
            buffer.fill(1);
            a.send(at_a, Tag(1), buffer).unwrap();
            a.send(at_a, Tag(1), vec![2; LONG]).unwrap();
            let memory = b.domain().alloc(LONG).unwrap();
            b.recv_into(at_b, Tag(1), memory, None).unwrap();
            let events = until(&mut [&mut a, &mut b], |workers| workers[1].counters().rendezvous_received == 2);
            let came = events.iter().filter_map(|event| match event {
                Event::ReceivedInto { memory: Local::Buffer(buffer), .. } => Some(buffer.to_vec()),
                Event::Received { message, .. } => Some(message.to_vec()),
                _ => None,
            });
            assert!(came.eq([vec![1; LONG], vec![2; LONG]]));
        });
    });
}

const LONG: usize = 3_000_000;
