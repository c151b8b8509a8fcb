//! The names of algorithms that can be asked for.

use qpair::collectives::Algorithm;

/// An algorithm by its name.
///
/// # Errors
/// What there is, for any other text.
pub fn named(text: &str) -> Result<Algorithm, String> {
    all().find(|algorithm| algorithm.name() == text).ok_or_else(|| unknown(text))
}

/// That there is none of that name, and what there is.
pub fn unknown(text: &str) -> String {
    format!("unknown algorithm `{text}`: use one of {}", names())
}

/// Their names, in a list.
pub fn names() -> String {
    all().map(Algorithm::name).collect::<Vec<_>>().join(", ")
}

/// Not what stands for a plan of a program's own, which is none to ask for.
fn all() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_asked_for_is_not_named() {
        assert_eq!((named("auto"), named("ring")), (Ok(Algorithm::Auto), Ok(Algorithm::Ring)));
        for text in ["listed", "no-such", ""] {
            let error = named(text).expect_err(text);
            assert!(error.ends_with("dissemination") && error.contains("use one of auto, ring, "), "{error}");
        }
    }
}
