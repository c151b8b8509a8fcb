//! Collectives as verified plans.
//!
//! A [`Communicator`] is one of a group of ranks, which are processes or threads. Operations work in place on registered
//! memory, a [`CommBuffer`].
//!
//! ```
//! use qpair_collectives::{Communicator, ReduceOp};
//!
//! fn rank(comm: Communicator) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut gradient = comm.buffer::<f32>(1 << 16)?;
//!     gradient.fill(comm.rank() as f32);
//!     comm.all_reduce(&mut gradient, ReduceOp::Sum)?;
//!     assert!(gradient.iter().all(|&sum| sum == 0.0 + 1.0 + 2.0 + 3.0));
//!     Ok(())
//! }
//!
//! // Four threads; with `Communicator::from_env()?` instead, the processes that a launcher started.
//! let ranks = Communicator::group(4)?;
//! std::thread::scope(|scope| {
//!     for comm in ranks {
//!         scope.spawn(|| rank(comm).expect("an all-reduce"));
//!     }
//! });
//! # Ok::<(), qpair_collectives::BootstrapError>(())
//! ```
//!
//! An algorithm is a pure function from rank count, vector length and grain to a [`Plan`]: each
//! rank's steps, with dependencies. A plan is data. It is verified before it runs, priced by a cost
//! model, printed, hashed so that ranks can agree on it, and executed.
//!
//! ```
//! use qpair_collectives::cost::CostModel;
//! use qpair_collectives::{Elements, Grain, Ranks, algorithms};
//!
//! let plan = algorithms::ring_all_reduce(Ranks(8), Elements(1 << 20), Grain::default());
//! plan.verify()?; // every contribution exactly once, no race, no deadlock
//! println!("{}", plan.cost(&CostModel::default())?); // time by the model, bottleneck named
//! # Ok::<(), qpair_collectives::VerifyError>(())
//! ```
#![forbid(unsafe_code)]

pub mod algorithms;
mod bootstrap;
mod communicator;
pub mod cost;
mod deadline;
mod error;
mod execute;
mod fault;
mod plan;
pub mod tune;
mod verify;

pub use bootstrap::{Environment, Meeting};
pub use communicator::{CommBuffer, Communicator, Explanation, OperationFailed, Pending, Start};
pub use error::{BootstrapError, CollectiveError};
pub use execute::Call;
pub use fault::{Mismatch, Place, Side};
pub use plan::{
    Buffer, Collective, Elements, FORMAT, Grain, Graph, Plan, PlanHash, Program, Ranks, Slice, Step, StepKind,
};
pub use qpair_verbs::calc::{DataType, Element, ReduceOp};
pub use verify::{OutputFault, VerifyError};
