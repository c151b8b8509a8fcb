"""Measures qpair, perftest and the ibverbs crate alternately on one host, round by round, and reports medians and ratios.

Started by `run`, which builds the programs and starts the host first.
"""

import argparse
import pathlib
import signal
import sys

import compare
import machine
import pairs
import report
from processes import JobFailed, output_of

INTRODUCTION = """# qpair beside perftest and the ibverbs crate, on Soft-RoCE

Written by `benches/rxe/run`; do not edit. Server and client were on one host, a virtual machine with Linux's `rdma_rxe`;
all programs ran in turn, round by round. A cell is the median of the rounds with the least and the greatest value, and
below it qpair's value divided by that program's (the median of each round's ratio) with its target. Of a time less is
better; of MiB/s more is. The host has two processors for two programs that poll and for the kernel's threads, which do
the device's work: who waits for whom decides much of a figure, so compare figures of one run only. In `send-lat`, with
more than one receive, qpair posts the next after its answer, and perftest before it."""

THREAD = ("Here each message is a system call, which takes longer in a program of more than one thread; qpair has one that"
          " reads the device's events. On 2026-11-21, in 14 rounds at 2cfed08 without it, SEND and RECV took 1.07 x the time"
          " of the ibverbs crate, and 1.16 x with it; send-lat was not measured without. On hardware nothing that is posted is"
          " a system call.")
SCHEDULER = ("More than half of a median is waiting for the host's scheduler, which decides between two programs that poll"
             " and the kernel's own threads; the ratio changes by a tenth and more from run to run.")
REASONS = dict.fromkeys(("send-lat 8 B", "SEND and RECV 8 B"), THREAD + " " + SCHEDULER)


def main():
    options = parse_options()
    host = pairs.Host(options.hosts, options.qpair, options.pingpong, options.ibverbs)
    chosen = [group for group in pairs.all_groups(host) if not options.only or group.name in options.only]
    described = describe(options)
    samples, troubles = compare.measure(chosen, options.rounds, options.quiet_wait)
    result = report.Result(described, options.typed, options.rounds, chosen, samples, troubles, INTRODUCTION, REASONS)
    print(report.as_text(result))
    if options.markdown:
        options.markdown.write_text(report.as_markdown(result))
    if options.json:
        options.json.write_text(report.as_json(result))
    return 1 if compare.misses_values(chosen, samples, options.rounds) else 0


def parse_options():
    parser = argparse.ArgumentParser(prog="run", description="options of the comparison")
    parser.add_argument("--rounds", type=compare.positive, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--only", action="append", choices=pairs.NAMES, metavar="GROUP",
                        help="this group alone; may be repeated: " + ", ".join(pairs.NAMES))
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the tables here")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all samples here")
    parser.add_argument("--quiet-wait", type=float, default=2, metavar="SECONDS",
                        help="longest wait for an idle machine before each run (default 2; 0: none)")
    parser.add_argument("--typed", default="soft_roce.py", help=argparse.SUPPRESS)
    parser.add_argument("--accelerator", default="not known", help=argparse.SUPPRESS)
    for program in ("hosts", "qpair", "pingpong", "ibverbs"):
        parser.add_argument(f"--{program}", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def describe(options):
    """Names and versions, as {what: text}."""
    def on_host(command):
        try:
            return " ".join(output_of([options.hosts, "run", "-t", "20", "1", command]).split())
        except JobFailed:
            return None

    source = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    found = {
        "CPU": f"{machine.cpu_model()}; the host has {on_host('nproc')} of them, by {options.accelerator}",
        "host kernel": on_host("uname -srm"),
        "qpair": machine.version([options.qpair, "--version"]),
        "source": machine.version(source),
        "perftest": package("perftest"),
        "libibverbs": package("libibverbs1"),
        "ibverbs crate": crate("ibverbs"),
        "compiler": machine.version(["rustc", "--version"]),
    }
    return {what: text or "not there" for what, text in found.items()}


def package(name):
    return machine.version(["dpkg-query", "-W", "-f", "${Version}", name])


def crate(name):
    lock = machine.read(pathlib.Path(__file__).parent / "ibverbs-pingpong/Cargo.lock")
    _, found, after = lock.partition(f'name = "{name}"\nversion = "')
    return after.partition('"')[0] if found else None


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, compare.interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
