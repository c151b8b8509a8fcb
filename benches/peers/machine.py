"""What the machine is, and whether it is idle."""

import os
import pathlib
import platform
import re
import subprocess
import time

IDLE_SHARE = 0.93
IDLE_SECONDS = 0.5


def two_cores():
    """The first CPUs of two different cores that this process may use; one CPU twice where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = {}
    for cpu in allowed:
        siblings = read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        cores.setdefault(siblings, cpu)
    chosen = list(cores.values())[:2]
    return chosen if len(chosen) == 2 else (allowed + allowed)[:2]


def wait_until_quiet(limit):
    """Waits until the machine was idle for half a second; False if it never was within `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        idle, total = cpu_ticks()
        time.sleep(IDLE_SECONDS)
        idle_now, total_now = cpu_ticks()
        if idle_now - idle >= IDLE_SHARE * (total_now - total):
            return True
        if time.monotonic() >= deadline:
            return False


def cpu_ticks():
    """(idle, all) ticks of all CPUs since the start."""
    ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def describe(tools):
    """Names and versions, as {what: text}."""
    found = {
        "CPU": f"{cpu_model()}, {os.cpu_count()} CPUs, measured on {tools.cores[0]} and {tools.cores[1]}",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "qpair": version([str(tools.qpair), "--version"]) if tools.qpair else None,
        "source": version(["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]),
        "UCX": version(["ucx_info", "-v"], r"[Vv]ersion\S* (\S+)"),
        "libfabric": version(["fi_info", "--version"], r"libfabric: (\S+)"),
        "Open MPI": version(["ompi_info", "--version"], r"(\d+\.\d+\.\S+)"),
        "MPICH": version(["mpirun.mpich", "--version"], r"Version:\s+(\S+)"),
        "Gloo": version(["dpkg-query", "--show", "libgloo-dev"], r"\t(\S+)"),
        "C compiler": version(["cc", "--version"]),
    }
    return {what: text or "not there" for what, text in found.items()}


def cpu_model():
    model = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    if model:
        return model[1]
    return version(["lscpu"], r"Model name:\s+(.*)") or platform.machine()


def version(command, pattern=r"(.+)"):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, done.stdout + done.stderr)
    return match[1].strip() if match else None


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""
