"""What is compared on the host, which programs do it, and what qpair is to reach."""

import dataclasses
import itertools
import os
import shlex
from typing import Callable

import tables
from groups import Group, Point, Target
from jobs import QPAIR, Job
from processes import JobFailed, output_of

BANDWIDTH = ["write-bw", "read-bw", "send-bw"]
LATENCY = ["write-lat", "send-lat"]
PING_PONG = "ping-pong"
NAMES = BANDWIDTH + LATENCY + [PING_PONG]
MESSAGES = {"bw": "-s 65536 -n 1000", "lat": "-s 8 -n 3000"}
ROUND_TRIPS = 3000

DEVICE = "rxe0"
ADDRESS = "10.77.0.11"  # of host 1, which is server and client
LIMIT_SECONDS = 60  # of one run; most take 3


@dataclasses.dataclass(frozen=True)
class Host:
    """Where the programs are, and the command that runs something on host 1."""

    hosts: str
    qpair: str
    pingpong: str
    ibverbs: str
    ports: Callable[[], int] = itertools.count(20000).__next__  # one each: a port that was used rests for a while

    def job(self, program, server, client, parse, point):
        """`server` and `client` have a place for the port."""
        def run():
            port = self.ports()
            script = on_host(server.format(port=port), client.format(port=port), port)
            command = [self.hosts, "run", "-t", str(2 * LIMIT_SECONDS), "1", script]
            try:
                return {point: parse(output_of(command))}
            except JobFailed as failure:
                # Of the command, which is long and names folders, only what came of it.
                raise JobFailed(str(failure).removeprefix(f"{shlex.join(command)}: ")) from None

        return Job(program, self.in_short(f"{server} & {client}".format(port="PORT")), run)

    def in_short(self, commands):
        """The same with programs by their names: where they were built tells nothing."""
        for path in (self.qpair, self.pingpong, self.ibverbs):
            commands = commands.replace(shlex.quote(path), os.path.basename(path))
        return commands


def on_host(server, client, port):
    """A shell script: the server in the background, and the client once that listens. What the server says is told only
    where something fails."""
    return "\n".join([
        "trap 'rm -f /tmp/server.$$' EXIT",
        f"timeout {LIMIT_SECONDS} {server} >/tmp/server.$$ 2>&1 & server=$!",
        f"until ss -ltnH 'sport = :{port}' | grep -q . || ! kill -0 $server 2>/dev/null; do sleep 0.05; done",
        f"timeout {LIMIT_SECONDS} {client} && wait $server && exit",
        "status=$?; kill $server 2>/dev/null; cat /tmp/server.$$; exit $status",
    ])


def all_groups(host):
    return [perftest(host, name) for name in NAMES if name != PING_PONG] + [ping_pong(host)]


def perftest(host, name):
    kind = name.rpartition("-")[2]
    options = f"{MESSAGES[kind]} -d {DEVICE} -p {{port}}"
    size, unit, target, parse = (
        ("64 KiB", "MiB/s", Target(">=", 0.97, "perftest"), tables.bandwidth) if kind == "bw" else
        ("8 B", "us", Target("<=", 1.03, "perftest"), tables.latency))
    point = f"{name} {size}"
    commands = {QPAIR: f"{shlex.quote(host.qpair)} perf {name} {options}",
                "perftest": f"ib_{name.replace('-', '_')} {options}"}
    jobs = [host.job(program, command, f"{command} {ADDRESS}", parse, point) for program, command in commands.items()]
    title = "one direction" if kind == "bw" else "one way between two processes"
    return Group(name, f"`{name}`, {title}", [Point(point, unit, [target])], jobs)


def ping_pong(host):
    point = "SEND and RECV 8 B"
    jobs = []
    for program, path in ((QPAIR, host.pingpong), ("ibverbs", host.ibverbs)):
        command = f"{shlex.quote(path)} {DEVICE} {ROUND_TRIPS} {{port}}"
        jobs.append(host.job(program, command, f"{command} {ADDRESS}", tables.ping_pong, point))
    points = [Point(point, "us", [Target("<=", 1, "ibverbs")])]
    return Group(PING_PONG, "Ping-pong by the safe API, and by the ibverbs crate, one way", points, jobs)


