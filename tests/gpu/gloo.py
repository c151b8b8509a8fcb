"""All-reduce of 256 MiB of f32 in memory of one GPU: qpair, and PyTorch's gloo back end with CUDA tensors, in turn.

Prints medians with least and greatest, the ratio, and qpair against the bytes that its kernels have to move.
"""

import json
import os
import statistics
import subprocess
import sys
import time

BYTES = 256 << 20
ROUNDS = 3
RANKS = (2, 4, 8)


def qpair(program, ranks):
    """Seconds of one all-reduce."""
    command = [program, "bench", "all-reduce", "--gpu", "-n", str(ranks), "-b", str(BYTES), "-e", str(BYTES),
               "--iters", "10", "--placement", "in", "--json"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    row = json.loads(text.splitlines()[-1])
    assert row["wrong"] == 0, row
    return row["time_us"] / 1e6, row["algorithm"]


def gloo_rank(rank, ranks, port, results):
    """One rank of the other side."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    tensor = torch.ones(BYTES // 4, device="cuda:0")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    # The slowest rank counts, as qpair counts it.
    own = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    if rank == 0:
        results.put(statistics.median(own.tolist()))
    dist.destroy_process_group()


def gloo(ranks, port):
    """Seconds of one all-reduce; None where there is no PyTorch that sees the GPU."""
    try:
        import torch
        import torch.multiprocessing as multiprocessing
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    multiprocessing.spawn(gloo_rank, args=(ranks, port, results), nprocs=ranks)
    return results.get()


def spread(values):
    return f"{statistics.median(values) * 1e3:9.3f} ms ({min(values) * 1e3:.3f} to {max(values) * 1e3:.3f})"


def main():
    program = sys.argv[1]
    # Where there are several, ranks of both are on the first.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    for ranks in RANKS:
        ours, theirs, algorithm = [], [], ""
        for turn in range(ROUNDS):
            seconds, algorithm = qpair(program, ranks)
            ours.append(seconds)
            other = gloo(ranks, 29500 + 10 * ranks + turn)
            if other is not None:
                theirs.append(other)
        print(f"{ranks} ranks, qpair by {algorithm:<18} {spread(ours)}")
        if theirs:
            print(f"{ranks} ranks, PyTorch gloo{'':<15} {spread(theirs)}")
            print(f"{ranks} ranks, gloo / qpair{'':<14} {statistics.median(theirs) / statistics.median(ours):9.2f}")
        moved = 5 * (ranks - 1) * BYTES
        print(f"{ranks} ranks, bytes of reductions (3 per byte) and copies (2): {moved / 1e9:.2f} GB, "
              f"{moved / statistics.median(ours) / 1e9:.0f} GB/s")


if __name__ == "__main__":
    main()
