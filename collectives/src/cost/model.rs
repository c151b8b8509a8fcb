//! The parameters of the cost model.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::seats::Spread;

/// What operations, messages and bytes cost on a machine: an alpha-beta model with the work of both ends of a message, and
/// links that ranks share.
///
/// Times are in seconds, from 0 to 1000; speeds are in bytes per second, from 1 on, and finite. They are those of a rank that has a
/// core to itself: where ranks of a node share cores, messages are taken to cost up to 0.8 times [`receive`](Self::receive) more at
/// either end, and the copies of their bytes to take up to five times as long, since each finds the caches full of what is the others'.
/// What a communicator uses was measured on the machine of its rank 0, or is what that was [told](crate::Environment#what-to-use);
/// [`set_cost_model`](crate::Communicator::set_cost_model) gives another.
///
/// ```
/// use qpair_collectives::cost::{CostModel, Link};
///
/// let model = CostModel { between: Link { latency: 20e-6, speed: 1e9 }, ..CostModel::default() };
/// assert!(model.check().is_ok());
/// assert!(CostModel { turn: f64::NAN, ..model }.check().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostModel {
    /// Of a rank, to begin and end an operation.
    pub start: f64,
    /// Of a rank, to send a message: without its bytes.
    pub send: f64,
    /// Of a rank, to take a message that is copied to it.
    pub receive: f64,
    /// Of a rank, to read or write a message straight from memory to memory; also told apart from its bytes.
    pub transfer: f64,
    /// Of a rank, for either end of a packet between nodes: what the system takes to send it, or to take it, where the software
    /// device does that; nothing where a NIC does.
    pub packet: f64,
    /// Of a rank, for either end of each 4 KiB that packets carry between nodes: what it takes to copy and check them, where the
    /// software device does that; nothing where a NIC does.
    pub payload: f64,
    /// Until a rank that waits for a core has its turn.
    pub turn: f64,
    /// At which a rank copies; a message that is copied is so at both ends.
    pub copy: f64,
    /// At which a rank reads or writes another's memory.
    pub straight: f64,
    /// At which a rank combines what it reads with what it has.
    pub combine: f64,
    /// The memory of a node, which all its ranks share; what a core's caches hold takes nothing of it. Its speed counts where algorithms
    /// are chosen; a [timeline](super::Timeline), step by step, has no more of it than its latency.
    pub within: Link,
    /// The links of an island of a node to the others, such as those between sockets, which all its ranks share.
    pub beside: Link,
    /// The rails of a node, which all its ranks share.
    pub between: Link,
    /// What takes the place of these where vectors are in memory of GPUs.
    pub gpu: GpuModel,
}

/// What ranks take that read, copy and combine by kernels of GPUs, which are in one host. As in [`CostModel`], of which the rest
/// is the same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuModel {
    /// To start a kernel that reads or writes a message, and to wait for it.
    pub transfer: f64,
    /// At which a rank copies.
    pub copy: f64,
    /// At which a rank reads or writes another's memory.
    pub straight: f64,
    /// At which a rank combines what it reads with what it has.
    pub combine: f64,
    /// Of the memory of a node's GPUs, which all its ranks share.
    pub within: f64,
    /// Of the links of an island of GPUs to the others of its node, each way, which all ranks of the island share.
    pub beside: f64,
    /// At which a rank copies between a GPU and slots that its device reaches, each way, where the device does not reach the
    /// GPU's memory.
    pub staged: f64,
}

/// What messages go over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From when a message was sent until the receiver can take it.
    pub latency: f64,
    /// Of all messages that are on it at a time, each way.
    pub speed: f64,
}

/// Which link messages go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkClass {
    /// The memory of one node, on one island.
    Within,
    /// The links between islands of a node.
    Beside,
    /// The rails between nodes.
    Between,
}

/// A parameter that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}: {hint}")]
pub struct ModelError {
    /// The parameter.
    pub name: &'static str,
    /// What it is.
    pub value: f64,
    /// What it should be.
    pub hint: &'static str,
}

