// Times one MPI operation over a range of sizes; prints one CSV row for each size.
//
//   mpicc -O2 -o mpibench mpibench.c
//   mpirun -n 2 mpibench allreduce 1024 67108864 4 0.2
//
// Arguments: operation, least bytes, most bytes, factor between sizes, seconds for each size.
// Operations: latency (two ranks, one way); allreduce, allreduce_in_place, reduce_scatter, allgather, alltoall, bcast
// (float32; the root of bcast is another rank each time, so that none runs ahead).
// Bytes are those of one rank's whole vector: of what it gives to reduce_scatter and alltoall, of what it gets by
// allgather. A time is that of the slowest rank, per operation.
// The results of collectives are checked once for each size, before it is timed.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 9, TAG = 1 };

static int rank, ranks;
static float *input, *output;

// One operation on `bytes` bytes.
typedef void operation(size_t bytes);

static void latency(size_t bytes) {
    int count = (int)bytes, peer = 1 - rank;
    if (rank == 0) {
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
    }
}

static int whole(size_t bytes) { return (int)(bytes / sizeof(float)); }

static void allreduce(size_t bytes) {
    MPI_Allreduce(input, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allreduce_in_place(size_t bytes) {
    MPI_Allreduce(MPI_IN_PLACE, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int block(size_t bytes) { return whole(bytes) / ranks; }

static int blocks(size_t bytes) { return block(bytes) * ranks; }

static void reduce_scatter(size_t bytes) {
    MPI_Reduce_scatter_block(input, output, block(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allgather(size_t bytes) {
    MPI_Allgather(input, block(bytes), MPI_FLOAT, output, block(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}

static void alltoall(size_t bytes) {
    MPI_Alltoall(input, block(bytes), MPI_FLOAT, output, block(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}

static int root;

static void bcast(size_t bytes) {
    MPI_Bcast(output, whole(bytes), MPI_FLOAT, root, MPI_COMM_WORLD);
    root = (root + 1) % ranks;
}

// What element i of the result is. Rank r gives r + i % 89 as element i.
static float given(int from, int i) { return from + (float)(i % 89); }

static float sum(int i) { return ranks * (ranks - 1) / 2 + ranks * (float)(i % 89); }

static float summed(size_t bytes, int i) { (void)bytes; return sum(i); }

static float own_sum(size_t bytes, int i) { return sum(rank * block(bytes) + i); }

static float gathered(size_t bytes, int i) { return given(i / block(bytes), i % block(bytes)); }

static float turned(size_t bytes, int i) {
    return given(i / block(bytes), rank * block(bytes) + i % block(bytes));
}

static float from_root(size_t bytes, int i) { (void)bytes; return given(0, i); }

static const struct kind {
    const char *name;
    operation *run;
    float (*expected)(size_t bytes, int i); // NULL: not checked
    int (*results)(size_t bytes);           // how many elements the result has
    int in_place;
} kinds[] = {
    {"latency", latency, NULL, NULL, 0},
    {"allreduce", allreduce, summed, whole, 0},
    {"allreduce_in_place", allreduce_in_place, summed, whole, 1},
    {"reduce_scatter", reduce_scatter, own_sum, block, 0},
    {"allgather", allgather, gathered, blocks, 0},
    {"alltoall", alltoall, turned, blocks, 0},
    {"bcast", bcast, from_root, whole, 1},
};

// ---- measuring ----

static void fail(const char *what) {
    fprintf(stderr, "mpibench: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(const struct kind *kind, size_t bytes) {
    if (!kind->expected) return;
    for (int i = 0; i < whole(bytes); i++) {
        input[i] = given(rank, i);
        output[i] = kind->in_place ? input[i] : -1;
    }
    root = 0;
    kind->run(bytes);
    for (int i = 0; i < kind->results(bytes); i++)
        if (output[i] != kind->expected(bytes, i)) fail("wrong result");
    memset(output, 0, bytes); // sums in place stay finite
}

// The slowest rank's seconds for each of `turns` operations, the same value on every rank.
static double timed(const struct kind *kind, size_t bytes, long turns) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (long turn = 0; turn < turns; turn++) kind->run(bytes);
    double mine = (MPI_Wtime() - begin) / turns, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct kind *kind, size_t bytes, double seconds) {
    double block = seconds / BLOCKS, each, times[BLOCKS];
    long turns = 1;
    root = 0; // on all ranks
    while ((each = timed(kind, bytes, turns)) * turns < block / 4) turns *= 2; // warms up, too
    turns = (long)(block / each) + 1;
    for (int i = 0; i < BLOCKS; i++) times[i] = timed(kind, bytes, turns);
    qsort(times, BLOCKS, sizeof *times, ascending);

    double us = kind->run == latency ? 1e6 / 2 : 1e6;
    if (rank == 0)
        printf("%s,%d,%zu,%.4f,%.4f,%.4f\n", kind->name, ranks, bytes, times[BLOCKS / 2] * us, times[0] * us,
               times[BLOCKS - 1] * us);
}

static const struct kind *find(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    fail("unknown operation; see the head of mpibench.c");
    return NULL;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6) fail("usage: mpibench OPERATION LEAST MOST FACTOR SECONDS");
    const struct kind *kind = find(argv[1]);
    size_t least = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10), factor = strtoull(argv[4], NULL, 10);
    double seconds = atof(argv[5]);
    if (least < sizeof(float) * ranks || factor < 2) fail("LEAST is at least 4 bytes for each rank, FACTOR at least 2");
    if (kind->run == latency && ranks != 2) fail("latency needs two ranks");

    if (posix_memalign((void **)&input, 2 << 20, most) || posix_memalign((void **)&output, 2 << 20, most))
        fail("out of memory");
    memset(input, 0, most); // touch every page
    memset(output, 0, most);
    if (rank == 0) printf("operation,ranks,bytes,us_median,us_min,us_max\n");
    for (size_t bytes = least; bytes <= most; bytes *= factor) {
        check(kind, bytes);
        measure(kind, bytes, seconds);
    }
    free(input);
    free(output);
    MPI_Finalize();
    return 0;
}
