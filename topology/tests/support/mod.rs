//! Machines for tests, made by code; how others choose NICs; and a model of bandwidth that shares no
//! code with the crate's own.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod brute;
pub mod machines;
pub mod model;
pub mod peers;
pub mod random;
