// The kernels as functions of the host, for tests: the threads of a grid run one after the other.
#define __global__
#define __launch_bounds__(threads)

namespace {
struct Place {
    unsigned x;
};
thread_local Place blockIdx, gridDim = {1}, threadIdx, blockDim = {1};

inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline unsigned long long atomicAdd_system(unsigned long long* word, unsigned long long add) {
    return __atomic_fetch_add(word, add, __ATOMIC_RELAXED);
}

inline unsigned long long atomicCAS_system(unsigned long long* word, unsigned long long compare, unsigned long long swap) {
    __atomic_compare_exchange_n(word, &compare, swap, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
} // namespace

#include "atomic.cu"
#include "combine.cu"

// The thread that the next call of a kernel is.
extern "C" void qpair_place(unsigned block, unsigned blocks, unsigned thread, unsigned threads) {
    blockIdx.x = block;
    gridDim.x = blocks;
    threadIdx.x = thread;
    blockDim.x = threads;
}
