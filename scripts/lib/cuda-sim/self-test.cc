// Tests of the simulated driver's promises, through the driver API's own symbols.
//
//     self-test CASE        runs one case and ends with 0 where it holds
//     self-test --list      the cases, each with the CUDA_SIM it wants
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

typedef unsigned long long Address;
struct Handle {
    char bytes[64];
};

extern "C" {
int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDeviceGetAttribute(int *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuDevicePrimaryCtxGetState(int, unsigned *, int *);
int cuCtxSetCurrent(void *);
int cuCtxPushCurrent_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuCtxGetCurrent(void **);
int cuCtxCreate_v4(void **, void *, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxSynchronize();
int cuMemAlloc_v2(Address *, size_t);
int cuMemFree_v2(Address);
int cuMemAllocAsync(Address *, size_t, void *);
int cuMemFreeAsync(Address, void *);
int cuMemAllocManaged(Address *, size_t, unsigned);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(Address *, void *, unsigned);
int cuMemcpyAsync(Address, Address, size_t, void *);
int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, Address, size_t, void *);
int cuMemcpyDtoDAsync_v2(Address, Address, size_t, void *);
int cuMemcpyHtoD_v2(Address, const void *, size_t);
int cuMemcpyDtoH_v2(void *, Address, size_t);
int cuMemsetD8Async(Address, unsigned char, size_t, void *);
int cuMemsetD32Async(Address, unsigned, size_t, void *);
int cuMemGetAddressRange_v2(Address *, size_t *, Address);
int cuMemGetHandleForAddressRange(void *, Address, size_t, int, unsigned long long);
int cuPointerGetAttribute(void *, int, Address);
int cuPointerGetAttributes(unsigned, int *, void **, Address);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamQuery(void *);
int cuStreamSynchronize(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamGetCtx(void *, void **);
int cuStreamIsCapturing(void *, int *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuThreadExchangeStreamCaptureMode(int *);
int cuStreamWriteValue32_v2(void *, Address, uint32_t, unsigned);
int cuStreamWaitValue32_v2(void *, Address, uint32_t, unsigned);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventSynchronize(void *);
int cuEventDestroy_v2(void *);
int cuEventElapsedTime_v2(float *, void *, void *);
int cuIpcGetMemHandle(Handle *, Address);
int cuIpcOpenMemHandle_v2(Address *, Handle, unsigned);
int cuIpcCloseMemHandle(Address);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuModuleGetGlobal_v2(Address *, size_t *, void *, const char *);
int cuModuleUnload(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuGetErrorName(int, const char **);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);
int nvrtcCreateProgram(void **, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(void *, int, const char *const *);
int nvrtcGetProgramLogSize(void *, size_t *);
int nvrtcGetProgramLog(void *, char *);
int nvrtcGetCUBINSize(void *, size_t *);
int nvrtcGetCUBIN(void *, char *);
int nvrtcGetPTXSize(void *, size_t *);
int nvrtcGetPTX(void *, char *);
int nvrtcDestroyProgram(void **);
}

static const char *error_name(int code) {
    const char *name = nullptr;
    cuGetErrorName(code, &name);
    return name ? name : "?";
}

[[noreturn]] static void fail(int line, const std::string &what) {
    fprintf(stderr, "self-test.cc:%d: %s\n", line, what.c_str());
    _exit(1);
}

#define EXPECT(code, call)                                                                                                               \
    do {                                                                                                                                 \
        int got_ = (call);                                                                                                               \
        if (got_ != (code)) fail(__LINE__, std::string(#call) + ": " + error_name(got_) + " (" + std::to_string(got_) + "), expected " #code); \
    } while (0)
#define OK(call) EXPECT(0, call)
#define TRUE(condition) \
    do {                \
        if (!(condition)) fail(__LINE__, "not so: " #condition); \
    } while (0)

static void *context;

static void begin(int device = 0) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

static std::vector<unsigned char> random_bytes(size_t count, unsigned seed) {
    std::vector<unsigned char> bytes(count);
    for (auto &byte : bytes) byte = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
    return bytes;
}

static void *stream(unsigned flags = 1) {
    void *made = nullptr;
    OK(cuStreamCreate(&made, flags));
    return made;
}

static void *event(unsigned flags = 2) {
    void *made = nullptr;
    OK(cuEventCreate(&made, flags));
    return made;
}

static Address device_memory(size_t bytes) {
    Address address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    return address;
}

static unsigned *pinned_words(size_t count) {
    void *words = nullptr;
    OK(cuMemHostAlloc(&words, count * 4, 3));
    memset(words, 0, count * 4);
    return static_cast<unsigned *>(words);
}

// Holds a stream until the word is set, so that the order of operations shows without a clock.
struct Gate {
    unsigned *word = pinned_words(1);
    void close(void *stream) {
        *word = 0;
        OK(cuStreamWaitValue32_v2(stream, Address(word), 1, 0));
    }
    void open() { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }
};

static void copies() {
    begin();
    void *own = stream();
    for (size_t bytes : {size_t{1}, size_t{13}, size_t{4099}, size_t{1} << 20}) {
        Address to = device_memory(bytes + 7), other = device_memory(bytes + 7);
        auto sent = random_bytes(bytes, unsigned(bytes));
        auto *staging = reinterpret_cast<unsigned char *>(pinned_words(bytes / 4 + 2));
        memcpy(staging + 1, sent.data(), bytes);
        OK(cuMemcpyHtoDAsync_v2(to + 3, staging + 1, bytes, own));
        OK(cuMemcpyDtoDAsync_v2(other + 5, to + 3, bytes, own));
        std::vector<unsigned char> back(bytes);
        OK(cuMemcpyDtoHAsync_v2(back.data(), other + 5, bytes, own));
        TRUE(back == sent);
        OK(cuMemFree_v2(to));
        EXPECT(1, cuMemFree_v2(to));
        EXPECT(1, cuMemcpyHtoDAsync_v2(to + 3, staging, bytes, own));
        EXPECT(1, cuMemcpyHtoDAsync_v2(other, staging, bytes + 8, own));
    }
    size_t free = 0, total = 0;
    OK(cuMemGetInfo_v2(&free, &total));
    EXPECT(2, cuMemAlloc_v2(new Address, total + 1));
}

static void in_order() {
    begin();
    void *own = stream();
    Gate gate;
    Address word = device_memory(4);
    unsigned *seen = pinned_words(1), *sent = pinned_words(1);
    gate.close(own);
    *sent = 1;
    OK(cuMemcpyAsync(word, Address(sent), 4, own));
    OK(cuMemcpyAsync(Address(seen), word, 4, own));
    EXPECT(600, cuStreamQuery(own));
    // Pinned memory is read when the stream gets there; pageable memory was read at the call.
    unsigned pageable = 7;
    Address second = device_memory(4);
    OK(cuMemcpyHtoDAsync_v2(second, &pageable, 4, own));
    pageable = 8;
    *sent = 2;
    gate.open();
    OK(cuStreamSynchronize(own));
    TRUE(*seen == 2);
    OK(cuMemcpyDtoH_v2(&pageable, second, 4));
    TRUE(pageable == 7);
}

// A destroyed stream still does its work, and freeing memory waits for it.
static void destroyed_streams() {
    begin();
    void *own = stream();
    Gate gate;
    size_t bytes = size_t{1} << 20;
    Address memory = device_memory(bytes);
    unsigned *words = pinned_words(bytes / 4);
    gate.close(own);
    OK(cuMemsetD8Async(memory, 7, bytes, own));
    OK(cuMemcpyDtoHAsync_v2(words, memory, bytes, own));
    OK(cuStreamDestroy_v2(own));
    EXPECT(400, cuStreamQuery(own));
    std::thread opens([&] {
        usleep(20000);
        TRUE(words[0] == 0);
        gate.open();
    });
    OK(cuMemFree_v2(memory));
    TRUE(words[0] == 0x07070707 && words[bytes / 4 - 1] == 0x07070707);
    opens.join();
    OK(cuMemFreeHost(words));
}

static void events() {
    begin();
    void *first = stream(), *second = stream(), *done = event(), *never = event();
    Gate gate;
    OK(cuEventQuery(done));
    OK(cuStreamWaitEvent(second, never, 0));
    OK(cuStreamSynchronize(second));
    Address word = device_memory(4);
    unsigned *seen = pinned_words(1);
    gate.close(first);
    OK(cuMemsetD32Async(word, 42, 1, first));
    OK(cuEventRecord(done, first));
    EXPECT(600, cuEventQuery(done));
    OK(cuStreamWaitEvent(second, done, 0));
    OK(cuMemcpyDtoHAsync_v2(seen, word, 4, second));
    EXPECT(600, cuStreamQuery(second));
    TRUE(*seen == 0);
    gate.open();
    OK(cuEventSynchronize(done));
    OK(cuStreamSynchronize(second));
    TRUE(*seen == 42);
    // A wait refers to the record at the time of the call, not to a later one.
    gate.close(first);
    OK(cuStreamWaitEvent(second, done, 0));
    OK(cuEventRecord(done, first));
    OK(cuStreamSynchronize(second));
    EXPECT(600, cuEventQuery(done));
    gate.open();
    OK(cuStreamSynchronize(first));
    OK(cuEventDestroy_v2(done));
    EXPECT(400, cuEventQuery(done));
    void *start = event(0), *end = event(0);
    OK(cuEventRecord(start, first));
    OK(cuEventRecord(end, first));
    OK(cuEventSynchronize(end));
    float milliseconds = -1;
    OK(cuEventElapsedTime_v2(&milliseconds, start, end));
    TRUE(milliseconds >= 0);
}

// With a delay before each operation, an event recorded behind many is not ready at once.
static void delays() {
    begin();
    void *own = stream(), *done = event();
    Address word = device_memory(4);
    for (unsigned i = 0; i < 64; i++) OK(cuMemsetD32Async(word, i, 1, own));
    OK(cuEventRecord(done, own));
    EXPECT(600, cuEventQuery(done));
    OK(cuEventSynchronize(done));
    unsigned last = 0;
    OK(cuMemcpyDtoH_v2(&last, word, 4));
    TRUE(last == 63);
}

static void values() {
    begin();
    void *first = stream(), *second = stream(), *third = stream();
    Address flag = device_memory(8);
    unsigned *seen = pinned_words(1);
    OK(cuMemsetD32Async(flag, 0, 2, first));
    OK(cuStreamSynchronize(first));
    OK(cuStreamWaitValue32_v2(first, flag, 5, 0));
    OK(cuMemsetD32Async(Address(seen), 1, 1, first));
    OK(cuStreamWriteValue32_v2(second, flag, 4, 0));
    OK(cuStreamSynchronize(second));
    // A stream that waits holds up no other.
    OK(cuMemsetD32Async(flag + 4, 9, 1, third));
    OK(cuStreamSynchronize(third));
    EXPECT(600, cuStreamQuery(first));
    TRUE(*seen == 0);
    OK(cuStreamWriteValue32_v2(second, flag, 6, 0));
    OK(cuStreamSynchronize(first));
    TRUE(*seen == 1);
    // The comparison "greater or equal" is cyclic.
    OK(cuStreamWriteValue32_v2(second, flag, 2, 0));
    OK(cuStreamSynchronize(second));
    OK(cuStreamWaitValue32_v2(first, flag, 0xfffffffe, 0));
    OK(cuStreamSynchronize(first));
    unsigned pageable = 0;
    EXPECT(1, cuStreamWriteValue32_v2(first, Address(&pageable), 1, 0));
    EXPECT(1, cuStreamWriteValue32_v2(first, flag + 2, 1, 0));
}

static void default_streams() {
    begin();
    void *blocking = stream(0), *free_running = stream(1);
    Gate gate;
    unsigned *seen = pinned_words(3);
    gate.close(blocking);
    OK(cuMemsetD32Async(Address(seen), 1, 1, nullptr));
    OK(cuMemsetD32Async(Address(seen + 1), 1, 1, reinterpret_cast<void *>(2)));
    OK(cuMemsetD32Async(Address(seen + 2), 1, 1, free_running));
    OK(cuStreamSynchronize(free_running));
    TRUE(seen[2] == 1 && seen[0] == 0 && seen[1] == 0);
    EXPECT(600, cuStreamQuery(reinterpret_cast<void *>(1)));
    EXPECT(600, cuStreamQuery(reinterpret_cast<void *>(2)));
    gate.open();
    OK(cuStreamSynchronize(reinterpret_cast<void *>(2)));
    TRUE(seen[0] == 1 && seen[1] == 1);
    // The other way round: the legacy stream holds up a blocking stream.
    gate.close(nullptr);
    OK(cuMemsetD32Async(Address(seen), 2, 1, blocking));
    EXPECT(600, cuStreamQuery(blocking));
    TRUE(seen[0] == 1);
    gate.open();
    OK(cuCtxSynchronize());
    TRUE(seen[0] == 2);
}

static void contexts() {
    OK(cuInit(0));
    EXPECT(201, cuMemAlloc_v2(new Address, 4));
    begin();
    void *other = nullptr, *seen = nullptr;
    OK(cuCtxCreate_v4(&other, nullptr, 0, 0));
    OK(cuCtxGetCurrent(&seen));
    TRUE(seen == other);
    void *foreign = stream();
    OK(cuCtxPopCurrent_v2(&seen));
    OK(cuStreamGetCtx(foreign, &seen));
    TRUE(seen == other);
    EXPECT(400, cuEventRecord(event(), foreign));
    OK(cuCtxDestroy_v2(other));
    EXPECT(400, cuStreamQuery(foreign));
    EXPECT(201, cuCtxPushCurrent_v2(other));
    unsigned flags = 0;
    int active = 0;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    TRUE(active == 1);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    TRUE(active == 0);
    EXPECT(709, cuCtxSynchronize());
    // A forked child has no driver.
    pid_t child = fork();
    if (child == 0) _exit(cuInit(0));
    int status = 0;
    waitpid(child, &status, 0);
    TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

// A context that another thread retains while it is being released stays, and so does its memory.
static void retained_meanwhile() {
    begin();
    void *own = stream();
    Gate gate;
    gate.close(own);
    std::thread retains([&] {
        // The release below waits for the stream by now, or has yet to begin: the outcome is the same.
        usleep(20000);
        void *again = nullptr;
        OK(cuDevicePrimaryCtxRetain(&again, 0));
        OK(cuCtxSetCurrent(again));
        Address memory = device_memory(64), base = 0;
        gate.open();
        OK(cuStreamSynchronize(own));
        usleep(20000);
        OK(cuMemGetAddressRange_v2(&base, nullptr, memory));
        TRUE(base == memory && again == context);
    });
    OK(cuDevicePrimaryCtxRelease_v2(0));
    retains.join();
    unsigned flags = 0;
    int active = 0;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    TRUE(active == 1);
}

static void pointers() {
    begin();
    Address memory = device_memory(1000), base = 0, managed = 0, pooled = 0;
    size_t bytes = 0;
    OK(cuMemGetAddressRange_v2(&base, &bytes, memory + 999));
    TRUE(base == memory && bytes == 1000);
    EXPECT(500, cuMemGetAddressRange_v2(&base, &bytes, memory + 1000));
    OK(cuMemAllocManaged(&managed, 100, 1));
    *reinterpret_cast<int *>(managed) = 1;
    OK(cuMemAllocAsync(&pooled, 100, nullptr));
    void *own = pinned_words(8);
    unsigned type = 0, is_managed = 0, ipc = 0;
    int ordinal = 0;
    void *of = nullptr;
    int numbers[] = {2, 8, 9, 10, 1};
    void *data[] = {&type, &is_managed, &ordinal, &ipc, &of};
    OK(cuPointerGetAttributes(5, numbers, data, memory));
    TRUE(type == 2 && is_managed == 0 && ordinal == 0 && ipc == 1 && of == context);
    OK(cuPointerGetAttributes(5, numbers, data, managed));
    TRUE(is_managed == 1);
    OK(cuPointerGetAttributes(5, numbers, data, pooled));
    TRUE(type == 2 && ipc == 0);
    EXPECT(1, cuIpcGetMemHandle(new Handle, pooled));
    OK(cuPointerGetAttributes(5, numbers, data, Address(own)));
    TRUE(type == 1);
    int plain = 0;
    OK(cuPointerGetAttributes(5, numbers, data, Address(&plain)));
    TRUE(type == 0 && ordinal == -2);
    EXPECT(1, cuPointerGetAttribute(&type, 2, Address(&plain)));
    OK(cuMemFreeAsync(pooled, nullptr));
    OK(cuCtxSynchronize());
    EXPECT(1, cuPointerGetAttribute(&type, 2, pooled));
    OK(cuMemFree_v2(managed));
}

static void registration() {
    begin();
    size_t bytes = 3 * 4096;
    auto *memory = static_cast<unsigned char *>(aligned_alloc(4096, bytes));
    OK(cuMemHostRegister_v2(memory, bytes, 3));
    EXPECT(712, cuMemHostRegister_v2(memory + 4096, 4096, 0));
    Address mapped = 0;
    OK(cuMemHostGetDevicePointer_v2(&mapped, memory + 5, 0));
    unsigned type = 0;
    OK(cuPointerGetAttribute(&type, 2, mapped));
    TRUE(type == 1);
    void *own = stream();
    OK(cuMemsetD8Async(mapped, 3, 100, own));
    OK(cuStreamSynchronize(own));
    TRUE(memory[5] == 3 && memory[104] == 3);
    OK(cuMemHostUnregister(memory));
    EXPECT(713, cuMemHostUnregister(memory));
    EXPECT(1, cuMemHostGetDevicePointer_v2(&mapped, memory, 0));
    void *gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, 4096);
    EXPECT(1, cuMemHostRegister_v2(gone, 4096, 0));
}

static sigjmp_buf caught;
static void on_fault(int) { siglongjmp(caught, 1); }

static void hidden_from_the_host() {
    begin();
    Address memory = device_memory(4096);
    struct sigaction action {};
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, nullptr);
    bool faulted = sigsetjmp(caught, 1) != 0;
    if (!faulted) *reinterpret_cast<volatile int *>(memory) = 1;
    TRUE(faulted);
}

static void host_functions() {
    begin();
    void *own = stream();
    Gate gate;
    std::atomic<int> calls{0};
    gate.close(own);
    OK(cuLaunchHostFunc(own, [](void *at) { ++*static_cast<std::atomic<int> *>(at); }, &calls));
    TRUE(calls == 0);
    gate.open();
    OK(cuStreamSynchronize(own));
    TRUE(calls == 1);
}

static void capture() {
    begin();
    void *own = stream(), *side = stream(), *fork_event = event(), *join = event(), *graph = nullptr, *executable = nullptr;
    unsigned *words = pinned_words(2);
    int status = 0;
    // Recorded, not run; another stream joins through an event.
    OK(cuStreamBeginCapture_v2(own, 0));
    OK(cuStreamIsCapturing(own, &status));
    TRUE(status == 1);
    OK(cuMemsetD32Async(Address(words), 5, 1, own));
    OK(cuEventRecord(fork_event, own));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuMemsetD32Async(Address(words + 1), 6, 1, side));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(own, join, 0));
    // Another thread allocates meanwhile, relaxed.
    std::thread([] {
        OK(cuCtxSetCurrent(context));
        int mode = 2;
        OK(cuThreadExchangeStreamCaptureMode(&mode));
        TRUE(mode == 0);
        OK(cuMemFree_v2(device_memory(64)));
    }).join();
    OK(cuStreamEndCapture(own, &graph));
    TRUE(words[0] == 0 && words[1] == 0);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int turn = 0; turn < 2; turn++) {
        words[0] = words[1] = 0;
        OK(cuGraphLaunch(executable, own));
        OK(cuStreamSynchronize(own));
        TRUE(words[0] == 5 && words[1] == 6);
    }
    // The same without exchanging the mode spoils the capture.
    OK(cuStreamBeginCapture_v2(own, 0));
    std::thread([] {
        OK(cuCtxSetCurrent(context));
        EXPECT(900, cuMemAlloc_v2(new Address, 64));
    }).join();
    OK(cuStreamIsCapturing(own, &status));
    TRUE(status == 2);
    EXPECT(901, cuMemsetD32Async(Address(words), 5, 1, own));
    EXPECT(901, cuStreamEndCapture(own, &graph));
    TRUE(graph == nullptr);
    OK(cuStreamIsCapturing(own, &status));
    TRUE(status == 0);
    // Synchronising with a stream that captures spoils it, too.
    OK(cuStreamBeginCapture_v2(own, 2));
    EXPECT(900, cuStreamSynchronize(own));
    EXPECT(901, cuStreamEndCapture(own, &graph));
}

static void failures() {
    begin();
    Address first = 0;
    OK(cuMemAlloc_v2(&first, 4));
    EXPECT(2, cuMemAlloc_v2(new Address, 4));
    OK(cuMemAlloc_v2(new Address, 4));
    EXPECT(801, cuIpcGetMemHandle(new Handle, first));
    EXPECT(801, cuIpcGetMemHandle(new Handle, first));
}

static void lost() {
    begin();
    void *own = stream();
    Address memory = device_memory(4);
    OK(cuStreamWaitValue32_v2(own, memory, 0x7fffffff, 1));
    // The second query loses the device; all waits end.
    EXPECT(600, cuStreamQuery(own));
    std::thread waiting([&] {
        OK(cuCtxSetCurrent(context));
        EXPECT(46, cuStreamSynchronize(own));
    });
    usleep(20000);
    EXPECT(46, cuStreamQuery(own));
    waiting.join();
    EXPECT(46, cuMemAlloc_v2(&memory, 4));
}

static void failing_operation() {
    begin();
    void *own = stream();
    Address memory = device_memory(4);
    OK(cuMemsetD32Async(memory, 1, 1, own));
    OK(cuMemsetD32Async(memory, 2, 1, own));
    EXPECT(700, cuStreamSynchronize(own));
    EXPECT(700, cuMemAlloc_v2(&memory, 4));
}

// An operation that hangs blocks its own stream and those that wait for it, and no others; it has no effect.
static void hanging() {
    begin();
    void *first = stream(), *second = stream(), *last = stream(), *done = event();
    Address memory = device_memory(12);
    unsigned *seen = pinned_words(3);
    OK(cuMemsetD32Async(memory, 1, 1, first));
    OK(cuStreamSynchronize(first));
    // The second fill, by its call.
    OK(cuMemsetD32Async(memory, 2, 1, first));
    OK(cuMemsetD32Async(memory + 4, 2, 1, first));
    OK(cuEventRecord(done, first));
    OK(cuStreamWaitEvent(last, done, 0));
    OK(cuMemsetD32Async(memory + 8, 3, 1, second));
    OK(cuMemcpyDtoHAsync_v2(seen + 2, memory + 8, 4, second));
    OK(cuMemcpyDtoHAsync_v2(seen, memory, 4, second));
    OK(cuStreamSynchronize(second));
    TRUE(seen[0] == 1 && seen[2] == 3);
    EXPECT(600, cuStreamQuery(first));
    EXPECT(600, cuStreamQuery(last));
    EXPECT(600, cuEventQuery(done));
    // A call that enqueues nothing discards its hang, and passes it to no other.
    OK(cuStreamQuery(second));
    OK(cuMemsetD32Async(memory + 8, 4, 1, second));
    OK(cuStreamSynchronize(second));
    OK(cuStreamDestroy_v2(first));
    static std::atomic<bool> freed{false};
    std::thread([=] {
        OK(cuCtxSetCurrent(context));
        OK(cuMemFree_v2(memory));
        freed = true;
    }).detach();
    usleep(20000);
    TRUE(!freed);
    // Nor does the end of the process wait.
}

// The same by the number of the operation: later ones in its stream do not happen either.
static void hanging_operation() {
    begin();
    void *own = stream();
    Address memory = device_memory(4);
    unsigned *seen = pinned_words(1);
    OK(cuMemsetD32Async(memory, 1, 1, own));
    OK(cuStreamSynchronize(own));
    OK(cuMemsetD32Async(memory, 2, 1, own));
    OK(cuMemcpyDtoHAsync_v2(seen, memory, 4, own));
    usleep(20000);
    EXPECT(600, cuStreamQuery(own));
    TRUE(*seen == 0);
}

// A device that is lost ends operations that hang.
static void hanging_and_lost() {
    begin();
    void *own = stream();
    Address memory = device_memory(4);
    OK(cuMemsetD32Async(memory, 1, 1, own));
    std::thread waiting([&] {
        OK(cuCtxSetCurrent(context));
        EXPECT(46, cuStreamSynchronize(own));
    });
    usleep(20000);
    EXPECT(46, cuStreamQuery(own));
    waiting.join();
}

static void several_devices() {
    begin(1);
    int count = 0;
    OK(cuDeviceGetCount(&count));
    TRUE(count == 2);
    Address there = device_memory(100);
    begin(0);
    Address here = device_memory(100);
    OK(cuMemsetD8Async(there, 9, 100, nullptr));
    OK(cuMemcpyAsync(here, there, 100, nullptr));
    unsigned char back[100] = {};
    OK(cuMemcpyDtoH_v2(back, here, 100));
    TRUE(back[0] == 9 && back[99] == 9);
    EXPECT(101, cuDevicePrimaryCtxRetain(&context, 2));
}

static void dmabuf() {
    begin();
    Address memory = device_memory(3 * 4096);
    OK(cuMemsetD8Async(memory + 4096, 77, 4096, nullptr));
    OK(cuCtxSynchronize());
    int fd = -1;
    EXPECT(1, cuMemGetHandleForAddressRange(&fd, memory + 1, 4096, 1, 0));
    OK(cuMemGetHandleForAddressRange(&fd, memory + 4096, 8192, 1, 0));
    auto *seen = static_cast<unsigned char *>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, lseek(fd, 0, SEEK_CUR)));
    TRUE(seen != MAP_FAILED && seen[0] == 77 && seen[4095] == 77);
}

struct Shared {
    Handle memory;
    Address address;
};

static void send_all(int to, const void *from, size_t bytes) { TRUE(write(to, from, bytes) == ssize_t(bytes)); }

static void receive_all(int from, void *to, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t got = read(from, static_cast<char *>(to) + at, bytes - at);
        TRUE(got > 0);
        at += size_t(got);
    }
}

