// Copies, fills, and the stream operations on 32 and 64 bit values.
#include <unistd.h>

#include <cstring>

#include "sim.h"

namespace sim {

namespace {

/// The required kind of memory for each side of a copy.
enum class Side { any, device, host };

struct Copy {
    Address to, from;
    size_t bytes;
    Side to_side, from_side;
};

bool fits(const Allocation *owner, Side side) {
    if (side == Side::any) return true;
    // Host memory that is mapped for the device passes as either.
    return side == Side::device ? owner != nullptr : !owner || !owner->on_device();
}

/// Enqueues a copy. As in the driver, pageable source memory is read at the call, and a copy to pageable memory is
/// waited for.
Result copy(Lock &lock, const std::shared_ptr<Stream> &stream, const Copy &want, bool wait) {
    if (want.bytes == 0) return CUDA_SUCCESS;
    char *to = nullptr, *from = nullptr;
    Allocation *to_owner = nullptr, *from_owner = nullptr;
    if (Result code = resolve(want.to, want.bytes, to, to_owner)) return code;
    if (Result code = resolve(want.from, want.bytes, from, from_owner)) return code;
    if (!fits(to_owner, want.to_side) || !fits(from_owner, want.from_side)) return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = want.bytes;
    Result code = CUDA_SUCCESS;
    if (!from_owner && !wait && !stream->capture) {
        auto taken = std::make_shared<std::vector<char>>(from, from + bytes);
        code = submit(stream, [=](Stream &) { memcpy(to, taken->data(), bytes); });
    } else {
        code = submit(stream, [=](Stream &) { memmove(to, from, bytes); });
    }
    if (code || stream->capture) return code;
    return wait || !to_owner ? wait_for(lock, {{stream, stream->enqueued}}, stream->context) : CUDA_SUCCESS;
}

Result copy_now(const Copy &want) {
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(nullptr, stream)) return code;
    if (Result code = unsafe_call()) return code;
    return copy(lock, stream, want, true);
}

Result copy_async(void *handle, const Copy &want) {
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    return copy(lock, stream, want, false);
}

template <class Element>
Result fill(void *handle, Address to, Element value, size_t count, bool wait) {
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (wait)
        if (Result code = unsafe_call()) return code;
    if (count == 0) return CUDA_SUCCESS;
    size_t bytes = 0;
    if (to % sizeof value || __builtin_mul_overflow(count, sizeof value, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    char *at = nullptr;
    Allocation *owner = nullptr;
    if (Result code = resolve(to, bytes, at, owner)) return code;
    if (!owner) return CUDA_ERROR_INVALID_VALUE;
    Result code = submit(stream, [=](Stream &) {
        for (size_t i = 0; i < count; i++) memcpy(at + i * sizeof value, &value, sizeof value);
    });
    return code || !wait ? code : wait_for(lock, {{stream, stream->enqueued}}, stream->context);
}

enum : unsigned { GEQ = 0, EQ = 1, AND = 2, NOR = 3, FLUSH = 1u << 30 };

template <class Value>
bool holds(Value seen, Value value, unsigned how) {
    using Signed = std::make_signed_t<Value>;
    switch (how) {
        case GEQ: return Signed(seen - value) >= 0;
        case EQ: return seen == value;
        case AND: return (seen & value) != 0;
        default: return Value(~(seen | value)) != 0;
    }
}

template <class Value>
Result at_value(Address address, Value *&at) {
    char *host = nullptr;
    Allocation *owner = nullptr;
    if (address % sizeof(Value)) return CUDA_ERROR_INVALID_VALUE;
    if (Result code = resolve(address, sizeof(Value), host, owner)) return code;
    at = reinterpret_cast<Value *>(host);
    return owner ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class Value>
Result wait_value(void *handle, Address address, Value value, unsigned flags) {
    if ((flags & ~FLUSH) > NOR) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    Value *at = nullptr;
    if (Result code = at_value(address, at)) return code;
    return submit(stream, [=](Stream &own) {
        for (unsigned turn = 0; !holds(__atomic_load_n(at, __ATOMIC_ACQUIRE), value, flags & ~FLUSH); turn++) {
            if (state().lost || own.context->error) return;
            usleep(turn < 1000 ? 10 : 100);
        }
    });
}

template <class Value>
Result write_value(void *handle, Address address, Value value, unsigned flags) {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    Value *at = nullptr;
    if (Result code = at_value(address, at)) return code;
    return submit(stream, [=](Stream &) { __atomic_store_n(at, value, __ATOMIC_RELEASE); });
}

Address of(const void *pointer) { return Address(pointer); }

}  // namespace

}  // namespace sim

using namespace sim;

API cuMemcpy(Address to, Address from, size_t bytes) {
    ENTER();
    return copy_now({to, from, bytes, Side::any, Side::any});
}

API cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
    ENTER();
    return copy_now({to, of(from), bytes, Side::device, Side::host});
}

API cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
    ENTER();
    return copy_now({of(to), from, bytes, Side::host, Side::device});
}

API cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
    ENTER();
    return copy_now({to, from, bytes, Side::device, Side::device});
}

API cuMemcpyPeer(Address to, void *, Address from, void *, size_t bytes) {
    ENTER();
    return copy_now({to, from, bytes, Side::device, Side::device});
}

API cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
    ENTER();
    return copy_async(stream, {to, from, bytes, Side::any, Side::any});
}

API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
    ENTER();
    return copy_async(stream, {to, of(from), bytes, Side::device, Side::host});
}

API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
    ENTER();
    return copy_async(stream, {of(to), from, bytes, Side::host, Side::device});
}

API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
    ENTER();
    return copy_async(stream, {to, from, bytes, Side::device, Side::device});
}

API cuMemcpyPeerAsync(Address to, void *, Address from, void *, size_t bytes, void *stream) {
    ENTER();
    return copy_async(stream, {to, from, bytes, Side::device, Side::device});
}

API cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
    ENTER();
    return fill(nullptr, to, value, count, true);
}

API cuMemsetD16_v2(Address to, unsigned short value, size_t count) {
    ENTER();
    return fill(nullptr, to, value, count, true);
}

API cuMemsetD32_v2(Address to, unsigned value, size_t count) {
    ENTER();
    return fill(nullptr, to, value, count, true);
}

API cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
    ENTER();
    return fill(stream, to, value, count, false);
}

API cuMemsetD16Async(Address to, unsigned short value, size_t count, void *stream) {
    ENTER();
    return fill(stream, to, value, count, false);
}

API cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
    ENTER();
    return fill(stream, to, value, count, false);
}

API cuStreamWaitValue32_v2(void *stream, Address address, uint32_t value, unsigned flags) {
    ENTER();
    return wait_value(stream, address, value, flags);
}

API cuStreamWaitValue64_v2(void *stream, Address address, uint64_t value, unsigned flags) {
    ENTER();
    return wait_value(stream, address, value, flags);
}

API cuStreamWriteValue32_v2(void *stream, Address address, uint32_t value, unsigned flags) {
    ENTER();
    return write_value(stream, address, value, flags);
}

API cuStreamWriteValue64_v2(void *stream, Address address, uint64_t value, unsigned flags) {
    ENTER();
    return write_value(stream, address, value, flags);
}
