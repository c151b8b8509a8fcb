"""Reads what the programs print."""

import re

from processes import JobFailed


def bandwidth(text):
    """The mean over the whole run, in MiB/s: of size, messages, peak, average, messages a second."""
    return row(text, 5)[3]


def latency(text):
    """The median, in microseconds: of size, messages, least, greatest, typical, average, deviation, 99 %, 99.9 %."""
    return row(text, 9)[4]


def row(text, columns):
    """The one row of so many numbers in a table as perftest prints it."""
    rows = [line.split() for line in text.splitlines() if re.fullmatch(r"\s*\d+\s+\d+(\s+[\d.]+)+\s*", line)]
    if len(rows) != 1 or len(rows[0]) != columns:
        raise JobFailed(f"no row of {columns} numbers was printed: {text.strip()[-300:]!r}")
    return [float(field) for field in rows[0]]


def ping_pong(text):
    """Half of the median round trip, in microseconds."""
    found = re.findall(r"round trips of \d+ B: median ([\d.]+) us", text)
    if len(found) != 1:
        raise JobFailed(f"no median was printed: {text.strip()[-300:]!r}")
    return float(found[0])