// The other process: opens the memory, finds the first one's data, waits for its flag, and answers.
static void ipc_peer(int link) {
    begin();
    Shared shared{};
    receive_all(link, &shared, sizeof shared);
    Address memory = 0, again = 0;
    OK(cuIpcOpenMemHandle_v2(&memory, shared.memory, 1));
    OK(cuIpcOpenMemHandle_v2(&again, shared.memory, 1));
    TRUE(memory == again && memory != shared.address);
    EXPECT(1, cuMemFree_v2(memory));
    void *own = stream();
    unsigned *seen = pinned_words(256);
    OK(cuMemcpyDtoHAsync_v2(seen, memory + 4096, 1024, own));
    OK(cuStreamSynchronize(own));
    TRUE(seen[0] == 11 && seen[255] == 11);
    // The wait is enqueued before the flag is written.
    OK(cuStreamWaitValue32_v2(own, memory, 1, 1));
    OK(cuMemcpyDtoHAsync_v2(seen, memory + 4096, 1024, own));
    OK(cuMemsetD32Async(memory + 8192, 33, 1, own));
    EXPECT(600, cuStreamQuery(own));
    send_all(link, "w", 1);
    OK(cuStreamSynchronize(own));
    send_all(link, "d", 1);
    TRUE(seen[0] == 22 && seen[255] == 22);
    OK(cuIpcCloseMemHandle(memory));
    OK(cuIpcCloseMemHandle(memory));
    EXPECT(1, cuIpcCloseMemHandle(memory));
    char end;
    receive_all(link, &end, 1);
}

