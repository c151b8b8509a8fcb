//! The connection manager: against what Linux said, message by message, and two of them over a bad network in virtual time.

mod agree;
mod bounds;
mod capture;
mod pair;
mod states;
mod timewait;
