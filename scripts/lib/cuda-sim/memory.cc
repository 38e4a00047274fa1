// Memory: device memory is a file in memory, mapped twice: at the address that programs get, without access rights
// except while a kernel runs, and where only the simulator reads and writes it.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sim.h"

namespace sim {

namespace {

constexpr size_t PAGE = 4096;
/// Device addresses: a range of this many bytes for each device, then those opened from other processes.
constexpr Address FIRST = 0x100000000000, EACH = 0x010000000000, IMPORTED = 0x300000000000, END = 0x400000000000;

size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/// Processes use different addresses, so that a mix-up of addresses shows.
Address own_part() { return Address(unsigned(getpid()) & 0x7f) << 32; }

int rights() { return state().kernels > 0 || !config().protect ? PROT_READ | PROT_WRITE : PROT_NONE; }

void protect(const Allocation &allocation, int to) {
    mprotect(reinterpret_cast<void *>(allocation.base), allocation.mapped, to);
}

/// Fresh device memory has arbitrary content, so that a read before the first write shows.
void soil(const Allocation &allocation) {
    size_t bytes = allocation.mapped < (size_t{16} << 20) ? allocation.mapped : size_t{16} << 20;
    memset(allocation.alias, 0xa5, bytes);
}

bool open_arena(Arena &arena, int device) {
    if (arena.fd >= 0) return true;
    size_t bytes = pages(config().memory);
    int fd = memfd_create("cuda-sim-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(bytes))) return false;
    void *alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (alias == MAP_FAILED) return false;
    void *want = reinterpret_cast<void *>(FIRST + EACH * Address(device) + own_part());
    void *base = mmap(want, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
    if (base != want) return false;
    arena.fd = fd;
    arena.base = Address(base);
    arena.alias = static_cast<char *>(alias);
    arena.bytes = bytes;
    arena.room[0] = bytes;
    return true;
}

/// First fit, with an inaccessible page behind each allocation.
bool take(Arena &arena, size_t bytes, size_t &offset) {
    for (auto &[at, free] : arena.room) {
        if (free < bytes + PAGE) continue;
        offset = at;
        size_t rest = free - bytes - PAGE, next = at + bytes + PAGE;
        arena.room.erase(at);
        if (rest) arena.room[next] = rest;
        arena.used += bytes + PAGE;
        return true;
    }
    return false;
}

void give_back(Arena &arena, size_t offset, size_t bytes) {
    bytes += PAGE;
    arena.used -= bytes;
    auto next = arena.room.lower_bound(offset);
    if (next != arena.room.end() && next->first == offset + bytes) {
        bytes += next->second;
        next = arena.room.erase(next);
    }
    if (next != arena.room.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == offset) {
            before->second += bytes;
            return;
        }
    }
    arena.room[offset] = bytes;
}

bool device_range(Address address) { return address >= FIRST && address < END; }

Result allocate_managed(Context *context, size_t bytes, Address &address) {
    void *at = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation made{};
    made.base = address = Address(at);
    made.bytes = bytes;
    made.mapped = pages(bytes);
    made.kind = Kind::managed;
    made.device = context->device;
    made.context = context;
    made.alias = static_cast<char *>(at);
    made.id = state().next_id++;
    state().allocations[made.base] = made;
    return CUDA_SUCCESS;
}

}  // namespace

KernelAccess::KernelAccess() {
    Lock lock(state().lock);
    if (state().kernels++ == 0 && config().protect)
        for (auto &entry : state().allocations)
            if (entry.second.hidden()) protect(entry.second, PROT_READ | PROT_WRITE);
}

KernelAccess::~KernelAccess() {
    Lock lock(state().lock);
    if (--state().kernels == 0 && config().protect)
        for (auto &entry : state().allocations)
            if (entry.second.hidden()) protect(entry.second, PROT_NONE);
}

Allocation *find(Address address) {
    auto &all = state().allocations;
    auto next = all.upper_bound(address);
    if (next == all.begin()) return nullptr;
    Allocation &before = std::prev(next)->second;
    return address - before.base < before.bytes ? &before : nullptr;
}

Result resolve(Address address, size_t bytes, char *&host, Allocation *&owner) {
    owner = find(address);
    if (!owner) {
        if (!address || device_range(address)) return CUDA_ERROR_INVALID_VALUE;
        host = reinterpret_cast<char *>(address);
        return CUDA_SUCCESS;
    }
    size_t offset = address - owner->base;
    if (owner->freeing || bytes > owner->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    host = owner->alias + offset;
    return CUDA_SUCCESS;
}

Result allocate(Context *context, size_t bytes, Kind kind, Address &address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    Arena &arena = state().arenas[size_t(context->device)];
    if (!open_arena(arena, context->device)) return CUDA_ERROR_OPERATING_SYSTEM;
    size_t offset = 0;
    if (bytes > arena.bytes || !take(arena, pages(bytes), offset)) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation made{};
    made.base = address = arena.base + offset;
    made.bytes = bytes;
    made.mapped = pages(bytes);
    made.kind = kind;
    made.device = context->device;
    made.context = context;
    made.alias = arena.alias + offset;
    made.fd = arena.fd;
    made.offset = offset;
    made.id = state().next_id++;
    protect(made, rights());
    soil(made);
    state().allocations[made.base] = made;
    return CUDA_SUCCESS;
}

Result import(int fd, uint64_t offset, size_t bytes, int device, Context *context, Address &address) {
    static Address next = IMPORTED + own_part();
    void *want = reinterpret_cast<void *>(next);
    void *base = mmap(want, pages(bytes), rights(), MAP_SHARED | MAP_FIXED_NOREPLACE, fd, off_t(offset));
    void *alias = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, off_t(offset));
    if (base != want || alias == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
    next += pages(bytes) + PAGE;
    Allocation made{};
    made.base = address = Address(base);
    made.bytes = bytes;
    made.mapped = pages(bytes);
    made.kind = Kind::imported;
    made.device = device;
    made.context = context;
    made.alias = static_cast<char *>(alias);
    made.fd = fd;
    made.offset = offset;
    made.id = state().next_id++;
    made.opened = 1;
    state().allocations[made.base] = made;
    return CUDA_SUCCESS;
}

void release(Address base, uint64_t id) {
    auto found = state().allocations.find(base);
    if (found == state().allocations.end() || found->second.id != id) return;
    Allocation gone = found->second;
    state().allocations.erase(found);
    switch (gone.kind) {
        case Kind::device:
        case Kind::pooled: {
            protect(gone, PROT_NONE);
            // The pages are removed, in this process and in those that opened a handle.
            madvise(gone.alias, gone.mapped, MADV_REMOVE);
            give_back(state().arenas[size_t(gone.device)], gone.offset, gone.mapped);
            break;
        }
        case Kind::imported:
            munmap(reinterpret_cast<void *>(gone.base), gone.mapped);
            munmap(gone.alias, gone.mapped);
            close(gone.fd);
            break;
        case Kind::managed:
        case Kind::pinned:
            munmap(gone.alias, gone.mapped);
            break;
        case Kind::registered:
        case Kind::global:
            break;
    }
}

}  // namespace sim

using namespace sim;

/// The head of calls that allocate or free: a current context, and no capture that forbids them.
static Result begin(Context *&context) {
    if (Result code = current(context)) return code;
    return unsafe_call();
}

/// Freeing waits for the device, as the real calls do.
static Result settle(Lock &lock, Context *context) {
    std::vector<Position> positions;
    for (auto &entry : state().contexts)
        if (entry.first->alive && entry.first->device == context->device)
            for (Position &position : pending(entry.first)) positions.push_back(position);
    return wait_for(lock, positions, context);
}

API cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    *total = config().memory;
    *free = config().memory - state().arenas[size_t(context->device)].used;
    return CUDA_SUCCESS;
}

API cuMemAlloc_v2(Address *address, size_t bytes) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    return allocate(context, bytes, Kind::device, *address);
}

