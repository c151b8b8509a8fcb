//! What a check has to say: how bad it is, what it is about, and what mends it.

use serde::Serialize;

/// How much a finding matters; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work.
    Problem,
    /// Something works worse than it could, or will fail under load.
    Warning,
    /// Worth knowing.
    Note,
    /// As it should be.
    Ok,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Limits of this process and its user.
    Limits,
    /// Device files.
    Files,
    /// The kernel and its modules.
    Kernel,
    /// libibverbs and its providers.
    Library,
    /// RDMA devices and their ports.
    Devices,
    /// GIDs, addresses and MTUs.
    Network,
    /// Memory of the machine.
    Memory,
    /// GPUs and their memory.
    Gpus,
    /// The rest of the machine.
    Machine,
    /// This machine beside another.
    Peer,
}

/// One way to mend something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// Where the lines belong: a shell, a file, a container's options.
    #[serde(rename = "where")]
    pub place: String,
    /// Commands, or lines of a file.
    pub lines: Vec<String>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is about.
    pub section: Section,
    /// The check's name, which stays the same between releases.
    pub check: &'static str,
    /// The device, port, interface or file, where there are several.
    pub subject: Option<String>,
    /// What was found, in one sentence.
    pub message: String,
    /// What follows from it.
    pub why: Option<String>,
    /// What mends it: any one of these.
    pub fixes: Vec<Fix>,
}

impl Finding {
    /// A finding without a subject or fix.
    pub fn new(severity: Severity, section: Section, check: &'static str, message: impl Into<String>) -> Self {
        Finding { severity, section, check, subject: None, message: message.into(), why: None, fixes: Vec::new() }
    }

    /// A thing that does not work.
    pub fn problem(section: Section, check: &'static str, message: impl Into<String>) -> Self {
        Finding::new(Severity::Problem, section, check, message)
    }

    /// A thing that will hurt.
    pub fn warning(section: Section, check: &'static str, message: impl Into<String>) -> Self {
        Finding::new(Severity::Warning, section, check, message)
    }

    /// A thing worth knowing.
    pub fn note(section: Section, check: &'static str, message: impl Into<String>) -> Self {
        Finding::new(Severity::Note, section, check, message)
    }

    /// A thing that is as it should be.
    pub fn ok(section: Section, check: &'static str, message: impl Into<String>) -> Self {
        Finding::new(Severity::Ok, section, check, message)
    }

    /// Names what it is about.
    #[must_use]
    pub fn on(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Says what follows from it.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Adds a way to mend it.
    #[must_use]
    pub fn fix<L: Into<String>>(mut self, place: impl Into<String>, lines: impl IntoIterator<Item = L>) -> Self {
        self.fixes.push(Fix { place: place.into(), lines: lines.into_iter().map(Into::into).collect() });
        self
    }
}
