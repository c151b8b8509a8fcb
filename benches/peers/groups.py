"""What is compared with what, and what qpair is to reach."""

import dataclasses
from typing import List, Optional

import hosts
from jobs import KIB, MIB, QPAIR, Job, sized

# Collectives beside all-reduce: qpair's name, that of collbench.h, and what 2 ranks are to reach from 1 MiB on.
COLLECTIVES = [("reduce-scatter", "reduce_scatter", 0.5), ("all-gather", "allgather", 1), ("all-to-all", "alltoall", 1),
               ("broadcast", "bcast", 1)]
RANKS = [2, 4, 8]
# The same and all-reduce over a network, with a rank on each host.
OVER_NETWORK = [("all-reduce", "allreduce"), *((ours, theirs) for ours, theirs, _ in COLLECTIVES)]
HOSTS = [2, 4]

NAMES = ["write-lat", "post-poll", "tag-lat", "write-bw", "send-bw", "tag-bw", "rates", "all-reduce-2", "all-reduce-4",
         "all-reduce-8", *(f"{name}-{ranks}" for name, _, _ in COLLECTIVES for ranks in RANKS),
         *(f"{name}-net-{count}" for name, _ in OVER_NETWORK for count in HOSTS)]

# What UCX may use between two processes of one machine.
SHARED_MEMORY = ["posix,self", "sysv,cma,self"]

# The operations of collbench.h, and what they add to the program's name.
IN_TWO_FORMS = [("allreduce", ""), ("allreduce_in_place", ", in place")]


@dataclasses.dataclass(frozen=True)
class Target:
    """What qpair's value is to reach: absolute, or divided by that of every program whose name starts with `programs`."""

    relation: str  # "<=", "<", ">=", ">"
    bound: float
    programs: Optional[str] = None  # absolute

    def is_met(self, value):
        if self.relation[0] == "<":
            return value < self.bound or (self.relation == "<=" and value == self.bound)
        return value > self.bound or (self.relation == ">=" and value == self.bound)

    def __str__(self):
        return f"{self.relation} {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class Point:
    """One row of values: the same work by several programs."""

    name: str
    unit: str
    targets: List[Target]

    def target(self, program):
        """What qpair is to reach beside `program`, or by itself if that is qpair."""
        if program == QPAIR:
            return next((target for target in self.targets if target.programs is None), None)
        return next((target for target in self.targets if target.programs and program.startswith(target.programs)), None)


@dataclasses.dataclass(frozen=True)
class Group:
    name: str
    title: str
    points: List[Point]
    jobs: List[Job]

    def of_qpair_alone(self):
        return dataclasses.replace(self, jobs=[job for job in self.jobs if job.program == QPAIR])

    def of_this_machine_alone(self):
        return dataclasses.replace(self, jobs=[job for job in self.jobs if not job.hosts])


def all_groups(tools):
    built = [write_latency(tools), post_poll(tools), tag_latency(tools), write_bandwidth(tools), send_bandwidth(tools),
             tag_bandwidth(tools), rates(tools), all_reduce_2(tools), all_reduce(tools, 4), all_reduce(tools, 8),
             *(collective(tools, ranks, *names) for names in COLLECTIVES for ranks in RANKS),
             *(over_network(tools, count, *names) for names in OVER_NETWORK for count in HOSTS)]
    assert [group.name for group in built] == NAMES
    points = [point.name for group in built for point in group.points]
    assert len(points) == len(set(points)), "samples are kept by the names of points"
    return built


def group(name, title, points, jobs):
    return Group(name, title, points, [job for job in jobs if job])


def write_latency(tools):
    return latency(tools, "write-lat", "WRITE", "RDMA WRITE, one way between two processes", [8],
                   [tools.ucx_put_latency], [Target("<=", 1.5, "flag")], [])


