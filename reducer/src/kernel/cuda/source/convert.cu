// convert_FROM_TO: between f32 and the 16-bit floats, rounding to nearest even; a NaN becomes the canonical one.

struct ConvertArgs {
    u64 count;
    void *dst;
    const void *src;
};

// Elements of From and To, as many as fill 16 bytes of the wider type, are read and written as one vector each.
template <class From, class To> __device__ __forceinline__ void convert(const ConvertArgs &args) {
    const int WIDE = sizeof(typename From::Bits) > sizeof(typename To::Bits) ? sizeof(typename From::Bits)
                                                                             : sizeof(typename To::Bits);
    const int LANES = 16 / WIDE;
    struct alignas(LANES * sizeof(typename From::Bits)) In {
        typename From::Bits lane[LANES];
    };
    struct alignas(LANES * sizeof(typename To::Bits)) Out {
        typename To::Bits lane[LANES];
    };
    bool aligned = ((u64)args.src % sizeof(In) | (u64)args.dst % sizeof(Out)) == 0;
    u64 vectors = aligned ? args.count / LANES : 0;
    for (u64 i = thread_of_grid(); i < vectors; i += threads_of_grid()) {
        In in = ((const In *)args.src)[i];
        Out out;
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            out.lane[l] = To::narrow(From::widen(in.lane[l]));
        }
        ((Out *)args.dst)[i] = out;
    }
    for (u64 i = vectors * LANES + thread_of_grid(); i < args.count; i += threads_of_grid()) {
        ((typename To::Bits *)args.dst)[i] = To::narrow(From::widen(((const typename From::Bits *)args.src)[i]));
    }
}

#define CONVERT_KERNEL(from, From, to, To)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) convert_##from##_##to(const ConvertArgs args) {                  \
        convert<From, To>(args);                                                                                       \
    }                                                                                                                  \
    SHIM_KERNEL(convert_##from##_##to)

CONVERT_KERNEL(f32, F32, f16, F16)
CONVERT_KERNEL(f32, F32, bf16, Bf16)
CONVERT_KERNEL(f16, F16, f32, F32)
CONVERT_KERNEL(bf16, Bf16, f32, F32)
