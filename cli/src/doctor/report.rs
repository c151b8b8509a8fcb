//! Findings for people: the worst first, wrapped to the terminal, with commands on lines of their own.

use std::fmt::Write;
use std::io;

use super::finding::{Finding, Fix, Severity};
use crate::text::{count, printable, wrap};

/// How a report looks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Characters in a line of prose. Commands are never broken.
    pub width: usize,
    /// Also what is well, and what could be done about notes.
    pub verbose: bool,
}

impl Style {
    /// As wide as the terminal, within what reads well.
    pub fn for_output(verbose: bool) -> Self {
        let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(DEFAULT_WIDTH, |size| size.ws_col.into());
        let columns = if columns == 0 { DEFAULT_WIDTH } else { columns };
        Style { width: columns.clamp(LEAST_WIDTH, GREATEST_WIDTH), verbose }
    }
}

/// The whole report, which ends with a count.
pub fn render(findings: &[Finding], style: Style) -> String {
    let mut shown: Vec<&Finding> =
        findings.iter().filter(|finding| style.verbose || finding.severity < Severity::Ok).collect();
    // Stable: of one severity, in the order of the checks.
    shown.sort_by_key(|finding| finding.severity);
    let mut text = String::new();
    let mut previous = None;
    for finding in shown {
        let brief = !style.verbose && finding.severity == Severity::Note || finding.severity == Severity::Ok;
        if previous.is_some_and(|previous| previous != finding.severity || !brief) {
            text.push('\n');
        }
        one(&mut text, finding, brief, style);
        previous = Some(finding.severity);
    }
    if previous.is_some() {
        text.push('\n');
    }
    text.push_str(&wrap(&summary(findings, style), style.width).join("\n"));
    text
}

/// How many of each.
fn summary(findings: &[Finding], style: Style) -> String {
    let number = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let parts = [
        count(number(Severity::Problem), "problem"),
        count(number(Severity::Warning), "warning"),
        count(number(Severity::Note), "note"),
    ];
    let hint = if style.verbose { "" } else { " (-v shows all, and what could be done about notes)" };
    format!("{}; {} well{hint}", parts.join(", "), count(number(Severity::Ok), "thing"))
}

/// One finding; a brief one without reasons and fixes.
fn one(text: &mut String, finding: &Finding, brief: bool, style: Style) {
    let subject = finding.subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
    paragraph(text, label(finding.severity), &format!("{subject}{}", finding.message), style);
    if brief {
        return;
    }
    if let Some(why) = &finding.why {
        paragraph(text, "", why, style);
    }
    for (index, Fix { place, lines }) in finding.fixes.iter().enumerate() {
        let word = if index == 0 { "fix" } else { "or" };
        paragraph(text, "", &format!("{word}, {place}:"), style);
        for line in lines {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:INDENT$}    {}", "", printable(line));
        }
    }
}

/// Lines that hang from a label.
fn paragraph(text: &mut String, label: &str, words: &str, style: Style) {
    for (index, line) in wrap(&printable(words), style.width - INDENT).iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let _ = writeln!(text, "{label:INDENT$}{line}");
    }
}

fn label(severity: Severity) -> &'static str {
    match severity {
        Severity::Problem => "PROBLEM",
        Severity::Warning => "warning",
        Severity::Note => "note",
        Severity::Ok => "ok",
    }
}

/// Room for the longest label, and two blanks.
const INDENT: usize = 9;
const DEFAULT_WIDTH: usize = 80;
const LEAST_WIDTH: usize = 40;
const GREATEST_WIDTH: usize = 100;

#[cfg(test)]
mod tests {
    use super::super::finding::Section;
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok(Section::Limits, "open-files", "65536 files may be open"),
            Finding::note(Section::Machine, "governor", "the frequency of CPUs is governed by `powersave`")
                .because("Latencies vary.")
                .fix("as root", ["cpupower"]),
            Finding::problem(Section::Devices, "port-state", "down, physically disabled")
                .on("rxe0 port 1")
                .because("Its interface eth0 is down.")
                .fix("as root", ["ip link set dev eth0 up"])
                .fix("in a file whose name is long", ["a line that is longer than the width and stays whole"]),
        ]
    }

    #[test]
    fn the_worst_comes_first_and_what_is_well_is_counted() {
        let text = render(&findings(), Style { width: 40, verbose: false });
        let expected = "\
PROBLEM  rxe0 port 1: down, physically
         disabled
         Its interface eth0 is down.
         fix, as root:
             ip link set dev eth0 up
         or, in a file whose name is
         long:
             a line that is longer than the width and stays whole

note     the frequency of CPUs is
         governed by `powersave`

1 problem, 0 warnings, 1 note; 1 thing
well (-v shows all, and what could be
done about notes)";
        assert_eq!(text, expected);
    }

    #[test]
    fn all_of_it_is_shown_when_asked_for() {
        let text = render(&findings(), Style { width: 80, verbose: true });
        assert!(
            text.ends_with("ok       65536 files may be open\n\n1 problem, 0 warnings, 1 note; 1 thing well"),
            "{text}"
        );
    }

    #[test]
    fn codes_for_the_terminal_are_not_passed_on() {
        let finding = Finding::note(Section::Peer, "x", "a\x1b[2Jb").on("\x07").fix("c\x08", ["d\x1b]0;e"]);
        let text = render(&[finding], Style { width: 80, verbose: false });
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
