"""The commands: one job is one program run once, which gives values for one or more points of a table."""

import dataclasses
import os
import pathlib
import shlex
import shutil
from typing import Callable, Dict, List, Optional

import hosts
import outputs
from processes import free_port, output_of, output_with_server

KIB, MIB = 1 << 10, 1 << 20

QPAIR = "qpair"  # its name in the tables

# Open MPI refuses to run as root unless it is told so twice.
OPEN_MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}


@dataclasses.dataclass(frozen=True)
class Job:
    program: str  # as it stands in the tables
    command: str  # as a person would type it
    run: Callable[[], Dict[str, float]]  # {point name: value}
    hosts: int = 0  # how many it needs beside this machine


def sized(name, size):
    """The name of a point: `WRITE 64 KiB`."""
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if size % factor == 0:
            return f"{name} {size // factor} {unit}"
    return f"{name} {size} B"


@dataclasses.dataclass(frozen=True)
class Tools:
    """Where the programs are, and how long they run. Each function returns a job, or None where its program is
    missing."""

    programs: pathlib.Path
    qpair: Optional[pathlib.Path]
    cores: List[int]
    quick: bool

    def flag(self, point):
        command = [str(self.programs / "limits"), "flag", *map(str, self.cores)]
        return self.job("flag ping-pong", command, lambda text: {point: outputs.limits(text)})

    def memcpy(self, size, point):
        command = [str(self.programs / "limits"), "memcpy", str(size), str(self.cores[0])]
        return self.job("memcpy", command, lambda text: {point: outputs.limits(text)})

    # ---- UCX ----

    def ucx_tag_latency(self, transports, size, point):
        return self.ucx("tag_lat", transports, size, outputs.ucx_latency, point)

    def ucx_active_latency(self, transports, size, point):
        return self.ucx("ucp_am_lat", transports, size, outputs.ucx_latency, point)

    def ucx_put_latency(self, transports, size, point):
        return self.ucx("ucp_put_lat", transports, size, outputs.ucx_latency, point)

    def ucx_tag_bandwidth(self, transports, size, point):
        return self.ucx("tag_bw", transports, size, outputs.ucx_bandwidth, point)

    def ucx_put_bandwidth(self, transports, size, point):
        return self.ucx("ucp_put_bw", transports, size, outputs.ucx_bandwidth, point)

    def ucx_tag_rate(self, transports, size, point):
        return self.ucx("tag_bw", transports, size, outputs.ucx_rate, point)

    def ucx_put_rate(self, transports, size, point):
        return self.ucx("ucp_put_bw", transports, size, outputs.ucx_rate, point)

    def ucx_put_cost(self, transports, size, point):
        return self.ucx("ucp_put_bw", transports, size, outputs.ucx_nanoseconds, point)

    def ucx(self, test, transports, size, parse, point):
        if not shutil.which("ucx_perftest"):
            return None
        env = {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        count = self.iterations(test, size)
        options = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(min(count, 1000)), "-f", "-v"]

        def commands(port):
            here, there = (["taskset", "-c", str(core), "ucx_perftest"] for core in self.cores)
            return there + ["-p", port], here + ["127.0.0.1", "-p", port] + options

        def run():
            port = free_port()
            return {point: parse(output_with_server(*commands(str(port)), port, env))}

        server, client = (typed(command, env) for command in commands("13337"))
        return Job(f"UCX {test.replace('ucp_', '')} {transports}", f"{server} & {client}", run)

    # ---- libfabric ----

    def libfabric_latency(self, size, point):
        """The mean of one way, over libfabric's provider for shared memory."""
        if not shutil.which("fi_pingpong"):
            return None
        options = ["-p", "shm", "-e", "rdm", "-m", "tagged", "-S", str(size), "-I", str(20_000 if self.quick else 200_000)]

        def commands(port):
            here, there = (["taskset", "-c", str(core), "fi_pingpong", *options] for core in self.cores)
            return there + ["-B", port], here + ["-P", port, "127.0.0.1"]

        def run():
            port = free_port()
            return {point: outputs.libfabric_latency(output_with_server(*commands(str(port)), port, {}))}

        server, client = (typed(command, None) for command in commands("13337"))
        return Job("libfabric fi_pingpong shm", f"{server} & {client}", run)

    def iterations(self, test, size):
        """So many that a run takes about half a second at 10 GB/s, or 0.3 us each."""
        count = 1_000_000 if size < 4 * KIB else max(100, 5_000_000_000 // size)
        if test == "ucp_put_bw" and size <= 64 * KIB:
            count *= 4  # from cache: four times as fast
        return max(50, count // 5) if self.quick else count

    # ---- MPI ----

    def open_mpi(self, operation, sizes, named, ranks=2, program="Open MPI"):
        cores = ",".join(map(str, self.cores))
        launch = ["mpirun.openmpi", "-n", str(ranks), "--cpu-list", cores, "--bind-to"]
        if ranks <= len(self.cores):
            launch += ["core"]
        else:
            launch += ["core:overload-allowed", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        return self.mpi(program, launch, "mpibench-openmpi", operation, sizes, named, OPEN_MPI_ENV)

    def mpich(self, operation, sizes, named, program="MPICH"):
        launch = ["mpirun.mpich", "-n", "2", "-bind-to", "user:" + ",".join(map(str, self.cores))]
        return self.mpi(program, launch, "mpibench-mpich", operation, sizes, named, {})

    def mpi(self, program, launch, binary, operation, sizes, named, env):
        return self.job(program, launch + self.collbench(binary, operation, sizes), collbench_points(named), env)

    def collbench(self, binary, operation, sizes):
        seconds = "0.1" if self.quick else "0.3"
        return [str(self.programs / binary), operation, *map(str, sizes), seconds]

    def open_mpi_on_hosts(self, operation, sizes, named, ranks):
        """A rank on each of several hosts, over TCP."""
        launch = launch_on_hosts(ranks) + ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", hosts.DEVICE]
        # Ranks of a node outnumber its cores, as far as Open MPI can tell, where all nodes are this machine.
        launch += ["--mca", "mpi_yield_when_idle", "1"] if ranks > len(self.cores) else []
        command = launch + self.collbench("mpibench-openmpi", operation, sizes)
        return self.on_hosts("Open MPI tcp", ranks, command, collbench_points(named), OPEN_MPI_ENV)

    # ---- Gloo, which Open MPI starts ----

    def gloo(self, operation, sizes, named, ranks=2, program="Gloo"):
        """Not bound: each rank has a thread that polls its sockets beside the one that calls."""
        cores = ",".join(map(str, self.cores))
        launch = ["taskset", "-c", cores, "mpirun.openmpi", "-n", str(ranks), "--bind-to", "none", "--oversubscribe"]
        command = launch + gloo_device("lo") + self.collbench("gloobench", operation, sizes)
        return self.job(program, command, collbench_points(named), OPEN_MPI_ENV)

    def gloo_on_hosts(self, operation, sizes, named, ranks):
        command = launch_on_hosts(ranks) + gloo_device(hosts.DEVICE) + self.collbench("gloobench", operation, sizes)
        return self.on_hosts("Gloo", ranks, command, collbench_points(named), OPEN_MPI_ENV)

    # ---- qpair ----

    def qpair_latency(self, test, size, typical, singly):
        """Values for the points `typical` and `singly`, measured in one run."""
        return self.perf([test, "-s", str(size)], lambda text: dict(zip((typical, singly), outputs.qpair_latency(text))))

    def qpair_bandwidth(self, test, size, point):
        return self.perf([test, "-s", str(size)], lambda text: {point: outputs.qpair_bandwidth(text)})

    def qpair_rate(self, test, size, point):
        return self.perf([test, "-s", str(size)], lambda text: {point: outputs.qpair_rate(text)})

    def qpair_post_poll(self, points):
        """`points` by how many WRITEs there are for one that is signaled."""

        def parse(text):
            return {points[every]: cost for every, cost in outputs.qpair_post_poll(text).items() if every in points}

        return self.perf(["write-lat", "--post-poll"], parse)

    def perf(self, arguments, parse):
        return self.qpair_job(["perf", *arguments, "--local", "--json"], parse)

    def qpair_collective(self, name, ranks, sizes, named, in_place):
        return self.qpair_job(bench(name, sizes) + ["-n", str(ranks)], collective_points(named, in_place))

    def qpair_on_hosts(self, name, ranks, sizes, named, in_place):
        """A rank on each of several hosts, over RoCEv2."""
        if not self.qpair:
            return None
        launch = [str(self.qpair), "launch", "-H", hosts.addresses(ranks), "--ssh", str(hosts.ENTER), "--no-prefix", "--",
                  str(self.qpair), *bench(name, sizes)]
        # The hosts share a kernel, by which qpair would know that they are one.
        env = {"QPAIR_NO_SHARED_MEMORY": "1"}
        return self.on_hosts(QPAIR, ranks, launch, collective_points(named, in_place), env)

    def on_hosts(self, program, count, command, parse, env):
        """`command`, on the first of several hosts."""
        cores = ["taskset", "-c", ",".join(map(str, self.cores))]
        job = self.job(program, [*cores, str(hosts.ENTER), hosts.address(1), *command], parse, env)
        return job and dataclasses.replace(job, hosts=count)

    def qpair_job(self, arguments, parse):
        if not self.qpair:
            return None
        command = ["taskset", "-c", ",".join(map(str, self.cores)), str(self.qpair), *arguments]
        return self.job(QPAIR, command, parse)

    # ---- all ----

    def job(self, program, command, parse, env=None):
        """A job that runs `command`, unless one of the programs in it was not built or is not installed."""
        if any(not shutil.which(part) for part in [command[0]] + [part for part in command if part.startswith("/")]):
            return None
        return Job(program, typed(command, env), lambda: parse(output_of(command, env)))


def launch_on_hosts(ranks):
    return ["mpirun.openmpi", "-n", str(ranks), "-H", hosts.addresses(ranks), "--bind-to", "none",
            "--mca", "plm_rsh_agent", str(hosts.ENTER), "--mca", "oob_tcp_if_include", hosts.DEVICE]


def gloo_device(name):
    return ["-x", f"GLOO_SOCKET_IFNAME={name}"]


def bench(name, sizes):
    """Sizes are those of whole vectors, as nccl-tests and collbench.h count them."""
    least, most, factor = map(str, sizes)
    rotate = ["--root", "all"] if name == "broadcast" else []
    return ["bench", name, "-b", least, "-e", most, "-f", factor, *rotate, "--json"]


def collective_points(named, in_place):
    return lambda text: {sized(named, size): us for size, us in outputs.qpair_collective(text, in_place).items()}


def collbench_points(named):
    return lambda text: {sized(named, size): us for size, us in outputs.collbench(text).items()}


def typed(command, env):
    """`command` as a person would type it, who has its programs in the path."""
    settings = [f"{name}={value}" for name, value in (env or {}).items()]
    names = [pathlib.Path(part).name if part.startswith("/") else part for part in command]
    return shlex.join(settings + names)
