//! What a side tells of itself before two queue pairs are connected.

use core::ops::BitAnd;

use qpair_verbs::{LinkLayer, Mtu, QpAddress, QpType};
use serde::{Deserialize, Serialize};

use super::error::HandshakeError;
use crate::engine::MAX_WINDOW;

/// One side of a connection to be. Fields that this release does not know are ignored, so that a later one may add some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) address: QpAddress,
    /// Session epoch, which all its messages will carry.
    pub(crate) epoch: u32,
    /// Receive slots that it gives to the other side.
    pub(crate) credits: u32,
    /// Longest eager payload that it takes, in bytes.
    pub(crate) eager_limit: u32,
    /// Longest payload that it has memory of its own for, in bytes.
    #[serde(default = "unlimited")]
    pub(crate) longest: u64,
    /// What it can do beyond the version.
    #[serde(default)]
    pub(crate) features: Features,
    /// What its device is on.
    #[serde(default)]
    pub(crate) fabric: Fabric,
    /// In an answer: the path MTU that it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path_mtu: Option<Mtu>,
    /// Its queue pairs for long transfers, one for each rail; `None` for a rail on which it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rails: Vec<Option<QpAddress>>,
    /// The rails that its messages can go over, as bits.
    #[serde(default)]
    pub(crate) message_rails: u8,
    /// Its rails that are on one device with the first, as bits; 0 if it does not say: all that its messages can go over.
    #[serde(default)]
    pub(crate) home_rails: u8,
    /// Of a connection over datagrams, to the queue pair that `address` tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) datagram: Option<DatagramTerms>,
}

/// What packets of a connection over datagrams are to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatagramTerms {
    /// The connection, as the side numbers it that they go to.
    pub(crate) connection: u32,
    /// What nobody else knows.
    pub(crate) secret: u32,
}

/// What a side tells of its queue pair of one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailWord {
    /// Which rail, from 0.
    pub(crate) rail: u8,
    pub(crate) news: RailNews,
}

/// What is new on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RailNews {
    /// The queue pair failed; nothing more comes over it.
    Down,
    /// Another one was made. The side that called begins, the other answers with its own, which is connected.
    Made(QpAddress),
    /// The side that called has connected its own too.
    Ready,
    /// Messages can not go over it on this side, now or any more.
    Barred,
}

/// What a side tells when its queue pair failed and it has made another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Renewal {
    /// Of the new queue pair, and with a new epoch.
    pub(crate) hello: Hello,
    /// Messages of the other side that came over all queue pairs before, modulo 2^32.
    pub(crate) received: u32,
    /// Messages that it had sent, modulo 2^32: those of them that the other side does not have come again.
    pub(crate) sent: u32,
    /// The rail that the new queue pair is on. The side that called chooses, the other follows.
    #[serde(default)]
    pub(crate) rail: u8,
}

/// Abilities beyond the version, as bits. What both sides have counts; bits that this side does not know never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Features(u64);

impl Features {
    /// It says farewell before it hangs up, and knows what that means.
    pub(crate) const FAREWELL: Features = Features(1);
    /// It goes on over another queue pair when one fails.
    pub(crate) const RECOVERY: Features = Features(2);
    /// It takes words about rails while a connection is up.
    pub(crate) const RAILS: Features = Features(4);
    /// It takes connections over datagrams.
    pub(crate) const DATAGRAMS: Features = Features(8);
    /// All that this release has.
    pub(crate) const ALL: Features =
        Features(Features::FAREWELL.0 | Features::RECOVERY.0 | Features::RAILS.0 | Features::DATAGRAMS.0);

