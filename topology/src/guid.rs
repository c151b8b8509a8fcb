//! GUIDs of RDMA devices.

/// Reads a GUID: hexadecimal digits, with `0x` as NCCL writes them, or in groups of four as Linux does. All
/// zeros is none.
pub(crate) fn guid(text: &str) -> Option<u64> {
    let text = text.trim();
    // One more than there may be, so that what is too long is not cut instead.
    let digits: String = text.strip_prefix("0x").unwrap_or(text).chars().filter(|&c| c != ':').take(17).collect();
    let fits = digits.len() <= 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    fits.then(|| u64::from_str_radix(&digits, 16).ok()).flatten().filter(|&guid| guid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_read_in_both_ways_of_writing_them_and_one_of_zeros_is_none() {
        assert_eq!(guid("b8ce:f603:00a1:b2c3"), Some(0xb8ce_f603_00a1_b2c3));
        assert_eq!(guid("0xb8cef60300a1b2c3"), Some(0xb8ce_f603_00a1_b2c3));
        for text in ["0000:0000:0000:0000", "b8ce:f603:00a1:b2c3:0000", "+1", "", "0x", "guid"] {
            assert_eq!(guid(text), None, "{text}");
        }
    }
}
