//! What a device tells of itself is asked for once where it lasts, again where it may change, and no more of it than is
//! needed; what it has little of is not posted.

use qpair_verbs::{Access, PostError, Rejected};

use crate::ground::{Ground, in_fake};

#[test]
fn more_pieces_than_the_device_takes_are_refused() {
    in_fake(|| {
        let mut ground = Ground::with(&[("max_sge", 2), ("max_sge_rd", 1), ("max_srq_sge", 1), ("qp_ex", 0)]);
        let (mut a, mut b) = ground.pair();
        let mut shared = ground.pd.create_srq(4).unwrap();
        let region = ground.pd.expose(192, Access::REMOTE_ALL).unwrap();
        let pd = ground.pd.clone();
        let list = |count: usize| (0..count).map(|_| pd.alloc(64).unwrap()).collect::<Vec<_>>();
        let too_many = |result: Result<(), Rejected>| match result.unwrap_err().into_parts() {
            (PostError::TooManyPieces { count, limit }, memory) => {
                assert_eq!(memory.len(), 64 * count);
                (count, limit)
            }
            (error, _) => panic!("{error}"),
        };
        assert_eq!(too_many(a.send(list(3)).post()), (3, 2));
        assert_eq!(too_many(a.write(list(3), region.remote(0..192)).post()), (3, 2));
        assert_eq!(too_many(a.read(list(2), region.remote(0..128)).post()), (2, 1));
        assert_eq!(too_many(b.recv(list(3)).post()), (3, 2));
        assert_eq!(too_many(shared.post(list(2), 1)), (2, 1));
        shared.post(list(1), 1).unwrap();
        b.recv(list(2)).post().unwrap();
        a.send(list(2)).signaled().post().unwrap();
        a.read(list(1), region.remote(0..64)).signaled().post().unwrap();
        for _ in 0..3 {
            assert!(ground.done().status.is_success());
        }
        drop((a, b, shared, region, pd));
        ground.close();
    });
}
