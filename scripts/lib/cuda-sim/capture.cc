// Stream capture and the graphs it makes: a list of works in the order of issue, replayed in one stream.
#include <pthread.h>

#include <algorithm>

#include "sim.h"

namespace sim {

namespace {

enum : int { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

/// The calling thread's mode, which cuThreadExchangeStreamCaptureMode sets.
thread_local int thread_mode = GLOBAL;

uint64_t self() { return uint64_t(pthread_self()); }

/// Graphs and executable graphs by their handles: only the tables tell them apart.
struct Graphs {
    std::map<void *, std::shared_ptr<Capture>> graphs, executables;
};

Graphs &graphs() {
    static Graphs &it = *new Graphs;
    return it;
}

Result find_graph(std::map<void *, std::shared_ptr<Capture>> &table, void *handle, std::shared_ptr<Capture> &graph) {
    auto found = table.find(handle);
    if (found == table.end()) return CUDA_ERROR_INVALID_VALUE;
    graph = found->second;
    return CUDA_SUCCESS;
}

}  // namespace

Result unsafe_call() {
    if (thread_mode == RELAXED) return CUDA_SUCCESS;
    for (auto &capture : state().captures) {
        bool own = capture->thread == self() && capture->mode != RELAXED;
        bool global = thread_mode == GLOBAL && capture->mode == GLOBAL;
        if (!own && !global) continue;
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

Result not_capturing(Stream &stream) {
    if (!stream.capture) return CUDA_SUCCESS;
    stream.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace sim

using namespace sim;

API cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER();
    if (!mode || *mode < GLOBAL || *mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(void *handle, int mode) {
    ENTER();
    if (mode < GLOBAL || mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->id = state().next_id++;
    capture->thread = self();
    capture->origin = stream.get();
    capture->joined.push_back(stream);
    stream->capture = capture;
    state().captures.push_back(capture);
    return CUDA_SUCCESS;
}

API cuStreamEndCapture(void *handle, void **graph) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    auto capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && capture->thread != self()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    capture->active = false;
    for (auto &joined : capture->joined) joined->capture = nullptr;
    capture->joined.clear();
    auto &ongoing = state().captures;
    ongoing.erase(std::find(ongoing.begin(), ongoing.end(), capture));
    *graph = nullptr;
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *graph = capture.get();
    graphs().graphs[capture.get()] = capture;
    return CUDA_SUCCESS;
}

static Result status_of(void *handle, std::shared_ptr<Stream> &stream, int *status) {
    if (Result code = find_stream(handle, stream)) return code;
    if (stream->legacy)
        for (auto &capture : state().captures)
            if (capture->mode != RELAXED && capture->origin->context == stream->context && capture->origin->blocking())
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !stream->capture ? 0 : stream->capture->invalidated ? 2 : 1;
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(void *handle, int *status) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    return status_of(handle, stream, status);
}

API cuStreamGetCaptureInfo_v3(void *handle, int *status, unsigned long long *id, void **graph, const void **dependencies, const void **edges,
                              size_t *count) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = status_of(handle, stream, status)) return code;
    if (id) *id = stream->capture ? stream->capture->id : 0;
    if (graph) *graph = stream->capture.get();
    // The list of works has no edges.
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return CUDA_SUCCESS;
}

API cuGraphGetNodes(void *handle, void **nodes, size_t *count) {
    ENTER();
    if (nodes || !count) return CUDA_ERROR_NOT_SUPPORTED;
    Lock lock(state().lock);
    std::shared_ptr<Capture> graph;
    if (Result code = find_graph(graphs().graphs, handle, graph)) return code;
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(void **executable, void *handle, unsigned long long) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Capture> graph;
    if (Result code = find_graph(graphs().graphs, handle, graph)) return code;
    auto made = std::make_shared<Capture>(*graph);
    *executable = made.get();
    graphs().executables[made.get()] = made;
    return CUDA_SUCCESS;
}

API cuGraphUpload(void *, void *) {
    ENTER();
    return CUDA_SUCCESS;
}

API cuGraphLaunch(void *executable, void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Capture> graph;
    std::shared_ptr<Stream> stream;
    if (Result code = find_graph(graphs().executables, executable, graph)) return code;
    if (Result code = find_stream(handle, stream)) return code;
    for (const Work &node : graph->nodes)
        if (Result code = submit(stream, node)) return code;
    return CUDA_SUCCESS;
}

API cuGraphDestroy(void *handle) {
    ENTER();
    Lock lock(state().lock);
    return graphs().graphs.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecDestroy(void *handle) {
    ENTER();
    Lock lock(state().lock);
    return graphs().executables.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
