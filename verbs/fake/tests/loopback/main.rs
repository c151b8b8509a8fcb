//! The devices work as a loopback, and do wrong what they are told to, through the C functions that a program loads.

mod faults;
mod ground;
mod transfer;