def tag_latency(tools):
    """UCX's active messages stand beside its tagged ones: whichever is faster is to be beaten."""
    sizes = [8, 4 * KIB]
    peers = [job(operation, (size, size, 2), "tagged") for size in sizes for job, operation in
             ((tools.open_mpi, "latency"), (tools.mpich, "latency"))]
    peers += [tools.libfabric_latency(size, sized("tagged", size)) for size in sizes]
    names = ["UCX", "libfabric", "Open MPI", "MPICH"]
    return latency(tools, "tag-lat", "tagged", "Tagged message, one way between two processes", sizes,
                   [tools.ucx_tag_latency, tools.ucx_active_latency],
                   [Target("<=", 1.25, "flag"), *(Target("<", 1, name) for name in names)], peers)


def latency(tools, test, operation, title, sizes, ucx, targets, peers):
    """Like is compared with like: medians of block means, which clock reads do not disturb, with the flag, MPI and
    libfabric; medians of operations timed one by one with UCX. The flag is a message of 8 bytes."""
    points, jobs = [], list(peers)
    for size in sizes:
        means, singly = sized(operation, size), sized(operation, size) + ", each timed"
        points += [Point(means, "us", targets), Point(singly, "us", targets)]
        jobs += [tools.qpair_latency(test, size, means, singly)]
        jobs += [tools.flag(means)] if size == 8 else []
        jobs += [test(transports, size, singly) for test in ucx for transports in SHARED_MEMORY]
    return group(test, title, points, jobs)


def post_poll(tools):
    """What the caller pays for a WRITE: UCX's is the time of one put in a stream of them."""
    each, seldom = "post and poll, each signaled", "post and poll, 1 in 64 signaled"
    points = [Point(each, "ns", [Target("<=", 50)]), Point(seldom, "ns", [Target("<=", 30)])]
    jobs = [tools.qpair_post_poll({1: each, 64: seldom})]
    jobs += [tools.ucx_put_cost(transports, 8, seldom) for transports in SHARED_MEMORY]
    return group("post-poll", "RDMA WRITE of 8 B, what posting it and polling for it take", points, jobs)


def write_bandwidth(tools):
    return bandwidth(tools, "write-bw", "WRITE", "RDMA WRITE, one direction", tools.ucx_put_bandwidth)


def send_bandwidth(tools):
    return bandwidth(tools, "send-bw", "SEND", "SEND into posted receives, one direction", tools.ucx_tag_bandwidth)


def tag_bandwidth(tools):
    return bandwidth(tools, "tag-bw", "tagged", "Tagged messages, one direction", tools.ucx_tag_bandwidth, [])


def rates(tools):
    """Of messages and WRITEs of 8 bytes, one core sending."""
    message, put = "tagged 8 B, in a stream", "WRITE 8 B, in a stream"
    points = [Point(message, "M/s", [Target(">=", 20), Target(">", 1, "UCX")]),
              Point(put, "M/s", [Target(">=", 50), Target(">", 1, "UCX")])]
    jobs = [tools.qpair_rate("tag-bw", 8, message), tools.qpair_rate("write-bw", 8, put)]
    for transports in SHARED_MEMORY:
        jobs += [tools.ucx_tag_rate(transports, 8, message), tools.ucx_put_rate(transports, 8, put)]
    return group("rates", "Messages and WRITEs a second, one core sending", points, jobs)


def bandwidth(tools, test, operation, title, ucx, others=(Target(">=", 0.9, "memcpy"),)):
    sizes = [MIB] if tools.quick else [64 * KIB, MIB, 16 * MIB]
    points, jobs = [], []
    for size in sizes:
        point = sized(operation, size)
        points.append(Point(point, "GB/s", [*others, Target(">", 1, "UCX")]))
        jobs += [tools.qpair_bandwidth(test, size, point), tools.memcpy(size, point)]
        jobs += [ucx(transports, size, point) for transports in SHARED_MEMORY]
    return group(test, title, points, jobs)


