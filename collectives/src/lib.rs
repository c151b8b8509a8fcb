//! Collectives as verified plans.
//!
//! A [`Communicator`] is one of a group of ranks, which are processes or threads. Operations work on registered memory, a
//! [`CommBuffer`], in place or from one vector into another.
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
//! An algorithm is a pure function from what is asked for, a [`Spec`], to a [`Plan`]: each
//! rank's steps, with dependencies. A plan is data. It is verified before it runs, priced by a cost
//! model, printed, hashed so that ranks can agree on it, and executed. Its compact form is a
//! [`Recipe`], of which each rank makes its own steps alone.
//!
//! ```
//! use qpair_collectives::cost::CostModel;
//! use qpair_collectives::{Algorithm, Elements, Ranks, Recipe, Spec};
//!
//! let recipe = Recipe::new(Spec::all_reduce(Ranks(8), Elements(1 << 20), 4), Algorithm::Ring)?;
//! let plan = recipe.plan();
//! let proof = plan.verify()?; // every contribution exactly once, no race, no deadlock
//! println!("{} steps; {}", proof.steps, plan.cost(&CostModel::default())?); // time by the model, bottleneck named
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod algorithms;
mod bootstrap;
mod communicator;
pub mod cost;
mod deadline;
mod distinct;
mod error;
mod execute;
mod fault;
mod fnv;
mod machine;
mod parallel;
mod pieces;
mod plan;
mod regular;
mod touched;
mod trace;
pub mod training;
pub mod tune;
mod variable;
mod verify;

pub use algorithms::{Algorithm, Nodes, Recipe, RecipeError, Shape, UnknownAlgorithm};
pub use bootstrap::{Environment, Meeting};
pub use communicator::{
    Cartesian, CommBuffer, Communicator, Explanation, Held, Location, Neighbors, OnGpu, OnHost, OperationFailed,
    Pending, Start,
};
pub use error::{BootstrapError, CollectiveError, SplitError};
pub use execute::Call;
pub use fault::{Mismatch, Place, Side, Waits};
pub use plan::{
    Buffer, Collective, Counts, Deps, Elements, FORMAT, Graph, Plan, PlanHash, Program, Ranks, Slice, Spec, Step,
    StepIter, StepKind, Steps,
};
pub use qpair_verbs::calc::{Combine, DataType, Element, F8E4M3, F8E5M2, ReduceOp, UserOp, bf16, f16};
pub use trace::{Activity, Event, Trace};
pub use verify::{OutputFault, Proof, VerifyError};