static void ipc() {
    int link[2];
    TRUE(socketpair(AF_UNIX, SOCK_STREAM, 0, link) == 0);
    char number[16];
    snprintf(number, sizeof number, "%d", link[1]);
    pid_t child = fork();
    if (child == 0) {
        close(link[0]);
        execl("/proc/self/exe", "self-test", "ipc-peer", number, nullptr);
        _exit(127);
    }
    close(link[1]);
    begin();
    device_memory(100);
    Shared shared{};
    void *own = stream();
    shared.address = device_memory(3 * 4096);
    OK(cuMemsetD32Async(shared.address, 0, 1, own));
    OK(cuMemsetD32Async(shared.address + 4096, 11, 256, own));
    OK(cuStreamSynchronize(own));
    OK(cuIpcGetMemHandle(&shared.memory, shared.address));
    EXPECT(201, cuIpcOpenMemHandle_v2(new Address, shared.memory, 1));
    EXPECT(1, cuEventCreate(new void *, 4));
    send_all(link[0], &shared, sizeof shared);
    char waiting;
    receive_all(link[0], &waiting, 1);
    OK(cuMemsetD32Async(shared.address + 4096, 22, 256, own));
    OK(cuStreamWriteValue32_v2(own, shared.address, 1, 0));
    void *other = stream();
    unsigned *seen = pinned_words(1);
    receive_all(link[0], &waiting, 1);
    OK(cuMemcpyDtoHAsync_v2(seen, shared.address + 8192, 4, other));
    OK(cuStreamSynchronize(other));
    TRUE(*seen == 33);
    send_all(link[0], "e", 1);
    int status = 0;
    waitpid(child, &status, 0);
    TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // The exports of a process that has ended cannot be opened.
    Handle stale = shared.memory;
    memcpy(stale.bytes + 8, &child, sizeof child);
    EXPECT(205, cuIpcOpenMemHandle_v2(new Address, stale, 1));
}

