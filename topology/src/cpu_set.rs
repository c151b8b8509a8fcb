//! Sets of processors, as Linux writes them.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A set of processors, by the numbers that Linux gives them.
///
/// ```
/// let near: qpair_topology::CpuSet = "0-3,8".parse()?;
/// assert!(near.contains(2) && !near.contains(4));
/// assert_eq!(near.len(), 5);
/// assert_eq!(near.to_string(), "0-3,8");
/// # Ok::<(), qpair_topology::ParseCpuSetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    /// First and last of each run; sorted, apart from each other.
    runs: Vec<(u32, u32)>,
}

impl CpuSet {
    /// Processors have numbers less than this; Linux is built for at most 8192.
    pub const LIMIT: u32 = 1 << 16;

    /// No processor.
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// From words of 32 bits, the highest first and separated by commas, with or without `0x`:
    /// `00000000,00ffffff`, the form of masks in sysfs and topology files.
    ///
    /// # Errors
    ///
    /// The text is no such mask, or is longer than [`CpuSet::LIMIT`] bits.
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let fail = || ParseCpuSetError(text.chars().take(40).collect());
        if text.len() > 11 * (Self::LIMIT as usize / 32) {
            return Err(fail());
        }
        let mut cpus = Vec::new();
        for (place, word) in text.trim().rsplit(',').enumerate() {
            let digits = word.trim().trim_start_matches("0x");
            let word = if word.trim().is_empty() && place > 0 { Ok(0) } else { u32::from_str_radix(digits, 16) };
            let word = word.map_err(|_| fail())?;
            cpus.extend((0..32).filter(|bit| word & (1 << bit) != 0).map(|bit| place as u32 * 32 + bit));
        }
        if cpus.last().is_some_and(|&last| last >= Self::LIMIT) {
            return Err(fail());
        }
        Ok(cpus.into_iter().collect())
    }

    /// Words of 32 bits, the highest first and separated by commas; the form that
    /// [`CpuSet::from_mask`] reads.
    pub fn to_mask(&self) -> String {
        let last = self.runs.last().map_or(0, |run| run.1);
        let words = (0..=last / 32)
            .rev()
            .map(|word| (0..32).filter(|bit| self.contains(word * 32 + bit)).fold(0_u32, |bits, bit| bits | 1 << bit));
        words.map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|(first, last)| (last - first + 1) as usize).sum()
    }

    /// True if `cpu` is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        let place = self.runs.partition_point(|run| run.1 < cpu);
        self.runs.get(place).is_some_and(|run| run.0 <= cpu)
    }

    /// True if some processor is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.runs.iter().any(|a| other.runs.iter().any(|b| a.0 <= b.1 && b.0 <= a.1))
    }

    /// Each of them, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|&(first, last)| first..=last)
    }

    fn of_runs(mut all: Vec<(u32, u32)>) -> Self {
        all.sort_unstable();
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match runs.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => runs.push((first, last)),
            }
        }
        Self { runs }
    }
}

/// Numbers of [`CpuSet::LIMIT`] and above are left out.
impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self::of_runs(cpus.into_iter().filter(|&cpu| cpu < Self::LIMIT).map(|cpu| (cpu, cpu)).collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.runs.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

/// Text that is no set of processors.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no list of processors: write it as 0-3,8, with numbers below {limit}", limit = CpuSet::LIMIT)]
pub struct ParseCpuSetError(String);

impl std::str::FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseCpuSetError(text.chars().take(40).collect());
        let number = |part: &str| part.trim().parse().ok().filter(|&cpu: &u32| cpu < Self::LIMIT).ok_or_else(fail);
        let parts = text.trim().split(',').filter(|part| !part.trim().is_empty());
        let runs = parts.map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let run = (number(first)?, number(last)?);
            if run.0 <= run.1 { Ok(run) } else { Err(fail()) }
        });
        Ok(Self::of_runs(runs.collect::<Result<_, _>>()?))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseCpuSetError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> Self {
        cpus.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_put_in_order() {
        let cpus: CpuSet = "8,0-3, 4,2-3".parse().unwrap();
        assert_eq!(cpus.to_string(), "0-4,8");
        assert_eq!("\n".parse(), Ok(CpuSet::new()));
    }

    #[test]
    fn a_mask_is_read_from_its_end() {
        let cpus = CpuSet::from_mask("00000001,0000000f").unwrap();
        assert_eq!(cpus.to_string(), "0-3,32");
        assert_eq!(cpus.to_mask(), "00000001,0000000f");
        assert_eq!(CpuSet::from_mask("0x1,,0x2").unwrap().to_string(), "1,64");
    }

    #[test]
    fn hostile_text_is_refused() {
        for text in ["a", "3-1", "0-4294967295", "-1", "1--2"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
        assert!(CpuSet::from_mask(&"f".repeat(1 << 20)).is_err());
        assert!(CpuSet::from_mask("xyz").is_err());
    }
}