impl CostModel {
    /// What several measurements come to together; `None` of none. Of times, and of the speed of copies, the one in the middle counts,
    /// or of two the better: many are differences of two short times, which may come out too good. Of what moves long ranges the
    /// fastest does: nothing makes that much faster than it can be, and others that fill the caches or the memory may slow it down for
    /// hours. What could not be measured is as in the default, and does not count there.
    pub(crate) fn of_all(measured: &[Self]) -> Option<Self> {
        let first = *measured.first()?;
        let sorted = |of: &dyn Fn(&Self) -> f64| {
            let mut values: Vec<f64> = measured.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let time = |of: &dyn Fn(&Self) -> f64| sorted(of)[(measured.len() - 1) / 2];
        let speed = |of: &dyn Fn(&Self) -> f64| sorted(of)[measured.len() / 2];
        let fastest = |of: &dyn Fn(&Self) -> f64| {
            let default = of(&Self::default());
            let fastest = measured.iter().map(of).filter(|&speed| speed != default).fold(0.0, f64::max);
            if fastest > 0.0 { fastest } else { default }
        };
        let link = |of: fn(&Self) -> Link| Link {
            latency: time(&|model| of(model).latency),
            speed: fastest(&|model| of(model).speed),
        };
        Some(Self {
            start: time(&|model| model.start),
            send: time(&|model| model.send),
            receive: time(&|model| model.receive),
            transfer: time(&|model| model.transfer),
            packet: time(&|model| model.packet),
            payload: time(&|model| model.payload),
            turn: time(&|model| model.turn),
            copy: speed(&|model| model.copy),
            straight: fastest(&|model| model.straight),
            combine: fastest(&|model| model.combine),
            within: link(|model| model.within),
            beside: link(|model| model.beside),
            between: link(|model| model.between),
            // By no one measured.
            gpu: first.gpu,
        })
    }
}

impl Default for CostModel {
    /// About what a server of 2020 to 2025 has: by measurement on virtual machines of two cores, and a rail of 100 Gbit/s.
    fn default() -> Self {
        Self {
            start: 0.15e-6,
            send: 0.1e-6,
            receive: 0.1e-6,
            transfer: 0.3e-6,
            packet: 0.0,
            payload: 0.0,
            turn: 0.7e-6,
            copy: 12e9,
            straight: 12e9,
            combine: 10e9,
            within: Link { latency: 0.2e-6, speed: 20e9 },
            beside: Link { latency: 0.4e-6, speed: 16e9 },
            between: Link { latency: 3e-6, speed: 12e9 },
            gpu: GpuModel::default(),
        }
    }
}

impl Default for GpuModel {
    /// Measured on one H200, on which each kernel takes some 10 us to start and to wait for, and moves 4 TB/s. Processes that
    /// share a GPU take turns on it, which takes longer. Between islands, and to slots, it is a PCIe link of the fourth generation.
    fn default() -> Self {
        Self { transfer: 10e-6, copy: 2e12, straight: 2e12, combine: 1.3e12, within: 2e12, beside: 24e9, staged: 24e9 }
    }
}

impl CostModel {
    /// The same where vectors are in memory of GPUs: by what [`gpu`](Self::gpu) says.
    pub const fn on_gpus(self) -> Self {
        let GpuModel { transfer, copy, straight, combine, within, beside, staged: _ } = self.gpu;
        let (within, beside) = (Link { speed: within, ..self.within }, Link { speed: beside, ..self.within });
        Self { transfer, copy, straight, combine, within, beside, ..self }
    }

    /// The same where besides messages go by slots, as a device does not reach the memory of a GPU: a slot is filled, read and
    /// drained, and all goes over the devices, also within a node.
    pub const fn on_staged_gpus(self) -> Self {
        let Self { transfer, straight, between, gpu, .. } = self.on_gpus();
        let straight = straight.min(gpu.staged).min(between.speed);
        Self { transfer: 2.0 * transfer, straight, within: between, beside: between, ..self.on_gpus() }
    }

    /// All messages cost that latency, and nothing else costs anything.
    pub const fn of_latency(latency: f64) -> Self {
        let link = Link { latency, speed: f64::MAX };
        Self { within: link, beside: link, between: link, ..Self::free() }
    }

