//! How a run went.

use crate::train::Settings;

/// How it went, as one rank saw it.
#[derive(Debug)]
pub struct Report {
    /// Which rank this is.
    pub rank: usize,
    /// How many ranks there were.
    pub size: usize,
    /// One for each pass over the training images.
    pub epochs: Vec<Epoch>,
    /// What was trained.
    pub settings: Settings,
    /// How many images were held out.
    pub held_out: usize,
    /// How many parameters the network has.
    pub parameters: usize,
    /// In how many buckets their gradient travels.
    pub buckets: usize,
    /// Hash of the parameters after the last epoch, the same on every rank.
    pub hash: u64,
    /// From the first broadcast to the last comparison.
    pub seconds: f64,
}

/// One pass over the training images, summed over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Mean loss of the training images, each just before its batch was learnt.
    pub loss: f64,
    /// Held-out images recognized after the pass.
    pub correct: usize,
    /// `correct` in percent of the held-out images.
    pub accuracy_percent: f64,
}

impl Report {
    /// "1 rank", "4 ranks".
    pub fn ranks(&self) -> String {
        format!("{} {}", self.size, if self.size == 1 { "rank" } else { "ranks" })
    }

    /// Held-out images recognized after the last epoch, in percent.
    pub fn accuracy_percent(&self) -> f64 {
        self.epochs.last().map_or(0.0, |epoch| epoch.accuracy_percent)
    }

    /// Prints the table of epochs and what it came to.
    pub fn print(&self) {
        let Settings { batch, bucket_bytes, .. } = self.settings;
        let ranks = self.ranks();
        let Self { parameters, buckets, .. } = self;
        println!(
            "{ranks}, batches of {batch}, {parameters} parameters in {buckets} buckets of at most {bucket_bytes} bytes"
        );
        println!("{:>6}  {:>13}  {:>17}", "epoch", "training loss", "held-out accuracy");
        for (i, epoch) in self.epochs.iter().enumerate() {
            println!("{:>6}  {:>13.4}  {:>15.2} %", i + 1, epoch.loss, epoch.accuracy_percent);
        }
        println!("parameters are bit-identical on {ranks} (hash {:016x})", self.hash);
        let correct = self.epochs.last().map_or(0, |epoch| epoch.correct);
        let accuracy = self.accuracy_percent();
        println!("held-out accuracy {accuracy:.2} % ({correct} of {}) after {:.1} s", self.held_out, self.seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(size: usize, correct: &[usize]) -> Report {
        let epoch = |&correct: &usize| Epoch { loss: 0.5, correct, accuracy_percent: correct as f64 / 2.0 };
        Report {
            rank: 0,
            size,
            epochs: correct.iter().map(epoch).collect(),
            settings: Settings::default(),
            held_out: 200,
            parameters: 9610,
            buckets: 5,
            hash: 0,
            seconds: 1.0,
        }
    }

    #[test]
    fn ranks_are_counted_in_words() {
        assert_eq!([report(1, &[]).ranks(), report(4, &[]).ranks()], ["1 rank", "4 ranks"]);
    }

    #[test]
    fn accuracy_is_that_of_the_last_epoch() {
        assert_eq!(report(4, &[100, 190]).accuracy_percent(), 95.0);
    }
}
