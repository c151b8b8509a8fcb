//! The header, byte for byte.

use proptest::prelude::*;
use qpair_verbs::Rkey;

use crate::engine::*;

#[test]
fn the_layout_is_fixed() {
    let header = Header { kind: Kind::Finished, epoch: 0x0403_0201, sequence: 5, credits: 6, tag: 7, length: 8 };
    let mut bytes = [0xff; HEADER_BYTES];
    header.emit(&mut bytes);
    let expected: [u8; HEADER_BYTES] =
        [1, 3, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes, expected);
}

#[test]
fn what_is_not_valid_is_named() {
    let mut bytes = [0; HEADER_BYTES];
    Header { kind: Kind::Eager, epoch: 1, sequence: 2, credits: 3, tag: 4, length: 5 }.emit(&mut bytes);
    let check = |at: usize, value: u8| {
        let mut bad = bytes;
        bad[at] = value;
        HeaderView::new_checked(&bad).map(|_| ()).unwrap_err()
    };
    assert_eq!(check(0, 2), WireError::Version(2));
    assert_eq!(check(1, 0), WireError::Kind(0));
    assert_eq!(check(1, 6), WireError::Kind(6));
    assert_eq!(check(3, 1), WireError::Flags(0x100));
    let short = HeaderView::new_checked(&bytes[..31]).map(|_| ()).unwrap_err();
    assert_eq!(short, WireError::Short { len: 31, needed: 32 });
    assert_eq!(Offer::parse(&bytes[..15]), Err(WireError::Short { len: 15, needed: 16 }));
}

proptest! {
    #[test]
    fn headers_round_trip(
        kind in 1u8..=5, epoch: u32, sequence: u32, credits: u32, tag: u64, length: u64
    ) {
        let kind = [Kind::Eager, Kind::ReadyToSend, Kind::Finished, Kind::Credit, Kind::Close][usize::from(kind) - 1];
        let header = Header { kind, epoch, sequence, credits, tag, length };
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        prop_assert_eq!(Header::parse(&HeaderView::new_checked(&bytes).unwrap()), header);
    }

    #[test]
    fn offers_round_trip(addr: u64, rkey: u32, id: u32) {
        let offer = Offer { addr, rkey: Rkey(rkey), id };
        let mut bytes = [0; OFFER_BYTES];
        offer.emit(&mut bytes);
        prop_assert_eq!(Offer::parse(&bytes).unwrap(), offer);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(view) = HeaderView::new_checked(&bytes) {
            let mut again = [0; HEADER_BYTES];
            Header::parse(&view).emit(&mut again);
            prop_assert_eq!(&again[..], &bytes[..HEADER_BYTES]);
        }
    }
}
