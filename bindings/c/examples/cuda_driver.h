/* cuda_driver.h: the functions of the CUDA driver and of NVRTC that the trainer uses, looked up at run time.
 *
 * Written against NVIDIA's documentation of the driver API (CUDA 12) and of NVRTC; neither their headers nor their libraries are
 * needed to compile. The suffix _v2 is that of the symbols which cuda.h hides behind the plain names.
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *nvrtcProgram;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_READY = 600,
    CU_STREAM_NON_BLOCKING = 1,
    CU_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_COMPUTE_CAPABILITY_MINOR = 76
};

/* X(name, symbol, parameters): each returns 0 for success. */
#define CUDA_FUNCTIONS(X)                                                                                                        \
    X(init, "cuInit", (unsigned))                                                                                                \
    X(get_count, "cuDeviceGetCount", (int *))                                                                                    \
    X(get_device, "cuDeviceGet", (int *, int))                                                                                   \
    X(get_name, "cuDeviceGetName", (char *, int, int))                                                                           \
    X(get_attribute, "cuDeviceGetAttribute", (int *, int, int))                                                                  \
    X(retain_context, "cuDevicePrimaryCtxRetain", (CUcontext *, int))                                                            \
    X(release_context, "cuDevicePrimaryCtxRelease_v2", (int))                                                                    \
    X(set_context, "cuCtxSetCurrent", (CUcontext))                                                                               \
    X(allocate, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                                        \
    X(free, "cuMemFree_v2", (CUdeviceptr))                                                                                       \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))                                            \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))                                                 \
    X(fill, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                                                   \
    X(create_stream, "cuStreamCreate", (CUstream *, unsigned))                                                                   \
    X(query_stream, "cuStreamQuery", (CUstream))                                                                                 \
    X(destroy_stream, "cuStreamDestroy_v2", (CUstream))                                                                          \
    X(load_module, "cuModuleLoadData", (CUmodule *, const void *))                                                               \
    X(unload_module, "cuModuleUnload", (CUmodule))                                                                               \
    X(get_function, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                                               \
    X(launch, "cuLaunchKernel",                                                                                                  \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))            \
    X(error_name, "cuGetErrorName", (int, const char **))

#define NVRTC_FUNCTIONS(X)                                                                                                       \
    X(arch_count, "nvrtcGetNumSupportedArchs", (int *))                                                                          \
    X(archs, "nvrtcGetSupportedArchs", (int *))                                                                                  \
    X(create, "nvrtcCreateProgram", (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *)) \
    X(compile, "nvrtcCompileProgram", (nvrtcProgram, int, const char *const *))                                                  \
    X(destroy, "nvrtcDestroyProgram", (nvrtcProgram *))                                                                          \
    X(log_size, "nvrtcGetProgramLogSize", (nvrtcProgram, size_t *))                                                              \
    X(log, "nvrtcGetProgramLog", (nvrtcProgram, char *))                                                                         \
    X(ptx_size, "nvrtcGetPTXSize", (nvrtcProgram, size_t *))                                                                     \
    X(ptx, "nvrtcGetPTX", (nvrtcProgram, char *))                                                                                \
    X(cubin_size, "nvrtcGetCUBINSize", (nvrtcProgram, size_t *))                                                                 \
    X(cubin, "nvrtcGetCUBIN", (nvrtcProgram, char *))

#define DECLARE(name, symbol, parameters) int(*name) parameters;
struct cuda_driver {
    CUDA_FUNCTIONS(DECLARE)
};
struct nvrtc {
    NVRTC_FUNCTIONS(DECLARE)
};
#undef DECLARE

/* Loads the functions of one library; returns NULL, or the name of the first symbol that it lacks. */
#define LOOK_UP(name, symbol, parameters)                                                                                        \
    if (!(*(void **)&into->name = dlsym(library, symbol)))                                                                       \
        return symbol;
static inline const char *load_driver(void *library, struct cuda_driver *into) {
    CUDA_FUNCTIONS(LOOK_UP)
    return NULL;
}
static inline const char *load_nvrtc(void *library, struct nvrtc *into) {
    NVRTC_FUNCTIONS(LOOK_UP)
    return NULL;
}
#undef LOOK_UP

#endif