    /// Nothing costs anything: to set what counts.
    pub const fn free() -> Self {
        let link = Link { latency: 0.0, speed: f64::MAX };
        let speed = f64::MAX;
        Self {
            start: 0.0,
            send: 0.0,
            receive: 0.0,
            transfer: 0.0,
            packet: 0.0,
            payload: 0.0,
            turn: 0.0,
            copy: speed,
            straight: speed,
            combine: speed,
            within: link,
            beside: link,
            between: link,
            gpu: GpuModel {
                transfer: 0.0,
                copy: speed,
                straight: speed,
                combine: speed,
                within: speed,
                beside: speed,
                staged: speed,
            },
        }
    }

    /// What it is for ranks so spread, and at which speed they copy messages: where those of one node share its cores, each finds the
    /// caches full of what is the others'.
    pub(super) fn among(self, spread: &Spread) -> (Self, f64) {
        let [message, byte] = [COLD_MESSAGE, COLD_BYTE].map(|cold| cold * spread.others_part());
        // What goes straight takes as much longer as a message: what a GPU takes for it is no matter of caches.
        let [send, receive, transfer] =
            [self.send, self.receive, self.transfer].map(|time| time + message * time.min(self.receive));
        (Self { send, receive, transfer, ..self }, self.copy / (1.0 + byte))
    }

    /// Of a rank, for either end of so many bytes that go between nodes: beside what each packet takes.
    pub(super) const fn carrying(&self, bytes: f64) -> f64 {
        self.payload * bytes / PAYLOAD_BYTES
    }

    /// The link of a class.
    pub const fn link(&self, class: LinkClass) -> Link {
        match class {
            LinkClass::Within => self.within,
            LinkClass::Beside => self.beside,
            LinkClass::Between => self.between,
        }
    }

    /// Whether all parameters make sense. One that was read from a file may have any.
    ///
    /// # Errors
    /// [`ModelError`] that names the first that does not.
    pub fn check(&self) -> Result<(), ModelError> {
        for (name, value, unit) in self.parameters() {
            let (fits, hint) = match unit {
                Unit::Seconds => ((0.0..=LONGEST).contains(&value), "give seconds, from 0 to 1000"),
                Unit::BytesPerSecond => (value.is_finite() && value >= 1.0, "give bytes per second, from 1 on"),
            };
            if !fits {
                return Err(ModelError { name, value, hint });
            }
        }
        Ok(())
    }

