//! Congestion control: DCQCN, after Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
//!
//! Switches mark packets by ECN. The receiver of marked packets ([`NotificationPoint`]) tells their sender so, by
//! congestion notification packets (CNPs, A17.9.3). The sender ([`ReactionPoint`]) lowers its rate for each, raises it
//! again as none come, and keeps to it ([`Pacer`]). There is one of each for a connection.
//!
//! ```
//! use qpair_roce::congestion::{DcqcnParameters, MIN_TIME_BETWEEN_CNPS, NotificationPoint, Pacer, Rate, ReactionPoint};
//! use qpair_roce::wire::DEFAULT_PKEY;
//! use qpair_roce::{Counters, Qpn};
//!
//! let now = std::time::Instant::now();
//! let mut counters = Counters::default();
//!
//! // A marked packet came: the peer's queue pair is told.
//! let mut receiver = NotificationPoint::new(Qpn(0x11), DEFAULT_PKEY, MIN_TIME_BETWEEN_CNPS);
//! receiver.handle_marked(now, &mut counters);
//! let mut cnp = [0; NotificationPoint::CNP_LEN];
//! assert_eq!(receiver.transmit(now, &mut cnp, &mut counters), Some(cnp.len()));
//!
//! // There it comes, and the rate is halved.
//! let mut sender = ReactionPoint::new(DcqcnParameters::new(Rate::from_gbps(40)));
//! let mut pacer = Pacer::new(now, sender.rate(), 4096);
//! sender.handle_cnp(now, &mut counters);
//! pacer.set_rate(now, sender.rate());
//! assert_eq!(sender.rate(), Rate::from_gbps(20));
//! ```

mod dcqcn;
mod notify;
mod pacing;
mod rate;

pub use dcqcn::{DcqcnParameters, ReactionPoint};
pub use notify::{MIN_TIME_BETWEEN_CNPS, NotificationPoint};
pub use pacing::Pacer;
pub use rate::Rate;