static const char *const SOURCE = R"(
#include "scale.h"
__constant__ float offset = 0.5f;
struct Pair { float *to; const float *from; };
template <class T> __global__ void generic(T *p) { *p = T(); }
#define KERNEL(name, op) extern "C" __global__ void __launch_bounds__(256) name(Pair pair, float by, int count) { \
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) pair.to[i] = pair.from[i] op by * SCALE + offset; }
KERNEL(add, +)
KERNEL(multiply, *)
extern "C" __global__ void reverse(int *data) {
    __shared__ int copy[64];
    copy[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
)";

static std::vector<char> compile(const char *source, const char *architecture, int expected) {
    void *program = nullptr;
    const char *header = "#define SCALE 2.0f\n", *name = "scale.h";
    const char *options[] = {architecture, "-fmad=false", "--ftz=false", "-prec-div=true", "-std=c++17", "-DUNUSED=1"};
    OK(nvrtcCreateProgram(&program, source, "test.cu", 1, &header, &name));
    EXPECT(expected, nvrtcCompileProgram(program, 6, options));
    size_t bytes = 0;
    OK(nvrtcGetProgramLogSize(program, &bytes));
    std::vector<char> log(bytes), image;
    OK(nvrtcGetProgramLog(program, log.data()));
    if (expected == 0 && strstr(architecture, "compute_")) {
        OK(nvrtcGetCUBINSize(program, &bytes));
        TRUE(bytes == 0);
        OK(nvrtcGetPTXSize(program, &bytes));
        image.resize(bytes);
        OK(nvrtcGetPTX(program, image.data()));
        TRUE(image.back() == 0 && strlen(image.data()) == bytes - 1);
    } else if (expected == 0) {
        OK(nvrtcGetCUBINSize(program, &bytes));
        image.resize(bytes);
        OK(nvrtcGetCUBIN(program, image.data()));
    } else if (expected == 6) {
        TRUE(strstr(log.data(), "test.cu:2") != nullptr);
    }
    OK(nvrtcDestroyProgram(&program));
    return image;
}

static void kernels() {
    begin();
    compile("\nextern \"C\" __global__ void broken( {}", "--gpu-architecture=sm_90", 6);
    compile(SOURCE, "--gpu-architecture=mips", 5);
    compile(SOURCE, "--no-such-option", 5);
    std::vector<char> other = compile("extern \"C\" __global__ void add() {}", "-arch=sm_80", 0);
    void *module = nullptr, *add = nullptr, *multiply = nullptr, *reverse = nullptr;
    EXPECT(209, cuModuleLoadData(&module, other.data()));
    EXPECT(218, cuModuleLoadData(&module, "// PTX"));
    EXPECT(200, cuModuleLoadData(&module, "rubbish"));
    // PTX of an older architecture runs on a newer device.
    std::vector<char> older = compile("extern \"C\" __global__ void put(int *to) { *to = 3; }", "-arch=compute_80", 0);
    Address word = device_memory(4);
    void *put = nullptr, *to[] = {&word};
    int stored = 0;
    OK(cuModuleLoadData(&module, older.data()));
    OK(cuModuleGetFunction(&put, module, "put"));
    OK(cuLaunchKernel(put, 1, 1, 1, 1, 1, 1, 0, nullptr, to, nullptr));
    OK(cuMemcpyDtoH_v2(&stored, word, 4));
    TRUE(stored == 3);
    std::vector<char> image = compile(SOURCE, "--gpu-architecture=sm_90", 0);
    OK(cuModuleLoadData(&module, image.data()));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&multiply, module, "multiply"));
    OK(cuModuleGetFunction(&reverse, module, "reverse"));
    EXPECT(500, cuModuleGetFunction(new void *, module, "generic"));
    void *own = stream();
    Gate gate;
    int count = 1001;
    Address memory = device_memory(size_t(count) * 4);
    OK(cuMemsetD32Async(memory, 0x40400000, size_t(count), own));
    struct {
        Address to, from;
    } pair = {memory, memory};
    float by = 4;
    void *params[] = {&pair, &by, &count};
    gate.close(own);
    OK(cuLaunchKernel(add, 3, 1, 1, 64, 1, 1, 0, own, params, nullptr));
    // The arguments were copied at the call.
    by = 1;
    OK(cuLaunchKernel(multiply, 1, 1, 1, 32, 1, 1, 0, own, params, nullptr));
    pair = {0, 0};
    count = 1;
    gate.open();
    OK(cuStreamSynchronize(own));
    float seen[1001];
    OK(cuMemcpyDtoH_v2(seen, memory, sizeof seen));
    for (float value : seen) TRUE(value == (3 + 8 + 0.5f) * 2 + 0.5f);
    std::vector<int> numbers(64);
    for (int i = 0; i < 64; i++) numbers[size_t(i)] = i;
    OK(cuMemcpyHtoD_v2(memory, numbers.data(), 256));
    void *one[] = {&memory};
    OK(cuLaunchKernel(reverse, 1, 1, 1, 64, 1, 1, 0, own, one, nullptr));
    OK(cuStreamSynchronize(own));
    OK(cuMemcpyDtoH_v2(numbers.data(), memory, 256));
    for (int i = 0; i < 64; i++) TRUE(numbers[size_t(i)] == 63 - i);
    Address global = 0;
    size_t bytes = 0;
    OK(cuModuleGetGlobal_v2(&global, &bytes, module, "offset"));
    TRUE(bytes == 4);
    EXPECT(1, cuLaunchKernel(add, 0, 1, 1, 64, 1, 1, 0, own, params, nullptr));
    EXPECT(1, cuLaunchKernel(add, 1, 1, 1, 2048, 1, 1, 0, own, params, nullptr));
    OK(cuModuleUnload(module));
    EXPECT(400, cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, own, params, nullptr));
}

