//! FNV-1a: a 64-bit hash that is the same in all processes and builds, where that of the standard library is not promised to be.

use std::io;

/// The hash of what was written to it.
pub(crate) struct Fnv(u64);

impl Fnv {
    /// That of nothing.
    pub(crate) fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn of(text: &str) -> u64 {
        let mut fnv = Fnv::new();
        fnv.add(text.as_bytes());
        fnv.0
    }

    /// That of numbers in their order.
    pub(crate) fn of_numbers(numbers: impl IntoIterator<Item = usize>) -> u64 {
        let mut fnv = Fnv::new();
        numbers.into_iter().for_each(|number| fnv.add(&(number as u64).to_le_bytes()));
        fnv.0
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl io::Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn it_is_that_of_its_authors() {
        // <http://www.isthe.com/chongo/tech/comp/fnv/>, "Test vectors".
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(Fnv::of(text), hash, "{text}");
        }
        let mut parts = Fnv::new();
        parts.write_all(b"foo").and_then(|()| parts.write_all(b"bar")).unwrap();
        assert_eq!(parts.sum(), Fnv::of("foobar"));
        assert_eq!(Fnv::of_numbers([0x61]), Fnv::of("a\0\0\0\0\0\0\0"));
        assert_ne!(Fnv::of_numbers([1, 2]), Fnv::of_numbers([2, 1]));
    }
}
