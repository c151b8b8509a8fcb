//! Parts of a port alone.

mod turns;
