//! A received message: a view of the memory that it landed in, or the bytes themselves if they are few.

use std::fmt;
use std::ops::{Deref, Range};

use bytes::Bytes;
use qpair_verbs::{Slab, SlabView};

/// The contents of a received message, in the memory that it landed in: no copy was made, and none is made by cloning
/// or slicing it. While any part of it is alive, that memory takes no other message; who keeps many for long should copy
/// them.
///
/// A message of at most 32 bytes is inside this value, which costs less than sharing, unless
/// [`Config::lend_short`](crate::Config::lend_short) says otherwise.
///
/// It is not [`Bytes`], because memory behind `Bytes` could not be used again without an allocation for each message:
/// `Bytes::from_owner` allocates, and says of what it made that it is not unique even when nobody else has a part of it
/// (bytes 1.12). [`into_bytes`](Message::into_bytes) makes it `Bytes` where that is wanted.
#[derive(Clone)]
pub struct Message {
    len: usize,
    /// The bytes, of a short message.
    words: [u64; SHORT / 8],
    /// Where the bytes are, of a longer one.
    view: Option<SlabView>,
}

/// Bytes that are inside the value.
pub(in crate::worker) const SHORT: usize = 32;

impl Message {
    /// The bytes `range` of `slab`, where they lie if they are `lent` or more; that is more than [`SHORT`], or all are.
    #[inline(always)]
    pub(crate) fn new(slab: &Slab, range: Range<usize>, lent: usize) -> Self {
        let len = range.len();
        if len > SHORT || len >= lent {
            return Message { len, words: [0; SHORT / 8], view: Some(slab.share(range)) };
        }
        // All four words, whatever the length: no loop and no call. What lies beyond the length is never looked at.
        match slab.get(range.start..).and_then(<[u8]>::first_chunk::<SHORT>) {
            Some(bytes) => {
                let (words, _) = bytes.as_chunks::<8>();
                let word = |at: usize| u64::from_ne_bytes(words[at]);
                Message { len, words: [word(0), word(1), word(2), word(3)], view: None }
            }
            None => Message::short(&slab[range]),
        }
    }

    /// A copy of the bytes from `start` on, which is at least 8, if they are few.
    #[inline(always)]
    pub(crate) fn copied(bytes: &[u8], start: usize) -> Option<Self> {
        let len = bytes.len().checked_sub(start).filter(|&len| len <= SHORT)?;
        // Word by word, with no loop and no place in memory, which the processor would be read back from in other pieces.
        let word = |at: usize| match bytes[start..].get(8 * at..) {
            None | Some([]) => 0,
            Some(rest) => match (rest.first_chunk(), bytes.last_chunk()) {
                (Some(word), _) => u64::from_ne_bytes(*word),
                // The last 8 bytes, of which the first are no part of the rest.
                (None, Some(last)) => (u64::from_le_bytes(*last) >> (64 - 8 * rest.len())).to_le(),
                (None, None) => 0,
            },
        };
        Some(Message { len, words: [word(0), word(1), word(2), word(3)], view: None })
    }

    /// The same as it goes to the application: a copy, if it is shorter than `lent` bytes, where that is more than none.
    pub(crate) fn handed_out(self, lent: usize) -> Self {
        if self.view.is_some() && self.len <= SHORT && self.len < lent { Message::short(&self) } else { self }
    }

    #[cold]
    fn short(data: &[u8]) -> Self {
        let mut words = [0; SHORT / 8];
        bytemuck::bytes_of_mut(&mut words)[..data.len()].copy_from_slice(data);
        Message { len: data.len(), words, view: None }
    }

    /// The message as [`Bytes`]: with one small allocation, and without a copy if it is longer than 32 bytes.
    pub fn into_bytes(self) -> Bytes {
        match self.view {
            Some(view) => view.into_bytes(),
            None => Bytes::copy_from_slice(&self),
        }
    }

    /// The part `range`.
    ///
    /// # Panics
    /// If the range lies outside, as slices do.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Message {
        match &self.view {
            Some(view) => Message { len: range.len(), words: self.words, view: Some(view.slice(range)) },
            None => Message::short(&self[range]),
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.view {
            Some(view) => view,
            None => &bytemuck::bytes_of(&self.words)[..self.len],
        }
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

#[cfg(test)]
mod tests {
    use qpair_verbs::Context;

    use super::*;

    fn is_send<T: Send>() {}

    #[test]
    fn it_reads_the_same_in_every_form() {
        is_send::<Message>();
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut slab = pd.alloc(100).unwrap().into_slab();
        let bytes: Vec<u8> = (0..100).collect();
        slab.get_mut().unwrap().copy_from_slice(&bytes);
        for len in [0, 1, 8, 31, 32, 33, 90] {
            // At the end there are fewer than 32 bytes to look at.
            for start in [0, 3, 100 - len] {
                let start = start.min(100 - len);
                let expected = &bytes[start..start + len];
                let lent = Message::new(&slab, start..start + len, 0);
                assert!(lent == expected && !slab.is_unique());
                let kept = lent.clone().handed_out(0);
                assert!(kept == expected && kept.view.is_some());
                drop((lent, kept));
                let copied = Message::new(&slab, start..start + len, 0).handed_out(SHORT + 1);
                assert!(copied == expected && slab.is_unique() == (len <= SHORT));
                drop(copied);
                let message = Message::new(&slab, start..start + len, SHORT + 1);
                assert!(message == expected && message.clone() == expected);
                assert_eq!(slab.is_unique(), len <= SHORT);
                assert!(message.slice(len / 3..len) == expected[len / 3..]);
                assert_eq!(format!("{message:?}"), format!("b\"{}\"", expected.escape_ascii()));
                assert_eq!(message.into_bytes(), expected);
            }
        }
        assert!(slab.is_unique());
    }

    #[test]
    fn few_bytes_are_copied_and_many_are_not() {
        let bytes: Vec<u8> = (1..=100).collect();
        for len in 0..=60 {
            let copied = Message::copied(&bytes[..40 + len], 40);
            assert_eq!(copied.is_some(), len <= SHORT);
            assert!(copied.is_none_or(|copied| copied == bytes[40..40 + len]));
        }
        assert!(Message::copied(&bytes[..20], 32).is_none());
    }
}