static void symbols() {
    begin();
    void *function = nullptr;
    int status = -1;
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 13000, 0, &status));
    TRUE(function == reinterpret_cast<void *>(&cuMemAlloc_v2) && status == 0);
    EXPECT(500, cuGetProcAddress_v2("cuNoSuchCall", &function, 13000, 0, &status));
    TRUE(function == nullptr && status == 1);
}

static void no_device() { EXPECT(100, cuInit(0)); }

static void prohibited() {
    OK(cuInit(0));
    int mode = 0;
    OK(cuDeviceGetAttribute(&mode, 20, 0));
    TRUE(mode == 2);
    EXPECT(46, cuDevicePrimaryCtxRetain(&context, 0));
}

struct Case {
    const char *name;
    void (*run)();
    const char *simulate;
};

static const Case CASES[] = {
    {"copies", copies, "memory_mb=64"},
    {"copies-delayed", copies, "memory_mb=64,delay_us=300,seed=7"},
    {"in-order", in_order, ""},
    {"destroyed-streams", destroyed_streams, ""},
    {"events", events, ""},
    {"events-delayed", events, "delay_us=300,seed=3"},
    {"delays", delays, "delay_us=1000,seed=5"},
    {"values", values, ""},
    {"default-streams", default_streams, ""},
    {"contexts", contexts, ""},
    {"retained-meanwhile", retained_meanwhile, ""},
    {"pointers", pointers, ""},
    {"registration", registration, ""},
    {"hidden-from-the-host", hidden_from_the_host, ""},
    {"host-functions", host_functions, ""},
    {"capture", capture, ""},
    {"failures", failures, "fail=cuMemAlloc:2:CUDA_ERROR_OUT_OF_MEMORY,fail=cuIpcGetMemHandle:*:801"},
    {"lost", lost, "fail=cuStreamQuery:2:lost"},
    {"failing-operation", failing_operation, "fail=operation:2:CUDA_ERROR_ILLEGAL_ADDRESS"},
    {"hanging", hanging, "hang=cuMemsetD32Async:2,hang=cuStreamQuery:*"},
    {"hanging-operation", hanging_operation, "hang=operation:2"},
    {"hanging-and-lost", hanging_and_lost, "hang=cuMemsetD32Async:*,fail=cuStreamQuery:1:lost"},
    {"several-devices", several_devices, "devices=2"},
    {"dmabuf", dmabuf, ""},
    {"ipc", ipc, ""},
    {"ipc-delayed", ipc, "delay_us=300,seed=9"},
    {"kernels", kernels, ""},
    {"symbols", symbols, ""},
    {"no-device", no_device, "devices=0"},
    {"prohibited", prohibited, "compute_mode=2"},
};

int main(int count, char **arguments) {
    std::string name = count > 1 ? arguments[1] : "";
    // A case that hangs has failed.
    alarm(60);
    if (name == "ipc-peer" && count > 2) {
        ipc_peer(atoi(arguments[2]));
        return 0;
    }
    for (const Case &each : CASES) {
        if (name == "--list") printf("%s %s\n", each.name, each.simulate);
        if (name != each.name) continue;
        each.run();
        return 0;
    }
    return name == "--list" ? 0 : 2;
}
