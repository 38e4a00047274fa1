// Modules are shared objects that the simulated NVRTC made; a launch runs the whole grid in the stream's thread.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <cstring>

#include "sim.h"

using namespace sim;

namespace {

struct Module;

struct Function {
    Module *module;
    std::string name;
    void (*launch)(const unsigned *grid, const unsigned *block, void **params);
    std::vector<size_t> params;
};

struct Module {
    Context *context;
    void *library = nullptr;
    /// Kept open: the loader identifies libraries by their path, and this one's is the descriptor's.
    int fd = -1;
    std::map<std::string, std::unique_ptr<Function>> functions;
    std::vector<Address> globals;
};

struct Modules {
    std::map<void *, std::unique_ptr<Module>> modules;
    std::map<void *, Function *> functions;
};

Modules &modules() {
    static Modules &it = *new Modules;
    return it;
}

/// The shared object in an image: the image itself, or the content of simulated PTX.
Result object_of(const void *image, std::string &object) {
    if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr head;
        memcpy(&head, image, sizeof head);
        // ld writes the section headers last.
        object.assign(static_cast<const char *>(image), head.e_shoff + size_t{head.e_shnum} * head.e_shentsize);
        return CUDA_SUCCESS;
    }
    const char *text = static_cast<const char *>(image), *mark = "// object ";
    if (memcmp(text, "//", 2)) return CUDA_ERROR_INVALID_IMAGE;
    const char *at = strstr(text, mark);
    if (!at) return CUDA_ERROR_INVALID_PTX;
    auto digit = [](char letter) { return letter >= 'a' ? letter - 'a' + 10 : letter - '0'; };
    for (at += strlen(mark); isxdigit(at[0]) && isxdigit(at[1]); at += 2) object += char(digit(at[0]) << 4 | digit(at[1]));
    return CUDA_SUCCESS;
}

