// Stands in for the part of CUDA that hashes.cu uses: a thread of the host's is a thread of the device's, and one thread
// block runs after the other, so that what they share can be static.

#include <pthread.h>

#include <thread>
#include <vector>

#define __global__
#define __device__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint4 {
    unsigned x, y, z, w;
};

struct Position {
    unsigned x;
};

static thread_local Position threadIdx, blockIdx, blockDim, gridDim;
static pthread_barrier_t barrier;

static void __syncthreads() { pthread_barrier_wait(&barrier); }

static unsigned atomicXor(unsigned *where, unsigned with) { return __atomic_fetch_xor(where, with, __ATOMIC_RELAXED); }

static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return ((unsigned long long)high << 32 | low) >> (by & 31);
}

// Have `blocks` thread blocks of `threads` threads run a kernel.
template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel) {
    pthread_barrier_init(&barrier, nullptr, threads);
    std::vector<std::thread> all;
    for (unsigned number = 0; number < threads; number++)
        all.emplace_back([=] {
            threadIdx.x = number, blockDim.x = threads, gridDim.x = blocks;
            for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
                kernel();
                __syncthreads();
            }
        });
    for (auto &thread : all) thread.join();
    pthread_barrier_destroy(&barrier);
}
