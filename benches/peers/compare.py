"""Measures all programs of each group alternately, round by round, and reports medians and ratios.

Started by `run`, which compiles the programs first.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import sys

import groups
import hosts
import jobs
import machine
import report
from processes import JobFailed, LeftOvers


def main():
    options = parse_options()
    tools = jobs.Tools(options.programs, options.qpair, machine.two_cores(), options.quick)
    chosen = [group for group in groups.all_groups(tools) if not options.only or group.name in options.only]
    if options.qpair_only:
        chosen = [group.of_qpair_alone() for group in chosen]
    if any(job.hosts for group in chosen for job in group.jobs) and not hosts.can_be_had():
        chosen = [group.of_this_machine_alone() for group in chosen]
    rounds = options.rounds or (1 if options.quick else 5)
    samples, troubles = measure(chosen, rounds, options.quiet_wait)
    result = report.Result(machine.describe(tools), options.typed, rounds, chosen, samples, troubles)
    print(report.as_text(result))
    if options.markdown:
        options.markdown.write_text(report.as_markdown(result))
    if options.json:
        options.json.write_text(report.as_json(result))
    return 1 if misses_values(chosen, samples, rounds) else 0


def parse_options():
    parser = argparse.ArgumentParser(prog="run", description="options of the comparison")
    parser.add_argument("--rounds", type=positive, metavar="N", help="rounds of all programs (default 5)")
    parser.add_argument("--quick", action="store_true", help="one round, shorter runs, fewer sizes")
    parser.add_argument("--only", action="append", choices=groups.NAMES, metavar="GROUP",
                        help="this group alone; may be repeated: " + ", ".join(groups.NAMES))
    parser.add_argument("--qpair-only", action="store_true", help="leave out the peers and the limits")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the tables here")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all samples here")
    parser.add_argument("--quiet-wait", type=float, default=30, metavar="SECONDS",
                        help="longest wait for an idle machine before each run (default 30; 0: none)")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--typed", default="compare.py", help=argparse.SUPPRESS)
    parser.add_argument("--qpair", type=program, help=argparse.SUPPRESS)
    return parser.parse_args()


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def program(text):
    path = pathlib.Path(text).resolve()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a program")
    return path


def measure(chosen, rounds, quiet_wait):
    """Every job once a round; the order turns around with each round, so that no program always goes first.

    Returns ({(point name, program): {round: value}}, [what went wrong]).
    """
    samples, troubles = {}, []
    needed = max((job.hosts for group in chosen for job in group.jobs), default=0)
    with LeftOvers(), hosts.Hosts(needed) if needed else contextlib.nullcontext():
        for number in range(rounds):
            for group in chosen:
                ordered = group.jobs if number % 2 == 0 else list(reversed(group.jobs))
                for job in ordered:
                    where = f"round {number + 1}, {group.name}, {job.program}"
                    print(f"peers: {where}", file=sys.stderr)
                    if quiet_wait and not machine.wait_until_quiet(quiet_wait):
                        troubles.append(f"{where}: started on a busy machine")
                    try:
                        values = job.run()
                    except JobFailed as failure:
                        print(f"peers: {where}: {failure}", file=sys.stderr)
                        troubles.append(f"{where}: {failure}")
                        continue
                    for point, value in values.items():
                        samples.setdefault((point, job.program), {})[number] = value
    return samples, troubles


def misses_values(chosen, samples, rounds):
    """Whether a job of qpair failed in some round, or nothing was measured at all. A peer that fails is a trouble that
    the report names, and a target that is missed is a result."""
    own = [group for group in chosen if any(job.program == jobs.QPAIR for job in group.jobs)]
    points = [point.name for group in own for point in group.points]
    return not samples or any(len(samples.get((point, jobs.QPAIR), {})) < rounds for point in points)


def interrupt(*_):
    """Once: a second signal must not break off the cleaning up."""
    for name in SIGNALS:
        signal.signal(name, lambda *_: None)
    raise KeyboardInterrupt


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

if __name__ == "__main__":
    for name in SIGNALS:
        signal.signal(name, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