Result load(void **handle, const void *image) {
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    Lock lock(state().lock);
    Context *context = nullptr;
    if (Result code = current(context)) return code;
    if (Result code = unsafe_call()) return code;
    std::string object;
    if (Result code = object_of(image, object)) return code;
    auto module = std::make_unique<Module>();
    module->context = context;
    module->fd = memfd_create("cuda-sim-module", MFD_CLOEXEC);
    for (size_t at = 0; at < object.size();) {
        ssize_t put = write(module->fd, object.data() + at, object.size() - at);
        if (put <= 0) {
            close(module->fd);
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
        at += size_t(put);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", module->fd);
    module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const int *capability = module->library ? static_cast<int *>(dlsym(module->library, "cuda_sim_capability")) : nullptr;
    Result code = CUDA_SUCCESS;
    bool exact = memcmp(image, ELFMAG, SELFMAG) == 0;
    if (!capability) {
        const char *why = module->library ? "not made by the simulated NVRTC" : dlerror();
        fprintf(stderr, "cuda-sim: module refused: %s\n", why);
        code = CUDA_ERROR_INVALID_IMAGE;
    } else if (exact ? *capability != config().capability : *capability > config().capability) {
        code = CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (code) {
        if (module->library) dlclose(module->library);
        close(module->fd);
        return code;
    }
    *handle = module.get();
    modules().modules[module.get()] = std::move(module);
    return CUDA_SUCCESS;
}

Result launch(void *function_handle, const unsigned *grid, const unsigned *block, unsigned shared_bytes, void *handle, void **params, void **extra) {
    if (extra || shared_bytes) return CUDA_ERROR_NOT_SUPPORTED;
    Lock lock(state().lock);
    auto found = modules().functions.find(function_handle);
    if (found == modules().functions.end()) return CUDA_ERROR_INVALID_HANDLE;
    Function *function = found->second;
    std::shared_ptr<Stream> stream;
    if (Result code = find_stream(handle, stream)) return code;
    if (function->module->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
    bool fits = grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535;
    if (!fits || threads == 0 || threads > 1024 || block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
    // The arguments are copied now: the caller may reuse its own before the stream gets there.
    std::vector<std::vector<max_align_t>> copies;
    for (size_t i = 0; i < function->params.size(); i++) {
        if (!params || !params[i]) return CUDA_ERROR_INVALID_VALUE;
        copies.emplace_back((function->params[i] + sizeof(max_align_t) - 1) / sizeof(max_align_t));
        memcpy(copies.back().data(), params[i], function->params[i]);
    }
    auto run = function->launch;
    std::vector<unsigned> grid_size(grid, grid + 3), block_size(block, block + 3);
    return submit(stream, [=](Stream &) mutable {
        std::vector<void *> pointers;
        for (auto &copy : copies) pointers.push_back(copy.data());
        KernelAccess access;
        run(grid_size.data(), block_size.data(), pointers.data());
    });
}

}  // namespace

API cuModuleLoadData(void **handle, const void *image) {
    ENTER();
    return load(handle, image);
}

API cuModuleLoadDataEx(void **handle, const void *image, unsigned, int *, void **) {
    ENTER();
    return load(handle, image);
}

API cuModuleUnload(void *handle) {
    ENTER();
    Lock lock(state().lock);
    auto found = modules().modules.find(handle);
    if (found == modules().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    Module &module = *found->second;
    // Launched kernels are run first.
    if (Result code = wait_for(lock, pending(module.context), module.context)) return code;
    for (auto &entry : module.functions) modules().functions.erase(entry.second.get());
    for (Address global : module.globals)
        if (Allocation *found = find(global)) release(global, found->id);
    dlclose(module.library);
    close(module.fd);
    modules().modules.erase(handle);
    return CUDA_SUCCESS;
}

API cuModuleGetFunction(void **function, void *handle, const char *name) {
    ENTER();
    Lock lock(state().lock);
    auto found = modules().modules.find(handle);
    if (found == modules().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    Module &module = *found->second;
    auto &made = module.functions[name];
    if (!made) {
        void *launch = dlsym(module.library, (std::string(name) + "__launch").c_str());
        void *params = dlsym(module.library, (std::string(name) + "__params").c_str());
        if (!launch || !params) {
            module.functions.erase(name);
            return CUDA_ERROR_NOT_FOUND;
        }
        made = std::make_unique<Function>();
        made->module = &module;
        made->name = name;
        made->launch = reinterpret_cast<void (*)(const unsigned *, const unsigned *, void **)>(launch);
        auto sizes = reinterpret_cast<size_t (*)(size_t *)>(params);
        made->params.resize(sizes(nullptr));
        sizes(made->params.data());
        modules().functions[made.get()] = made.get();
    }
    *function = made.get();
    return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(Address *address, size_t *bytes, void *handle, const char *name) {
    ENTER();
    Lock lock(state().lock);
    auto found = modules().modules.find(handle);
    if (found == modules().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    Module &module = *found->second;
    void *at = dlsym(module.library, name);
    Dl_info info{};
    const Elf64_Sym *symbol = nullptr;
    void **entry = reinterpret_cast<void **>(const_cast<Elf64_Sym **>(&symbol));
    if (!at || !dladdr1(at, &info, entry, RTLD_DL_SYMENT) || !symbol) return CUDA_ERROR_NOT_FOUND;
    if (!find(Address(at))) {
        Allocation made{};
        made.base = Address(at);
        made.bytes = made.mapped = symbol->st_size;
        made.kind = Kind::global;
        made.device = module.context->device;
        made.context = module.context;
        made.alias = static_cast<char *>(at);
        made.id = state().next_id++;
        state().allocations[made.base] = made;
        module.globals.push_back(made.base);
    }
    if (address) *address = Address(at);
    if (bytes) *bytes = symbol->st_size;
    return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, int number, void *handle) {
    ENTER();
    Lock lock(state().lock);
    if (!modules().functions.count(handle)) return CUDA_ERROR_INVALID_HANDLE;
    switch (number) {
        case 0: *value = 1024; break;  // threads per block
        case 4: *value = 32; break;    // registers
        case 5: case 6: *value = config().capability; break;
        default: *value = 0;
    }
    return number < 0 || number >= 16 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuFuncSetAttribute(void *handle, int, int) {
    ENTER();
    Lock lock(state().lock);
    return modules().functions.count(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/// Does nothing: modules are loaded completely.
API cuFuncLoad(void *handle) {
    ENTER();
    Lock lock(state().lock);
    return modules().functions.count(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *handle, size_t (*)(int), size_t, int limit) {
    ENTER();
    Lock lock(state().lock);
    if (!modules().functions.count(handle)) return CUDA_ERROR_INVALID_HANDLE;
    *grid = 8;
    *block = limit > 0 && limit < 256 ? limit : 256;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int block, size_t) {
    ENTER();
    Lock lock(state().lock);
    if (!modules().functions.count(handle)) return CUDA_ERROR_INVALID_HANDLE;
    if (block <= 0) return CUDA_ERROR_INVALID_VALUE;
    *blocks = block > 2048 ? 0 : 2048 / block;
    return CUDA_SUCCESS;
}

API cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared_bytes, void *stream, void **params, void **extra) {
    ENTER();
    unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared_bytes, stream, params, extra);
}
