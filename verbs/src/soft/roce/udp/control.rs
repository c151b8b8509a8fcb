//! Control messages of sockets (cmsg(3)): what goes with a datagram beside its bytes.
//! Written to and read from plain bytes, so that nothing of it needs to be trusted.

/// Control messages for a send, in `WORDS` words of 8 bytes.
pub(super) struct Control<const WORDS: usize> {
    words: [u64; WORDS],
    len: usize,
}

/// One control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    /// The protocol that it is of.
    pub(super) level: i32,
    /// What it is.
    pub(super) kind: i32,
    /// What it says.
    pub(super) data: &'a [u8],
}

impl<const WORDS: usize> Control<WORDS> {
    pub(super) fn new() -> Self {
        Control { words: [0; WORDS], len: 0 }
    }

    /// Adds a message.
    ///
    /// # Panics
    /// If there is no room for it; what is sent is known when this is written.
    #[inline]
    pub(super) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (start, len) = (self.len, HEADER + data.len());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytes[start..start + 8].copy_from_slice(&len.to_ne_bytes());
        bytes[start + 8..start + 12].copy_from_slice(&level.to_ne_bytes());
        bytes[start + 12..start + HEADER].copy_from_slice(&kind.to_ne_bytes());
        bytes[start + HEADER..start + len].copy_from_slice(data);
        self.len += len.next_multiple_of(ALIGN);
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

/// The messages in what the kernel gave. It ends at the first that is not whole.
#[inline]
pub(super) fn items(mut bytes: &[u8]) -> impl Iterator<Item = Item<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(*bytes.first_chunk()?);
        let level = i32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*bytes.get(12..)?.first_chunk()?);
        let data = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Item { level, kind, data })
    })
}

impl Item<'_> {
    /// Its number, where it is one.
    #[inline]
    pub(super) fn number(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(*self.data.first_chunk()?))
    }
}

/// Length, level and kind.
const HEADER: usize = 16;
const ALIGN: usize = 8;
// The kernel's header on the machines that this crate runs on.
const _: () = assert!(size_of::<libc::cmsghdr>() == HEADER && size_of::<usize>() == ALIGN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read() {
        let mut control = Control::<16>::new();
        control.push(1, 2, &[3]);
        control.push(4, 5, &7i32.to_ne_bytes());
        let found: Vec<_> = items(control.as_bytes()).collect();
        assert_eq!(found[0], Item { level: 1, kind: 2, data: &[3] });
        assert_eq!((found[1].level, found[1].kind, found[1].number()), (4, 5, Some(7)));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn garbage_ends_the_list() {
        for len in [0usize, 15, 17, 24, usize::MAX, usize::MAX - 7] {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(items(&bytes).count(), 0, "length {len}");
            assert_eq!(items(&bytes[..len.min(12)]).count(), 0);
        }
    }
}
