// The kernels as functions of the host, for tests: the threads of a grid run one after the other.
#define __global__
#define __launch_bounds__(threads)

namespace {
struct Place {
    unsigned x;
};
thread_local Place blockIdx, gridDim = {1}, threadIdx, blockDim = {1};
} // namespace

#include "combine.cu"

// The thread that the next call of a kernel is.
extern "C" void qpair_place(unsigned block, unsigned blocks, unsigned thread, unsigned threads) {
    blockIdx.x = block;
    gridDim.x = blocks;
    threadIdx.x = thread;
    blockDim.x = threads;
}
