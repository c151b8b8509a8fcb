//! The header, byte for byte.

use proptest::prelude::*;
use qpair_verbs::Rkey;

use crate::engine::*;

#[test]
fn the_layout_is_fixed() {
    let envelope = Envelope { class: Class::Request, port: 0x0a09, tag: 7 };
    let (epoch, sequence, credits) = (0x0403_0201, 5, 6);
    let header =
        Header { kind: Kind::ReadyToSend, envelope, epoch, sequence, credits, length: 8, acknowledged: 0x0c0b };
    let mut bytes = [0xff; HEADER_BYTES];
    header.emit(&mut bytes);
    let expected: [u8; HEADER_BYTES] =
        [3, 0x22, 9, 10, 1, 2, 3, 4, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 11, 12];
    assert_eq!(bytes, expected);
}

fn bytes_of(kind: Kind) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (epoch, sequence, credits, envelope) = (1, 2, 3, Envelope::bare(4));
    Header { kind, envelope, epoch, sequence, credits, length: 5, acknowledged: 6 }.emit(&mut bytes);
    bytes
}

#[test]
fn what_is_not_valid_is_named() {
    let check = |kind: Kind, at: usize, value: u8| {
        let mut bad = bytes_of(kind);
        bad[at] = value;
        HeaderView::new_checked(&bad).map(|_| ()).unwrap_err()
    };
    assert_eq!(check(Kind::Eager, 0, 1), WireError::Version(1));
    assert_eq!(check(Kind::Eager, 1, 0), WireError::Kind(0));
    assert_eq!(check(Kind::Eager, 1, 9), WireError::Kind(9));
    assert_eq!(check(Kind::Eager, 1, 0x71), WireError::Class(7));
    for kind in [Kind::Finished, Kind::Credit, Kind::Close, Kind::Cancel, Kind::Withdrawn, Kind::Want] {
        assert_eq!(check(kind, 1, kind as u8 | 0x10), WireError::Class(1));
        assert_eq!(check(kind, 3, 1), WireError::Port(0x100));
    }
    let short = HeaderView::new_checked(&bytes_of(Kind::Eager)[..31]).map(|_| ()).unwrap_err();
    assert_eq!(short, WireError::Short { len: 31, needed: 32 });
    assert_eq!(Offer::parse(&[0; 15]), Err(WireError::Short { len: 15, needed: 16 }));
}

proptest! {
    #[test]
    fn headers_round_trip(
        class in 0u8..7, offers: bool, port: u16, epoch: u32, sequence: u32, credits: u32, tag: u64,
        length in 0u64..1 << 48, acknowledged: u16,
    ) {
        let kind = if offers { Kind::ReadyToSend } else { Kind::Eager };
        let class = [
            Class::Tagged, Class::Active, Class::Request, Class::Response, Class::Stream, Class::Notice,
            Class::Part,
        ][usize::from(class)];
        let envelope = Envelope { class, port, tag };
        let header = Header { kind, envelope, epoch, sequence, credits, length, acknowledged };
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        prop_assert_eq!(Header::parse(&HeaderView::new_checked(&bytes).unwrap()), header);
    }

    #[test]
    fn offers_round_trip(addr: u64, rkey: u32, id: u32) {
        for rails in [RailKeys::default(), RailKeys::first_alone().with(2, Rkey(!rkey))] {
            let offer = Offer { addr, rkey: Rkey(rkey), id, rails, in_parts: false };
            let mut bytes = [0; OFFER_LIMIT];
            let bytes = offer.emit(&mut bytes);
            prop_assert_eq!(bytes.len() > OFFER_BYTES, rails != RailKeys::default());
            prop_assert_eq!(Offer::parse(bytes).unwrap(), offer);
        }
        let (offer, mut bytes) = (Offer::in_parts(id), [0; OFFER_LIMIT]);
        let bytes = offer.emit(&mut bytes);
        prop_assert_eq!((bytes.len(), Offer::parse(bytes).unwrap()), (PARTS_BYTES, offer));
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
