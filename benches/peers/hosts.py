"""Hosts that are network namespaces of this machine, each joined by a veth pair to a bridge that stands in for a switch."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from processes import JobFailed, output_of

PREFIX = f"qpair-peers-{os.getpid()}-"
SWITCH = PREFIX + "switch"
DEVICE = "eth0"
MTU = "9000"
ENTER = pathlib.Path(__file__).parent / "enter"
TOOLS = ("ip", "unshare", "setsid", "hostname")


def can_be_had():
    """Also as root they can not, where a container forbids a part of it."""
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        return False
    try:
        with Hosts(1):
            output_of([str(ENTER), address(1), "true"])
    except JobFailed as failure:
        print(f"peers: no hosts: {failure}", file=sys.stderr)
        return False
    return True


def address(number):
    """That of the host with this number, from 1 on."""
    return f"10.66.0.{number}"


def addresses(count):
    return ",".join(map(address, range(1, count + 1)))


class Hosts:
    """There from here on until the end of the block. Those that a run has left which was killed are taken away first."""

    def __init__(self, count):
        self.numbers = range(1, count + 1)

    def __enter__(self):
        take_away()
        os.environ["PEERS_HOSTS"] = PREFIX  # for `enter`
        try:
            ip("netns", "add", SWITCH)
            ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
            ip("-n", SWITCH, "link", "set", "bridge", "up")
            for number in self.numbers:
                self.join(f"{PREFIX}{number}", number)
        except BaseException:
            take_away()
            raise
        return self

    def join(self, host, number):
        ip("netns", "add", host)
        ip("-n", SWITCH, "link", "add", f"port{number}", "type", "veth", "peer", "name", DEVICE, "netns", host)
        ip("-n", SWITCH, "link", "set", f"port{number}", "master", "bridge", "up")
        ip("-n", host, "address", "add", f"{address(number)}/24", "dev", DEVICE)
        # As networks for RDMA have it. To TCP it makes no difference here: its segments cross a veth pair uncut.
        ip("-n", SWITCH, "link", "set", f"port{number}", "mtu", MTU)
        ip("-n", host, "link", "set", DEVICE, "mtu", MTU)
        for device in (DEVICE, "lo"):
            ip("-n", host, "link", "set", device, "up")

    def __exit__(self, *_):
        take_away()


def take_away():
    """Those of this run, and of runs that have ended."""
    for line in ip("netns", "list").splitlines():
        name = re.match(r"qpair-peers-(\d+)-\S+", line)
        if not name or (int(name[1]) != os.getpid() and pathlib.Path("/proc", name[1]).exists()):
            continue
        for pid in ip("netns", "pids", name[0]).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        ip("netns", "delete", name[0])


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise JobFailed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
