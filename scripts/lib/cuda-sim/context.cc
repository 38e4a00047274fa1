// Contexts: each thread's stack of them, primary contexts by reference count.
#include "sim.h"

namespace sim {

namespace {

thread_local std::vector<Context *> stack;

/// Ends a context whose streams have ended: its memory is freed.
void destroy(Context *context) {
    for (auto &entry : context->streams) {
        entry.second->closed = true;
        entry.second->wake.notify_one();
        state().streams.erase(entry.first);
    }
    context->streams.clear();
    std::vector<std::pair<Address, uint64_t>> owned;
    for (auto &entry : state().allocations)
        if (entry.second.context == context && entry.second.on_device()) owned.emplace_back(entry.first, entry.second.id);
    for (auto &[base, id] : owned) release(base, id);
    context->alive = false;
}

Result check_device(int device) { return device < 0 || device >= config().devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }

}  // namespace

Result current(Context *&context) {
    if (stack.empty() || !stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
    context = stack.back();
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context->error;
}

bool known(Context *context) {
    return state().contexts.count(context) && context->alive;
}

Context *make_context(int device, unsigned flags) {
    // Never freed: streams and events may refer to it at any time.
    auto *context = new Context;
    context->device = device;
    context->flags = flags;
    context->id = state().next_id++;
    context->legacy = make_stream(context, 0);
    context->legacy->legacy = true;
    state().contexts[context] = true;
    return context;
}

}  // namespace sim

using namespace sim;

API cuDevicePrimaryCtxRetain(void **handle, int device) {
    ENTER();
    if (Result code = check_device(device)) return code;
    // Prohibited, or exclusive to another process.
    if (config().compute_mode == 2) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    Lock lock(state().lock);
    Context *&primary = state().primaries[size_t(device)];
    if (!primary || !primary->alive) {
        primary = make_context(device, 0);
        primary->primary = true;
    }
    primary->retained++;
    *handle = primary;
    return primary->error;
}

API cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER();
    if (Result code = check_device(device)) return code;
    Lock lock(state().lock);
    Context *primary = state().primaries[size_t(device)];
    if (!primary || !primary->alive) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->retained > 0) return CUDA_SUCCESS;
    wait_for(lock, pending(primary), primary);
    // Another thread may have retained it, or ended it, during the wait.
    if (primary->retained == 0 && primary->alive) destroy(primary);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset_v2(int device) {
    ENTER();
    if (Result code = check_device(device)) return code;
    Lock lock(state().lock);
    Context *primary = state().primaries[size_t(device)];
    if (!primary || !primary->alive) return CUDA_SUCCESS;
    wait_for(lock, pending(primary), primary);
    if (primary->alive) destroy(primary);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER();
    if (Result code = check_device(device)) return code;
    Lock lock(state().lock);
    Context *primary = state().primaries[size_t(device)];
    *active = primary && primary->alive;
    *flags = *active ? primary->flags : 0;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
    ENTER();
    return check_device(device);
}

static Result create(void **handle, unsigned flags, int device) {
    if (Result code = check_device(device)) return code;
    if (config().compute_mode == 2) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    Lock lock(state().lock);
    Context *context = make_context(device, flags);
    stack.push_back(context);
    *handle = context;
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(void **handle, unsigned flags, int device) {
    ENTER();
    return create(handle, flags, device);
}

API cuCtxCreate_v4(void **handle, void *, unsigned flags, int device) {
    ENTER();
    return create(handle, flags, device);
}

API cuCtxDestroy_v2(void *handle) {
    ENTER();
    Lock lock(state().lock);
    auto *context = static_cast<Context *>(handle);
    if (!known(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    wait_for(lock, pending(context), context);
    if (!context->alive) return CUDA_ERROR_INVALID_CONTEXT;
    destroy(context);
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(void *handle) {
    ENTER();
    Lock lock(state().lock);
    if (!known(static_cast<Context *>(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(static_cast<Context *>(handle));
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(void **handle) {
    ENTER();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle) *handle = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(void *handle) {
    ENTER();
    Lock lock(state().lock);
    if (handle && !known(static_cast<Context *>(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (handle) stack.push_back(static_cast<Context *>(handle));
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(void **handle) {
    ENTER();
    *handle = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(int *device) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    *device = context->device;
    return CUDA_SUCCESS;
}

/// Memory is always coherent; this checks only the arguments.
API cuFlushGPUDirectRDMAWrites(unsigned target, unsigned scope) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    if (!config().dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
    return target == 0 && (scope == 100 || scope == 200) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuCtxGetDevice_v2(int *device, void *handle) {
    ENTER();
    Lock lock(state().lock);
    auto *context = static_cast<Context *>(handle);
    if (!context)
        if (Result code = current(context)) return code;
    if (!known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned *flags) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API cuCtxGetId(void *handle, unsigned long long *id) {
    ENTER();
    Lock lock(state().lock);
    auto *context = static_cast<Context *>(handle);
    if (!context)
        if (Result code = current(context)) return code;
    if (!known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(void *handle, unsigned *version) {
    ENTER();
    Lock lock(state().lock);
    if (handle && !known(static_cast<Context *>(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    *version = unsigned(config().version);
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER();
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

static Result synchronize(Context *context) {
    Lock lock(state().lock);
    if (!context)
        if (Result code = current(context)) return code;
    if (!known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    for (auto &entry : context->streams)
        if (Result code = not_capturing(*entry.second)) return code;
    if (Result code = unsafe_call()) return code;
    return wait_for(lock, pending(context), context);
}

API cuCtxSynchronize() {
    ENTER();
    return synchronize(nullptr);
}

API cuCtxSynchronize_v2(void *handle) {
    ENTER();
    return synchronize(static_cast<Context *>(handle));
}

API cuCtxEnablePeerAccess(void *handle, unsigned flags) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    auto *peer = static_cast<Context *>(handle);
    if (!known(peer) || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device) return CUDA_ERROR_INVALID_DEVICE;
    for (Context *known_peer : context->peers)
        if (known_peer == peer) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers.push_back(peer);
    return CUDA_SUCCESS;
}

API cuCtxDisablePeerAccess(void *handle) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    for (size_t i = 0; i < context->peers.size(); i++) {
        if (context->peers[i] != handle) continue;
        context->peers.erase(context->peers.begin() + long(i));
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
