// Times one MPI operation over a range of sizes; prints one CSV row for each size.
//
//   mpicc -O2 -o mpibench mpibench.c
//   mpirun -n 2 mpibench allreduce 1024 67108864 4 0.2
//
// Arguments: operation, least bytes, most bytes, factor between sizes, seconds for each size.
// Operations: latency, bandwidth (two ranks); allreduce, allreduce_in_place, reduce_scatter, allgather, alltoall,
// broadcast (float32).
// Bytes are those of the whole vector, as nccl-tests counts them: what one rank holds before an all-reduce,
// reduce-scatter, all-to-all or broadcast, and after an all-gather.
// A time is that of the slowest rank, per operation (latency: one way; bandwidth: one message).
// The results of the collectives are checked once for each size, before it is timed.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 9, WINDOW = 64, LARGE_WINDOW = 8, LARGE = 4 << 20, TAG = 1 };

static int rank, ranks;
static float *input, *output;

// One operation on `bytes` bytes, or on as many whole elements per rank as fit into them.
typedef void operation(size_t bytes, long turn);
// Whether element i of the output is right, where rank r's element j was r + j % 89.
typedef int expectation(size_t bytes, size_t i);

// ---- point to point ----

static void latency(size_t bytes, long turn) {
    (void)turn;
    int count = (int)bytes, peer = 1 - rank;
    if (rank == 0) {
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(output, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(input, count, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
    }
}

static int window(size_t bytes) { return bytes < LARGE ? WINDOW : LARGE_WINDOW; }

// A window of messages one way, then an empty one back.
static void bandwidth(size_t bytes, long turn) {
    (void)turn;
    MPI_Request requests[WINDOW];
    MPI_Status statuses[WINDOW];
    int count = (int)bytes, messages = window(bytes);
    for (int i = 0; i < messages; i++) {
        if (rank == 0) MPI_Isend(input, count, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &requests[i]);
        else MPI_Irecv(output, count, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(messages, requests, statuses);
    if (rank == 0) MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
}

// ---- collectives ----

static int whole(size_t bytes) { return (int)(bytes / sizeof(float)); }
static int share(size_t bytes) { return whole(bytes) / ranks; }
static float sum_at(size_t j) { return ranks * (ranks - 1) / 2 + ranks * (float)(j % 89); }

static void allreduce(size_t bytes, long turn) {
    (void)turn;
    MPI_Allreduce(input, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int allreduce_right(size_t bytes, size_t i) { return i >= (size_t)whole(bytes) || output[i] == sum_at(i); }

static void allreduce_in_place(size_t bytes, long turn) {
    (void)turn;
    MPI_Allreduce(MPI_IN_PLACE, output, whole(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(size_t bytes, long turn) {
    (void)turn;
    MPI_Reduce_scatter_block(input, output, share(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int reduce_scatter_right(size_t bytes, size_t i) {
    size_t n = share(bytes);
    return i >= n || output[i] == sum_at(rank * n + i);
}

static void allgather(size_t bytes, long turn) {
    (void)turn;
    MPI_Allgather(input, share(bytes), MPI_FLOAT, output, share(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}
static int allgather_right(size_t bytes, size_t i) {
    size_t n = share(bytes);
    return i >= n * ranks || output[i] == i / n + i % n % 89;
}

static void alltoall(size_t bytes, long turn) {
    (void)turn;
    MPI_Alltoall(input, share(bytes), MPI_FLOAT, output, share(bytes), MPI_FLOAT, MPI_COMM_WORLD);
}
static int alltoall_right(size_t bytes, size_t i) {
    size_t n = share(bytes);
    return i >= n * ranks || output[i] == i / n + (rank * n + i % n) % 89;
}

// The root changes with each turn, so that no rank can run ahead of the others.
static void broadcast(size_t bytes, long turn) {
    MPI_Bcast(output, whole(bytes), MPI_FLOAT, (int)(turn % ranks), MPI_COMM_WORLD);
}
static int broadcast_right(size_t bytes, size_t i) { return i >= (size_t)whole(bytes) || output[i] == i % 89; }

static const struct kind {
    const char *name;
    operation *run;
    expectation *right; // NULL: not checked
} kinds[] = {
    {"latency", latency, NULL},
    {"bandwidth", bandwidth, NULL},
    {"allreduce", allreduce, allreduce_right},
    {"allreduce_in_place", allreduce_in_place, allreduce_right},
    {"reduce_scatter", reduce_scatter, reduce_scatter_right},
    {"allgather", allgather, allgather_right},
    {"alltoall", alltoall, alltoall_right},
    {"broadcast", broadcast, broadcast_right},
};

// ---- measuring ----

static void fail(const char *what) {
    fprintf(stderr, "mpibench: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(const struct kind *kind, size_t bytes) {
    if (!kind->right) return;
    int in_place = kind->run == broadcast || kind->run == allreduce_in_place;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        input[i] = rank + (float)(i % 89);
        output[i] = in_place ? input[i] : -1;
    }
    kind->run(bytes, 0);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        if (!kind->right(bytes, i)) fail("wrong result");
    memset(output, 0, bytes); // sums in place stay finite
}

// The slowest rank's seconds for each of `turns` operations, the same value on every rank.
static double timed(const struct kind *kind, size_t bytes, long turns) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (long turn = 0; turn < turns; turn++) kind->run(bytes, turn);
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
    while ((each = timed(kind, bytes, turns)) * turns < block / 4) turns *= 2; // warms up, too
    turns = (long)(block / each) + 1;
    for (int i = 0; i < BLOCKS; i++) times[i] = timed(kind, bytes, turns);
    qsort(times, BLOCKS, sizeof *times, ascending);

    double parts = kind->run == latency ? 2 : kind->run == bandwidth ? window(bytes) : 1;
    double us = 1e6 / parts;
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
    if (!kind->right && ranks != 2) fail("latency and bandwidth need two ranks");

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
