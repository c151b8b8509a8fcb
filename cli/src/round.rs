//! Round numbers, for axes of pictures.

/// The least of 1, 2, 5, 10, and so on, that is not below.
pub fn round_step(least: f64) -> f64 {
    if least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= least * 0.999).unwrap_or(power)
}
