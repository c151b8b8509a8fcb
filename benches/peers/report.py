"""Tables of the samples: aligned for a terminal, Markdown for a file, JSON with every sample."""

import dataclasses
import datetime
import json
import statistics
from typing import Dict, List, Tuple

from groups import Group
from jobs import QPAIR
from reasons import REASONS

COLUMNS = ["what", "program", "median", "least..greatest", "unit", "qpair / it", "target", "met"]
NUMERIC = {2, 3, 5}

INTRODUCTION = """# qpair beside its peers

Written by `benches/peers/run`; do not edit. All programs ran in turn, round by round. A cell is the median of the
rounds with the least and the greatest value, and below it qpair's value divided by that program's (the median of each
round's ratio) with its target. Of a time less is better; of GB/s (10^9 bytes a second) more is. Compare figures of one
run only: machines differ, and are noisy."""


@dataclasses.dataclass(frozen=True)
class Result:
    machine: Dict[str, str]
    command: str
    rounds: int
    groups: List[Group]
    samples: Dict[Tuple[str, str], Dict[int, float]]  # {(point name, program): {round: value}}
    troubles: List[str]
    introduction: str = INTRODUCTION
    reasons: Dict[str, str] = dataclasses.field(default_factory=lambda: REASONS)  # why targets are missed, by point

    def values(self, point, program):
        return list(self.samples[point.name, program].values())

    def ratio(self, point, program):
        """The median over the rounds of qpair's value divided by the program's: what makes one round different,
        such as where the virtual CPUs lie, changes both. None without a round that has both."""
        own, other = self.samples.get((point.name, QPAIR), {}), self.samples[point.name, program]
        both = own.keys() & other.keys()
        return statistics.median(own[number] / other[number] for number in both) if both else None


@dataclasses.dataclass(frozen=True)
class Row:
    """One program's values for one point."""

    point: str
    unit: str
    program: str
    median: str
    spread: str
    ratio: str  # empty for qpair itself
    target: str
    met: str  # "yes", "NO", or empty without a target

    @property
    def cells(self):
        return [self.point, self.program, self.median, self.spread, self.unit, self.ratio, self.target, self.met]


def rows(result, group):
    return [row(result, point, program) for point in group.points for program in programs(result, group, point)]


def row(result, point, program):
    values, target = result.values(point, program), point.target(program)
    median = statistics.median(values)
    ratio = None if program == QPAIR else result.ratio(point, program)
    reached = median if program == QPAIR else ratio
    met = "" if target is None or reached is None else "yes" if target.is_met(reached) else "NO"
    return Row(point.name, point.unit, program, number(median), f"{number(min(values))}..{number(max(values))}",
               "" if ratio is None else f"{ratio:.2f}", str(target) if met else "", met)


def programs(result, group, point=None):
    """Those that have a value for `point`, or for any, in the order of the jobs."""
    points = [point] if point else group.points
    known = dict.fromkeys(job.program for job in group.jobs)
    return [program for program in known if any((point.name, program) in result.samples for point in points)]


