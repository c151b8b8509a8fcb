//! The digits: parsing, scaling, and the split into training and held-out images.

/// Pixels of one image, 8x8.
pub const PIXELS: usize = 64;

/// Digits 0 to 9.
pub const CLASSES: usize = 10;

/// All images, split. The held-out fifth has each digit in its share: of each digit's images, in file order, the
/// third of every five is held out.
#[derive(Debug)]
pub struct Digits {
    /// Images to learn from.
    pub training: Vec<Image>,
    /// Images that are only ever classified.
    pub held_out: Vec<Image>,
}

/// One image and what it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Row by row from the top left, 0 (white) to 1 (black).
    pub pixels: [f32; PIXELS],
    /// The digit, 0 to 9.
    pub label: usize,
}

/// The file is not what `examples/data/README.md` says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// A row has another number of columns.
    #[error("line {line}: {columns} columns instead of 65; restore examples/data/digits.csv")]
    Columns {
        /// Counted from 1.
        line: usize,
        /// How many it has.
        columns: usize,
    },
    /// A column is no number, or is out of its range.
    #[error("line {line}, column {column}: not an integer from 0 to {max}; restore examples/data/digits.csv")]
    Value {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The greatest value that this column may have.
        max: u8,
    },
}

impl Digits {
    /// The images that come with the example.
    ///
    /// # Errors
    /// [`DataError`] if the file was changed.
    pub fn load() -> Result<Self, DataError> {
        let images = include_str!("../data/digits.csv").lines().enumerate().map(|(i, row)| Image::parse(i + 1, row));
        Ok(Self::split(images.collect::<Result<_, _>>()?))
    }

    fn split(images: Vec<Image>) -> Self {
        let mut seen = [0; CLASSES];
        let (held_out, training) = images.into_iter().partition(|image| {
            seen[image.label] += 1;
            seen[image.label] % 5 == 3
        });
        Self { training, held_out }
    }
}

impl Image {
    fn parse(line: usize, row: &str) -> Result<Self, DataError> {
        let columns = row.split(',').count();
        if columns != PIXELS + 1 {
            return Err(DataError::Columns { line, columns });
        }
        let mut image = Self { pixels: [0.0; PIXELS], label: 0 };
        for (i, text) in row.split(',').enumerate() {
            let max = if i < PIXELS { MAX_PIXEL } else { CLASSES as u8 - 1 };
            let value: u8 =
                text.parse().ok().filter(|&v| v <= max).ok_or(DataError::Value { line, column: i + 1, max })?;
            match image.pixels.get_mut(i) {
                Some(pixel) => *pixel = f32::from(value) / f32::from(MAX_PIXEL),
                None => image.label = usize::from(value),
            }
        }
        Ok(image)
    }
}

/// A pixel counts the black points of a 4x4 block.
const MAX_PIXEL: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_is_stratified() {
        let digits = Digits::load().unwrap();
        assert_eq!((digits.training.len(), digits.held_out.len()), (1438, 359));
        for class in 0..CLASSES {
            let count = |images: &[Image]| images.iter().filter(|image| image.label == class).count();
            let (training, held_out) = (count(&digits.training), count(&digits.held_out));
            assert_eq!(held_out, (training + held_out + 2) / 5, "digit {class}");
        }
    }

    #[test]
    fn pixels_are_scaled() {
        let row = "16,8,".to_string() + &"0,".repeat(62) + "7";
        let image = Image::parse(1, &row).unwrap();
        assert_eq!((image.pixels[0], image.pixels[1], image.pixels[63], image.label), (1.0, 0.5, 0.0, 7));
    }

    #[test]
    fn bad_rows_are_named() {
        assert_eq!(Image::parse(3, "1,2"), Err(DataError::Columns { line: 3, columns: 2 }));
        let with_pixel = |text: &str| Image::parse(4, &format!("{text},{}7", "0,".repeat(63)));
        for text in ["17", "-1", "x", ""] {
            assert_eq!(with_pixel(text), Err(DataError::Value { line: 4, column: 1, max: 16 }), "{text:?}");
        }
        let label = Image::parse(5, &("0,".repeat(64) + "10"));
        assert_eq!(label, Err(DataError::Value { line: 5, column: 65, max: 9 }));
    }
}
