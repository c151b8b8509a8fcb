#!/usr/bin/env python3
"""What became of each test, kept as lines: step, test, outcome, reason, divided by tabs.

    results.py programs BUILT                         programs in cargo's JSON messages: folder, target, file
    results.py libtest STEP OUT ERR STATUS NAMES      lines of one test program's run, from what it printed
    results.py measured TEST OUT OPTION...            what is wrong with a table of perftest's kind that those options give
    results.py table RESULTS SECONDS                  the counts of each step
    results.py report RESULTS                         test by test, with the reasons

A test is skipped if it says so on standard error: `skipped: NAME: REASON`.
"""

import json
import pathlib
import re
import sys

OUTCOMES = ("passed", "skipped", "failed")
# With several threads a line holds both; with one thread a test's own output may stand between.
LINE = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (?:.*\s)?(ok|FAILED|ignored)(?:, (.*))?$")
ROW = re.compile(r"^ *\d+ +\d+ +(?:[\d.]+|inf) ")
SKIPPED = re.compile(r"^skipped: ([^:\s]+(?:::[^:\s]+)*): (.*)$", re.MULTILINE)
PANIC = re.compile(r"^thread '([^']+)'.* panicked at [^\n]*\n([^\n]*)", re.MULTILINE)


def programs(messages):
    """The test programs and commands that cargo built."""
    for line in messages:
        artifact = json.loads(line)
        if artifact.get("executable"):
            folder = pathlib.Path(artifact["manifest_path"]).parent.name
            yield folder, artifact["target"]["name"], artifact["executable"]


def libtest(out, err, status, names):
    """(test, outcome, reason) of each of `names`, and of the program itself if it failed in another way."""
    said, ignored = {}, {}
    for line in out.splitlines():
        match = LINE.match(line)
        if match:
            said[match[1]] = match[2]
            ignored[match[1]] = match[3]
    skipped = dict(SKIPPED.findall(err))
    panics = dict(PANIC.findall(out + "\n" + err))
    for name in names:
        match said.get(name):
            case "ok" if name in skipped:
                yield name, "skipped", skipped[name]
            case "ok":
                yield name, "passed", ""
            case "ignored":
                yield name, "skipped", ignored[name] or "it is ignored"
            case "FAILED":
                yield name, "failed", panics.get(name, "see its output")
            case None:
                yield name, "failed", "it did not end"
    if not names:
        yield "(none)", "failed", "no test of that name"
    elif status != 0 and "FAILED" not in said.values() and all(name in said for name in names):
        yield "(program)", "failed", f"it ended with status {status}"


def listed(text):
    """The names in what a test program's --list prints, but for those that are not to be run by themselves."""
    return [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")]


def measured(test, out, options):
    """What is wrong with the last row of a table, or None: its size and count are not what was asked, or its bandwidth is
    not its rate of messages times their size."""
    rows = [line.split() for line in out.splitlines() if ROW.match(line)]
    if not rows:
        return "it printed no measurement"
    size, count, *figures = rows[-1]
    asked = dict(zip(options, options[1:] + [""]))
    size_asked = "8388608" if "-a" in options else "8" if test.startswith("atomic") else asked.get("-s", size)
    if size != size_asked:
        return f"it measured {size} bytes, not {size_asked}"
    # Some count the iterations of all queue pairs, and perftest an event after each of the last.
    if "-n" in asked and int(count) not in (int(asked["-n"]), int(asked["-n"]) * int(asked.get("-q", "1"))):
        return f"it measured {count} iterations, not {asked['-n']}"
    if test.endswith("-bw"):
        average, rate = (float(figure) for figure in figures[1:3])
        unit = 1e9 / 8 if "--report_gbits" in options else 2**20
        expected = rate * 1e6 * int(size) / unit
        # Both are rounded, the rate to a message per second.
        if abs(average - expected) > 0.01 + 0.02 * expected + int(size) / unit:
            return f"it printed {average} on average, and {rate} Mpps of {size} bytes, which is {expected:.3f}"
    return None


def count(results):
    """Steps in order, each with its number of tests by outcome."""
    steps = {}
    for step, _, outcome, _ in results:
        steps.setdefault(step, dict.fromkeys(OUTCOMES, 0))[outcome] += 1
    return steps


def table(results, seconds):
    """The counts of each step, and how long it took, as aligned text."""
    rows = [("step", *OUTCOMES, "seconds")]
    for step, counts in count(results).items():
        rows.append((step, *(str(counts[outcome]) for outcome in OUTCOMES), seconds.get(step, "")))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        yield "  ".join(cells)


def report(results):
    """Each test by step, skipped and failed ones with the reason."""
    step = None
    for at, test, outcome, reason in results:
        if at != step:
            step = at
            yield f"\n{step}"
        yield f"  {outcome:8}{test}" + (f"  ({reason})" if reason else "")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def rows(path):
    return [line.split("\t") for line in read(path).splitlines()]


def main(command, *arguments):
    if command == "programs":
        for row in programs(read(arguments[0]).splitlines()):
            print(*row, sep="\t")
    elif command == "libtest":
        step, out, err, status, names = arguments
        for row in libtest(read(out), read(err), int(status), listed(read(names))):
            print(step, *(cell.replace("\t", " ") for cell in row), sep="\t")
    elif command == "measured":
        test, out, *options = arguments
        wrong = measured(test, read(out), options)
        if wrong:
            sys.exit(wrong)
    elif command == "table":
        print(*table(rows(arguments[0]), dict(rows(arguments[1]))), sep="\n")
    elif command == "report":
        print(*report(rows(arguments[0])), sep="\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
