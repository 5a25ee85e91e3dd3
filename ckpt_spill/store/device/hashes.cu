// CRC-32C and BLAKE3-256 of the blocks, of `size` bytes, of a region of device memory, in one pass over it.
//
// BLAKE3 as in sections 2.1 to 2.4 of its paper (O'Connor, Aumasson, Neves, Wilcox-O'Hearn: "BLAKE3: one function,
// fast everywhere", 2021). One thread hashes a chunk of 1024 bytes; a thread block then joins what came of its chunks.
//
// A CRC is a remainder of polynomials over GF(2): it is the sum of what the pieces of a message contribute, and n bytes
// that follow a piece multiply what it contributes by x^(8n). So threads take pieces in any order.
//
// Nothing here assumes how many threads (8 or more) or thread blocks there are, or where the memory begins.

typedef unsigned long long u64;

constexpr unsigned CHUNK = 1024, SPAN = 1024, SPANS = 16;  // bytes; chunks; spans in 2^24 bytes, the largest block
constexpr unsigned CASTAGNOLI = 0x82F63B78u;               // reflected, as is all that follows: bit 31 is x^0
constexpr unsigned CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8;  // flags of BLAKE3's

// x^(8 * 2^k) mod P; each is the square of the one before.
__constant__ unsigned POWERS[21] = {
    0x00800000, 0x00008000, 0x82F63B78, 0x6EA2D55C, 0x18B8EA18, 0x510AC59A, 0xB82BE955, 0xB8FDB1E7,
    0x88E56F72, 0x74C360A4, 0xE4172B16, 0x0D65762A, 0x35D73A62, 0x28461564, 0xBF455269, 0xE2EA32DC,
    0xFE7740E6, 0xF946610B, 0x3C204F8F, 0x538586E3, 0x59726915};

// times(a, b) = a * b mod P.
__device__ unsigned times(unsigned a, unsigned b) {
    unsigned product = 0;
    for (; a; a <<= 1) {
        if (a >> 31) product ^= b;
        b = (b >> 1) ^ (b & 1 ? CASTAGNOLI : 0);
    }
    return product;
}

// The CRC after n more bytes of zero, n <= 2^20: no thread's next chunk, or the end, is farther away than a span.
__device__ unsigned shift(unsigned crc, unsigned n) {
    for (unsigned k = 0; n; k++, n >>= 1)
        if (n & 1) crc = times(POWERS[k], crc);
    return crc;
}

// tables[k][b] is the CRC of the byte b and k bytes of zero after it.
typedef unsigned Tables[4][256];

__device__ void make(Tables &tables) {
    for (unsigned byte = threadIdx.x; byte < 256; byte += blockDim.x) {
        unsigned crc = byte;
        for (int k = 0; k < 4; k++) {
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? CASTAGNOLI : 0);
            tables[k][byte] = crc;
        }
    }
}

__device__ __forceinline__ unsigned rotate(unsigned x, int n) { return x >> n | x << (32 - n); }

