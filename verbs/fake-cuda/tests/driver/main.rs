//! The devices do what the driver's do, and wrong what they are told to, through the C functions that a program loads.

mod context;
mod copies;
mod faults;
mod ground;
mod host;
mod ipc;
mod kernels;
mod streams;
mod virtual_memory;
mod words;
