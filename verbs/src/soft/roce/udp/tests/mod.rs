//! The port as it is used, on ports of the tests' own and on the loopback; what several processes do is done by several.

mod alone;
mod full;
mod ground;
mod management;
mod processes;
mod traffic;
