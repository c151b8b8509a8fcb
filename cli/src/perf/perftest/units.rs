//! Units of bandwidth.

/// Bytes of the unit of bandwidth: MiB/s, or Gb/s with `gbits`.
pub fn unit(gbits: bool) -> f64 {
    if gbits { GIGABIT } else { MEBIBYTE }
}

/// Bytes.
pub const MEBIBYTE: f64 = 1_048_576.0;
/// Bytes of 10^9 bits.
pub const GIGABIT: f64 = 0.125e9;
