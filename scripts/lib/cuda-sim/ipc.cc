// Sharing with another process of the same user: a handle names a file of this process, which the other opens through
// /proc. If that is impossible (another PID namespace, another user) the open fails, as in containers.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "sim.h"

using namespace sim;

namespace {

struct Handle {
    uint64_t magic;
    int32_t pid, fd;
    uint64_t inode;
    uint64_t offset, bytes;
    int32_t device;
    char unused[20];
};
static_assert(sizeof(Handle) == 64, "a CUipcMemHandle has 64 bytes");

constexpr uint64_t MEMORY = 0x6d656d2d61647563;

Result fill(Handle &handle, int fd) {
    struct stat file{};
    if (fstat(fd, &file)) return CUDA_ERROR_OPERATING_SYSTEM;
    handle.magic = MEMORY;
    handle.pid = getpid();
    handle.fd = fd;
    handle.inode = file.st_ino;
    return CUDA_SUCCESS;
}

/// The other process's file; -1 if it cannot be opened or has been replaced by another one.
int open_file(const Handle &handle) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat file{};
    if (fd >= 0 && (fstat(fd, &file) || file.st_ino != handle.inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

}  // namespace

API cuIpcGetMemHandle(Handle *handle, Address address) {
    ENTER();
    Lock lock(state().lock);
    Allocation *found = find(address);
    // Memory of pools, of another process and of the host has no such handle.
    if (!handle || !found || found->kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
    *handle = Handle{};
    handle->offset = found->offset;
    handle->bytes = found->bytes;
    handle->device = found->device;
    return fill(*handle, found->fd);
}

API cuIpcOpenMemHandle_v2(Address *address, Handle handle, unsigned flags) {
    ENTER();
    if (handle.magic != MEMORY || flags != 1) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    if (Result code = unsafe_call()) return code;
    // The exporting process itself is refused.
    if (handle.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    std::string key(reinterpret_cast<char *>(&handle), sizeof handle);
    for (auto &entry : state().allocations) {
        if (entry.second.kind != Kind::imported || entry.second.handle != key) continue;
        entry.second.opened++;
        *address = entry.second.base;
        return CUDA_SUCCESS;
    }
    int fd = open_file(handle);
    if (fd < 0) return CUDA_ERROR_MAP_FAILED;
    if (Result code = import(fd, handle.offset, handle.bytes, handle.device, context, *address)) {
        close(fd);
        return code;
    }
    find(*address)->handle = key;
    return CUDA_SUCCESS;
}

API cuIpcCloseMemHandle(Address address) {
    ENTER();
    Lock lock(state().lock);
    Allocation *found = find(address);
    if (!found || found->base != address || found->kind != Kind::imported) return CUDA_ERROR_INVALID_VALUE;
    if (--found->opened == 0) release(address, found->id);
    return CUDA_SUCCESS;
}
