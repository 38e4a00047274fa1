/* trainer_gpu.c: the trainer's replica on an NVIDIA GPU: forward, backward and update as kernels, in one stream.
 *
 * Each element of a result is computed by one thread, with the terms in the order in which trainer.c adds them; so both end with the
 * same bits. Speed is not the point of these kernels: how a trainer hands over its gradients is (gpu_gradients, `push` in trainer.c).
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_driver.h"
#include "trainer.h"

#define TEXT(...) #__VA_ARGS__

/* Weights are [input][output], activations and error signals [row][unit]. `order` says which row of the data is the batch's n-th. */
static const char KERNELS[] = TEXT(
    extern "C" __global__ void layer(const float *in, const int *order, const float *weight, const float *bias, float *out,
                                     int rows, int inputs, int outputs, int relu) {
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        if (at >= rows * outputs)
            return;
        int row = at / outputs;
        int j = at % outputs;
        const float *x = in + (order ? order[row] : row) * inputs;
        float y = bias[j];
        for (int i = 0; i < inputs; i++)
            y += x[i] * weight[i * outputs + j];
        out[at] = !relu || y > 0.0f ? y : 0.0f;
    }

    extern "C" __global__ void softmax(float *score, const int *order, const int *digit, float *delta, float *loss, int rows,
                                       float batch) {
        int row = blockIdx.x * blockDim.x + threadIdx.x;
        if (row >= rows)
            return;
        int right = digit[order[row]];
        score += row * CLASSES;
        delta += row * CLASSES;
        loss[row] = softmax_loss(score, right);
        for (int k = 0; k < CLASSES; k++)
            delta[k] = (score[k] - (k == right ? 1.0f : 0.0f)) / batch;
    }

    extern "C" __global__ void guess(const float *score, const int *order, const int *digit, float *hit, int rows) {
        int row = blockIdx.x * blockDim.x + threadIdx.x;
        if (row < rows)
            hit[row] = best_of(score + row * CLASSES) == digit[order[row]] ? 1.0f : 0.0f;
    }

    extern "C" __global__ void tally(const float *value, double *into, int rows) {
        if (blockIdx.x * blockDim.x + threadIdx.x > 0)
            return;
        double sum = 0.0;
        for (int row = 0; row < rows; row++)
            sum += (double)value[row];
        *into += sum;
    }

    extern "C" __global__ void weight_gradient(const float *in, const int *order, const float *delta, float *gradient, int rows,
                                               int inputs, int outputs) {
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        if (at >= inputs * outputs)
            return;
        int i = at / outputs;
        int j = at % outputs;
        float sum = 0.0f;
        for (int row = 0; row < rows; row++)
            sum += in[(order ? order[row] : row) * inputs + i] * delta[row * outputs + j];
        gradient[at] = sum;
    }

    extern "C" __global__ void bias_gradient(const float *delta, float *gradient, int rows, int outputs) {
        int j = blockIdx.x * blockDim.x + threadIdx.x;
        if (j >= outputs)
            return;
        float sum = 0.0f;
        for (int row = 0; row < rows; row++)
            sum += delta[row * outputs + j];
        gradient[j] = sum;
    }

    extern "C" __global__ void error_below(const float *weight, const float *act, const float *delta, float *below, int rows,
                                           int inputs, int outputs) {
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        if (at >= rows * inputs)
            return;
        int row = at / inputs;
        int i = at % inputs;
        below[at] = act[at] > 0.0f ? dot(weight + i * outputs, delta + row * outputs, outputs) : 0.0f;
    }

    extern "C" __global__ void update(float *weight, float *speed, const float *gradient, int count, float rate, float momentum) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= count)
            return;
        speed[i] = momentum * speed[i] + gradient[i];
        weight[i] -= rate * speed[i];
    });

enum kernel { LAYER, SOFTMAX, GUESS, TALLY, WEIGHT_GRADIENT, BIAS_GRADIENT, ERROR_BELOW, UPDATE, KERNEL_COUNT };

