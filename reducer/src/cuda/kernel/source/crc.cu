// crc32c: the CRC32C (RFC 3720 section 12.1) of each fragment of a range, XORed into results that hold zeros before.
//
// A CRC is linear: that of a message is the XOR of what each of its 32-bit words contributes, which is the word, as a
// polynomial over GF(2), times x^(8 d) modulo Castagnoli's, d counted in bytes to the end. A block takes rows of 256
// vectors of 16 bytes. Each thread keeps four sums, one for each word of its vector, and advances them from row to
// row by one multiplication with the same power of x: a XOR of eight entries of a table, one for each half byte,
// which lies in shared memory once for each bank, so that no two lanes of a warp meet. At the end come the powers for
// where the words stood. Rows are counted from the end, as zeros in front of a message count for nothing.
//
// Bit 31 of a word is x^0 and bit 0 is x^31, as CRC32C has it. All powers come from the host, in the arguments.

#define CRC_THREADS 256
#define POLYNOMIAL 0x82f63b78u

struct CrcArgs {
    const u8 *address;
    u64 bytes;
    u64 fragment;   // bytes of each fragment; the last may be shorter
    u32 *results;   // one for each fragment
    u32 fragments;  // how many there are
    u32 rows;       // of each block, in each fragment
    u32 word;       // x^32: a word's advance
    u32 next_row[128];              // [half byte][its value]: times x^(8 * 16 * CRC_THREADS)
    u32 to_end_of_row[CRC_THREADS];  // x^32 * x^(8 * 16 * (CRC_THREADS - 1 - thread))
    u32 doubling[48];               // x^(8 * 2^i)
};

__device__ __noinline__ u32 multiply(u32 a, u32 b) {
    u32 product = 0;
#pragma unroll 4
    for (u32 bit = 0; bit < 32; bit++) {
        product ^= b & (0 - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (POLYNOMIAL & (0 - (b & 1)));
    }
    return product;
}

// Times x^(8 * bytes).
__device__ __forceinline__ u32 advance(const CrcArgs &args, u32 value, u64 bytes) {
#pragma unroll 1
    for (u32 i = 0; bytes >> i != 0; i++) {
        if (bytes >> i & 1) {
            value = multiply(value, args.doubling[i]);
        }
    }
    return value;
}

__device__ __forceinline__ u32 crc_of_few(const u8 *p, u32 bytes) {
    u32 crc = 0;
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (u32 bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (POLYNOMIAL & (0 - (crc & 1)));
        }
    }
    return crc;
}

// `value` times the table's power. A half byte is shifted to where it is the offset of its row, so that with the lane's
// in the bits below it takes two instructions to have an address.
__device__ __forceinline__ u32 look_up(const u32 (*table)[32], u32 lane, u32 value) {
    const u32 ROW_BITS = 7;  // 32 lanes of 4 bytes
    u32 product = 0;
#pragma unroll
    for (u32 half_byte = 0; half_byte < 8; half_byte++) {
        u32 shift = 4 * half_byte;
        u32 row = (shift < ROW_BITS ? value << (ROW_BITS - shift) : value >> (shift - ROW_BITS)) & 15u << ROW_BITS;
        const u8 *rows = (const u8 *)table[half_byte * 16];
        product ^= *(const u32 *)(rows + (row | lane * 4));
    }
    return product;
}

extern "C" __global__ void __launch_bounds__(CRC_THREADS, 4) crc32c(const __grid_constant__ CrcArgs args) {
    __shared__ u32 table[128][32];
    __shared__ u32 of_block;
    const u32 AT_ONCE = 4;
    u32 lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x; i < 128 * 32; i += CRC_THREADS) {
        table[i / 32][i % 32] = args.next_row[i / 32];
    }
    for (u32 f = blockIdx.y; f < args.fragments; f += gridDim.y) {
        if (threadIdx.x == 0) {
            of_block = 0;
        }
        __syncthreads();
        const u8 *start = args.address + f * args.fragment;
        u64 left = args.bytes - f * args.fragment;
        u64 bytes = left < args.fragment ? left : args.fragment;
        u64 head = (16 - beyond_16(start)) % 16;
        head = head < bytes ? head : bytes;
        u64 vectors = (bytes - head) / 16, tail = bytes - head - vectors * 16;
        u64 all_rows = (vectors + CRC_THREADS - 1) / CRC_THREADS;
        u64 row = (u64)blockIdx.x * args.rows;
        u64 end = row + args.rows < all_rows ? row + args.rows : all_rows;
        // The vector of this thread in a row, less than nothing where the first row has none for it.
        const uint4 *body = (const uint4 *)(start + head);
        i64 first = (i64)vectors - (i64)(all_rows * CRC_THREADS) + threadIdx.x;
        uint4 sum = make_uint4(0, 0, 0, 0);
        for (; row < end; row += AT_ONCE) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                i64 at = first + (i64)((row + j) * CRC_THREADS);
                if (at >= 0 && row + j < end) {
                    v[j] = body[at];
                } else {
                    v[j] = make_uint4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                if (row + j < end) {
                    sum.x = look_up(table, lane, sum.x) ^ v[j].x;
                    sum.y = look_up(table, lane, sum.y) ^ v[j].y;
                    sum.z = look_up(table, lane, sum.z) ^ v[j].z;
                    sum.w = look_up(table, lane, sum.w) ^ v[j].w;
                }
            }
        }
        u32 mine = multiply(sum.x, args.word) ^ sum.y;
        mine = multiply(mine, args.word) ^ sum.z;
        mine = multiply(mine, args.word) ^ sum.w;
        mine = multiply(mine, args.to_end_of_row[threadIdx.x]);
        atomicXor(&of_block, mine);
        __syncthreads();
        // The first thread places the block's rows; the first block adds what is before and behind them.
        if (threadIdx.x == 0 && row > (u64)blockIdx.x * args.rows) {
            u64 behind = (all_rows - end) * CRC_THREADS * 16 + tail;
            atomicXor(&args.results[f], advance(args, of_block, behind));
        }
        if (threadIdx.x == CRC_THREADS - 1 && blockIdx.x == 0) {
            // A CRC starts from all ones and is inverted at the end.
            u32 rest = advance(args, ~0u, bytes) ^ ~0u;
            rest ^= advance(args, crc_of_few(start, (u32)head), bytes - head);
            rest ^= crc_of_few(start + bytes - tail, (u32)tail);
            atomicXor(&args.results[f], rest);
        }
        __syncthreads();
    }
}
SHIM_KERNEL(crc32c)
