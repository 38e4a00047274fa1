// Events: recorded when their stream reaches them.
#include <chrono>

#include "sim.h"

namespace sim {

namespace {

constexpr unsigned DISABLE_TIMING = 2;

Result find_event(void *handle, std::shared_ptr<Event> &event) {
    auto found = state().events.find(static_cast<Event *>(handle));
    if (found == state().events.end()) return CUDA_ERROR_INVALID_HANDLE;
    event = found->second;
    if (!event->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return event->context->error;
}

/// Waits outside the lock of the caller for a record.
void await(const Record &record, const Stream &stream) {
    State &all = state();
    Lock lock(all.lock);
    while (!record.done && !all.lost && !stream.context->error) all.progress.wait(lock);
}

void finish(Record &record) {
    record.milliseconds = now_ms();
    Lock lock(state().lock);
    record.done = true;
    state().progress.notify_all();
}

std::shared_ptr<Record> start(Event &event) {
    auto record = std::make_shared<Record>();
    event.latest = record;
    event.capture = nullptr;
    return record;
}

}  // namespace

}  // namespace sim

using namespace sim;

API cuEventCreate(void **handle, unsigned flags) {
    ENTER();
    // Interprocess events are not supported.
    if (!handle || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    auto event = std::make_shared<Event>();
    event->context = context;
    event->flags = flags;
    state().events[event.get()] = event;
    *handle = event.get();
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(void *handle) {
    ENTER();
    Lock lock(state().lock);
    auto found = state().events.find(static_cast<Event *>(handle));
    if (found == state().events.end()) return CUDA_ERROR_INVALID_HANDLE;
    state().events.erase(found);
    return CUDA_SUCCESS;
}

static Result record_event(void *handle, void *stream_handle, unsigned flags) {
    Lock lock(state().lock);
    std::shared_ptr<Event> event;
    std::shared_ptr<Stream> stream;
    if (Result code = find_event(handle, event)) return code;
    if (Result code = find_stream(stream_handle, stream)) return code;
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && (flags & 1)) {
        return submit(stream, [event](Stream &) {
            Lock inner(state().lock);
            auto record = start(*event);
            inner.unlock();
            finish(*record);
        });
    }
    if (stream->capture) {
        if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        return CUDA_SUCCESS;
    }
    auto before = event->latest;
    auto record = start(*event);
    Result code = submit(stream, [record](Stream &) { finish(*record); });
    if (code) event->latest = before;
    return code;
}

API cuEventRecord(void *handle, void *stream) {
    ENTER();
    return record_event(handle, stream, 0);
}

API cuEventRecordWithFlags(void *handle, void *stream, unsigned flags) {
    ENTER();
    return record_event(handle, stream, flags);
}

API cuEventQuery(void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Event> event;
    if (Result code = find_event(handle, event)) return code;
    if (event->capture && event->capture->active) return CUDA_ERROR_CAPTURED_EVENT;
    if (Result code = unsafe_call()) return code;
    auto record = event->latest;
    return !record || record->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Event> event;
    if (Result code = find_event(handle, event)) return code;
    if (event->capture && event->capture->active) return CUDA_ERROR_CAPTURED_EVENT;
    if (Result code = unsafe_call()) return code;
    auto record = event->latest;
    State &all = state();
    while (record && !record->done && !all.lost && !event->context->error) all.progress.wait(lock);
    return all.lost ? all.lost.load() : event->context->error;
}

static Result elapsed(float *milliseconds, void *from, void *to) {
    Lock lock(state().lock);
    std::shared_ptr<Event> first, second;
    if (Result code = find_event(from, first)) return code;
    if (Result code = find_event(to, second)) return code;
    if ((first->flags | second->flags) & DISABLE_TIMING || !first->latest || !second->latest) return CUDA_ERROR_INVALID_HANDLE;
    if (!first->latest->done || !second->latest->done) return CUDA_ERROR_NOT_READY;
    *milliseconds = float(second->latest->milliseconds - first->latest->milliseconds);
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    ENTER();
    return elapsed(milliseconds, from, to);
}

API cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
    ENTER();
    return elapsed(milliseconds, from, to);
}

API cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Event> event;
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(stream_handle, stream)) return code;
    if (Result code = find_event(handle, event)) return code;
    if (event->capture && event->capture->active) {
        // The stream joins the capture that recorded the event.
        if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (stream->capture) return stream->capture == event->capture ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_MERGE;
        stream->capture = event->capture;
        event->capture->joined.push_back(stream);
        return CUDA_SUCCESS;
    }
    if (stream->capture && !(flags & 1)) {
        if (!event->latest) return CUDA_SUCCESS;
        stream->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream->capture) {
        return submit(stream, [event](Stream &own) {
            Lock inner(state().lock);
            auto record = event->latest;
            inner.unlock();
            if (record) await(*record, own);
        });
    }
    // A wait for an event that was never recorded returns at once.
    auto record = event->latest;
    if (!record) return CUDA_SUCCESS;
    return submit(stream, [record](Stream &own) { await(*record, own); });
}
