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


def ucx_column(text, column):
    """Of the one row of numbers that `ucx_perftest -f -v` prints: iterations, median latency, average latency,
    overall latency, average bandwidth, overall bandwidth, average rate, overall rate."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()[:1].isdigit()]
    if len(rows) != 1 or len(rows[0]) != 8:
        raise JobFailed(f"ucx_perftest printed no row of 8 numbers: {text.strip()[-200:]!r}")
    return float(rows[0][column])


def mpibench(text):
    """{bytes: median microseconds}"""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.count(",") == 5))
    if not rows or "us_median" not in rows[0]:
        raise JobFailed(f"mpibench printed no table: {text.strip()[-200:]!r}")
    return {int(row["bytes"]): float(row["us_median"]) for row in rows}


# ---- qpair: its JSON is known here and nowhere else ----

QPAIR_LATENCY_US = "median_us"
QPAIR_BANDWIDTH_MBPS = "mb_s"
QPAIR_SIZE = "size"
QPAIR_COLLECTIVE_US = "time_us"


def qpair_latency(text):
    return qpair_field(one_row(text), QPAIR_LATENCY_US)


def qpair_bandwidth(text):
    """10^9 bytes a second"""
    return qpair_field(one_row(text), QPAIR_BANDWIDTH_MBPS) / 1000


def qpair_collective(text):
    """{bytes: microseconds}"""
    return {int(qpair_field(row, QPAIR_SIZE)): qpair_field(row, QPAIR_COLLECTIVE_US) for row in qpair_rows(text)}


def one_row(text):
    rows = qpair_rows(text)
    if len(rows) != 1:
        raise JobFailed(f"qpair printed {len(rows)} rows of JSON instead of 1")
    return rows[0]


def qpair_rows(text):
    """One JSON object a line, or one document that is a list of them or has such a list as `rows`."""
    try:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        try:
            rows = [json.loads(text)]
        except ValueError:
            raise JobFailed(f"qpair printed no JSON: {text.strip()[-200:]!r}") from None
    if len(rows) == 1 and isinstance(rows[0], dict) and isinstance(rows[0].get("rows"), list):
        rows = rows[0]["rows"]
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    if not all(isinstance(row, dict) for row in rows):
        raise JobFailed(f"qpair printed JSON of another shape: {text.strip()[-200:]!r}")
    return rows


def qpair_field(row, name):
    value = row.get(name)
    if not isinstance(value, (int, float)):
        raise JobFailed(f"qpair's JSON has no number {name!r}; it has {', '.join(row)}")
    return float(value)
