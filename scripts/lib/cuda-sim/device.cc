// The driver itself and its devices: versions, names, attributes, errors' names, symbols.
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

#include "sim.h"

using namespace sim;

namespace {

struct ErrorText {
    Result code;
    const char *name;
    std::string text;
};

const std::vector<ErrorText> &errors() {
    static const auto &it = *[] {
        auto *made = new std::vector<ErrorText>{
#define ERROR(name, value) {value, #name, #name},
#include "errors.inc"
#undef ERROR
        };
        for (ErrorText &error : *made) {
            size_t at = error.text.find("CUDA_ERROR_") == 0 ? 11 : 5;
            error.text = error.text.substr(at);
            for (char &letter : error.text) letter = letter == '_' ? ' ' : char(tolower(letter));
            error.text += " (simulated CUDA driver)";
        }
        return made;
    }();
    return it;
}

bool bad(int device) { return device < 0 || device >= config().devices; }

/// Attributes by their CUdevice_attribute number; all others are 0.
int attribute(int number, int device) {
    switch (number) {
        case 1: case 2: case 3: return 1024;                 // threads per block, block x, y
        case 4: return 64;                                   // block z
        case 5: return 2147483647;                           // grid x
        case 6: case 7: return 65535;                        // grid y, z
        case 8: return 49152;                                // shared memory per block
        case 9: return 65536;                                // constant memory
        case 10: return 32;                                  // warp
        case 11: return 2147483647;                          // pitch
        case 12: case 82: return 65536;                      // registers
        case 13: case 36: return 1000000;                    // clocks
        case 14: return 512;                                 // texture alignment
        case 15: case 19: case 31: case 41: case 78: return 1;  // overlap, map host memory, concurrent kernels, unified addressing, priorities
        case 16: return 4;                                   // multiprocessors
        case 20: return config().compute_mode;
        case 33: return device + 1;                          // PCI bus
        case 37: return 64;                                  // bus width
        case 38: return 1 << 20;                             // L2
        case 39: return 2048;                                // threads per multiprocessor
        case 40: return 2;                                   // copy engines
        case 75: return config().capability / 10;
        case 76: return config().capability % 10;
        case 81: case 97: return 101376;                     // shared memory per multiprocessor, opt-in
        case 83: case 89: case 90: case 91: return 1;        // managed memory, concurrent, preemption, host pointer of registered memory
        case 92: case 93: case 94: case 122: case 123: return 1;  // stream memory operations
        case 99: case 115: case 125: return 1;               // host registration, memory pools, IPC events
        case 106: return 32;                                 // blocks per multiprocessor
        case 116: case 117: case 124: return config().dmabuf;  // GPUDirect RDMA, flushed by the host; dmabuf
        default: return 0;
    }
}

}  // namespace

API cuInit(unsigned flags) {
    if (Result code = enter("cuInit", false)) return code;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (config().devices <= 0) return CUDA_ERROR_NO_DEVICE;
    State &all = state();
    Lock lock(all.lock);
    if (all.initialised) return all.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    all.arenas.resize(size_t(config().devices));
    all.primaries.resize(size_t(config().devices));
    all.pid = getpid();
    all.initialised = true;
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
    if (Result code = enter("cuDriverGetVersion", false)) return code;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = config().version;
    return CUDA_SUCCESS;
}

API cuGetErrorName(Result code, const char **name) {
    for (const ErrorText &error : errors()) {
        if (error.code != code) continue;
        *name = error.name;
        return CUDA_SUCCESS;
    }
    *name = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(Result code, const char **text) {
    for (const ErrorText &error : errors()) {
        if (error.code != code) continue;
        *text = error.text.c_str();
        return CUDA_SUCCESS;
    }
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

API cuDeviceGetCount(int *count) {
    ENTER();
    *count = config().devices;
    return CUDA_SUCCESS;
}

API cuDeviceGet(int *device, int ordinal) {
    ENTER();
    if (bad(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, int number, int device) {
    ENTER();
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (number <= 0 || number >= 148) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute(number, device);
    return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, int device) {
    ENTER();
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = attribute(75, device);
    *minor = attribute(76, device);
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int length, int device) {
    ENTER();
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, size_t(length), "Simulated CUDA device %d", device);
    return CUDA_SUCCESS;
}

static Result uuid(char *bytes, int device) {
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(bytes, "cuda-sim-device", 15);
    bytes[15] = char(device);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(char *bytes, int device) {
    ENTER();
    return uuid(bytes, device);
}

API cuDeviceGetUuid_v2(char *bytes, int device) {
    ENTER();
    return uuid(bytes, device);
}

API cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER();
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = config().memory;
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int length, int device) {
    ENTER();
    if (bad(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, size_t(length), "0000:%02X:00.0", device + 1);
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(int *device, const char *text) {
    ENTER();
    unsigned domain = 0, bus = 0, slot = 0;
    int read = sscanf(text, "%x:%x:%x", &domain, &bus, &slot);
    if (read == 2) bus = domain;
    if (read < 2 || bad(int(bus) - 1)) return CUDA_ERROR_INVALID_DEVICE;
    *device = int(bus) - 1;
    return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER();
    if (bad(device) || bad(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, int number, int device, int peer) {
    ENTER();
    if (bad(device) || bad(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
    // Access is supported (2); rank, atomics and arrays are not.
    *value = number == 2;
    return CUDA_SUCCESS;
}

API cuGetProcAddress_v2(const char *symbol, void **function, int, unsigned long long, int *status) {
    if (Result code = enter("cuGetProcAddress", false)) return code;
    Dl_info own{};
    dladdr(reinterpret_cast<void *>(&cuInit), &own);
    void *library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = nullptr;
    for (const char *version : {"_v4", "_v3", "_v2", ""})
        if (library && !*function) *function = dlsym(library, (std::string(symbol) + version).c_str());
    if (library) dlclose(library);
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
