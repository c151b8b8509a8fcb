// Times one collective operation over a range of sizes; prints one CSV row for each size. The part that mpibench.c and
// gloobench.cc share: what is measured, how, and whether the results are right. C, and C++.
//
// Arguments: operation, least bytes, most bytes, factor between sizes, seconds for each size. All data is float32. Bytes are
// those of one rank's whole vector: of what it gives to reduce_scatter and alltoall, of what it gets by allgather. The root of
// bcast is another rank each time, so that none runs ahead. A time is that of the slowest rank, per operation: of nine turns
// the median, the least and the greatest. The results of collectives are checked once for each size, before it is timed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 9 };

// Of this process. `root` is that of the next bcast, the same on all ranks.
static int rank, ranks, root;
static float *input, *output;

// One operation on `bytes` bytes.
typedef void operation(size_t bytes);

struct kind {
    const char *name; // NULL: the end of the table
    operation *run;
    float (*expected)(size_t bytes, int i); // element i of the result; NULL: not checked
    int (*results)(size_t bytes);           // how many elements the result has
    int in_place;                           // what it gives lies in `output`
    int ways;                               // what is timed is one of so many that a run takes in turn
};

// ---- what the including program has ----

static void barrier(void);
static double slowest(double mine); // the greatest value of all ranks, on each of them
static void end_all(void);          // with a status that is not 0

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    end_all();
}

// ---- sizes and values ----

static int whole(size_t bytes) { return (int)(bytes / sizeof(float)); }

static int block(size_t bytes) { return whole(bytes) / ranks; }

static int blocks(size_t bytes) { return block(bytes) * ranks; }

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

static void next_root(void) { root = (root + 1) % ranks; }

// ---- measuring ----

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

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// The slowest rank's seconds for each of `turns` operations, the same value on every rank.
static double timed(const struct kind *kind, size_t bytes, long turns) {
    barrier();
    double begin = seconds_now();
    for (long turn = 0; turn < turns; turn++) kind->run(bytes);
    return slowest((seconds_now() - begin) / turns);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct kind *kind, size_t bytes, double seconds) {
    double share = seconds / BLOCKS, each, times[BLOCKS];
    long turns = 1;
    root = 0;
    while ((each = timed(kind, bytes, turns)) * turns < share / 4) turns *= 2; // warms up, too
    turns = (long)(share / each) + 1;
    for (int i = 0; i < BLOCKS; i++) times[i] = timed(kind, bytes, turns);
    qsort(times, BLOCKS, sizeof *times, ascending);
    double us = 1e6 / kind->ways;
    if (rank == 0)
        printf("%s,%d,%zu,%.4f,%.4f,%.4f\n", kind->name, ranks, bytes, times[BLOCKS / 2] * us, times[0] * us,
               times[BLOCKS - 1] * us);
}

// Once `rank` and `ranks` are known.
static void run(const struct kind *kind, char **argv) {
    if (argv[1] == NULL || argv[2] == NULL || argv[3] == NULL || argv[4] == NULL || argv[5] == NULL)
        fail("five arguments: OPERATION LEAST MOST FACTOR SECONDS");
    while (kind->name && strcmp(kind->name, argv[1])) kind++;
    if (!kind->name) fail("unknown operation; see the end of the program's source");
    size_t least = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10), factor = strtoull(argv[4], NULL, 10);
    double seconds = atof(argv[5]);
    if (least < sizeof(float) * ranks || factor < 2) fail("LEAST is at least 4 bytes for each rank, FACTOR at least 2");

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
}