    /// Each parameter, with its name.
    fn parameters(&self) -> [(&'static str, f64, Unit); 23] {
        use Unit::{BytesPerSecond, Seconds};
        [
            ("start", self.start, Seconds),
            ("send", self.send, Seconds),
            ("receive", self.receive, Seconds),
            ("transfer", self.transfer, Seconds),
            ("packet between nodes", self.packet, Seconds),
            ("4 KiB between nodes", self.payload, Seconds),
            ("turn", self.turn, Seconds),
            ("copy", self.copy, BytesPerSecond),
            ("straight", self.straight, BytesPerSecond),
            ("combine", self.combine, BytesPerSecond),
            ("latency within a node", self.within.latency, Seconds),
            ("speed within a node", self.within.speed, BytesPerSecond),
            ("latency between islands", self.beside.latency, Seconds),
            ("speed between islands", self.beside.speed, BytesPerSecond),
            ("latency between nodes", self.between.latency, Seconds),
            ("speed between nodes", self.between.speed, BytesPerSecond),
            ("transfer on GPUs", self.gpu.transfer, Seconds),
            ("copy on GPUs", self.gpu.copy, BytesPerSecond),
            ("straight on GPUs", self.gpu.straight, BytesPerSecond),
            ("combine on GPUs", self.gpu.combine, BytesPerSecond),
            ("speed within GPUs' node", self.gpu.within, BytesPerSecond),
            ("speed of GPUs' islands", self.gpu.beside, BytesPerSecond),
            ("speed to GPUs' slots", self.gpu.staged, BytesPerSecond),
        ]
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    BytesPerSecond,
}

/// One parameter a line, for people.
impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.parameters().map(|(name, value, unit)| match unit {
            Unit::Seconds => format!("{name:<24}{:>10.3} us", value * 1e6),
            Unit::BytesPerSecond => format!("{name:<24}{:>10.3} GB/s", value / 1e9),
        });
        f.write_str(&lines.join("\n"))
    }
}

/// How much longer a message takes, and a byte of one that is copied, where the core was another rank's before.
///
/// On two cores of a Xeon either end of a message takes 88 ns where a rank has a core to itself, and 155 ns among eight ranks of which
/// each talks to every other; bytes of messages of 2 and 8 KiB are copied there at 4 to 5 and 6 to 9 GB/s, instead of 27. These two are
/// near the ones by which most of the choices there are right, whether the machine is busy or not. Of 144 points, five operations of
/// 64 B to 1 MiB among 4 and 8 ranks, so many are within a tenth of the best, by a model in which messages take 110 ns, and 200:
///
/// | a message | a byte 2 | 4 | 7 |
/// |---|---|---|---|
/// | 0.4 | 110, 110 | 113, 114 | 115, 116 |
/// | 0.8 | 113, 104 | 115, 109 | 115, 109 |
/// | 1.5 | 113, 102 | 117, 106 | 115, 109 |
const COLD_MESSAGE: f64 = 0.8;
const COLD_BYTE: f64 = 4.0;

/// Of a parameter in seconds: with what there is of messages and bytes, what they amount to is finite.
const LONGEST: f64 = 1e3;

/// Bytes that [`CostModel::payload`] is of.
const PAYLOAD_BYTES: f64 = 4096.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_make_no_sense_are_named() {
        let good = CostModel::default();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(CostModel::free().check(), Ok(()));
        let link = |latency, speed| CostModel { between: Link { latency, speed }, ..good };
        for (wrong, name) in [
            (CostModel { start: -1e-9, ..good }, "start"),
            (CostModel { turn: f64::NAN, ..good }, "turn"),
            (CostModel { send: f64::INFINITY, ..good }, "send"),
            (CostModel { combine: 0.0, ..good }, "combine"),
            (CostModel { start: 1e308, ..good }, "start"),
            (CostModel { copy: 0.5, ..good }, "copy"),
            (CostModel { straight: f64::INFINITY, ..good }, "straight"),
            (CostModel { copy: f64::NAN, ..good }, "copy"),
            (link(f64::INFINITY, 1.0), "latency between nodes"),
            (link(0.0, -1.0), "speed between nodes"),
            (CostModel { gpu: GpuModel { copy: 0.0, ..good.gpu }, ..good }, "copy on GPUs"),
        ] {
            let error = wrong.check().unwrap_err();
            assert_eq!(error.name, name);
            assert!(error.to_string().starts_with(&format!("{name} is ")), "{error}");
        }
    }

    #[test]
    fn what_is_read_is_what_was_written_and_nothing_unknown() {
        let model = CostModel { copy: 1.234e10, ..CostModel::default() };
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), model);
        assert!(serde_json::from_str::<CostModel>(r#"{"copy": 1e10, "speed": 1}"#).is_err());
        assert!(serde_json::from_str::<CostModel>(r#"{"copy": null}"#).is_err());
        assert!(serde_json::from_str::<CostModel>(r#"{"gpu": {"turn": 1e-6}}"#).is_err());
    }

    #[test]
    fn what_is_said_of_gpus_counts_there_and_the_rest_in_both() {
        let model: CostModel = serde_json::from_str(r#"{"start": 1.0, "copy": 2.0, "gpu": {"copy": 3.0}}"#).unwrap();
        let there = model.on_gpus();
        assert_eq!((there.start, model.copy, there.copy), (1.0, 2.0, 3.0));
        assert_eq!(there.combine, GpuModel::default().combine);
    }

    #[test]
    fn people_read_a_parameter_a_line() {
        let text = CostModel::default().to_string();
        assert!(text.lines().count() == 23 && text.contains("\nsend                         0.100 us\n"), "{text}");
    }
}
