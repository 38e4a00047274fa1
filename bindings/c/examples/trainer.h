/* trainer.h: shared by trainer.c and trainer_gpu.c: the model's shape, the data, and the GPU's part of the work. */
#ifndef TRAINER_H
#define TRAINER_H

#include <stddef.h>
#include <stdint.h>

#include "arithmetic.h"

enum {
    PIXELS = 64,
    LAYERS = 3,
    TENSORS = 2 * LAYERS, /* a weight matrix and a bias vector for each layer */
    WIDEST = 128,
    NO_GPU = 77 /* the exit status where --gpu finds none */
};

static const int WIDTH[LAYERS + 1] = {PIXELS, 128, 64, CLASSES};

struct sample {
    float pixel[PIXELS];
    int digit;
};

struct dataset {
    struct sample *row;
    size_t count, train; /* rows [0, train) are learnt from, the rest are held out */
};

/* Elements of a tensor, and of all of them. */
size_t length(int tensor);
size_t total(void);

/* Says why on standard error and ends the process with the status. */
void end_with(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
#define die(...) end_with(1, __VA_ARGS__)

/* Handles a gradient as soon as it is complete; on a GPU, as soon as the stream has come so far. */
typedef void (*produced_fn)(void *context, int tensor, float *gradient);

/* A replica on a GPU. All of these but the last two and gpu_open only enqueue work in its stream; failures end the process. */
struct gpu;

/* Loads the driver and NVRTC, or ends the process with NO_GPU and names the missing one. */
void gpu_find(void);
/* Copies the data and the parameters to the device of this number (modulo how many there are), for batches of up to `batch`. */
struct gpu *gpu_open(int number, const struct dataset *d, const float *parameters, int batch);
const char *gpu_name(const struct gpu *gpu);
/* The cudaStream_t for all work. */
void *gpu_stream(const struct gpu *gpu);
/* Two doubles on the device: the sum of losses and the digits guessed right. */
double *gpu_tally(const struct gpu *gpu);
/* The tally is zero again and the training rows come in a new order. */
void gpu_begin_epoch(struct gpu *gpu, const size_t *order);
/* As `gradients` in trainer.c; the losses are added to the tally. */
void gpu_gradients(struct gpu *gpu, size_t first, size_t last, size_t batch, produced_fn produced, void *context);
void gpu_update(struct gpu *gpu, int tensor, float rate, float momentum);
/* Guesses held-out rows [first, last), numbered as in the data, and adds the right ones to the tally. */
void gpu_guess(struct gpu *gpu, size_t first, size_t last);
/* Wait for the stream. */
void gpu_read_tally(struct gpu *gpu, double tally[2]);
void gpu_read_parameters(struct gpu *gpu, float *parameters);
void gpu_close(struct gpu *gpu);

#endif
