//! What people look at: the matrix of path classes, and a drawing.

mod draw;
mod layout;
mod matrix;
mod svg;

pub use draw::draw;
pub use matrix::{Cell, Matrix, Row};
