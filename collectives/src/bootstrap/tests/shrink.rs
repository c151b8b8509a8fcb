//! Who is left of the ranks of a store, and who hears that others went on.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::port::Port;
use super::{Guest, LIMIT, connect, keyed, listening};
use crate::bootstrap::message::{FromStore, ToStore, encode};
use crate::bootstrap::{Environment, Spot};
use crate::communicator::Communicator;
use crate::error::BootstrapError;

#[test]
fn ranks_that_have_a_key_go_on_without_rank_0() {
    let mut ranks: Vec<_> = keyed(&[Some(7); 3], LIMIT).into_iter().map(Result::unwrap).collect();
    drop(ranks.remove(0));
    let left = std::thread::scope(|scope| {
        let shrinking: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| comm.shrink(LIMIT).unwrap())).collect();
        shrinking.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(left.iter().map(|comm| (comm.rank(), comm.size())).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
}

/// Rank 0 and others of four that join as guests, do that once all are set up, and hang up. Rank 0 asks who is left then.
fn shrink_after(guests: &[(u32, &[ToStore])], own: &[u32]) -> Vec<Result<Communicator, BootstrapError>> {
    let port = Port::keep();
    let address = SocketAddr::from(([127, 0, 0, 1], port.number));
    let environment = |&rank: &u32| Environment { limit: LIMIT, ..Environment::at(rank, 4, "127.0.0.1", port.number) };
    let environments: Vec<_> = own.iter().map(environment).collect();
    std::thread::scope(|scope| {
        let own = scope.spawn(|| connect(environments).into_iter().map(Result::unwrap).collect::<Vec<_>>());
        while TcpStream::connect(address).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut joined: Vec<_> = guests.iter().map(|(rank, said)| (Guest::join(address, *rank, 4), said)).collect();
        for (guest, _) in &mut joined {
            assert!(matches!(guest.hear(), FromStore::Roster { .. }));
            guest.say(&encode(&ToStore::Listening(listening("soft0"))));
        }
        let own = own.join().unwrap();
        for (mut guest, said) in joined {
            assert!(matches!(guest.hear(), FromStore::Listening(_)));
            said.iter().for_each(|message| guest.say(&encode(message)));
        }
        let own: Vec<_> = own.into_iter().map(|comm| scope.spawn(|| comm.shrink(LIMIT))).collect();
        own.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_that_asks_and_ends_is_missed_and_no_more() {
    let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 0 };
    let left = shrink_after(&[(1, &[ToStore::Shrink { spot, limit: LIMIT }]), (3, &[])], &[0, 2]);
    let sizes: Vec<_> = left.into_iter().map(|comm| comm.unwrap().size()).collect();
    assert_eq!(sizes, [2, 2]);
}

#[test]
fn rank_0_hears_that_those_who_did_not_wait_for_it_may_have_gone_on() {
    let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 0 };
    let leaves = [ToStore::Shrink { spot, limit: LIMIT }, ToStore::Leave { goes_on: true }];
    let left = shrink_after(&[(1, &leaves), (2, &leaves), (3, &[])], &[0]);
    assert!(matches!(left[..], [Err(BootstrapError::LeftOut { rank: 0 })]), "{left:?}");
}

#[test]
fn rank_0_goes_on_where_others_asked_and_ended() {
    let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 0 };
    let leaves = [ToStore::Shrink { spot, limit: LIMIT }, ToStore::Leave { goes_on: false }];
    let left = shrink_after(&[(1, &leaves), (2, &leaves), (3, &[])], &[0]);
    assert!(matches!(&left[..], [Ok(alone)] if alone.size() == 1), "{left:?}");
}

/// One that ends after the others have counted it in.
#[test]
fn those_that_are_left_meet_again_without_one_that_ends_meanwhile() {
    let port = Port::keep();
    let address = SocketAddr::from(([127, 0, 0, 1], port.number));
    let environments =
        [0, 1].map(|rank| Environment { limit: LIMIT, ..Environment::at(rank, 3, "127.0.0.1", port.number) });
    std::thread::scope(|scope| {
        let others = scope.spawn(move || {
            let ranks = connect(environments.into()).into_iter().map(Result::unwrap);
            let ranks: Vec<_> = ranks.map(|comm| scope.spawn(|| comm.shrink(LIMIT).unwrap())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        while TcpStream::connect(address).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut guest = Guest::join(address, 2, 3);
        assert!(matches!(guest.hear(), FromStore::Roster { .. }));
        guest.say(&encode(&ToStore::Listening(listening("soft0"))));
        assert!(matches!(guest.hear(), FromStore::Listening(_)));
        let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 0 };
        guest.say(&encode(&ToStore::Shrink { spot, limit: LIMIT }));
        let remnant = loop {
            match guest.hear() {
                FromStore::Left { .. } => {}
                FromStore::Remain(remnant) => break remnant,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(remnant.ranks, [0, 1, 2]);
        drop(guest);
        // It comes to the others, and no further.
        let mut again = Guest::join_with(remnant.spot.address, 2, 3, Some(format!("{:016x}", remnant.spot.ticket)));
        assert!(matches!(again.hear(), FromStore::Roster { .. }));
        drop(again);
        let others = others.join().unwrap();
        assert_eq!(others.iter().map(|comm| (comm.rank(), comm.size())).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    });
}