    pub(crate) fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl BitAnd for Features {
    type Output = Features;

    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

/// What carries a device's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE, iWARP.
    Ethernet,
    /// A software device: memory of its host, or RoCE.
    Soft,
    /// It does not say, or says what this release does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Hello {
    pub(crate) fn decode(body: &[u8]) -> Result<Hello, HandshakeError> {
        parsed::<Hello>(body)?.checked()
    }

    fn checked(self) -> Result<Hello, HandshakeError> {
        if self.credits == 0 || self.credits > MAX_WINDOW {
            return Err(HandshakeError::Value { what: "a window", value: self.credits.into() });
        }
        if self.datagram.is_some() != (self.address.qp_type == QpType::Ud) {
            return Err(HandshakeError::Service);
        }
        if self.rails.len() > RAILS_LIMIT {
            return Err(HandshakeError::Value { what: "a number of rails", value: self.rails.len() as u64 });
        }
        Ok(self)
    }

    /// The rails that are on one device with the first, as bits.
    pub(crate) fn home(&self) -> u8 {
        1 | if self.home_rails == 0 { self.message_rails } else { self.home_rails }
    }

    /// Whether the devices of two sides can reach each other, as far as they tell. Whether they do, only packets show.
    pub(crate) fn check_fabric(&self, theirs: &Hello) -> Result<(), HandshakeError> {
        let (ours, theirs) = (self.fabric.by(&self.address), theirs.fabric.by(&theirs.address));
        let apart = matches!(
            (ours, theirs),
            (Fabric::InfiniBand, Fabric::Ethernet | Fabric::Soft)
                | (Fabric::Ethernet | Fabric::Soft, Fabric::InfiniBand)
        );
        if apart { Err(HandshakeError::Fabrics { ours: ours.name(), theirs: theirs.name() }) } else { Ok(()) }
    }

    /// Whether an answer to this hello names the smaller MTU of both: devices that differ there lose packets without a word.
    pub(crate) fn check_path_mtu(&self, answer: &Hello) -> Result<(), HandshakeError> {
        let smaller = self.address.mtu.min(answer.address.mtu);
        match answer.path_mtu {
            Some(mtu) if mtu != smaller => Err(HandshakeError::Value { what: "a path MTU", value: mtu.bytes() as u64 }),
            _ => Ok(()),
        }
    }
}

impl Renewal {
    pub(crate) fn decode(body: &[u8]) -> Result<Renewal, HandshakeError> {
        let Renewal { hello, received, sent, rail } = parsed(body)?;
        Ok(Renewal { hello: hello.checked()?, received, sent, rail })
    }
}

impl RailWord {
    pub(crate) fn decode(body: &[u8]) -> Result<RailWord, HandshakeError> {
        parsed(body)
    }
}

fn parsed<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, HandshakeError> {
    serde_json::from_slice(body).map_err(|error| HandshakeError::Body(error.to_string().into()))
}

impl Fabric {
    pub(crate) fn of(link_layer: LinkLayer) -> Fabric {
        match link_layer {
            LinkLayer::InfiniBand => Fabric::InfiniBand,
            LinkLayer::Ethernet => Fabric::Ethernet,
            LinkLayer::SharedMemory => Fabric::Soft,
            LinkLayer::Unknown(_) => Fabric::Unknown,
        }
    }

    /// What it says, or else what the address shows: only InfiniBand has LIDs.
    fn by(self, address: &QpAddress) -> Fabric {
        match self {
            Fabric::Unknown if address.soft.is_some() => Fabric::Soft,
            Fabric::Unknown if address.lid != 0 => Fabric::InfiniBand,
            said => said,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Fabric::InfiniBand => "InfiniBand",
            Fabric::Ethernet => "Ethernet",
            Fabric::Soft => "no NIC (soft0)",
            Fabric::Unknown => "an unknown network",
        }
    }
}

fn unlimited() -> u64 {
    u64::MAX
}

/// Rails of a connection at most: their addresses fit into a hello.
pub(crate) const RAILS_LIMIT: usize = 8;

#[cfg(test)]
pub(crate) mod tests {
    use qpair_verbs::{Gid, NodeId, Psn, Qpn, SoftAddress};

    use super::*;

    pub(crate) fn hello() -> Hello {
        let address = QpAddress {
            qp_type: QpType::Rc,
            qpn: Qpn(17),
            psn: Psn::new(5),
            gid: Gid([1; 16]),
            lid: 0,
            mtu: Mtu::B4096,
            qkey: 0,
            max_rd_atomic: 16,
            ece: None,
            soft: None,
        };
        let (features, fabric) = (Features::ALL, Fabric::Ethernet);
        Hello {
            address,
            epoch: 9,
            credits: 64,
            eager_limit: 8192,
            longest: 1 << 30,
            features,
            fabric,
            path_mtu: None,
            rails: Vec::new(),
            message_rails: 1,
            home_rails: 1,
            datagram: None,
        }
    }

