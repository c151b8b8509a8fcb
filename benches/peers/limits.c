// What two cores and their memory allow, without any middleware; prints one number.
//
//   cc -O3 -o limits limits.c
//   limits flag 0 1              microseconds one way: two processes on CPUs 0 and 1 answer each other's 8-byte flag
//   limits memcpy 1048576 0      GB/s (10^9 bytes): memcpy of that many bytes, over and over, on CPU 0
//
// Each number is the median of several blocks.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 9, TURNS = 100000, WARM_UP = 20000 };
static const double COPY_SECONDS = 0.03; // of one block

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, BLOCKS, sizeof *values, ascending);
    return values[BLOCKS / 2];
}

// ---- flag ----

// Each flag has cache lines of its own, also where the hardware fetches lines in pairs.
struct flags {
    _Alignas(256) _Atomic uint64_t there;
    _Alignas(256) _Atomic uint64_t back;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void await(_Atomic uint64_t *flag, uint64_t value) {
    while (atomic_load_explicit(flag, memory_order_acquire) != value) relax();
}

static void answer(struct flags *flags, uint64_t turns) {
    for (uint64_t i = 1; i <= turns; i++) {
        await(&flags->there, i);
        atomic_store_explicit(&flags->back, i, memory_order_release);
    }
}

static void ask(struct flags *flags, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i <= to; i++) {
        atomic_store_explicit(&flags->there, i, memory_order_release);
        await(&flags->back, i);
    }
}

static double flag(int cpu, int other) {
    struct flags *flags = mmap(NULL, sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED) fail("mmap");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a parent that is killed leaves no spinning child
        pin(other);
        answer(flags, WARM_UP + (uint64_t)BLOCKS * TURNS);
        _exit(0);
    }
    pin(cpu);
    ask(flags, 1, WARM_UP);
    double us[BLOCKS];
    for (uint64_t block = 0, first = WARM_UP + 1; block < BLOCKS; block++, first += TURNS) {
        double begin = seconds();
        ask(flags, first, first + TURNS - 1);
        us[block] = (seconds() - begin) / TURNS / 2 * 1e6;
    }
    waitpid(child, NULL, 0);
    return median(us);
}

// ---- memcpy ----

// Not inlined, and with a barrier for the compiler: every copy is made.
__attribute__((noinline)) static void copy(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory");
}

static char *pages(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static double copy_rate(char *to, const char *from, size_t bytes) {
    size_t copies = 0;
    double begin = seconds(), elapsed;
    do {
        for (size_t done = 0; done < 4 << 20; done += bytes, copies++) copy(to, from, bytes);
        elapsed = seconds() - begin;
    } while (elapsed < COPY_SECONDS);
    return (double)copies * bytes / elapsed / 1e9;
}

static double copies(size_t bytes, int cpu) {
    pin(cpu);
    char *from = pages(bytes), *to = pages(bytes);
    double rates[BLOCKS];
    copy_rate(to, from, bytes); // warms up
    for (int block = 0; block < BLOCKS; block++) rates[block] = copy_rate(to, from, bytes);
    return median(rates);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "flag")) {
        printf("%.4f\n", flag(atoi(argv[2]), atoi(argv[3])));
    } else if (argc == 4 && !strcmp(argv[1], "memcpy") && atoll(argv[2]) > 0) {
        printf("%.4f\n", copies((size_t)atoll(argv[2]), atoi(argv[3])));
    } else {
        fprintf(stderr, "usage: limits flag CPU CPU | limits memcpy BYTES CPU\n");
        return 2;
    }
    return 0;
}
