// The arithmetic of one element: the device's twin of kernel/number.rs, the same bits.
//
// To be compiled without contraction into FMA, without flushing subnormals, and with IEEE division. There are no
// includes: NVRTC has none. A C++ compiler with a shim for threadIdx and its like takes the same text.

#ifndef SHIM_KERNEL
#define SHIM_KERNEL(name)
#endif

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// What integers of type T are added and multiplied as, so that they wrap: no signed overflow, none by promotion.
template <class T> struct Wrapping { typedef u32 Type; };
template <> struct Wrapping<i64> { typedef u64 Type; };
template <> struct Wrapping<u64> { typedef u64 Type; };

__device__ __forceinline__ u32 to_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u64 to_bits(double x) { return (u64)__double_as_longlong(x); }
__device__ __forceinline__ float of_bits(u32 x) { return __uint_as_float(x); }
__device__ __forceinline__ double of_bits(u64 x) { return __longlong_as_double((i64)x); }
__device__ __forceinline__ float nan_of(float) { return __uint_as_float(0x7fc00000u); }
__device__ __forceinline__ double nan_of(double) { return __longlong_as_double(0x7ff8000000000000ll); }

// IEEE 754-2019 minimum: the comparison gives its second operand where either is NaN or both are zero, so it is made
// both ways: OR keeps a NaN, and the sign of a zero.
template <class F> __device__ __forceinline__ F least(F a, F b) {
    F forth = a < b ? a : b;
    F back = b < a ? b : a;
    return of_bits(to_bits(forth) | to_bits(back));
}
// IEEE 754-2019 maximum: AND clears the sign of a zero but may lose a NaN.
template <class F> __device__ __forceinline__ F greatest(F a, F b) {
    F forth = a > b ? a : b;
    F back = b > a ? b : a;
    F greatest = of_bits(to_bits(forth) & to_bits(back));
    return (a != a) | (b != b) ? nan_of(a) : greatest;
}

struct Sum {
    template <class T> static __device__ __forceinline__ T apply(T a, T b) {
        typedef typename Wrapping<T>::Type W;
        return (T)((W)a + (W)b);
    }
    static __device__ __forceinline__ float apply(float a, float b) { return a + b; }
    static __device__ __forceinline__ double apply(double a, double b) { return a + b; }
};
struct Prod {
    template <class T> static __device__ __forceinline__ T apply(T a, T b) {
        typedef typename Wrapping<T>::Type W;
        return (T)((W)a * (W)b);
    }
    static __device__ __forceinline__ float apply(float a, float b) { return a * b; }
    static __device__ __forceinline__ double apply(double a, double b) { return a * b; }
};
struct Min {
    template <class T> static __device__ __forceinline__ T apply(T a, T b) { return a < b ? a : b; }
    static __device__ __forceinline__ float apply(float a, float b) { return least(a, b); }
    static __device__ __forceinline__ double apply(double a, double b) { return least(a, b); }
};
struct Max {
    template <class T> static __device__ __forceinline__ T apply(T a, T b) { return a > b ? a : b; }
    static __device__ __forceinline__ float apply(float a, float b) { return greatest(a, b); }
    static __device__ __forceinline__ double apply(double a, double b) { return greatest(a, b); }
};

struct And {
    static __device__ __forceinline__ u8 apply(u8 a, u8 b) { return a & b; }
};
struct Or {
    static __device__ __forceinline__ u8 apply(u8 a, u8 b) { return a | b; }
};
struct Xor {
    static __device__ __forceinline__ u8 apply(u8 a, u8 b) { return a ^ b; }
};

// Two numbers, or the bits of two: the real part, then the imaginary part.
template <class T> struct Pair {
    T re, im;
};
// (a + bi)(c + di) = (ac - bd) + (ad + bc)i. Complex numbers are only multiplied as such: they are added part by part.
struct ComplexProd {
    template <class F> static __device__ __forceinline__ Pair<F> apply(Pair<F> x, Pair<F> y) {
        return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
    }
};

// An element type: its bytes (Bits), the number that it is reduced as (Wide), and the ways between them. narrow
// rounds to nearest even, once, and gives every NaN as the type's canonical one (positive, quiet, no payload).
// divide takes the widened number; n is not 0.

