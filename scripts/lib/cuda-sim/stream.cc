// Streams: each in its own thread, in order; the legacy default stream is ordered with the blocking ones of its
// context.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "sim.h"

namespace sim {

namespace {

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void delay(const Stream &stream, uint64_t number) {
    if (unsigned most = config().delay_us) usleep(unsigned(mix(config().seed ^ mix(stream.id << 32 | number)) % (uint64_t{most} + 1)));
}

bool stopped(const Stream &stream) { return state().lost || stream.context->error; }

/// Takes the place of an operation that hangs: ends only with the device or the context.
void hang(Stream &stream) {
    Lock lock(state().lock);
    state().progress.wait(lock, [&] { return stopped(stream); });
}

void work(std::shared_ptr<Stream> stream) {
    State &all = state();
    Lock lock(all.lock);
    for (;;) {
        stream->wake.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
        if (stream->queue.empty()) return;
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        all.progress.wait(lock, [&] { return reached(operation.after) || stopped(*stream); });
        uint64_t number = stream->completed;
        lock.unlock();
        delay(*stream, number);
        Result code = injected("operation");
        if (!code && hangs("operation")) hang(*stream);
        if (!code && !stopped(*stream)) operation.work(*stream);
        // The work's captured values are released before it is reported as done.
        operation = Operation{};
        lock.lock();
        if (code) stream->context->error = code;
        stream->completed++;
        all.progress.notify_all();
    }
}

void push(const std::shared_ptr<Stream> &stream, Operation operation) {
    if (!stream->running) {
        stream->running = true;
        std::thread(work, stream).detach();
    }
    stream->queue.push_back(std::move(operation));
    stream->enqueued++;
    stream->wake.notify_one();
}

/// The streams that the legacy stream of the context waits for, and that wait for it.
template <class Each>
void each_blocking(Context *context, Each each) {
    for (auto &entry : context->streams)
        if (entry.second->blocking() && !entry.second->legacy) each(entry.second);
    for (auto &stream : context->draining)
        if (stream->blocking()) each(stream);
}

Result refuse_capture(Capture &capture, Result code) {
    capture.invalidated = true;
    return code;
}

}  // namespace

double now_ms() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC, &at);
    return double(at.tv_sec) * 1e3 + double(at.tv_nsec) / 1e6;
}

std::shared_ptr<Stream> make_stream(Context *context, unsigned flags) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->flags = flags;
    stream->id = state().next_id++;
    context->streams[stream.get()] = stream;
    state().streams[stream.get()] = stream;
    return stream;
}