def number(value):
    """Three digits that count; whole numbers stay whole."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# ---- for a terminal ----


def as_text(result):
    parts = ["\n".join(f"{what + ':':15}{text}" for what, text in facts(result))]
    for group in result.groups:
        parts.append(f"{group.title}\n" + aligned([COLUMNS] + [row.cells for row in rows(result, group)]))
    parts += [f"{title}\n" + "\n".join(f"  {line}" for line in lines)
              for title, lines in (("Troubles", result.troubles), ("Commands", commands(result))) if lines]
    return "\n\n".join(parts)


def aligned(table):
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]

    def cell(text, i):
        return text.rjust(widths[i]) if i in NUMERIC else text.ljust(widths[i])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(line)).rstrip() for line in table)


# ---- for a file ----


def as_markdown(result):
    """What a reader wants first stands first; the long commands stand last."""
    parts = [result.introduction, listed(f"{what}: {text}" for what, text in facts(result)), verdict(result)]
    parts += [f"## {group.title}\n\n" + by_point(result, group) for group in result.groups]
    if result.troubles:
        parts.append("## What went wrong\n\n" + listed(result.troubles))
    parts.append("<details><summary>The commands</summary>\n\n```text\n" + "\n".join(commands(result)) +
                 "\n```\n\n</details>")
    return "\n\n".join(parts) + "\n"


def verdict(result):
    """How many targets are met, and those that are not: each with its reason, or those of a group of which none is known."""
    judged = [row for group in result.groups for row in rows(result, group) if row.met]
    lines = [line for group in result.groups for line in missed(result, group)]
    text = f"## Targets\n\n{sum(row.met == 'yes' for row in judged)} of {len(judged)} targets are met."
    if unmeasured := [point.name for group in result.groups for point in group.points if not own(result, group, point)]:
        text += f" Not measured, and so not among them: {', '.join(unmeasured)}."
    return f"{text} Missed:\n\n{listed(lines)}" if lines else text


def own(result, group, point):
    """Whether qpair was measured there, if it takes part."""
    return all(job.program != QPAIR for job in group.jobs) or (point.name, QPAIR) in result.samples


def missed(result, group):
    found = {}
    for row in rows(result, group):
        if row.met == "NO":
            found.setdefault(row.point, []).append(shortfall(row))
    by_reason = {}
    for point in found:
        by_reason.setdefault(result.reasons.get(point), []).append(point)
    unknown = by_reason.pop(None, [])
    lines = []
    for reason, points in by_reason.items():
        if len(points) == 1:
            lines.append(f"**{points[0]}**: {'; '.join(found[points[0]])}. {reason}")
        else:
            lines.append(f"**{group.title}**: {several(points, found)}. {reason}")
    return lines + ([f"**{group.title}**, for no reason that is known: {several(unknown, found)}."] if unknown else [])


def several(points, found):
    return ", ".join(f"{point} ({'; '.join(found[point])})" for point in points)


def shortfall(row):
    if row.program == QPAIR:
        return f"{row.median} {row.unit}, not {row.target}"
    return f"{row.ratio}x {row.program}, not {row.target}"


def by_point(result, group):
    """A row for each point, a column for each program."""
    columns = programs(result, group)
    cells = {(row.point, row.program): cell(row) for row in rows(result, group)}
    units = dict.fromkeys(point.unit for point in group.points)
    table = [[", ".join(units)] + columns, ["---"] * (1 + len(columns))]
    for point in group.points:
        line = [cells.get((point.name, program), "") for program in columns]
        if any(line):
            table.append([point.name] + line)
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def cell(row):
    """Two lines: the value with its spread, and how qpair stands to it."""
    against = f"{row.ratio}x" if row.ratio else ""
    if row.met:
        against = f"{against} ({row.target})" if against else f"target {row.target}"
    if row.met == "NO":
        against = f"**missed: {against}**"
    value = f"{row.median} ({row.spread})"
    return f"{value}<br>{against}" if against else value


def listed(lines):
    return "\n".join(f"- {line}" for line in lines)


# ---- for a program ----


def as_json(result):
    points = [{"point": point.name, "unit": point.unit, "program": program, "rounds": result.samples[point.name, program]}
              for group in result.groups for point in group.points for program in programs(result, group, point)]
    content = {**dict(facts(result)), "points": points, "commands": commands(result), "troubles": result.troubles}
    return json.dumps(content, indent=2) + "\n"


# ---- for all ----


def facts(result):
    yield "date", datetime.date.today().isoformat()
    yield from result.machine.items()
    yield "command", result.command
    yield "rounds", str(result.rounds)


def commands(result):
    lines = [f"{job.program}: {job.command}" for group in result.groups for job in group.jobs]
    return list(dict.fromkeys(lines))
