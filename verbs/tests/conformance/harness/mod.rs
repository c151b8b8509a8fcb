//! What runs the cases: sides that carry out commands, here or in a peer process, and the values they speak in.
//! A case is written once; where its two sides live is decided by its [`Placement`].

mod command;
mod env;
mod exposed;
mod leeway;
mod machine;
mod peer;
mod posting;
mod sample;
mod side;
mod work;

pub use command::{
    Abilities, BytesId, Command, CqId, DomainId, HandleId, Made, QpId, QpSpec, RegionId, SrqId, WindowId,
};
pub use env::{Env, Pair, Placement, connect_pair, run};
pub use leeway::{
    Promise, at_once, behind_refused, bind_refused, is_ours, is_soft, over_network, service_refused, take, too_long,
    too_small, turns,
};
pub use peer::{PEER_VARIABLE, Peer, serve};
pub use sample::{Content, Fill, Mem, Origin, Piece, digest};
pub use side::{LIMIT, Region, Side};
pub use work::{Done, Event, Op, Refused, Work};
