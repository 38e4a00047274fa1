// CUDA C for a plain C++ compiler: enough of the language to run our kernels on the host, slowly, bit for bit.
//
// Use: put this header before the source of the kernels and build a shared library from the whole,
//
//     g++ -std=c++17 -O2 -ffp-contract=off -fno-strict-aliasing -fPIC -shared -include shim.h -x c++ kernels.cu
//
// A kernel `name` that its source marks with SHIM_KERNEL(name) is then run, a whole grid at a time, by
//
//     extern "C" void shim_launch_name(const unsigned grid[3], const unsigned block[3], void **params);
//
// where params[i] points to parameter i, as in cuLaunchKernel. Blocks run one after the other on the calling thread. So do a block's threads, in the order of their number;
// at __syncthreads() a thread is set aside (on a stack of its own) until all the others have come there or ended.
//
// There are no warps (no shuffles, votes or warp barriers), no dynamic shared memory, no textures.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

namespace shim {

template <class To, class From>
static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "only between types of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// One block: its threads, and those of them that wait at a barrier.
struct Block {
    static constexpr size_t STACK = 256 << 10;

    struct Fiber {
        ucontext_t context;
        void *stack;
    };

    void (*body)(void *);
    void *argument;
    unsigned next, threads;         // the next thread to start; how many there are
    std::vector<Fiber *> waiting;   // at the barrier, in the order of their coming
    std::vector<Fiber *> idle;      // have ended; their stacks can be used again
    Fiber *running;
    ucontext_t scheduler;

    static Block *&current() {
        static thread_local Block *block;
        return block;
    }

    static void set_index(unsigned i) {
        threadIdx.x = i % blockDim.x;
        threadIdx.y = i / blockDim.x % blockDim.y;
        threadIdx.z = i / blockDim.x / blockDim.y;
    }

    // The body of a fiber: one thread after the other, until one waits at a barrier.
    static void work() {
        Block *block = current();
        Fiber *self = block->running;
        while (block->next < block->threads) {
            set_index(block->next++);
            block->body(block->argument);
        }
        block->idle.push_back(self);
        setcontext(&block->scheduler);
    }

    static void barrier() {
        Block *block = current();
        Fiber *self = block->running;
        uint3 index = threadIdx;
        block->waiting.push_back(self);
        swapcontext(&self->context, &block->scheduler);
        threadIdx = index;
    }

    void resume(Fiber *fiber) {
        running = fiber;
        swapcontext(&scheduler, &fiber->context);
    }

    Fiber *fiber() {
        Fiber *fiber;
        if (idle.empty()) {
            fiber = new Fiber;
            fiber->stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fiber->stack == MAP_FAILED) {
                perror("no memory for the stack of a simulated thread");
                abort();
            }
        } else {
            fiber = idle.back();
            idle.pop_back();
        }
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK;
        fiber->context.uc_link = nullptr;
        makecontext(&fiber->context, work, 0);
        return fiber;
    }

    void run() {
        current() = this;
        next = 0;
        while (next < threads) {
            resume(fiber());
        }
        // All threads have ended or wait: the barrier opens, and again each time they meet.
        while (!waiting.empty()) {
            std::vector<Fiber *> released;
            released.swap(waiting);
            for (Fiber *fiber : released) {
                resume(fiber);
            }
        }
        current() = nullptr;
    }

    ~Block() {
        for (Fiber *fiber : idle) {
            munmap(fiber->stack, STACK);
            delete fiber;
        }
    }
};

template <class... P, size_t... I>
static void call(void (*kernel)(P...), void **params, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<P> *>(params[I])...);
}

template <class... P>
static void launch(void (*kernel)(P...), const unsigned grid[3], const unsigned block[3], void **params) {
    std::pair<void (*)(P...), void **> job(kernel, params);
    Block threads;
    threads.body = [](void *argument) {
        auto *job = static_cast<std::pair<void (*)(P...), void **> *>(argument);
        call(job->first, job->second, std::index_sequence_for<P...>());
    };
    threads.argument = &job;
    threads.threads = block[0] * block[1] * block[2];
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; z++) {
        for (unsigned y = 0; y < grid[1]; y++) {
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                threads.run();
            }
        }
    }
}

} // namespace shim

#define SHIM_KERNEL(name)                                                                                              \
    extern "C" void shim_launch_##name(const unsigned grid[3], const unsigned block[3], void **params) {               \
        shim::launch(name, grid, block, params);                                                                       \
    }

static inline void __syncthreads() { shim::Block::barrier(); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline unsigned __float_as_uint(float x) { return shim::bits<unsigned>(x); }
static inline int __float_as_int(float x) { return shim::bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return shim::bits<float>(x); }
static inline float __int_as_float(int x) { return shim::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return shim::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return shim::bits<double>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

template <class T>
static inline T __ldg(const T *p) {
    return *p;
}

template <class T>
static inline T atomicXor(T *p, T value) {
    return __atomic_fetch_xor(p, value, __ATOMIC_RELAXED);
}
template <class T>
static inline T atomicOr(T *p, T value) {
    return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}
template <class T, std::enable_if_t<std::is_integral<T>::value, int> = 0>
static inline T atomicAdd(T *p, T value) {
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T>
static inline T atomicExch(T *p, T value) {
    return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
}
template <class T>
static inline T atomicCAS(T *p, T expected, T value) {
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline float atomicAdd(float *p, float value) {
    unsigned *word = reinterpret_cast<unsigned *>(p), seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &seen, __float_as_uint(__uint_as_float(seen) + value), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return __uint_as_float(seen);
}
