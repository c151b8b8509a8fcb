//! What messages of the connection manager are about.

/// The numbers that the two ends have for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 while it has none.
    pub remote: u32,
}

/// Which message is refused, or waited with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A request.
    Request,
    /// A reply.
    Reply,
    /// Another one: none of them; or in a message that asks for time, one that changes a path.
    Other,
    /// A code that is reserved.
    Reserved,
}
