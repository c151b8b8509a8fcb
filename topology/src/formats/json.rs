//! JSON: the parts of a machine as they are described, with the version of their form.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::{format_limits, parts};
use crate::{Bridge, Cpu, Description, Gpu, GpuLink, HostBridge, Machine, Nic, NvSwitch, SocketLink, Warning, limits};

/// JSON that is no machine.
#[derive(Debug, Error)]
pub enum JsonError {
    /// It is longer than any machine.
    #[error("the file has {bytes} bytes, more than {limit}; a machine is far smaller", limit = format_limits::FILE)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is no JSON, or not that of a machine.
    #[error("it is no JSON of a machine: {source}; `qpair topo --json` writes it, and Machine::to_json")]
    Syntax {
        /// The reason.
        #[from]
        source: serde_json::Error,
    },
    /// It is JSON of something else.
    #[error("it is JSON of another kind: `format` is `{format}` and not `{FORMAT}`")]
    Format {
        /// The kind that it says.
        format: String,
    },
    /// It is of a version that is not known here.
    #[error("the file is of version {version}, and this qpair reads version {VERSION}; use a newer qpair")]
    Version {
        /// The version that it says.
        version: u32,
    },
}

const FORMAT: &str = "qpair-machine";
const VERSION: u32 = 1;

impl Machine {
    /// The machine as JSON, which [`Machine::from_json`] reads as the same machine.
    ///
    /// It is an object with `format`, `version` (1), `machine` (the fields of [`Description`], with
    /// addresses as text, bandwidths in bytes a second and generations of PCIe by number) and `warnings`.
    /// Within a version fields may be added, and a reader passes over those that it does not know.
    pub fn to_json(&self) -> String {
        // Nothing in it can fail to be written: keys are text, numbers are whole.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Reads what [`Machine::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// It is no such JSON, of another version, or has more parts than a machine can have. The error
    /// has line and column.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        if text.len() > format_limits::FILE {
            return Err(JsonError::TooLong { bytes: text.len() });
        }
        // The head alone first: of a newer version the rest may not be readable.
        let head: Head = serde_json::from_str(text)?;
        if head.format != FORMAT {
            return Err(JsonError::Format { format: head.format.chars().take(40).collect() });
        }
        if head.version != VERSION {
            return Err(JsonError::Version { version: head.version });
        }
        let read: Read = serde_json::from_str(text)?;
        Ok(parts::machine(read.machine.into(), read.warnings))
    }
}

/// As [`Machine::to_json`] writes it, so that a machine can be part of something larger: flattened into an object, that
/// object is one that [`Machine::from_json`] reads.
impl Serialize for Machine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (machine, warnings) = (self.description(), self.warnings());
        Written { format: FORMAT, version: VERSION, machine, warnings }.serialize(serializer)
    }
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    version: u32,
    machine: &'a Description,
    warnings: &'a [Warning],
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
struct Read {
    machine: Parts,
    #[serde(default, deserialize_with = "at_most::<_, _, { limits::WARNINGS }>")]
    warnings: Vec<Warning>,
}

/// The fields of [`Description`], with limits: `{}` is a NUMA node, of two bytes in a file and a
/// hundred in memory.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    name: Option<String>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::CPUS }>")]
    cpus: Vec<Cpu>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::BRIDGES }>")]
    host_bridges: Vec<HostBridge>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::BRIDGES }>")]
    bridges: Vec<Bridge>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::GPUS }>")]
    gpus: Vec<Gpu>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::NICS }>")]
    nics: Vec<Nic>,
    #[serde(rename = "nvswitch")]
    nv_switch: Option<NvSwitch>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::LINKS }>")]
    gpu_links: Vec<GpuLink>,
    #[serde(deserialize_with = "at_most::<_, _, { limits::LINKS }>")]
    socket_links: Vec<SocketLink>,
    iommu: Option<bool>,
}

impl From<Parts> for Description {
    fn from(parts: Parts) -> Self {
        Self {
            name: parts.name,
            cpus: parts.cpus,
            host_bridges: parts.host_bridges,
            bridges: parts.bridges,
            gpus: parts.gpus,
            nics: parts.nics,
            nv_switch: parts.nv_switch,
            gpu_links: parts.gpu_links,
            socket_links: parts.socket_links,
            iommu: parts.iommu,
        }
    }
}

/// A list that is an error once it is longer than `LIMIT`.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const LIMIT: usize>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const LIMIT: usize> Visitor<'de> for List<T, LIMIT> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a list of at most {LIMIT}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut parts = Vec::new();
            while let Some(part) = list.next_element()? {
                if parts.len() == LIMIT {
                    return Err(A::Error::custom(format_args!("a list has more than {LIMIT} parts")));
                }
                parts.push(part);
            }
            Ok(parts)
        }
    }
    deserializer.deserialize_seq(List::<T, LIMIT>(std::marker::PhantomData))
}