// All loops over these arrays are unrolled, so that they are registers.
__device__ __forceinline__ void mix(unsigned (&v)[16], int a, int b, int c, int d, unsigned x, unsigned y) {
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

__device__ __forceinline__ void start(unsigned (&cv)[8]) {
    constexpr unsigned IV[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = IV[i];
}

// The compression function, cut to the 8 words that are a chaining value or, with ROOT, the digest. Uses up m.
__device__ __forceinline__ void compress(unsigned (&cv)[8], unsigned (&m)[16], unsigned counter, unsigned n,
                                         unsigned flags) {
    unsigned iv[8];
    start(iv);
    unsigned v[16] = {cv[0], cv[1], cv[2], cv[3], cv[4],   cv[5], cv[6], cv[7],
                      iv[0], iv[1], iv[2], iv[3], counter, 0,     n,     flags};
#pragma unroll
    for (int round = 0; round < 7; round++) {
#pragma unroll
        for (int i = 0; i < 4; i++) mix(v, i, i + 4, i + 8, i + 12, m[2 * i], m[2 * i + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[2 * i + 8], m[2 * i + 9]);
        const unsigned permuted[16] = {m[2], m[6],  m[3],  m[10], m[7], m[0],  m[4],  m[13],
                                       m[1], m[11], m[12], m[5],  m[9], m[14], m[15], m[8]};
#pragma unroll
        for (int i = 0; i < 16; i++) m[i] = permuted[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = v[i] ^ v[i + 8];
}

// Load 64 bytes from anywhere. Reads only such aligned words as hold some of them.
__device__ __forceinline__ void load(const unsigned char *from, unsigned (&m)[16]) {
    const unsigned off = (u64)from % 4;
    if ((u64)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 quad = ((const uint4 *)from)[i];
            m[4 * i] = quad.x, m[4 * i + 1] = quad.y, m[4 * i + 2] = quad.z, m[4 * i + 3] = quad.w;
        }
        return;
    }
    const unsigned *words = (const unsigned *)(from - off);
#pragma unroll
    for (int i = 0; i < 16; i++) m[i] = words[i];
    const unsigned last = off ? words[16] : 0;
#pragma unroll
    for (int i = 0; i < 16; i++) m[i] = __funnelshift_r(m[i], i < 15 ? m[i + 1] : last, 8 * off);
}

// Hash a chunk of n bytes: its CRC, begun with 0, is returned, and its chaining value left in cv.
template <bool DIGESTS>
__device__ __forceinline__ unsigned hash_chunk(const unsigned char *data, unsigned n, unsigned counter, unsigned root,
                                               const Tables &tables, unsigned (&cv)[8]) {
    unsigned crc = 0;
    start(cv);
    for (unsigned at = 0; at < n; at += 64) {
        const unsigned left = n - at < 64 ? n - at : 64;
        unsigned m[16];
        if (left == 64) {
            load(data + at, m);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                crc ^= m[i];
                crc = tables[3][crc & 255] ^ tables[2][crc >> 8 & 255] ^ tables[1][crc >> 16 & 255] ^
                      tables[0][crc >> 24];
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                m[i] = 0;
                for (unsigned k = 4 * i; k < 4 * i + 4 && k < left; k++) {
                    m[i] |= (unsigned)data[at + k] << 8 * (k % 4);
                    crc = crc >> 8 ^ tables[0][(crc ^ data[at + k]) & 255];
                }
            }
        }
        const unsigned flags = (at == 0 ? CHUNK_START : 0) | (at + left == n ? CHUNK_END | root : 0);
        if (DIGESTS) compress(cv, m, counter, left, flags);
    }
    return crc;
}

// Join n chaining values by a tree whose left subtrees are full; what comes of it is in nodes[0]. A node stands where
// the first one below it stood, so no thread writes what another one reads before the next level.
__device__ __forceinline__ void join(unsigned (*nodes)[8], unsigned n, unsigned root) {
    for (unsigned step = 1; step < n; step *= 2) {
        __syncthreads();
        for (unsigned i = 2 * step * threadIdx.x; i + step < n; i += 2 * step * blockDim.x) {
            unsigned cv[8], m[16];
            start(cv);
#pragma unroll
            for (int k = 0; k < 8; k++) m[k] = nodes[i][k], m[k + 8] = nodes[i + step][k];
            compress(cv, m, 0, 64, PARENT | (2 * step < n ? 0 : root));
#pragma unroll
            for (int k = 0; k < 8; k++) nodes[i][k] = cv[k];
        }
    }
    __syncthreads();
}

template <bool DIGESTS>
__device__ __forceinline__ void hash(const unsigned char *data, u64 nbytes, u64 size, unsigned *crcs,
                                     unsigned *digests) {
    __shared__ Tables tables;
    __shared__ unsigned crc, nodes[DIGESTS ? SPAN : 1][8], tops[DIGESTS ? SPANS : 1][8];
    make(tables);
    for (u64 block = blockIdx.x; block * size < nbytes; block += gridDim.x) {
        const unsigned char *begin = data + block * size;
        const unsigned n = nbytes - block * size < size ? nbytes - block * size : size;
        const unsigned chunks = (n + CHUNK - 1) / CHUNK, spans = (chunks + SPAN - 1) / SPAN;
        if (threadIdx.x == 0) crc = 0;
        __syncthreads();
        // The CRC of the bytes before `end`, as if those of other threads' chunks were zeros. All ones to begin a CRC
        // with are a term of the sum like another, which one thread has.
        unsigned part = threadIdx.x == 0 ? 0xFFFFFFFFu : 0, end = 0;
        for (unsigned span = 0; span < spans; span++) {
            const unsigned first = span * SPAN, count = chunks - first < SPAN ? chunks - first : SPAN;
            for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
                const unsigned at = (first + i) * CHUNK, length = n - at < CHUNK ? n - at : CHUNK;
                unsigned cv[8];
                part = shift(part, at + length - end);
                part ^= hash_chunk<DIGESTS>(begin + at, length, first + i, chunks == 1 ? ROOT : 0, tables, cv);
                end = at + length;
                if (DIGESTS)
#pragma unroll
                    for (int k = 0; k < 8; k++) nodes[i][k] = cv[k];
            }
            if (DIGESTS) {
                join(nodes, count, spans == 1 ? ROOT : 0);
                if (threadIdx.x < 8) tops[span][threadIdx.x] = nodes[0][threadIdx.x];
                __syncthreads();
            }
        }
        if (DIGESTS) {
            join(tops, spans, ROOT);
            if (threadIdx.x < 8) digests[block * 8 + threadIdx.x] = tops[0][threadIdx.x];
        }
        atomicXor(&crc, shift(part, n - end));
        __syncthreads();
        if (threadIdx.x == 0) crcs[block] = ~crc;
    }
}

// No more than 64 registers a thread, so that there can be 1024 of them.
#define KERNEL extern "C" __global__ __launch_bounds__(1024, 1) void

KERNEL crc_blocks(const unsigned char *data, u64 nbytes, u64 size, unsigned *crcs) {
    hash<false>(data, nbytes, size, crcs, nullptr);
}

KERNEL hash_blocks(const unsigned char *data, u64 nbytes, u64 size, unsigned *crcs, unsigned *digests) {
    hash<true>(data, nbytes, size, crcs, digests);
}
