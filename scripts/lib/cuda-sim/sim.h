// The simulated CUDA driver: declarations for all of its files.
//
// One lock guards every table; work of streams runs outside it, each stream in a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace sim {

/// A CUresult.
using Result = int;
/// A CUdeviceptr.
using Address = unsigned long long;

enum : Result {
#define ERROR(name, value) name = value,
#include "errors.inc"
#undef ERROR
};

/// The settings of CUDA_SIM; README.md lists the keys.
struct Config {
    int devices = 1;
    unsigned delay_us = 0;
    uint64_t seed = 1;
    size_t memory = size_t{1} << 30;
    int capability = 90;
    int compute_mode = 0;
    int version = 13000;
    bool dmabuf = true;
    bool protect = true;
    FILE *trace = nullptr;
};

const Config &config();

/// The code of `fail=NAME:...` for this call of NAME, else CUDA_SUCCESS; called without the lock.
Result injected(const char *name);
/// Whether `hang=NAME:...` applies to this call of NAME; called without the lock.
bool hangs(const char *name);
/// Whether a hang applies to this thread's current call: its next enqueued operation never ends.
bool &call_hangs();

/// The head of every entry point: traces the call, injects failures and hangs, and refuses calls before cuInit, in a forked child, and after the device was lost.
Result enter(const char *function, bool needs_init = true);

#define ENTER()                                       \
    if (::sim::Result entered_ = ::sim::enter(__func__)) \
    return entered_

#define API extern "C" __attribute__((visibility("default"))) ::sim::Result

struct Context;
struct Stream;

/// Work of a stream; it runs without the lock.
using Work = std::function<void(Stream &)>;

/// A position in a stream: reached when `stream->completed >= sequence`.
struct Position {
    std::shared_ptr<Stream> stream;
    uint64_t sequence;
};

struct Operation {
    Work work;
    std::vector<Position> after;
};

/// A capture in progress, or the graph that it became: works in the order in which they were issued.
struct Capture {
    std::vector<Work> nodes;
    int mode = 0;
    uint64_t id = 0;
    uint64_t thread = 0;
    bool active = true;
    bool invalidated = false;
    Stream *origin = nullptr;
    std::vector<std::shared_ptr<Stream>> joined;
};

struct Stream {
    Context *context = nullptr;
    uint64_t id = 0;
    unsigned flags = 0;
    int priority = 0;
    bool legacy = false;
    bool running = false;
    bool closed = false;
    uint64_t enqueued = 0;
    uint64_t completed = 0;
    std::deque<Operation> queue;
    std::condition_variable wake;
    std::shared_ptr<Capture> capture;

    /// Whether it is ordered with the legacy default stream.
    bool blocking() const { return (flags & 1) == 0; }
    bool idle() const { return completed == enqueued; }
};

struct Context {
    int device = 0;
    unsigned flags = 0;
    uint64_t id = 0;
    bool primary = false;
    int retained = 0;
    bool alive = true;
    /// A sticky error: every later call that needs this context fails with it.
    Result error = CUDA_SUCCESS;
    std::shared_ptr<Stream> legacy;
    std::map<Stream *, std::shared_ptr<Stream>> streams;
    /// Streams that were destroyed with work still to do.
    std::vector<std::shared_ptr<Stream>> draining;
    std::vector<Context *> peers;
};

/// One record of an event.
struct Record {
    std::atomic<bool> done{false};
    double milliseconds = 0;
};

struct Event {
    Context *context = nullptr;
    unsigned flags = 0;
    /// The record for a wait or query that is issued now; null if there is none.
    std::shared_ptr<Record> latest;
    std::shared_ptr<Capture> capture;
};

enum class Kind { device, pooled, imported, managed, pinned, registered, global };

struct Allocation {
    Address base = 0;
    size_t bytes = 0;
    /// Bytes of whole pages.
    size_t mapped = 0;
    Kind kind = Kind::device;
    int device = 0;
    Context *context = nullptr;
    /// The simulator's own mapping.
    char *alias = nullptr;
    /// The file behind device memory, and its offset there.
    int fd = -1;
    uint64_t offset = 0;
    uint64_t id = 0;
    unsigned flags = 0;
    /// Freed in stream order, and the stream has not reached it yet.
    bool freeing = false;
    int opened = 0;
    std::string handle;

    bool on_device() const { return kind == Kind::device || kind == Kind::pooled || kind == Kind::imported || kind == Kind::global; }
    bool hidden() const { return on_device() && kind != Kind::global; }
};

struct Arena {
    int fd = -1;
    Address base = 0;
    char *alias = nullptr;
    size_t bytes = 0;
    /// Free ranges: offset, bytes.
    std::map<size_t, size_t> room;
    size_t used = 0;
};

struct State {
    std::mutex lock;
    /// Notified whenever a stream finishes an operation.
    std::condition_variable progress;
    bool initialised = false;
    int pid = 0;
    std::atomic<Result> lost{CUDA_SUCCESS};
    uint64_t next_id = 1;
    std::vector<Arena> arenas;
    std::vector<Context *> primaries;
    std::map<Context *, bool> contexts;
    std::map<Stream *, std::shared_ptr<Stream>> streams;
    std::map<Event *, std::shared_ptr<Event>> events;
    std::map<Address, Allocation> allocations;
    std::vector<std::shared_ptr<Capture>> captures;
    /// Kernels running; device memory is accessible to the process while there are any.
    int kernels = 0;
};

/// The only state; never destroyed, because the streams' threads outlive main.
State &state();

using Lock = std::unique_lock<std::mutex>;

// The functions below are called with the lock held unless they say otherwise.

/// The calling thread's current context, alive and without a sticky error.
Result current(Context *&context);
/// A context made by cuCtxCreate or the primary one.
Context *make_context(int device, unsigned flags);
/// Whether this is the handle of a context that was made and not destroyed.
bool known(Context *context);

/// The stream of a handle; 0 and 1 are the current context's legacy default stream, 2 its per-thread one.
Result find_stream(void *handle, std::shared_ptr<Stream> &stream);
std::shared_ptr<Stream> make_stream(Context *context, unsigned flags);
/// Appends work, or records it if the stream is capturing.
Result submit(const std::shared_ptr<Stream> &stream, Work work);
/// The positions that a synchronisation with this stream waits for.
std::vector<Position> pending(const std::shared_ptr<Stream> &stream);
std::vector<Position> pending(Context *context);
bool reached(const std::vector<Position> &positions);
/// Waits until the positions are reached or the device is lost.
Result wait_for(Lock &lock, const std::vector<Position> &positions, Context *context);

/// Fails, and invalidates the capture, if an ongoing capture forbids this thread potentially unsafe calls.
Result unsafe_call();
/// Fails, and invalidates the capture, if the stream is capturing.
Result not_capturing(Stream &stream);

/// The allocation that contains the address, or null.
Allocation *find(Address address);
/// Checks a range and returns the simulator's mapping of it; `owner` is null for pageable host memory.
Result resolve(Address address, size_t bytes, char *&host, Allocation *&owner);
Result allocate(Context *context, size_t bytes, Kind kind, Address &address);
/// Ends an allocation, unless it has ended and its address belongs to another one.
void release(Address base, uint64_t id);
/// Maps a range of another process's device memory; the address is this process's own.
Result import(int fd, uint64_t offset, size_t bytes, int device, Context *context, Address &address);

/// Opens device memory to the process while it lives; takes the lock itself.
struct KernelAccess {
    KernelAccess();
    ~KernelAccess();
};

double now_ms();

}  // namespace sim