static const char *const KERNEL_NAME[KERNEL_COUNT] = {"layer",           "softmax",       "guess",       "tally",
                                                      "weight_gradient", "bias_gradient", "error_below", "update"};

enum {
    BLOCK = 128,            /* threads of a block */
    MOST_ROWS = 1 << 20,    /* of the data: the kernels count elements in 32 bits */
    MOST_ARCHITECTURES = 64 /* that NVRTC may know */
};

/* No enqueued work takes longer: a stream that has not ended by then never will. */
static const int PATIENCE_SECONDS = 60;

static struct cuda_driver cu;
static struct nvrtc rtc;
static int device_count;

struct gpu {
    int device;
    char name[100];
    CUcontext context;
    CUmodule module;
    CUfunction kernel[KERNEL_COUNT];
    CUstream stream;
    size_t count, train, most; /* rows of the data, of these to learn from, and in one pass */
    int *order;
    CUdeviceptr pixels, digits, rows;             /* the data, and the order of its rows */
    CUdeviceptr parameters, velocity, gradients;  /* each holds all tensors, one behind the other */
    CUdeviceptr act[LAYERS + 1], delta, below;    /* act[0] is not used: pixels are read where they are */
    CUdeviceptr value, tally;                     /* a float for each row; the two sums of an epoch */
};

/* Ends the process when a call of the driver has failed. */
static void check(int result, const char *call) {
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    if (cu.error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown";
    die("CUDA: %s: %s (%d); look at `nvidia-smi` and the kernel's log (`dmesg`)", call, name, result);
}

void gpu_find(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        end_with(NO_GPU, "--gpu: no CUDA driver: %s; install NVIDIA's, or start the container with GPUs", dlerror());
    const char *missing = load_driver(library, &cu);
    if (missing)
        end_with(NO_GPU, "--gpu: libcuda.so.1 has no %s; install a complete NVIDIA driver for CUDA 12 or later", missing);
    int result = cu.init(0);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && cu.get_count(&device_count) == CUDA_SUCCESS && device_count == 0))
        end_with(NO_GPU, "--gpu: no CUDA device; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES");
    if (result != CUDA_SUCCESS || device_count < 1)
        end_with(NO_GPU, "--gpu: the CUDA driver does not start (%d); look at `nvidia-smi` and the kernel's log (`dmesg`)", result);

    static const char *const NAMES[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"};
    library = NULL;
    for (size_t i = 0; !library && i < sizeof NAMES / sizeof *NAMES; i++)
        library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        end_with(NO_GPU, "--gpu: no NVRTC, which compiles the kernels: %s; install libnvrtc 12 or 13 (the CUDA toolkit has it)", dlerror());
    if ((missing = load_nvrtc(library, &rtc)))
        end_with(NO_GPU, "--gpu: libnvrtc.so has no %s; install NVRTC 12 or 13", missing);
}

/* ---- kernels ---- */

/* Machine code if NVRTC knows the device, else PTX for the latest architecture that it does, which the driver translates. */
static void choose(int capability, char *option, size_t room) {
    int count = 0, known[MOST_ARCHITECTURES], latest = 0;
    if (rtc.arch_count(&count) || count < 1 || count > MOST_ARCHITECTURES || rtc.archs(known))
        die("NVRTC does not say which architectures it knows");
    for (int i = 0; i < count; i++)
        if (known[i] <= capability && known[i] > latest)
            latest = known[i];
    if (!latest)
        die("NVRTC knows no architecture of compute capability %d.%d; install another version", capability / 10, capability % 10);
    snprintf(option, room, "--gpu-architecture=%s_%d", latest == capability ? "sm" : "compute", latest);
}