def all_reduce_2(tools):
    """Against MPI with two buffers, as benchmarks usually call it, and in place, as qpair does it."""
    name, ranges = "2 ranks,", [(8, 8, 2), sweep(tools, KIB)]
    jobs = []
    for sizes in ranges:
        jobs.append(tools.qpair_collective("all-reduce", 2, sizes, name, in_place=True))
        for operation, suffix in IN_TWO_FORMS:
            jobs += [tools.open_mpi(operation, sizes, name, program="Open MPI" + suffix),
                     tools.mpich(operation, sizes, name, program="MPICH" + suffix),
                     tools.gloo(operation, sizes, name, program="Gloo" + suffix)]
    points = [Point(sized(name, size), "us", pair_targets(size)) for sizes in ranges for size in swept(sizes)]
    return group("all-reduce-2", "All-reduce of float32, 2 ranks", points, jobs)


def pair_targets(size, large=0.33):
    """Faster from 1 KiB on, within a tenth below; and so much from 1 MiB on."""
    relation, ratio = ("<=", large) if size >= MIB and large < 1 else ("<", 1) if size >= KIB else ("<=", 1.1)
    return [Target(relation, ratio, program) for program in ("Open MPI", "MPICH", "Gloo")]


def all_reduce(tools, ranks):
    """More ranks than cores: Open MPI gives way, MPICH can not."""
    name, sizes = f"{ranks} ranks,", sweep(tools, max(16, 4 * ranks))
    points = [Point(sized(name, size), "us", [Target("<=", 1, "Open MPI"), Target("<=", 1, "Gloo")]) for size in swept(sizes)]
    jobs = [tools.qpair_collective("all-reduce", ranks, sizes, name, in_place=True)]
    for operation, suffix in IN_TWO_FORMS:
        jobs += [tools.open_mpi(operation, sizes, name, ranks=ranks, program="Open MPI" + suffix),
                 tools.gloo(operation, sizes, name, ranks=ranks, program="Gloo" + suffix)]
    title = f"All-reduce of float32, {ranks} ranks on 2 cores; Open MPI yields"
    return group(f"all-reduce-{ranks}", title, points, jobs)


def collective(tools, ranks, ours, theirs, large):
    """From one vector into another, as benchmarks usually call it; a broadcast is in place, its root rotates."""
    name, sizes = f"{ours}, {ranks} ranks,", sweep(tools, 64)
    points = [Point(sized(name, size), "us", pair_targets(size, large if ranks == 2 else 1)) for size in swept(sizes)]
    jobs = [tools.qpair_collective(ours, ranks, sizes, name, in_place=ours == "broadcast"),
            tools.open_mpi(theirs, sizes, name, ranks=ranks), tools.gloo(theirs, sizes, name, ranks=ranks)]
    jobs += [tools.mpich(theirs, sizes, name)] if ranks == 2 else []
    beside = "" if ranks == 2 else " on 2 cores; Open MPI yields"
    return group(f"{ours}-{ranks}", f"{ours.capitalize()} of float32, {ranks} ranks{beside}", points, jobs)


def over_network(tools, count, ours, theirs):
    name, sizes = f"{ours}, {count} hosts,", sweep(tools, KIB, most=16 * MIB)
    points = [Point(sized(name, size), "us", [Target("<", 1, "Open MPI"), Target("<", 1, "Gloo")]) for size in swept(sizes)]
    jobs = [tools.qpair_on_hosts(ours, count, sizes, name, in_place=ours == "broadcast"),
            tools.open_mpi_on_hosts(theirs, sizes, name, count), tools.gloo_on_hosts(theirs, sizes, name, count)]
    title = f"{ours.capitalize()} of float32 between {count} hosts (network namespaces joined by veth, MTU {hosts.MTU}), a rank each"
    return group(f"{ours}-net-{count}", title, points, jobs)


def sweep(tools, least, most=64 * MIB):
    """(least, most, factor)"""
    return (least, MIB, MIB // least) if tools.quick else (least, most, 4)


def swept(sizes):
    size, most, factor = sizes
    while size <= most:
        yield size
        size *= factor
