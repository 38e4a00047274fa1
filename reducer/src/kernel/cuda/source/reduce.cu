// reduce_OP_DTYPE: dst[i] = sources[0][i] op sources[1][i] op ..., in that order; divide_DTYPE: dst[i] = dst[i] / n.
//
// Every element is read from all sources by the one thread that then writes it, so the destination may be one of the
// sources. Where all pointers lie alike to 16 bytes, each thread takes 16 bytes at once; what is before and behind is
// taken element by element, as everything is where they lie differently. Pointers are multiples of an element's size.

#define MAX_SOURCES 64

struct ReduceArgs {
    u64 count;  // elements
    void *dst;
    u32 sources_len;  // 1 to MAX_SOURCES
    u32 alike;        // whether dst and all sources are alike modulo 16
    const void *sources[MAX_SOURCES];
};

struct DivideArgs {
    u64 count;
    void *dst;
    u32 n;  // not 0
};

// How many loads of 16 bytes a thread has under way.
#define LOADS 4

template <class E, class O> __device__ __forceinline__ void reduce_one(const ReduceArgs &args, u64 i) {
    typedef typename E::Bits Bits;
    typename E::Wide sum = E::widen(((const Bits *)args.sources[0])[i]);
    for (u32 s = 1; s < args.sources_len; s++) {
        sum = O::apply(sum, E::widen(((const Bits *)args.sources[s])[i]));
    }
    ((Bits *)args.dst)[i] = E::narrow(sum);
}

// Vectors from `base` on (elements), `vectors` of them, of two sources: two vectors of each at once.
template <class E, class O>
__device__ __forceinline__ void reduce_two(const ReduceArgs &args, u64 base, u64 vectors) {
    typedef typename E::Bits Bits;
    const Bits *a = (const Bits *)args.sources[0] + base, *b = (const Bits *)args.sources[1] + base;
    uint4 *dst = (uint4 *)((Bits *)args.dst + base);
    u64 stride = threads_of_grid();
    for (u64 i = thread_of_grid(); i < vectors; i += LOADS / 2 * stride) {
        Vector<E> x[LOADS / 2], y[LOADS / 2];
#pragma unroll
        for (u32 j = 0; j < LOADS / 2; j++) {
            if (i + j * stride < vectors) {
                x[j] = load_vector<E>(a, i + j * stride);
                y[j] = load_vector<E>(b, i + j * stride);
            }
        }
#pragma unroll
        for (u32 j = 0; j < LOADS / 2; j++) {
            if (i + j * stride < vectors) {
                Vector<E> out;
#pragma unroll
                for (int l = 0; l < Vector<E>::LANES; l++) {
                    out.lane[l] = E::narrow(O::apply(E::widen(x[j].lane[l]), E::widen(y[j].lane[l])));
                }
                dst[i + j * stride] = out.whole;
            }
        }
    }
}

// The same of any number of sources: one vector of several at once.
template <class E, class O>
__device__ __forceinline__ void reduce_many(const ReduceArgs &args, u64 base, u64 vectors) {
    typedef typename E::Bits Bits;
    uint4 *dst = (uint4 *)((Bits *)args.dst + base);
    for (u64 i = thread_of_grid(); i < vectors; i += threads_of_grid()) {
        typename E::Wide sum[Vector<E>::LANES] = {};
        for (u32 s = 0; s < args.sources_len; s += LOADS) {
            Vector<E> x[LOADS];
#pragma unroll
            for (u32 j = 0; j < LOADS; j++) {
                if (s + j < args.sources_len) {
                    x[j] = load_vector<E>((const Bits *)args.sources[s + j] + base, i);
                }
            }
#pragma unroll
            for (u32 j = 0; j < LOADS; j++) {
                if (s + j < args.sources_len) {
#pragma unroll
                    for (int l = 0; l < Vector<E>::LANES; l++) {
                        typename E::Wide value = E::widen(x[j].lane[l]);
                        sum[l] = s + j == 0 ? value : O::apply(sum[l], value);
                    }
                }
            }
        }
        Vector<E> out;
#pragma unroll
        for (int l = 0; l < Vector<E>::LANES; l++) {
            out.lane[l] = E::narrow(sum[l]);
        }
        dst[i] = out.whole;
    }
}

// Elements before the first vector: all where the pointers lie differently.
template <class E> __device__ __forceinline__ u64 head_of(const void *p, u64 count, bool alike) {
    u64 head = (16 - beyond_16(p)) % 16 / sizeof(typename E::Bits);
    return alike && head < count ? head : count;
}

template <class E, class O> __device__ __forceinline__ void reduce(const ReduceArgs &args) {
    u64 head = head_of<E>(args.dst, args.count, args.alike != 0);
    u64 vectors = (args.count - head) / Vector<E>::LANES;
    u64 tail = head + vectors * Vector<E>::LANES;
    if (args.sources_len == 2) {
        reduce_two<E, O>(args, head, vectors);
    } else {
        reduce_many<E, O>(args, head, vectors);
    }
    // The head's elements, then the tail's.
    u64 loose = args.count - vectors * Vector<E>::LANES;
    for (u64 i = thread_of_grid(); i < loose; i += threads_of_grid()) {
        reduce_one<E, O>(args, i < head ? i : tail + (i - head));
    }
}

template <class E> __device__ __forceinline__ typename E::Bits quotient(typename E::Bits bits, u32 n) {
    return E::narrow(E::divide(E::widen(bits), n));
}

template <class E> __device__ __forceinline__ void divide(const DivideArgs &args) {
    typedef typename E::Bits Bits;
    Bits *dst = (Bits *)args.dst;
    u64 head = head_of<E>(dst, args.count, true);
    u64 vectors = (args.count - head) / Vector<E>::LANES;
    u64 tail = head + vectors * Vector<E>::LANES;
    for (u64 i = thread_of_grid(); i < vectors; i += threads_of_grid()) {
        Vector<E> v = load_vector<E>(dst + head, i);
#pragma unroll
        for (int l = 0; l < Vector<E>::LANES; l++) {
            v.lane[l] = quotient<E>(v.lane[l], args.n);
        }
        ((uint4 *)(dst + head))[i] = v.whole;
    }
    u64 loose = args.count - vectors * Vector<E>::LANES;
    for (u64 i = thread_of_grid(); i < loose; i += threads_of_grid()) {
        u64 at = i < head ? i : tail + (i - head);
        dst[at] = quotient<E>(dst[at], args.n);
    }
}

#define REDUCE_KERNEL(dtype, E, name, O)                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 4) reduce_##name##_##dtype(const ReduceArgs args) {              \
        reduce<E, O>(args);                                                                                            \
    }                                                                                                                  \
    SHIM_KERNEL(reduce_##name##_##dtype)
#define REDUCE_KERNELS(dtype, E, more)                                                                                 \
    REDUCE_KERNEL(dtype, E, sum, Sum)                                                                                  \
    REDUCE_KERNEL(dtype, E, min, Min)                                                                                  \
    REDUCE_KERNEL(dtype, E, max, Max)                                                                                  \
    REDUCE_KERNEL(dtype, E, prod, Prod)
#define DIVIDE_KERNEL(dtype, E, more)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) divide_##dtype(const DivideArgs args) { divide<E>(args); }       \
    SHIM_KERNEL(divide_##dtype)

FOR_EACH_DTYPE(REDUCE_KERNELS, )
FOR_EACH_DTYPE(DIVIDE_KERNEL, )
