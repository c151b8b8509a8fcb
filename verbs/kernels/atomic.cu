// Atomics on one word of 8 bytes in a GPU's memory: what FETCH_ADD and CMP_SWAP of a queue pair do there.
//
//   qpair_fetch_add(u64 *word, u64 add, u64 *before)
//   qpair_compare_swap(u64 *word, u64 compare, u64 swap, u64 *before)
//
// Launched as one thread. `before` is what the word held; the two do not overlap, and both are multiples of 8. Words are shared by
// kernels of other processes, by other GPUs and by the processor: so the scope is the system's, which `atom.sys` has from Pascal on.
// What was written before is there for who sees the word changed, and the other way round: a fence on either side.

extern "C" __global__ void __launch_bounds__(1)
    qpair_fetch_add(unsigned long long* word, unsigned long long add, unsigned long long* before) {
    __threadfence_system();
    *before = atomicAdd_system(word, add);
    __threadfence_system();
}

extern "C" __global__ void __launch_bounds__(1)
    qpair_compare_swap(unsigned long long* word, unsigned long long compare, unsigned long long swap,
                       unsigned long long* before) {
    __threadfence_system();
    *before = atomicCAS_system(word, compare, swap);
    __threadfence_system();
}
