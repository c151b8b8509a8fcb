"""Tables of the samples."""

import dataclasses
import json
import statistics
from typing import Dict, List, Tuple

from groups import Group

COLUMNS = ["what", "program", "median", "least..greatest", "unit", "qpair / it", "target", "met"]
NUMERIC = {2, 3, 5}


@dataclasses.dataclass(frozen=True)
class Result:
    machine: Dict[str, str]
    command: str
    rounds: int
    groups: List[Group]
    samples: Dict[Tuple[str, str], Dict[int, float]]  # {(point name, program): {round: value}}
    troubles: List[str]

    def values(self, point, program):
        return list(self.samples[point.name, program].values())

    def ratio(self, point, program):
        """The median over the rounds of qpair's value divided by the program's: what makes one round different,
        such as where the virtual CPUs lie, changes both. None without a round that has both."""
        own, other = self.samples.get((point.name, "qpair"), {}), self.samples[point.name, program]
        both = own.keys() & other.keys()
        return statistics.median(own[number] / other[number] for number in both) if both else None


def as_text(result):
    parts = ["\n".join(f"{what + ':':12}{text}" for what, text in facts(result))]
    for group in result.groups:
        parts.append(f"{group.title}\n" + aligned([COLUMNS] + rows(result, group)))
    parts += [f"{title}\n" + "\n".join(f"  {line}" for line in lines) for title, lines in notes(result)]
    return "\n\n".join(parts)


def as_markdown(result):
    parts = ["\n".join(f"- {what}: {text}" for what, text in facts(result))]
    for group in result.groups:
        parts.append(f"## {group.title}\n\n" + piped([COLUMNS] + rows(result, group)))
    parts += [f"## {title}\n\n" + "\n".join(f"- `{line}`" for line in lines) for title, lines in notes(result)]
    return "\n\n".join(parts) + "\n"


def as_json(result):
    points = [{"point": point.name, "unit": point.unit, "program": program, "rounds": result.samples[point.name, program]}
              for group in result.groups for point in group.points for program in programs(result, group, point)]
    content = {**dict(facts(result)), "points": points, "commands": commands(result), "troubles": result.troubles}
    return json.dumps(content, indent=2) + "\n"


def facts(result):
    yield from result.machine.items()
    yield "command", result.command
    yield "rounds", f"{result.rounds}, all programs in turn; median and spread of the values, median of each round's ratio"


def rows(result, group):
    return [row(result, point, program) for point in group.points for program in programs(result, group, point)]


def programs(result, group, point):
    """Those that have a value for `point`, in the order of the jobs."""
    known = dict.fromkeys(job.program for job in group.jobs)
    return [program for program in known if (point.name, program) in result.samples]


def row(result, point, program):
    values, ratio = result.values(point, program), result.ratio(point, program)
    cells = [point.name, program, number(statistics.median(values)), f"{number(min(values))}..{number(max(values))}", point.unit]
    target = next((target for target in point.targets if program.startswith(target.programs)), None)
    if ratio is None or program == "qpair":
        return cells + ["", "", ""]
    met = ("yes" if target.is_met(ratio) else "NO") if target else ""
    return cells + [f"{ratio:.2f}", str(target or ""), met]


def number(value):
    """Three digits that count; whole numbers stay whole."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def notes(result):
    if result.troubles:
        yield "Troubles", result.troubles
    yield "Commands", [f"{program}: {command}" for program, command in commands(result)]


def commands(result):
    return list(dict.fromkeys((job.program, job.command) for group in result.groups for job in group.jobs))


def aligned(table):
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]

    def cell(text, i):
        return text.rjust(widths[i]) if i in NUMERIC else text.ljust(widths[i])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(line)).rstrip() for line in table)


def piped(table):
    rule = ["---:" if i in NUMERIC else "---" for i in range(len(COLUMNS))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [table[0], rule] + table[1:])
