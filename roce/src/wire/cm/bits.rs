//! Fields of bits in words of network order.

/// Reads fields from the beginning of `bytes` on, whatever their width.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Bits that were read.
    at: usize,
}

/// Writes fields, the same way.
pub(super) struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// The next `bits` bits as a number; those beyond the end are 0.
    pub(super) fn take(&mut self, bits: usize) -> u64 {
        let number = (self.at..self.at + bits).fold(0, |number, at| {
            let bit = self.bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
            number << 1 | u64::from(bit)
        });
        self.at += bits;
        number
    }

    pub(super) fn flag(&mut self) -> bool {
        self.take(1) != 0
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take(8) as u8
    }

    pub(super) fn skip(&mut self, bits: usize) {
        self.at += bits;
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
}

impl<'a> Writer<'a> {
    /// Over bytes that are 0.
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Writer { bytes, at: 0 }
    }

    /// The lowest `bits` bits of a number.
    pub(super) fn put(&mut self, bits: usize, number: impl Into<u64>) -> &mut Self {
        let number = number.into();
        for bit in 0..bits {
            let set = (number >> (bits - 1 - bit) & 1) as u8;
            if let Some(byte) = self.bytes.get_mut((self.at + bit) / 8) {
                *byte |= set << (7 - (self.at + bit) % 8);
            }
        }
        self.at += bits;
        self
    }

    pub(super) fn flag(&mut self, flag: bool) -> &mut Self {
        self.put(1, u64::from(flag))
    }

    pub(super) fn skip(&mut self, bits: usize) -> &mut Self {
        self.at += bits;
        self
    }

    pub(super) fn array(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes {
            self.put(8, *byte);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut bytes = [0; 8];
        Writer::new(&mut bytes).put(3, 5u8).flag(true).skip(2).put(20, 0xabcdeu32).put(16, 0x1234u16).array(&[9, 8]);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.take(3), reader.flag()), (5, true));
        reader.skip(2);
        assert_eq!((reader.take(20), reader.take(16), reader.array()), (0xabcde, 0x1234, [9, 8]));
        assert_eq!(reader.take(64), 0, "beyond the end");
    }
}
