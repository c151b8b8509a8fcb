//! A device, and its primary context.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::code::{Code, Outcome};
use crate::script::Script;
use crate::settings::{Settings, attribute};

/// A device.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) settings: Settings,
    pub(crate) script: Script,
    pub(crate) context: Context,
    /// The bytes of its memory in use.
    pub(crate) used: Arc<AtomicU64>,
    /// Whether nothing is done in its streams.
    pub(crate) held: bool,
    /// The handles of the streams that the numbers 0 or 1, and 2, stand for.
    pub(crate) default_streams: [u64; 2],
    pub(crate) violations: Vec<String>,
    pub(crate) calls: Vec<String>,
    /// Calls of functions by their name without version.
    pub(crate) counts: HashMap<String, u64>,
    /// How many of a kind there have been.
    pub(crate) made: HashMap<&'static str, u64>,
}

/// A primary context.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) retained: u32,
    /// What every call returns since something failed in it.
    pub(crate) error: Option<Code>,
    /// Devices whose memory it can access.
    pub(crate) peers: Vec<usize>,
}

impl Device {
    pub(crate) fn new(ordinal: usize, context: u64) -> Device {
        Device {
            ordinal,
            settings: Settings::of(ordinal),
            script: Script::default(),
            context: Context { handle: context, ..Context::default() },
            used: Arc::default(),
            held: false,
            default_streams: [0; 2],
            violations: Vec::new(),
            calls: Vec::new(),
            counts: HashMap::new(),
            made: HashMap::new(),
        }
    }

    /// Forgets what was set, scripted and recorded.
    pub(crate) fn reset(&mut self) {
        self.settings = Settings::of(self.ordinal);
        self.script = Script::default();
        self.held = false;
        self.violations.clear();
        self.calls.clear();
        self.counts.clear();
    }

    /// The number of one more of a kind.
    pub(crate) fn number(&mut self, kind: &'static str) -> u64 {
        let made = self.made.entry(kind).or_default();
        *made += 1;
        *made
    }

    /// Notes a call, but for queries that find nothing, of which there may be any number.
    pub(crate) fn record(&mut self, symbol: &str, result: Outcome<()>) {
        if self.calls.len() >= MOST_CALLS || result == Err(crate::code::NOT_READY) {
            return;
        }
        self.calls.push(match result {
            Ok(()) => symbol.to_owned(),
            Err(code) => match crate::code::name(code) {
                Some(name) => format!("{symbol} -> {}", name.to_string_lossy()),
                None => format!("{symbol} -> {code}"),
            },
        });
    }

    /// Where it is on the bus.
    pub(crate) fn bus_id(&self) -> String {
        let number = |which| self.settings.attribute(which);
        let (domain, bus) = (number(attribute::PCI_DOMAIN_ID), number(attribute::PCI_BUS_ID));
        format!("{domain:04X}:{bus:02X}:{:02X}.0", number(attribute::PCI_DEVICE_ID))
    }

    /// 16 bytes that tell it from others, the same in each process.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"fake-cuda-0\0\0\0\0\0";
        uuid[12..].copy_from_slice(&(self.ordinal as u32).to_be_bytes());
        uuid
    }
}

/// Calls that are kept.
const MOST_CALLS: usize = 1 << 16;
