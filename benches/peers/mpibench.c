// Times one MPI operation over a range of sizes: see collbench.h.
//
//   mpicc -O2 -o mpibench mpibench.c
//   mpirun -n 2 mpibench allreduce 1024 67108864 4 0.2
//
// Operations: latency (two ranks, one way), allreduce, allreduce_in_place, reduce_scatter, allgather, alltoall, bcast.
#include <mpi.h>

#include "collbench.h"

enum { TAG = 1 };

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static double slowest(double mine) {
    double greatest;
    MPI_Allreduce(&mine, &greatest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return greatest;
}

static void end_all(void) { MPI_Abort(MPI_COMM_WORLD, 1); }

// ---- the operations ----

static void latency(size_t bytes) {
    int count = (int)bytes, peer = 1 - rank;
    if (ranks != 2) fail("latency needs two ranks");
    if (rank == 0) {
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
    }
}

static void allreduce(size_t bytes) {
    MPI_Allreduce(input, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allreduce_in_place(size_t bytes) {
    MPI_Allreduce(MPI_IN_PLACE, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(size_t bytes) {
    MPI_Reduce_scatter_block(input, output, block(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allgather(size_t bytes) {
    MPI_Allgather(input, block(bytes), MPI_FLOAT, output, block(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}

static void alltoall(size_t bytes) {
    MPI_Alltoall(input, block(bytes), MPI_FLOAT, output, block(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}

static void bcast(size_t bytes) {
    MPI_Bcast(output, whole(bytes), MPI_FLOAT, root, MPI_COMM_WORLD);
    next_root();
}

static const struct kind kinds[] = {
    {"latency", latency, NULL, NULL, 0, 2},
    {"allreduce", allreduce, summed, whole, 0, 1},
    {"allreduce_in_place", allreduce_in_place, summed, whole, 1, 1},
    {"reduce_scatter", reduce_scatter, own_sum, block, 0, 1},
    {"allgather", allgather, gathered, blocks, 0, 1},
    {"alltoall", alltoall, turned, blocks, 0, 1},
    {"bcast", bcast, from_root, whole, 1, 1},
    {NULL, NULL, NULL, NULL, 0, 0},
};

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    run(kinds, argv);
    MPI_Finalize();
    return 0;
}