struct F16 {
    typedef u16 Bits;
    typedef float Wide;
    // Exact: every binary16 is a binary32.
    static __device__ __forceinline__ float widen(u16 half) {
#ifdef __CUDA_ARCH__
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
        return wide;
#else
        u32 magnitude = half & 0x7fffu;
        // Exponent and significand moved into place; the product corrects the bias by 2^112, of subnormals too.
        u32 finite = to_bits(of_bits(magnitude << 13) * of_bits((127u + 127 - 15) << 23));
        u32 bits = magnitude >= 0x7c00 ? 0x7f800000u | magnitude << 13 : finite;
        return of_bits(bits | (half & 0x8000u) << 16);
#endif
    }
    static __device__ __forceinline__ u16 narrow(float x) {
        u16 result;
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
#else
        u32 bits = to_bits(x), magnitude = bits & 0x7fffffffu;
        // 0.5 has its last bit at 2^-24, as the f16 subnormals have: the addition rounds just as they need.
        u32 subnormal = to_bits(of_bits(magnitude) + 0.5f) - to_bits(0.5f);
        // Half of the last bit that stays, less one unless that bit is odd; a carry runs on into the exponent.
        u32 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127u - 15) << 23)) >> 13;
        u32 finite = magnitude < (127u - 14) << 23 ? subnormal : normal;
        result = (u16)((magnitude >= (127u + 16) << 23 ? 0x7c00 : finite) | (bits >> 16 & 0x8000));
#endif
        return x != x ? (u16)0x7e00 : result;
    }
    static __device__ __forceinline__ float divide(float x, u32 n) { return x / (float)n; }
};

struct Bf16 {
    typedef u16 Bits;
    typedef float Wide;
    static __device__ __forceinline__ float widen(u16 upper) { return of_bits((u32)upper << 16); }
    static __device__ __forceinline__ u16 narrow(float x) {
        u32 bits = to_bits(x);
        u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        return x != x ? (u16)0x7fc0 : (u16)rounded;
    }
    static __device__ __forceinline__ float divide(float x, u32 n) { return x / (float)n; }
};

struct F32 {
    typedef u32 Bits;
    typedef float Wide;
    static __device__ __forceinline__ float widen(u32 bits) { return of_bits(bits); }
    static __device__ __forceinline__ u32 narrow(float x) { return x != x ? 0x7fc00000u : to_bits(x); }
    static __device__ __forceinline__ float divide(float x, u32 n) { return x / (float)n; }
};

struct F64 {
    typedef u64 Bits;
    typedef double Wide;
    static __device__ __forceinline__ double widen(u64 bits) { return of_bits(bits); }
    static __device__ __forceinline__ u64 narrow(double x) { return x != x ? 0x7ff8000000000000ull : to_bits(x); }
    static __device__ __forceinline__ double divide(double x, u32 n) { return x / (double)n; }
};

// The 8-bit floats of OFP8, without saturation, as float8.rs has them: FRACTION bits of fraction, a BIAS of the exponent.
// From END on there is no number: the magnitude that overflows become, an infinity or NAN_BITS. Devices that convert by themselves
// saturate.
template <u32 FRACTION, u32 BIAS, u32 END, u32 NAN_BITS> struct Float8 {
    typedef u8 Bits;
    typedef float Wide;
    static __device__ __forceinline__ float widen(u8 bits) {
        u32 magnitude = bits & 0x7fu;
        // The last bit of the subnormals is 2^(1 - BIAS - FRACTION).
        u32 subnormal = to_bits((float)(i32)magnitude * of_bits((128u - BIAS - FRACTION) << 23));
        u32 normal = (magnitude << (23 - FRACTION)) + ((127u - BIAS) << 23);
        u32 finite = magnitude >> FRACTION == 0 ? subnormal : normal;
        u32 special = END == NAN_BITS ? 0x7fc00000u : 0x7f800000u | magnitude << (23 - FRACTION);
        return of_bits((magnitude >= END ? special : finite) | (bits & 0x80u) << 24);
    }
    static __device__ __forceinline__ u8 narrow(float x) {
        const u32 CUT = 23 - FRACTION;
        u32 bits = to_bits(x), magnitude = bits & 0x7fffffffu;
        // A number whose last bit is that of the subnormals: the addition rounds just as they need.
        float magic = of_bits((128u - BIAS - FRACTION + 23) << 23);
        u32 subnormal = to_bits(of_bits(magnitude) + magic) - to_bits(magic);
        u32 normal = (magnitude + ((1u << (CUT - 1)) - 1) + (magnitude >> CUT & 1) - ((127u - BIAS) << 23)) >> CUT;
        u32 finite = magnitude < (128u - BIAS) << 23 ? subnormal : normal;
        u32 result = (finite < END ? finite : END) | (bits >> 24 & 0x80u);
        return x != x || (END == NAN_BITS && finite >= END) ? (u8)NAN_BITS : (u8)result;
    }
    static __device__ __forceinline__ float divide(float x, u32 n) { return x / (float)n; }
};
typedef Float8<3, 7, 0x7f, 0x7f> F8E4M3;
typedef Float8<2, 15, 0x7c, 0x7e> F8E5M2;

