// The properties of an address: cuPointerGetAttribute and its kin, dmabuf export.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "sim.h"

using namespace sim;

namespace {

constexpr size_t PAGE = 4096;

bool host(const Allocation &allocation) { return allocation.kind == Kind::pinned || allocation.kind == Kind::registered; }

/// Writes one attribute; `found` is null for addresses that CUDA does not know. Page-locked memory has an address for the
/// device only where a context is current (seen with driver 580.159 on an H200).
Result attribute(void *data, int number, const Allocation *found, Address address) {
    Context *context = nullptr;
    bool here = current(context) == CUDA_SUCCESS;
    bool hidden = found && found->on_device();
    auto put = [&](auto value) {
        memcpy(data, &value, sizeof value);
        return Result{CUDA_SUCCESS};
    };
    switch (number) {
        case 1: return put(found ? static_cast<void *>(found->context) : nullptr);
        case 2: return put(!found ? 0u : host(*found) ? 1u : 2u);  // CU_MEMORYTYPE_HOST, _DEVICE
        case 3: return put(found && (hidden || here) ? address : Address{0});
        case 4: return put(found && !hidden ? address : Address{0});
        case 6: return put(0u);
        case 7: return put(found ? found->id : uint64_t{0});
        case 8: return put(unsigned(found && found->kind == Kind::managed));
        case 9: return put(found ? found->device : -2);  // CU_DEVICE_INVALID
        case 10: return put(unsigned(found && found->kind == Kind::device));
        case 11: return put(found ? found->base : Address{0});
        case 12: return put(found ? found->bytes : size_t{0});
        case 13: return put(unsigned(found != nullptr));
        case 14: return put(uint64_t{0});
        case 15: return put(unsigned(found && found->kind == Kind::device && config().dmabuf));
        case 16: return put(found ? 3u : 0u);  // read and write
        case 17: return put(static_cast<void *>(nullptr));
        case 18: return put(found ? found->mapped : size_t{0});
        case 19: return put(found ? found->base : Address{0});
        case 20: return put(found ? found->id : uint64_t{0});
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

const Allocation *look_up(Address address) {
    const Allocation *found = find(address);
    return found && !found->freeing ? found : nullptr;
}

}  // namespace

API cuPointerGetAttribute(void *data, int number, Address address) {
    ENTER();
    Lock lock(state().lock);
    const Allocation *found = look_up(address);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (number == 4 && found->on_device()) return CUDA_ERROR_INVALID_VALUE;
    return attribute(data, number, found, address);
}

API cuPointerGetAttributes(unsigned count, int *numbers, void **data, Address address) {
    ENTER();
    Lock lock(state().lock);
    const Allocation *found = look_up(address);
    for (unsigned i = 0; i < count; i++)
        if (Result code = attribute(data[i], numbers[i], found, address)) return code;
    return CUDA_SUCCESS;
}

API cuPointerSetAttribute(const void *, int number, Address address) {
    ENTER();
    Lock lock(state().lock);
    // SYNC_MEMOPS, which changes nothing here.
    return number == 6 && look_up(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address) {
    ENTER();
    Lock lock(state().lock);
    const Allocation *found = look_up(address);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = found->base;
    if (bytes) *bytes = found->bytes;
    return CUDA_SUCCESS;
}

API cuMemGetHandleForAddressRange(void *handle, Address address, size_t bytes, int type, unsigned long long) {
    ENTER();
    if (type != 1 || !bytes || address % PAGE || bytes % PAGE) return CUDA_ERROR_INVALID_VALUE;
    if (!config().dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
    Lock lock(state().lock);
    const Allocation *found = look_up(address);
    if (!found || found->kind != Kind::device || bytes > found->mapped - (address - found->base)) return CUDA_ERROR_INVALID_VALUE;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", found->fd);
    // A file in place of a dmabuf; its position is the beginning of the range.
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    lseek(fd, off_t(found->offset + (address - found->base)), SEEK_SET);
    memcpy(handle, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
