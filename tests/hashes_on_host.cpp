// hashes.cu for the host, called by ctypes; see tests/test_device_hashes.py.

#include "cuda_on_host.h"
#include KERNELS

typedef const unsigned char *Bytes;

extern "C" void run_crc_blocks(unsigned blocks, unsigned threads, Bytes data, u64 nbytes, u64 size, unsigned *crcs) {
    launch(blocks, threads, [=] { crc_blocks(data, nbytes, size, crcs); });
}

extern "C" void run_hash_blocks(unsigned blocks, unsigned threads, Bytes data, u64 nbytes, u64 size, unsigned *crcs,
                                unsigned *digests) {
    launch(blocks, threads, [=] { hash_blocks(data, nbytes, size, crcs, digests); });
}

// Each length from 1 to `most` by itself, as a launch each, but by the same threads.
extern "C" void run_lengths(unsigned threads, Bytes data, unsigned most, unsigned *crcs, unsigned *digests) {
    launch(1, threads, [=] {
        for (unsigned n = 1; n <= most; n++) {
            hash_blocks(data, n, n, crcs + n - 1, digests + 8 * (n - 1));
            __syncthreads();
        }
    });
}