API cuMemAllocManaged(Address *address, size_t bytes, unsigned flags) {
    ENTER();
    if (bytes == 0 || (flags != 1 && flags != 2)) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    return allocate_managed(context, bytes, *address);
}

API cuMemFree_v2(Address address) {
    ENTER();
    if (!address) return CUDA_SUCCESS;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    Allocation *found = find(address);
    bool ours = found && found->base == address && !found->freeing;
    if (!ours || (found->kind != Kind::device && found->kind != Kind::pooled && found->kind != Kind::managed)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = found->id;
    if (Result code = settle(lock, context)) return code;
    release(address, id);
    return CUDA_SUCCESS;
}

API cuMemAllocAsync(Address *address, size_t bytes, void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (stream->capture) return not_capturing(*stream);
    return allocate(stream->context, bytes, Kind::pooled, *address);
}

API cuMemFreeAsync(Address address, void *handle) {
    ENTER();
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (stream->capture) return not_capturing(*stream);
    Allocation *found = find(address);
    if (!found || found->base != address || found->freeing || !found->hidden() || found->kind == Kind::imported) return CUDA_ERROR_INVALID_VALUE;
    found->freeing = true;
    return submit(stream, [address, id = found->id](Stream &) {
        Lock inner(state().lock);
        release(address, id);
    });
}

static Result allocate_host(void **pointer, size_t bytes, unsigned flags) {
    if (bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    void *at = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation made{};
    made.base = Address(at);
    made.bytes = bytes;
    made.mapped = pages(bytes);
    made.kind = Kind::pinned;
    made.device = context->device;
    made.context = context;
    made.alias = static_cast<char *>(at);
    made.id = state().next_id++;
    made.flags = flags;
    state().allocations[made.base] = made;
    *pointer = at;
    return CUDA_SUCCESS;
}

API cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER();
    return allocate_host(pointer, bytes, flags);
}

API cuMemAllocHost_v2(void **pointer, size_t bytes) {
    ENTER();
    return allocate_host(pointer, bytes, 0);
}

API cuMemFreeHost(void *pointer) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    Allocation *found = find(Address(pointer));
    if (!found || found->base != Address(pointer) || found->kind != Kind::pinned) return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = found->id;
    if (Result code = settle(lock, context)) return code;
    release(Address(pointer), id);
    return CUDA_SUCCESS;
}

API cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    ENTER();
    if (!pointer || bytes == 0 || flags > 15 || device_range(Address(pointer))) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    Address base = Address(pointer);
    auto next = state().allocations.lower_bound(base);
    bool overlaps = find(base) || (next != state().allocations.end() && next->first - base < bytes);
    if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    // Unmapped memory cannot be pinned.
    Address first = base / PAGE * PAGE;
    if (msync(reinterpret_cast<void *>(first), pages(base + bytes - first), MS_ASYNC) && errno == ENOMEM) return CUDA_ERROR_INVALID_VALUE;
    Allocation made{};
    made.base = base;
    made.bytes = made.mapped = bytes;
    made.kind = Kind::registered;
    made.device = context->device;
    made.context = context;
    made.alias = static_cast<char *>(pointer);
    made.id = state().next_id++;
    made.flags = flags;
    state().allocations[base] = made;
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *pointer) {
    ENTER();
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = begin(context)) return code;
    Allocation *found = find(Address(pointer));
    if (!found || found->base != Address(pointer) || found->kind != Kind::registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    release(Address(pointer), found->id);
    return CUDA_SUCCESS;
}

API cuMemHostGetDevicePointer_v2(Address *address, void *pointer, unsigned flags) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Allocation *found = find(Address(pointer));
    if (!found || (found->kind != Kind::pinned && found->kind != Kind::registered)) return CUDA_ERROR_INVALID_VALUE;
    *address = Address(pointer);
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *pointer) {
    ENTER();
    Lock lock(state().lock);
    Allocation *found = find(Address(pointer));
    if (!found || found->kind != Kind::pinned) return CUDA_ERROR_INVALID_VALUE;
    *flags = found->flags;
    return CUDA_SUCCESS;
}