static void compile(struct gpu *gpu) {
    int major = 0, minor = 0;
    check(cu.get_attribute(&major, CU_COMPUTE_CAPABILITY_MAJOR, gpu->device), "cuDeviceGetAttribute");
    check(cu.get_attribute(&minor, CU_COMPUTE_CAPABILITY_MINOR, gpu->device), "cuDeviceGetAttribute");
    char architecture[64], *source = malloc(sizeof ARITHMETIC_SOURCE + sizeof KERNELS);
    choose(10 * major + minor, architecture, sizeof architecture);
    const char *options[] = {architecture, "--fmad=false", "--device-as-default-execution-space"};
    if (!source)
        die("out of memory");
    sprintf(source, "%s\n%s", ARITHMETIC_SOURCE, KERNELS);

    nvrtcProgram program;
    if (rtc.create(&program, source, "trainer.cu", 0, NULL, NULL))
        die("NVRTC: nvrtcCreateProgram failed");
    if (rtc.compile(program, sizeof options / sizeof *options, options)) {
        size_t bytes = 0;
        char *log = rtc.log_size(program, &bytes) ? NULL : calloc(bytes + 1, 1);
        if (log)
            rtc.log(program, log);
        die("NVRTC: the kernels do not compile with %s:\n%s", architecture, log ? log : "");
    }
    size_t bytes = 0;
    int machine = strstr(architecture, "=sm_") != NULL;
    char *image = (machine ? rtc.cubin_size : rtc.ptx_size)(program, &bytes) ? NULL : malloc(bytes);
    if (!image || (machine ? rtc.cubin : rtc.ptx)(program, image))
        die("NVRTC: no image of the kernels");
    check(cu.load_module(&gpu->module, image), "cuModuleLoadData");
    for (int k = 0; k < KERNEL_COUNT; k++)
        check(cu.get_function(&gpu->kernel[k], gpu->module, KERNEL_NAME[k]), "cuModuleGetFunction");
    rtc.destroy(&program);
    free(image);
    free(source);
}

/* Enqueues a kernel with a thread for each element; the arguments are pointers to the parameters. */
#define LAUNCH(gpu, kernel, elements, ...) launch(gpu, kernel, elements, (void *[]){__VA_ARGS__})
static void launch(const struct gpu *gpu, enum kernel kernel, int elements, void **parameters) {
    unsigned blocks = ((unsigned)elements + BLOCK - 1) / BLOCK;
    if (blocks)
        check(cu.launch(gpu->kernel[kernel], blocks, 1, 1, BLOCK, 1, 1, 0, gpu->stream, parameters, NULL), KERNEL_NAME[kernel]);
}

/* ---- memory ---- */

static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr at = 0;
    check(cu.allocate(&at, bytes), "cuMemAlloc");
    return at;
}

static CUdeviceptr tensor(CUdeviceptr all, int number) {
    for (int t = 0; t < number; t++)
        all += length(t) * sizeof(float);
    return all;
}

/* Waits for all enqueued work. */
static void settle(const struct gpu *gpu) {
    struct timespec begun, now, pause = {0, 20000};
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int result; (result = cu.query_stream(gpu->stream)) != CUDA_SUCCESS;) {
        if (result != CUDA_ERROR_NOT_READY)
            check(result, "cuStreamQuery");
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec > PATIENCE_SECONDS)
            die("the GPU has not ended its work after %d s; look at `nvidia-smi`", PATIENCE_SECONDS);
        nanosleep(&pause, NULL);
    }
}

static void copy_in(const struct gpu *gpu, CUdeviceptr to, const void *from, size_t bytes) {
    check(cu.copy_in(to, from, bytes, gpu->stream), "cuMemcpyHtoDAsync");
}

static void copy_out(const struct gpu *gpu, void *to, CUdeviceptr from, size_t bytes) {
    check(cu.copy_out(to, from, bytes, gpu->stream), "cuMemcpyDtoHAsync");
    settle(gpu);
}

