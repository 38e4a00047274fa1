// fold_OP_DTYPE: destinations[0][i] = destinations[1][i] = ... = sources[0][i] op sources[1][i] op ..., in that order;
// fold_OP_DTYPE_divided: the same, divided by n.
//
// Every element is read from all sources by the one thread that then writes it everywhere, so a destination may be one of
// the sources. It is computed once, however many destinations there are. What is divided has been rounded to its type
// before. Where all pointers lie alike to 16 bytes and are multiples of an element's size, each thread takes 16 bytes at once; what is
// before and behind is taken element by element, as everything is elsewhere. Pointers are multiples of an element's alignment.

#define MAX_SOURCES 64
#define MAX_DESTINATIONS 64

struct FoldArgs {
    u64 count;             // elements
    u32 sources_len;       // 1 to MAX_SOURCES
    u32 destinations_len;  // 1 to MAX_DESTINATIONS
    u32 alike;             // whether all pointers are alike modulo 16, and multiples of an element's size
    u32 n;                 // not 0; for what is divided
    const void *sources[MAX_SOURCES];
    void *destinations[MAX_DESTINATIONS];
};

// How many loads of 16 bytes a thread has under way.
#define LOADS 4

template <class E> __device__ __forceinline__ typename E::Bits quotient(typename E::Bits bits, u32 n) {
    return E::narrow(E::divide(E::widen(bits), n));
}

// What is written of a folded value.
template <class E, bool DIVIDED>
__device__ __forceinline__ typename E::Bits result_of(typename E::Wide value, const FoldArgs &args) {
    typename E::Bits rounded = E::narrow(value);
    if constexpr (DIVIDED) {
        return quotient<E>(rounded, args.n);
    } else {
        return rounded;
    }
}

template <class E, class O, bool DIVIDED> __device__ __forceinline__ void fold_one(const FoldArgs &args, u64 i) {
    typedef typename E::Bits Bits;
    typename E::Wide value = E::widen(((const Bits *)args.sources[0])[i]);
    for (u32 s = 1; s < args.sources_len; s++) {
        value = O::apply(value, E::widen(((const Bits *)args.sources[s])[i]));
    }
    Bits result = result_of<E, DIVIDED>(value, args);
    for (u32 d = 0; d < args.destinations_len; d++) {
        ((Bits *)args.destinations[d])[i] = result;
    }
}

// Vectors from `base` on (elements), `vectors` of them, of two sources into one destination: two vectors of each at once.
template <class E, class O> __device__ __forceinline__ void fold_two(const FoldArgs &args, u64 base, u64 vectors) {
    typedef typename E::Bits Bits;
    const Bits *a = (const Bits *)args.sources[0] + base, *b = (const Bits *)args.sources[1] + base;
    uint4 *dst = (uint4 *)((Bits *)args.destinations[0] + base);
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

// The same of any number of sources and destinations: one vector of several at once.
template <class E, class O, bool DIVIDED>
__device__ __forceinline__ void fold_many(const FoldArgs &args, u64 base, u64 vectors) {
    typedef typename E::Bits Bits;
    uint4 *dst = (uint4 *)((Bits *)args.destinations[0] + base);
    for (u64 i = thread_of_grid(); i < vectors; i += threads_of_grid()) {
        typename E::Wide value[Vector<E>::LANES] = {};
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
                        typename E::Wide next = E::widen(x[j].lane[l]);
                        value[l] = s + j == 0 ? next : O::apply(value[l], next);
                    }
                }
            }
        }
        Vector<E> out;
#pragma unroll
        for (int l = 0; l < Vector<E>::LANES; l++) {
            out.lane[l] = result_of<E, DIVIDED>(value[l], args);
        }
        dst[i] = out.whole;
#pragma unroll 1
        for (u32 d = 1; d < args.destinations_len; d++) {
            ((uint4 *)((Bits *)args.destinations[d] + base))[i] = out.whole;
        }
    }
}

// Elements before the first vector: all where the pointers lie differently.
template <class E> __device__ __forceinline__ u64 head_of(const void *p, u64 count, bool alike) {
    u64 head = (16 - beyond_16(p)) % 16 / sizeof(typename E::Bits);
    return alike && head < count ? head : count;
}

template <class E, class O, bool DIVIDED> __device__ __forceinline__ void fold(const FoldArgs &args) {
    u64 head = head_of<E>(args.destinations[0], args.count, args.alike != 0);
    u64 vectors = (args.count - head) / Vector<E>::LANES;
    u64 tail = head + vectors * Vector<E>::LANES;
    if (!DIVIDED && args.sources_len == 2 && args.destinations_len == 1) {
        fold_two<E, O>(args, head, vectors);
    } else {
        fold_many<E, O, DIVIDED>(args, head, vectors);
    }
    // The head's elements, then the tail's.
    u64 loose = args.count - vectors * Vector<E>::LANES;
    for (u64 i = thread_of_grid(); i < loose; i += threads_of_grid()) {
        fold_one<E, O, DIVIDED>(args, i < head ? i : tail + (i - head));
    }
}

#define FOLD_KERNEL(name, E, O, DIVIDED)                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 4) name(const FoldArgs args) { fold<E, O, DIVIDED>(args); }      \
    SHIM_KERNEL(name)
#define FOLD_KERNELS(dtype, E, op, O)                                                                                  \
    FOLD_KERNEL(fold_##op##_##dtype, E, O, false)                                                                      \
    FOLD_KERNEL(fold_##op##_##dtype##_divided, E, O, true)
#define FOLDS(dtype, E, more)                                                                                          \
    FOLD_KERNELS(dtype, E, sum, Sum)                                                                                   \
    FOLD_KERNELS(dtype, E, min, Min)                                                                                   \
    FOLD_KERNELS(dtype, E, max, Max)                                                                                   \
    FOLD_KERNELS(dtype, E, prod, Prod)

FOR_EACH_NUMBER(FOLDS, )
// Sums of complex numbers are those of their parts, and bits are those of bytes, whatever integers they are.
FOLD_KERNEL(fold_prod_complex64, Complex64, ComplexProd, false)
FOLD_KERNEL(fold_prod_complex128, Complex128, ComplexProd, false)
FOLD_KERNEL(fold_band_u8, U8, And, false)
FOLD_KERNEL(fold_bor_u8, U8, Or, false)
FOLD_KERNEL(fold_bxor_u8, U8, Xor, false)
FOLD_KERNEL(fold_land_bool, Bool, And, false)
FOLD_KERNEL(fold_lor_bool, Bool, Or, false)
FOLD_KERNEL(fold_lxor_bool, Bool, Xor, false)
