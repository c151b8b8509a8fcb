"""What is compared with what, and what qpair is to reach."""

import dataclasses
from typing import List

from jobs import KIB, MIB, Job, sized

NAMES = ["write-lat", "tag-lat", "write-bw", "send-bw", "all-reduce-2", "all-reduce-4"]

# What UCX may use between two processes of one machine.
SHARED_MEMORY = ["posix,self", "sysv,cma,self"]


@dataclasses.dataclass(frozen=True)
class Target:
    """qpair's value, divided by the peer's, is to be at most (or at least) `ratio`."""

    programs: str  # every program whose name starts so
    relation: str  # "<=", "<", ">=", ">"
    ratio: float

    def is_met(self, ratio):
        if self.relation[0] == "<":
            return ratio < self.ratio or (self.relation == "<=" and ratio == self.ratio)
        return ratio > self.ratio or (self.relation == ">=" and ratio == self.ratio)

    def __str__(self):
        return f"{self.relation} {self.ratio:g}"


@dataclasses.dataclass(frozen=True)
class Point:
    """One row of values: the same work by several programs."""

    name: str
    unit: str
    targets: List[Target]


@dataclasses.dataclass(frozen=True)
class Group:
    name: str
    title: str
    points: List[Point]
    jobs: List[Job]


def all_groups(tools):
    built = [write_latency(tools), tag_latency(tools), write_bandwidth(tools), send_bandwidth(tools),
             all_reduce_2(tools), all_reduce_4(tools)]
    assert [group.name for group in built] == NAMES
    return built


def group(name, title, points, jobs):
    return Group(name, title, points, [job for job in jobs if job])


def write_latency(tools):
    point = sized("WRITE latency", 8)
    return group("write-lat", "RDMA WRITE, one way between two processes",
                 [Point(point, "us", [Target("flag", "<=", 1.5)])],
                 [tools.qpair_latency("write-lat", 8, point), tools.flag(point)])


def tag_latency(tools):
    point = sized("tagged latency", 8)
    targets = [Target("flag", "<=", 1.25), Target("UCX", "<", 1), Target("Open MPI", "<", 1), Target("MPICH", "<", 1)]
    jobs = [tools.qpair_latency("tag-lat", 8, point), tools.flag(point)]
    jobs += [tools.ucx_latency(transports, 8, point) for transports in SHARED_MEMORY]
    jobs += [tools.open_mpi("latency", (8, 8, 2), "tagged latency"), tools.mpich("latency", (8, 8, 2), "tagged latency")]
    return group("tag-lat", "Tagged message, one way between two processes", [Point(point, "us", targets)], jobs)


def write_bandwidth(tools):
    return bandwidth(tools, "write-bw", "WRITE", "RDMA WRITE, one direction", tools.ucx_put_bandwidth)


def send_bandwidth(tools):
    return bandwidth(tools, "send-bw", "SEND", "SEND into posted receives, one direction", tools.ucx_tag_bandwidth)


def bandwidth(tools, test, operation, title, ucx):
    sizes = [MIB] if tools.quick else [64 * KIB, MIB, 16 * MIB]
    points, jobs = [], []
    for size in sizes:
        point = sized(operation, size)
        points.append(Point(point, "GB/s", [Target("memcpy", ">=", 0.9), Target("UCX", ">", 1)]))
        jobs += [tools.qpair_bandwidth(test, size, point), tools.memcpy(size, point)]
        jobs += [ucx(transports, size, point) for transports in SHARED_MEMORY]
    return group(test, title, points, jobs)


def all_reduce_2(tools):
    """Against MPI with two buffers, as benchmarks usually call it, and in place, as qpair does it."""
    name, sizes = "2 ranks,", sweep(tools)

    def point(size):
        ratio = 0.4 if size >= MIB else 1
        relation = "<=" if size >= MIB else "<"
        return Point(sized(name, size), "us", [Target("Open MPI", relation, ratio), Target("MPICH", relation, ratio)])

    jobs = [tools.qpair_all_reduce(2, sizes, name)]
    for operation, suffix in (("allreduce", ""), ("allreduce_in_place", ", in place")):
        jobs += [tools.open_mpi(operation, sizes, name, program="Open MPI" + suffix),
                 tools.mpich(operation, sizes, name, program="MPICH" + suffix)]
    return group("all-reduce-2", "All-reduce of float32, 2 ranks", [point(size) for size in swept(sizes)], jobs)


def all_reduce_4(tools):
    name, sizes = "4 ranks,", sweep(tools)
    points = [Point(sized(name, size), "us", [Target("Open MPI", "<=", 1)]) for size in swept(sizes)]
    jobs = [tools.qpair_all_reduce(4, sizes, name)]
    for operation, suffix in (("allreduce", ""), ("allreduce_in_place", ", in place")):
        jobs.append(tools.open_mpi(operation, sizes, name, ranks=4, program="Open MPI" + suffix))
    return group("all-reduce-4", "All-reduce of float32, 4 ranks on 2 cores; Open MPI yields", points, jobs)


def sweep(tools):
    """(least, most, factor)"""
    return (KIB, MIB, 32) if tools.quick else (KIB, 64 * MIB, 4)


def swept(sizes):
    size, most, factor = sizes
    while size <= most:
        yield size
        size *= factor