    #[test]
    fn a_queue_pair_and_its_terms_go_together() {
        let datagram = Some(DatagramTerms { connection: 3, secret: 4 });
        let decode = |hello: &Hello| Hello::decode(&serde_json::to_vec(hello).unwrap());
        let ud = QpAddress { qp_type: QpType::Ud, ..hello().address };
        let whole = Hello { address: ud, datagram, ..hello() };
        assert_eq!(decode(&whole), Ok(whole));
        assert_eq!(decode(&Hello { address: ud, ..hello() }), Err(HandshakeError::Service));
        assert_eq!(decode(&Hello { datagram, ..hello() }), Err(HandshakeError::Service));
    }

    #[test]
    fn what_a_later_release_adds_is_ignored_and_what_an_earlier_one_lacks_is_nothing() {
        let mut value = serde_json::to_value(hello()).unwrap();
        value["features"] = u64::MAX.into();
        value["fabric"] = "subspace".into();
        value["moons"] = serde_json::json!([1, 2, 3]);
        value["address"]["beyond"] = true.into();
        let later = Hello::decode(value.to_string().as_bytes()).unwrap();
        assert_eq!(later.features & Features::ALL, Features::ALL);
        assert_eq!(later.fabric, Fabric::Unknown);
        let fields = value.as_object_mut().unwrap();
        for added in ["features", "fabric", "moons", "longest"] {
            fields.remove(added);
        }
        let earlier = Hello::decode(value.to_string().as_bytes()).unwrap();
        assert!(!(earlier.features & Features::ALL).has(Features::FAREWELL));
        assert_eq!((earlier.path_mtu, earlier.longest), (None, u64::MAX));
    }

    #[test]
    fn values_out_of_range_are_named() {
        for credits in [0, MAX_WINDOW + 1] {
            let body = serde_json::to_vec(&Hello { credits, ..hello() }).unwrap();
            assert_eq!(Hello::decode(&body), Err(HandshakeError::Value { what: "a window", value: credits.into() }));
        }
        assert!(matches!(Hello::decode(b"{}"), Err(HandshakeError::Body(_))));
        let rails = vec![None; RAILS_LIMIT + 1];
        let body = serde_json::to_vec(&Hello { rails, ..hello() }).unwrap();
        assert_eq!(Hello::decode(&body), Err(HandshakeError::Value { what: "a number of rails", value: 9 }));
    }

    #[test]
    fn infiniband_reaches_infiniband_only() {
        use Fabric::*;
        let on = |fabric| Hello { fabric, ..hello() };
        for ours in [InfiniBand, Ethernet, Soft, Unknown] {
            for theirs in [InfiniBand, Ethernet, Soft, Unknown] {
                let known = ours != Unknown && theirs != Unknown;
                let apart = known && (ours == InfiniBand) != (theirs == InfiniBand);
                assert_eq!(on(ours).check_fabric(&on(theirs)).is_err(), apart, "{ours:?} {theirs:?}");
            }
        }
        // Where a side does not say, its address may.
        let (mut lid, mut soft) = (on(Unknown), on(Unknown));
        lid.address.lid = 7;
        soft.address.soft = Some(SoftAddress { host: [7; 16], namespace: 1, node: NodeId([2; 16]) });
        let words = lid.check_fabric(&soft).unwrap_err().to_string();
        assert!(words.contains("a device on InfiniBand and one on no NIC (soft0)"), "{words}");
        assert!(soft.check_fabric(&on(Ethernet)).is_ok() && lid.check_fabric(&on(InfiniBand)).is_ok());
    }

    #[test]
    fn an_answer_names_the_smaller_mtu() {
        let mut ours = hello();
        ours.address.mtu = Mtu::B1024;
        let answer = |path_mtu| Hello { path_mtu, ..hello() };
        assert!(ours.check_path_mtu(&answer(None)).is_ok() && ours.check_path_mtu(&answer(Some(Mtu::B1024))).is_ok());
        let error = ours.check_path_mtu(&answer(Some(Mtu::B4096))).unwrap_err();
        assert_eq!(error, HandshakeError::Value { what: "a path MTU", value: 4096 });
    }
}