// A complex number of two E: only folded, never divided.
template <class E> struct Complex {
    typedef Pair<typename E::Bits> Bits;
    typedef Pair<typename E::Wide> Wide;
    static __device__ __forceinline__ Wide widen(Bits bits) { return {E::widen(bits.re), E::widen(bits.im)}; }
    static __device__ __forceinline__ Bits narrow(Wide wide) { return {E::narrow(wide.re), E::narrow(wide.im)}; }
};
typedef Complex<F32> Complex64;
typedef Complex<F64> Complex128;

// A truth value: any byte but 0 is true, and 1 is what is written.
struct Bool {
    typedef u8 Bits;
    typedef u8 Wide;
    static __device__ __forceinline__ u8 widen(u8 bits) { return bits != 0; }
    static __device__ __forceinline__ u8 narrow(u8 wide) { return wide; }
};

// An integer divides in Q: exactly there in float up to 16 bits and in double up to 32 (kernel/number.rs says why).
template <class T, class Q, class N> struct Integer {
    typedef T Bits;
    typedef T Wide;
    static __device__ __forceinline__ T widen(T bits) { return bits; }
    static __device__ __forceinline__ T narrow(T wide) { return wide; }
    static __device__ __forceinline__ T divide(T x, u32 n) { return (T)(N)((Q)x / (Q)n); }
};
typedef Integer<i8, float, i32> I8;
typedef Integer<i16, float, i32> I16;
typedef Integer<i32, double, i32> I32;
typedef Integer<i64, i64, i64> I64;
typedef Integer<u8, float, u32> U8;
typedef Integer<u16, float, u32> U16;
typedef Integer<u32, double, u32> U32;
typedef Integer<u64, u64, u64> U64;

// Every type of real numbers, by the name that kernels carry.
#define FOR_EACH_NUMBER(DO, more)                                                                                      \
    DO(f16, F16, more)                                                                                                 \
    DO(bf16, Bf16, more)                                                                                               \
    DO(f32, F32, more)                                                                                                 \
    DO(f64, F64, more)                                                                                                 \
    DO(i8, I8, more)                                                                                                   \
    DO(i16, I16, more)                                                                                                 \
    DO(i32, I32, more)                                                                                                 \
    DO(i64, I64, more)                                                                                                 \
    DO(u8, U8, more)                                                                                                   \
    DO(u16, U16, more)                                                                                                 \
    DO(u32, U32, more)                                                                                                 \
    DO(u64, U64, more)                                                                                                 \
    DO(f8e4m3, F8E4M3, more)                                                                                           \
    DO(f8e5m2, F8E5M2, more)

// 16 bytes, what one thread reads or writes at once, as elements of E.
template <class E> struct Vector {
    typedef typename E::Bits Bits;
    static const int LANES = 16 / sizeof(Bits);
    union {
        uint4 whole;
        Bits lane[LANES];
    };
};
template <class E> __device__ __forceinline__ Vector<E> load_vector(const void *base, u64 index) {
    Vector<E> v;
    v.whole = ((const uint4 *)base)[index];
    return v;
}

// This thread's number in the whole grid, and how many there are.
__device__ __forceinline__ u64 thread_of_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 threads_of_grid() { return (u64)gridDim.x * blockDim.x; }

// Bytes by which an address is beyond a multiple of 16.
__device__ __forceinline__ u32 beyond_16(const void *p) { return (u32)((u64)p & 15); }
