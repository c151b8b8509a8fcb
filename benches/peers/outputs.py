"""Reads what the programs print. Times become microseconds, rates GB/s (10^9 bytes)."""

import csv
import json

from processes import JobFailed

MIB = 1 << 20


def limits(text):
    try:
        return float(text)
    except ValueError:
        raise JobFailed(f"limits printed {text!r}, not a number") from None


def ucx_latency(text):
    """The median of one way."""
    return ucx_column(text, 1)


def ucx_bandwidth(text):
    """The mean over the whole run; ucx_perftest counts MiB."""
    return ucx_column(text, 5) * MIB / 1e9


def ucx_nanoseconds(text):
    """What one operation of a stream took, on average over the whole run."""
    return 1e9 / ucx_column(text, 7)


def ucx_rate(text):
    """Millions a second, over the whole run."""
    return ucx_column(text, 7) / 1e6


def ucx_column(text, column):
    """Of the one row of numbers that `ucx_perftest -f -v` prints: iterations, median latency, average latency,
    overall latency, average bandwidth, overall bandwidth, average rate, overall rate."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()[:1].isdigit()]
    if len(rows) != 1 or len(rows[0]) != 8:
        raise JobFailed(f"ucx_perftest printed no row of 8 numbers: {text.strip()[-200:]!r}")
    return float(rows[0][column])


def libfabric_latency(text):
    """The mean of one way, of the one row that `fi_pingpong` prints: bytes, messages sent and acknowledged, bytes in all,
    time, rate, microseconds each, millions a second."""
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    if len(rows) != 1 or len(rows[0]) != 8:
        raise JobFailed(f"fi_pingpong printed no row of 8 values: {text.strip()[-200:]!r}")
    return float(rows[0][6])


def collbench(text):
    """{bytes: median microseconds}"""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.count(",") == 5))
    if not rows or "us_median" not in rows[0]:
        raise JobFailed(f"the benchmark printed no table: {text.strip()[-200:]!r}")
    return {int(row["bytes"]): float(row["us_median"]) for row in rows}


# ---- qpair: its JSON, an object a line, is known here and nowhere else ----


def qpair_latency(text):
    """Microseconds: the median of block means, which clock reads do not disturb, and that of single operations."""
    row = one_row(text)
    return field(row, "typical_us"), field(row, "median_us")


def qpair_bandwidth(text):
    """10^9 bytes a second, over the whole run as ucx_perftest has it"""
    return field(one_row(text), "mean_mb_s") / 1000


def qpair_rate(text):
    """Millions a second, likewise"""
    row = one_row(text)
    return field(row, "mean_mb_s") / field(row, "size")


def qpair_post_poll(text):
    """{how many WRITEs for one that is signaled: nanoseconds for each WRITE}"""
    return {int(field(row, "signal_every")): field(row, "median_ns") for row in qpair_rows(text)}


def qpair_collective(text, in_place):
    """{bytes: microseconds} of the rows that are in place, or of those that are not"""
    rows = [row for row in qpair_rows(text) if row.get("in_place", in_place) == in_place]
    if not rows:
        raise JobFailed(f"qpair printed no row {'in place' if in_place else 'from one vector into another'}")
    return {int(field(row, "size")): field(row, "time_us") for row in rows}


def one_row(text):
    rows = qpair_rows(text)
    if len(rows) != 1:
        raise JobFailed(f"qpair printed {len(rows)} rows of JSON instead of 1")
    return rows[0]


def qpair_rows(text):
    try:
        rows = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        raise JobFailed(f"qpair printed no JSON: {text.strip()[-200:]!r}") from None
    if not all(isinstance(row, dict) for row in rows):
        raise JobFailed(f"qpair printed JSON of another shape: {text.strip()[-200:]!r}")
    return rows


def field(row, name):
    value = row.get(name)
    if not isinstance(value, (int, float)):
        raise JobFailed(f"qpair's JSON has no number {name!r}; it has {', '.join(row)}")
    return float(value)