Result find_stream(void *handle, std::shared_ptr<Stream> &stream) {
    if (uintptr_t(handle) <= 2) {
        Context *context = nullptr;
        if (Result code = current(context)) return code;
        if (uintptr_t(handle) < 2) {
            stream = context->legacy;
            return CUDA_SUCCESS;
        }
        // A thread's default streams end with it; one of a destroyed context is never looked up again.
        thread_local std::map<uint64_t, std::shared_ptr<Stream>> own;
        std::shared_ptr<Stream> &found = own[context->id];
        if (!found) found = make_stream(context, 0);
        stream = found;
        return CUDA_SUCCESS;
    }
    auto found = state().streams.find(static_cast<Stream *>(handle));
    if (found == state().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    stream = found->second;
    if (!stream->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return stream->context->error;
}

Result submit(const std::shared_ptr<Stream> &stream, Work work) {
    if (std::exchange(call_hangs(), false)) work = hang;
    if (stream->capture) {
        if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        stream->capture->nodes.push_back(std::move(work));
        return CUDA_SUCCESS;
    }
    Operation operation{std::move(work), {}};
    Context *context = stream->context;
    Result code = CUDA_SUCCESS;
    if (stream->legacy) {
        each_blocking(context, [&](const std::shared_ptr<Stream> &other) {
            if (other->capture) code = refuse_capture(*other->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            if (!other->idle()) operation.after.push_back({other, other->enqueued});
        });
        if (code) return code;
    } else if (stream->blocking() && !context->legacy->idle()) {
        operation.after.push_back({context->legacy, context->legacy->enqueued});
    }
    push(stream, std::move(operation));
    return CUDA_SUCCESS;
}

std::vector<Position> pending(const std::shared_ptr<Stream> &stream) {
    std::vector<Position> positions{{stream, stream->enqueued}};
    if (stream->legacy)
        each_blocking(stream->context, [&](const std::shared_ptr<Stream> &other) { positions.push_back({other, other->enqueued}); });
    return positions;
}

std::vector<Position> pending(Context *context) {
    std::vector<Position> positions;
    for (auto &entry : context->streams) positions.push_back({entry.second, entry.second->enqueued});
    for (auto &stream : context->draining) positions.push_back({stream, stream->enqueued});
    return positions;
}

bool reached(const std::vector<Position> &positions) {
    for (const Position &position : positions)
        if (position.stream->completed < position.sequence) return false;
    return true;
}

Result wait_for(Lock &lock, const std::vector<Position> &positions, Context *context) {
    State &all = state();
    all.progress.wait(lock, [&] { return reached(positions) || all.lost || context->error; });
    return all.lost ? all.lost.load() : context->error;
}

}  // namespace sim

using namespace sim;

static Result create(void **handle, unsigned flags, int priority) {
    if (!handle || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    auto stream = make_stream(context, flags);
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    *handle = stream.get();
    return CUDA_SUCCESS;
}

API cuStreamCreate(void **handle, unsigned flags) {
    ENTER();
    return create(handle, flags, 0);
}

API cuStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    ENTER();
    return create(handle, flags, priority);
}

API cuStreamDestroy_v2(void *handle) {
    ENTER();
    if (uintptr_t(handle) <= 2) return CUDA_ERROR_INVALID_HANDLE;
    Lock lock(state().lock);
    auto found = state().streams.find(static_cast<Stream *>(handle));
    if (found == state().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    std::shared_ptr<Stream> stream = found->second;
    // Enqueued work is still done, and a wait for the whole context includes it.
    stream->closed = true;
    stream->wake.notify_one();
    Context &context = *stream->context;
    context.streams.erase(stream.get());
    auto idle = [](const std::shared_ptr<Stream> &other) { return other->idle(); };
    context.draining.erase(std::remove_if(context.draining.begin(), context.draining.end(), idle), context.draining.end());
    if (!stream->idle()) context.draining.push_back(stream);
    state().streams.erase(found);
    return CUDA_SUCCESS;
}

API cuStreamQuery(void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (Result code = not_capturing(*stream)) return code;
    if (Result code = unsafe_call()) return code;
    return reached(pending(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuStreamSynchronize(void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (Result code = not_capturing(*stream)) return code;
    if (Result code = unsafe_call()) return code;
    return wait_for(lock, pending(stream), stream->context);
}

static Result context_of(void *handle, void **context) {
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    *context = stream->context;
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(void *handle, void **context) {
    ENTER();
    return context_of(handle, context);
}

API cuStreamGetCtx_v2(void *handle, void **context, void **green) {
    ENTER();
    if (green) *green = nullptr;
    return context_of(handle, context);
}

API cuStreamGetDevice(void *handle, int *device) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    *device = stream->context->device;
    return CUDA_SUCCESS;
}

API cuStreamGetFlags(void *handle, unsigned *flags) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API cuStreamGetPriority(void *handle, int *priority) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API cuStreamGetId(void *handle, unsigned long long *id) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    *id = stream->id;
    return CUDA_SUCCESS;
}

API cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
    ENTER();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    return submit(stream, [=](Stream &) { function(argument); });
}

API cuStreamAddCallback(void *handle, void (*function)(void *, Result, void *), void *argument, unsigned flags) {
    ENTER();
    if (!function || flags) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (Result code = not_capturing(*stream)) return code;
    return submit(stream, [=](Stream &) { function(handle, CUDA_SUCCESS, argument); });
}
