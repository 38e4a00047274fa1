// pack and unpack: many small tensors from where they lie into one buffer, one behind the other, and back.

struct PackedPiece {
    u64 address;  // of the tensor
    u64 bytes;
    u64 offset;  // in the buffer
};

struct PackArgs {
    const PackedPiece *pieces;
    void *buffer;
    u32 pieces_len;
};

// What `index` of `stride` threads copies of `count` units of T.
template <class T>
__device__ __forceinline__ void copy_units(u8 *dst, const u8 *src, u64 count, u64 index, u64 stride) {
    for (u64 i = index; i < count; i += stride) {
        ((T *)dst)[i] = ((const T *)src)[i];
    }
}

// The same of bytes, in the widest units at which both lie alike.
__device__ __forceinline__ void copy_bytes(u8 *dst, const u8 *src, u64 bytes, u64 index, u64 stride) {
    u32 apart = beyond_16((const void *)((u64)dst - (u64)src));
    u64 unit = apart == 0 ? 16 : (apart & 3) == 0 ? 4 : 1;
    u64 head = (unit - (u64)dst % unit) % unit;
    head = head < bytes ? head : bytes;
    u64 units = (bytes - head) / unit, tail = head + units * unit;
    if (unit == 16) {
        copy_units<uint4>(dst + head, src + head, units, index, stride);
    } else if (unit == 4) {
        copy_units<u32>(dst + head, src + head, units, index, stride);
    } else {
        copy_units<u8>(dst + head, src + head, units, index, stride);
    }
    copy_units<u8>(dst, src, head, index, stride);
    copy_units<u8>(dst + tail, src + tail, bytes - tail, index, stride);
}

// A row of blocks for each piece; with more pieces than rows, each row takes several.
template <bool PACK> __device__ __forceinline__ void move(const PackArgs &args) {
    for (u32 i = blockIdx.y; i < args.pieces_len; i += gridDim.y) {
        PackedPiece piece = args.pieces[i];
        u8 *tensor = (u8 *)piece.address, *packed = (u8 *)args.buffer + piece.offset;
        copy_bytes(PACK ? packed : tensor, PACK ? tensor : packed, piece.bytes, thread_of_grid(), threads_of_grid());
    }
}

extern "C" __global__ void __launch_bounds__(256) pack(const PackArgs args) { move<true>(args); }
SHIM_KERNEL(pack)
extern "C" __global__ void __launch_bounds__(256) unpack(const PackArgs args) { move<false>(args); }
SHIM_KERNEL(unpack)
