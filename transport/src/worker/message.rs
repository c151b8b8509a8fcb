//! A received message: a view of the memory that it landed in.

use std::fmt;
use std::ops::{Deref, Range};

use bytes::Bytes;
use qpair_verbs::SlabView;

/// The contents of a received message, in the memory that it landed in: no copy was made, and none is made by cloning
/// or slicing it. While any part of it is alive, that memory takes no other message; who keeps many for long should copy
/// them.
#[derive(Clone)]
pub struct Message(SlabView);

impl Message {
    pub(crate) fn new(view: SlabView) -> Self {
        Message(view)
    }

    /// The message as [`Bytes`]: without a copy, with one small allocation.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_bytes()
    }

    /// The part `range`, without a copy.
    ///
    /// # Panics
    /// If the range lies outside, as slices do.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Message {
        Message(self.0.slice(range))
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Message> for Bytes {
    fn from(message: Message) -> Self {
        message.into_bytes()
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Message {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}