static void upload(struct gpu *gpu, const struct dataset *d) {
    float *pixels = malloc(d->count * PIXELS * sizeof *pixels);
    int *digits = malloc(d->count * sizeof *digits);
    gpu->order = malloc(d->count * sizeof *gpu->order);
    if (!pixels || !digits || !gpu->order)
        die("out of memory");
    for (size_t i = 0; i < d->count; i++) {
        memcpy(&pixels[i * PIXELS], d->row[i].pixel, sizeof d->row[i].pixel);
        digits[i] = d->row[i].digit;
        gpu->order[i] = (int)i;
    }
    copy_in(gpu, gpu->pixels, pixels, d->count * PIXELS * sizeof *pixels);
    copy_in(gpu, gpu->digits, digits, d->count * sizeof *digits);
    settle(gpu);
    free(pixels);
    free(digits);
}

struct gpu *gpu_open(int number, const struct dataset *d, const float *parameters, int batch) {
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        die("out of memory");
    if (d->count > MOST_ROWS)
        die("--gpu takes at most %d rows", MOST_ROWS);
    check(cu.get_device(&gpu->device, number % device_count), "cuDeviceGet");
    check(cu.get_name(gpu->name, sizeof gpu->name, gpu->device), "cuDeviceGetName");
    check(cu.retain_context(&gpu->context, gpu->device), "cuDevicePrimaryCtxRetain");
    check(cu.set_context(gpu->context), "cuCtxSetCurrent");
    check(cu.create_stream(&gpu->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    compile(gpu);

    size_t held_out = d->count - d->train, bytes = total() * sizeof(float);
    gpu->count = d->count;
    gpu->train = d->train;
    gpu->most = held_out > (size_t)batch ? held_out : (size_t)batch;
    gpu->pixels = allocate(d->count * PIXELS * sizeof(float));
    gpu->digits = allocate(d->count * sizeof(int));
    gpu->rows = allocate(d->count * sizeof(int));
    gpu->parameters = allocate(bytes);
    gpu->velocity = allocate(bytes);
    gpu->gradients = allocate(bytes);
    for (int layer = 1; layer <= LAYERS; layer++)
        gpu->act[layer] = allocate(gpu->most * (size_t)WIDTH[layer] * sizeof(float));
    gpu->delta = allocate(gpu->most * WIDEST * sizeof(float));
    gpu->below = allocate(gpu->most * WIDEST * sizeof(float));
    gpu->value = allocate(gpu->most * sizeof(float));
    gpu->tally = allocate(2 * sizeof(double));
    upload(gpu, d);
    copy_in(gpu, gpu->parameters, parameters, bytes);
    check(cu.fill(gpu->velocity, 0, bytes, gpu->stream), "cuMemsetD8Async");
    settle(gpu);
    return gpu;
}

const char *gpu_name(const struct gpu *gpu) { return gpu->name; }

void *gpu_stream(const struct gpu *gpu) { return gpu->stream; }

double *gpu_tally(const struct gpu *gpu) { return (double *)(uintptr_t)gpu->tally; }

/* ---- the model ---- */

void gpu_begin_epoch(struct gpu *gpu, const size_t *order) {
    for (size_t i = 0; i < gpu->train; i++)
        gpu->order[i] = (int)order[i];
    copy_in(gpu, gpu->rows, gpu->order, gpu->count * sizeof *gpu->order);
    check(cu.fill(gpu->tally, 0, 2 * sizeof(double), gpu->stream), "cuMemsetD8Async");
}

/* A layer's input: the pixels of the rows in their order, or the activations below. */
static CUdeviceptr input(const struct gpu *gpu, int layer, CUdeviceptr rows, CUdeviceptr *order) {
    *order = layer == 0 ? rows : 0;
    return layer == 0 ? gpu->pixels : gpu->act[layer];
}

static void forward(struct gpu *gpu, CUdeviceptr rows, int share) {
    for (int layer = 0; layer < LAYERS; layer++) {
        int inputs = WIDTH[layer], outputs = WIDTH[layer + 1], relu = layer + 1 < LAYERS;
        CUdeviceptr order, in = input(gpu, layer, rows, &order);
        CUdeviceptr weight = tensor(gpu->parameters, 2 * layer), bias = tensor(gpu->parameters, 2 * layer + 1);
        LAUNCH(gpu, LAYER, share * outputs, &in, &order, &weight, &bias, &gpu->act[layer + 1], &share, &inputs, &outputs, &relu);
    }
}

void gpu_gradients(struct gpu *gpu, size_t first, size_t last, size_t batch, produced_fn produced, void *context) {
    CUdeviceptr rows = gpu->rows + first * sizeof(int), delta = gpu->delta, below = gpu->below;
    int share = (int)(last - first), one = 1;
    float whole = (float)batch;
    forward(gpu, rows, share);
    LAUNCH(gpu, SOFTMAX, share, &gpu->act[LAYERS], &rows, &gpu->digits, &delta, &gpu->value, &share, &whole);
    LAUNCH(gpu, TALLY, one, &gpu->value, &gpu->tally, &share);
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        int inputs = WIDTH[layer], outputs = WIDTH[layer + 1];
        CUdeviceptr order, in = input(gpu, layer, rows, &order);
        CUdeviceptr weight = tensor(gpu->gradients, 2 * layer), bias = tensor(gpu->gradients, 2 * layer + 1);
        LAUNCH(gpu, WEIGHT_GRADIENT, inputs * outputs, &in, &order, &delta, &weight, &share, &inputs, &outputs);
        LAUNCH(gpu, BIAS_GRADIENT, outputs, &delta, &bias, &share, &outputs);
        if (produced) {
            /* The kernels may still run: a reader of the gradients waits only for the work that the stream holds now. */
            produced(context, 2 * layer, (float *)(uintptr_t)weight);
            produced(context, 2 * layer + 1, (float *)(uintptr_t)bias);
        }
        if (layer == 0)
            break;
        CUdeviceptr parameters = tensor(gpu->parameters, 2 * layer), held = delta;
        LAUNCH(gpu, ERROR_BELOW, share * inputs, &parameters, &gpu->act[layer], &delta, &below, &share, &inputs, &outputs);
        delta = below;
        below = held;
    }
}

void gpu_update(struct gpu *gpu, int number, float rate, float momentum) {
    CUdeviceptr weight = tensor(gpu->parameters, number), speed = tensor(gpu->velocity, number);
    CUdeviceptr gradient = tensor(gpu->gradients, number);
    int count = (int)length(number);
    LAUNCH(gpu, UPDATE, count, &weight, &speed, &gradient, &count, &rate, &momentum);
}

void gpu_guess(struct gpu *gpu, size_t first, size_t last) {
    CUdeviceptr rows = gpu->rows + first * sizeof(int), right = gpu->tally + sizeof(double);
    int share = (int)(last - first), one = 1;
    forward(gpu, rows, share);
    LAUNCH(gpu, GUESS, share, &gpu->act[LAYERS], &rows, &gpu->digits, &gpu->value, &share);
    LAUNCH(gpu, TALLY, one, &gpu->value, &right, &share);
}

void gpu_read_tally(struct gpu *gpu, double tally[2]) { copy_out(gpu, tally, gpu->tally, 2 * sizeof(double)); }

void gpu_read_parameters(struct gpu *gpu, float *parameters) {
    copy_out(gpu, parameters, gpu->parameters, total() * sizeof(float));
}

void gpu_close(struct gpu *gpu) {
    settle(gpu);
    CUdeviceptr all[] = {gpu->pixels, gpu->digits, gpu->rows,  gpu->parameters, gpu->velocity, gpu->gradients, gpu->act[1],
                         gpu->act[2], gpu->act[3], gpu->delta, gpu->below,      gpu->value,    gpu->tally};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cu.free(all[i]), "cuMemFree");
    check(cu.destroy_stream(gpu->stream), "cuStreamDestroy");
    check(cu.unload_module(gpu->module), "cuModuleUnload");
    check(cu.release_context(gpu->device), "cuDevicePrimaryCtxRelease");
    free(gpu->order);
    free(gpu);
}
