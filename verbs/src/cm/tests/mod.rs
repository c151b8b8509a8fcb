//! Connections over the loopback: how they begin and end, with messages lost, and between processes that end as they like.

mod ending;
mod ground;
mod loss;
mod many;
mod opening;
mod processes;
