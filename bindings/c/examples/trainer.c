/* trainer.c: data-parallel training of a small classifier, with gradients summed by Shouter.
 *
 * A multi-layer perceptron (64-128-64-10, ReLU, softmax cross-entropy, SGD with momentum, float32) learns handwritten
 * digits. Every rank holds a whole replica of the model and takes its share of each global batch; the gradients are
 * summed over all ranks, so that every replica makes the same update and ends with the same bits.
 *
 *   cc -std=c99 -O2 -ffp-contract=off trainer.c trainer_gpu.c $(pkg-config --cflags --libs shouter) -lm -o trainer
 *   shouter run -n 4 --hosts 2 -- ./trainer --data digits.csv
 *
 * The parts that matter for a trainer of your own:
 *   - shouter_register  once, before the first step: each gradient's name, type and length, in forward order (order is priority);
 *   - shouter_start     as soon as the backward pass has produced a gradient, so that it travels while the pass goes on;
 *   - shouter_wait      before the update reads it;
 *   - shouter_allreduce for values that are not worth a table entry (here: the epoch's loss and accuracy).
 *
 * With --gpu parameters and gradients lie in the memory of an NVIDIA GPU and trainer_gpu.c computes; what is started says so, and
 * shouter_allreduce_cuda takes the place of shouter_allreduce. It ends with the same bits. Nothing of CUDA is needed to compile.
 *
 * The sums inside one process have a fixed order and no operation is contracted into a fused multiply-add, so that a
 * run can be repeated to the bit, and compared with `--single`, which computes the same global batches alone.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <shouter.h>

#include "trainer.h"

enum { MAX_RANKS = 64 };

static const char *const TENSOR_NAME[TENSORS] = {"layer0.weight", "layer0.bias",   "layer1.weight",
                                                 "layer1.bias",   "layer2.weight", "layer2.bias"};

struct options {
    const char *data, *json, *dump;
    int epochs, batch, single, simulate, gpu;
    uint64_t seed;
    float rate, momentum;
};

/* One set of parameters, or of gradients, or of velocities: one allocation, cut into tensors. */
struct tensors {
    float *all;
    float *at[TENSORS];
};

void end_with(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("trainer: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}

/* Ends the process when a call of Shouter has failed; the message names the rank, the call and the remedy. */
static void check(shouter_status_t status, const char *call) {
    if (status != SHOUTER_OK)
        die("%s: %s: %s", call, shouter_error_name(status), shouter_last_error());
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* SplitMix64 (Steele, Lea, Flood 2014): every rank draws the same numbers from the same seed. */
static uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Fisher-Yates. The bias of the modulo is below 2^-50 at these sizes. */
static void shuffle(size_t *order, size_t count, uint64_t *state) {
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)(draw(state) % i), held = order[i - 1];
        order[i - 1] = order[j];
        order[j] = held;
    }
}

/* ---- data ---- */

static struct dataset load(const char *path, uint64_t seed) {
    FILE *file = fopen(path, "r");
    if (!file)
        die("cannot open %s: %s (scripts/demo unpacks data/digits.csv.gz)", path, strerror(errno));
    size_t capacity = 2048, count = 0;
    struct sample *row = malloc(capacity * sizeof *row);
    char line[1024];
    while (row && fgets(line, sizeof line, file)) {
        if (count == capacity) {
            struct sample *more = realloc(row, (capacity *= 2) * sizeof *row);
            if (!more)
                die("out of memory at row %zu", count);
            row = more;
        }
        char *at = line;
        for (int field = 0; field <= PIXELS; field++) {
            char *end;
            long value = strtol(at, &end, 10);
            if (end == at || value < 0 || value > (field < PIXELS ? 16 : CLASSES - 1))
                die("%s, line %zu, field %d: expected a pixel (0 to 16) or a digit (0 to 9)", path, count + 1, field + 1);
            if (field < PIXELS)
                row[count].pixel[field] = (float)value / 16.0f;
            else
                row[count].digit = (int)value;
            at = *end == ',' ? end + 1 : end;
        }
        count++;
    }
    fclose(file);
    if (count < 10)
        die("%s holds %zu rows; at least 10 are needed", path, count);

    /* The split is fixed by the seed: a shuffled copy, of which the first 80% are learnt from. */
    size_t *order = malloc(count * sizeof *order);
    struct sample *mixed = malloc(count * sizeof *mixed);
    if (!order || !mixed)
        die("out of memory");
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    uint64_t state = seed ^ 0x5bd1e995;
    shuffle(order, count, &state);
    for (size_t i = 0; i < count; i++)
        mixed[i] = row[order[i]];
    free(order);
    free(row);
    return (struct dataset){mixed, count, count * 4 / 5};
}

/* ---- the model ---- */

size_t length(int tensor) {
    int layer = tensor / 2;
    return (size_t)(tensor % 2 ? WIDTH[layer + 1] : WIDTH[layer] * WIDTH[layer + 1]);
}

size_t total(void) {
    size_t sum = 0;
    for (int t = 0; t < TENSORS; t++)
        sum += length(t);
    return sum;
}

static struct tensors allocate(void) {
    struct tensors set = {calloc(total(), sizeof(float)), {0}};
    if (!set.all)
        die("out of memory");
    float *at = set.all;
    for (int t = 0; t < TENSORS; t++, at += length(t - 1))
        set.at[t] = at;
    return set;
}

/* He's uniform initialisation (He et al. 2015): weights in +-sqrt(6 / fan_in), biases 0. */
static void initialise(struct tensors *parameters, uint64_t seed) {
    uint64_t state = seed;
    for (int layer = 0; layer < LAYERS; layer++) {
        float bound = sqrtf(6.0f / (float)WIDTH[layer]), *weight = parameters->at[2 * layer];
        for (size_t i = 0; i < length(2 * layer); i++)
            weight[i] = bound * ((float)(draw(&state) >> 40) / 8388608.0f - 1.0f);
    }
}

/* Weights are stored [input][output]: both passes walk rows, which vectorises without changing the order of any sum. */
static void forward(const struct tensors *p, const float *pixel, float act[LAYERS + 1][WIDEST]) {
    memcpy(act[0], pixel, PIXELS * sizeof(float));
    for (int layer = 0; layer < LAYERS; layer++) {
        int in = WIDTH[layer], out = WIDTH[layer + 1];
        const float *weight = p->at[2 * layer];
        float *y = act[layer + 1];
        memcpy(y, p->at[2 * layer + 1], (size_t)out * sizeof(float));
        for (int i = 0; i < in; i++) {
            float x = act[layer][i];
            for (int j = 0; j < out; j++)
                y[j] += x * weight[i * out + j];
        }
        if (layer + 1 < LAYERS)
            for (int j = 0; j < out; j++)
                y[j] = y[j] > 0.0f ? y[j] : 0.0f;
    }
}

/* The activations and the error signals of one rank's share of a batch. */
struct workspace {
    float (*act)[LAYERS + 1][WIDEST];
    float (*delta)[WIDEST], (*below)[WIDEST];
};

static struct workspace workspace(int batch) {
    size_t n = (size_t)batch;
    struct workspace w = {malloc(n * sizeof *w.act), malloc(n * sizeof *w.delta), malloc(n * sizeof *w.below)};
    if (!w.act || !w.delta || !w.below)
        die("out of memory for a batch of %d", batch);
    return w;
}

/* Gradients of one share of a batch, divided by the size of the whole batch, so that their sum over the ranks is the
 * gradient of the batch's mean loss. Calls `produced` for each tensor, last layer first. Returns the sum of the losses. */
static double gradients(const struct tensors *p, const struct dataset *d, const size_t *order, size_t first, size_t last,
                        size_t batch, struct workspace w, struct tensors *g, produced_fn produced, void *context) {
    size_t share = last - first;
    double loss = 0.0;
    for (size_t s = 0; s < share; s++) {
        const struct sample *row = &d->row[order[first + s]];
        forward(p, row->pixel, w.act[s]);
        float *score = w.act[s][LAYERS];
        loss += (double)softmax_loss(score, row->digit);
        for (int k = 0; k < CLASSES; k++)
            w.delta[s][k] = (score[k] - (k == row->digit ? 1.0f : 0.0f)) / (float)batch;
    }
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        int in = WIDTH[layer], out = WIDTH[layer + 1];
        float *weight = g->at[2 * layer], *bias = g->at[2 * layer + 1];
        memset(weight, 0, length(2 * layer) * sizeof(float));
        memset(bias, 0, length(2 * layer + 1) * sizeof(float));
        for (size_t s = 0; s < share; s++) {
            const float *delta = w.delta[s];
            for (int j = 0; j < out; j++)
                bias[j] += delta[j];
            for (int i = 0; i < in; i++) {
                float x = w.act[s][layer][i];
                for (int j = 0; j < out; j++)
                    weight[i * out + j] += x * delta[j];
            }
        }
        if (produced) {
            produced(context, 2 * layer, weight);
            produced(context, 2 * layer + 1, bias);
        }
        if (layer == 0)
            break;
        for (size_t s = 0; s < share; s++)
            for (int i = 0; i < in; i++)
                w.below[s][i] =
                    w.act[s][layer][i] > 0.0f ? dot(&p->at[2 * layer][i * out], w.delta[s], out) : 0.0f;
        float(*held)[WIDEST] = w.delta;
        w.delta = w.below;
        w.below = held;
    }
    return loss;
}

static void update(struct tensors *p, struct tensors *velocity, const struct tensors *g, int tensor, const struct options *o) {
    float *weight = p->at[tensor], *speed = velocity->at[tensor];
    const float *gradient = g->at[tensor];
    for (size_t i = 0; i < length(tensor); i++) {
        speed[i] = o->momentum * speed[i] + gradient[i];
        weight[i] -= o->rate * speed[i];
    }
}

static int guess(const struct tensors *p, const struct sample *row) {
    float act[LAYERS + 1][WIDEST];
    forward(p, row->pixel, act);
    return best_of(act[LAYERS]);
}

/* ---- ranks ---- */

struct exchange {
    shouter_t *shouter; /* NULL when alone */
    struct gpu *gpu;    /* NULL where gradients lie in the host's memory */
    uint32_t id[TENSORS];
    shouter_work_t *work[TENSORS];
    double blocked_us; /* in this step, inside start and wait */
};

static void push(void *context, int tensor, float *gradient) {
    struct exchange *x = context;
    double start = now_us();
    shouter_operation_t operation = {.size = sizeof operation,
                                     .kind = SHOUTER_OPERATION_OF_TENSOR,
                                     .tensor = x->id[tensor],
                                     .input = gradient,
                                     .output = gradient};
    if (x->gpu) {
        operation.memory = SHOUTER_MEMORY_CUDA;
        operation.stream = gpu_stream(x->gpu);
    }
    check(shouter_start(x->shouter, &operation, &x->work[tensor]), "shouter_start");
    x->blocked_us += now_us() - start;
}

static void wait_for(struct exchange *x, int tensor) {
    double start = now_us();
    check(shouter_wait(x->work[tensor], SHOUTER_DEFAULT_TIMEOUT), "shouter_wait");
    shouter_work_free(x->work[tensor]);
    x->blocked_us += now_us() - start;
}

/* The rank that has waited longest for gradients, at rank 0: a message from each other rank, all in flight at once. */
static int slowest(shouter_t *shouter, int rank, int size, double *waited_us) {
    enum { TAG = 1 };
    shouter_operation_t message = {
        .size = sizeof message, .dtype = SHOUTER_F64, .input = waited_us, .count = 1, .tag = TAG};
    int who = rank;
    if (rank != 0) {
        shouter_work_t *sending;
        message.kind = SHOUTER_OPERATION_SEND;
        check(shouter_start(shouter, &message, &sending), "shouter_start");
        check(shouter_wait(sending, SHOUTER_DEFAULT_TIMEOUT), "shouter_wait");
        shouter_work_free(sending);
        return who;
    }
    double *theirs = calloc((size_t)size, sizeof *theirs);
    shouter_work_t **receiving = calloc((size_t)size, sizeof *receiving);
    if (!theirs || !receiving)
        die("no memory");
    message.kind = SHOUTER_OPERATION_RECV;
    message.from = SHOUTER_ANY_RANK;
    for (int i = 1; i < size; i++) {
        message.output = &theirs[i];
        check(shouter_start(shouter, &message, &receiving[i]), "shouter_start");
    }
    for (int i = 1; i < size; i++) {
        shouter_message_t from;
        check(shouter_wait(receiving[i], SHOUTER_DEFAULT_TIMEOUT), "shouter_wait");
        check(shouter_work_message(receiving[i], &from), "shouter_work_message");
        shouter_work_free(receiving[i]);
        if (theirs[i] > *waited_us) {
            *waited_us = theirs[i];
            who = (int)from.rank;
        }
    }
    free(receiving);
    free(theirs);
    return who;
}

static void join(struct exchange *x, int *rank, int *size) {
    check(shouter_init(NULL, &x->shouter), "shouter_init");
    *rank = (int)shouter_rank(x->shouter);
    *size = (int)shouter_size(x->shouter);
    shouter_tensor_t table[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        table[t] = (shouter_tensor_t){.name = TENSOR_NAME[t],
                                      .kind = SHOUTER_OPERATION_ALLREDUCE,
                                      .count = length(t),
                                      .dtype = SHOUTER_F32,
                                      .op = SHOUTER_SUM};
    check(shouter_register(x->shouter, table, TENSORS, x->id), "shouter_register");
}

/* ---- output ---- */

/* `%r` in a file name becomes the rank, so that one command line serves every rank. */
static FILE *open_for(const char *name, int rank, char *path, size_t room) {
    const char *mark = strstr(name, "%r");
    if (mark)
        snprintf(path, room, "%.*s%d%s", (int)(mark - name), name, rank, mark + 2);
    else
        snprintf(path, room, "%s", name);
    FILE *file = strcmp(path, "-") ? fopen(path, "wb") : stdout;
    if (!file)
        die("cannot write %s: %s", path, strerror(errno));
    return file;
}

static void close_written(FILE *file, const char *path) {
    if (file != stdout && fclose(file) != 0)
        die("cannot write %s: %s", path, strerror(errno));
}

static void usage(FILE *to) {
    fputs("usage: trainer --data FILE [options]\n"
          "Trains a classifier of handwritten digits; every rank that `shouter run` or torchrun starts is one replica.\n\n"
          "  --data FILE         rows of 64 pixels (0 to 16) and a digit, comma-separated\n"
          "  --epochs N          passes over the training rows (default 30)\n"
          "  --batch N           rows of a global batch, shared among the ranks (default 64)\n"
          "  --rate X            learning rate (default 0.05)\n"
          "  --momentum X        (default 0.9)\n"
          "  --seed N            of the split, the order and the initial weights (default 1)\n"
          "  --single            train alone with the same global batches: the reference\n"
          "  --simulate-ranks N  train alone, but add the gradients of N shares as N ranks would\n"
          "  --gpu               compute on NVIDIA GPUs, with parameters and gradients in their memory; the same bits. The\n"
          "                      ranks of a host take its GPUs in turn. Exits with 77 where there is no driver, GPU or NVRTC\n"
          "  --json FILE         one JSON object a line: steps, epochs and a summary ('-': standard output)\n"
          "  --dump-params FILE  the parameters as little-endian float32\n"
          "In file names %r is replaced by the rank.\n\n"
          "examples:\n"
          "  trainer --single --data digits.csv\n"
          "  shouter run -n 4 --hosts 2 -- trainer --data digits.csv --dump-params out/rank-%r.params\n"
          "  shouter run -n 2 -- trainer --gpu --data digits.csv\n",
          to);
}

static struct options parse(int argc, char **argv) {
    struct options o = {.epochs = 30, .batch = 64, .seed = 1, .rate = 0.05f, .momentum = 0.9f};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
            usage(stdout);
            exit(0);
        }
        if (!strcmp(name, "--single")) {
            o.single = 1;
            continue;
        }
        if (!strcmp(name, "--gpu")) {
            o.gpu = 1;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            die("%s needs a value, or is unknown; see --help", name);
        if (!strcmp(name, "--data"))
            o.data = value;
        else if (!strcmp(name, "--json"))
            o.json = value;
        else if (!strcmp(name, "--dump-params"))
            o.dump = value;
        else if (!strcmp(name, "--epochs"))
            o.epochs = atoi(value);
        else if (!strcmp(name, "--batch"))
            o.batch = atoi(value);
        else if (!strcmp(name, "--simulate-ranks"))
            o.simulate = atoi(value);
        else if (!strcmp(name, "--seed"))
            o.seed = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--rate"))
            o.rate = (float)atof(value);
        else if (!strcmp(name, "--momentum"))
            o.momentum = (float)atof(value);
        else
            die("unknown option %s; see --help", name);
    }
    if (!o.data)
        die("--data FILE is missing; see --help");
    if (o.epochs < 1 || o.batch < 1 || o.simulate < 0 || o.simulate > MAX_RANKS || !(o.rate > 0.0f))
        die("--epochs, --batch and --rate must be positive, --simulate-ranks at most %d", MAX_RANKS);
    if (o.gpu && o.simulate)
        die("--gpu and --simulate-ranks do not go together");
    return o;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    struct dataset d = load(o.data, o.seed);
    if ((size_t)o.batch > d.train)
        die("--batch %d is larger than the %zu training rows", o.batch, d.train);
    struct exchange x = {0};
    int rank = 0, size = 1, shares = o.simulate ? o.simulate : 1, alone = o.single || o.simulate;
    if (o.gpu)
        gpu_find();
    if (!alone)
        join(&x, &rank, &size);

    char json_path[4096] = "", path[4096];
    FILE *json = o.json ? open_for(o.json, rank, json_path, sizeof json_path) : NULL;
    struct tensors p = allocate(), velocity = allocate(), g = allocate(), share = allocate();
    struct workspace w = workspace(o.batch);
    size_t *order = malloc(d.train * sizeof *order);
    if (!order)
        die("out of memory");
    initialise(&p, o.seed);
    struct gpu *gpu = o.gpu ? gpu_open(alone ? 0 : (int)shouter_local_rank(x.shouter), &d, p.all, o.batch) : NULL;
    x.gpu = gpu;
    size_t gradient_bytes = total() * sizeof(float);
    if (rank == 0)
        printf("%zu parameters, %zu rows to learn from, %zu held out, %d rank%s, global batch %d\n", total(), d.train,
               d.count - d.train, size, size == 1 ? "" : "s", o.batch);
    if (rank == 0 && gpu)
        printf("rank 0 computes on %s\n", gpu_name(gpu));

    uint64_t step = 0, mixing = o.seed ^ 0xc2b2ae35;
    double begun = now_us(), blocked_total_us = 0.0, accuracy = 0.0;
    for (int epoch = 1; epoch <= o.epochs; epoch++) {
        double epoch_start = now_us(), tally[2] = {0.0, 0.0}; /* the sum of losses, the digits guessed right */
        for (size_t i = 0; i < d.train; i++)
            order[i] = i;
        shuffle(order, d.train, &mixing);
        if (gpu)
            gpu_begin_epoch(gpu, order);
        for (size_t from = 0; from < d.train; from += (size_t)o.batch, step++) {
            size_t batch = d.train - from < (size_t)o.batch ? d.train - from : (size_t)o.batch;
            double step_start = now_us();
            x.blocked_us = 0.0;
            if (alone && gpu) {
                gpu_gradients(gpu, from, from + batch, batch, NULL, NULL);
            } else if (alone) {
                for (int r = 0; r < shares; r++) {
                    size_t a = from + batch * (size_t)r / (size_t)shares;
                    size_t b = from + batch * (size_t)(r + 1) / (size_t)shares;
                    tally[0] += gradients(&p, &d, order, a, b, batch, w, r ? &share : &g, NULL, NULL);
                    for (size_t i = 0; r && i < total(); i++)
                        g.all[i] += share.all[i];
                }
            } else {
                size_t a = from + batch * (size_t)rank / (size_t)size;
                size_t b = from + batch * (size_t)(rank + 1) / (size_t)size;
                check(shouter_set_step(x.shouter, step), "shouter_set_step");
                if (gpu)
                    gpu_gradients(gpu, a, b, batch, push, &x);
                else
                    tally[0] += gradients(&p, &d, order, a, b, batch, w, &g, push, &x);
            }
            for (int t = 0; t < TENSORS; t++) {
                if (!alone)
                    wait_for(&x, t);
                if (gpu)
                    gpu_update(gpu, t, o.rate, o.momentum);
                else
                    update(&p, &velocity, &g, t, &o);
            }
            blocked_total_us += x.blocked_us;
            if (json)
                fprintf(json,
                        "{\"type\":\"step\",\"rank\":%d,\"epoch\":%d,\"step\":%llu,\"time_us\":%.1f,\"allreduce_us\":%.1f,"
                        "\"gradient_bytes\":%zu}\n",
                        rank, epoch, (unsigned long long)step, now_us() - step_start, x.blocked_us, gradient_bytes);
        }
        /* Each rank guesses its share of the held-out rows; both tallies are summed in one small all-reduce. */
        size_t held_out = d.count - d.train;
        size_t a = d.train + held_out * (size_t)rank / (size_t)size;
        size_t b = d.train + held_out * (size_t)(rank + 1) / (size_t)size;
        if (gpu)
            gpu_guess(gpu, a, b);
        for (size_t i = a; !gpu && i < b; i++)
            tally[1] += guess(&p, &d.row[i]) == d.row[i].digit ? 1.0 : 0.0;
        if (!alone && gpu)
            check(shouter_allreduce_cuda(x.shouter, gpu_tally(gpu), 2, SHOUTER_F64, SHOUTER_SUM, gpu_stream(gpu)),
                  "shouter_allreduce_cuda");
        else if (!alone)
            check(shouter_allreduce(x.shouter, tally, 2, SHOUTER_F64, SHOUTER_SUM), "shouter_allreduce");
        if (gpu)
            gpu_read_tally(gpu, tally);
        double loss = tally[0] / (double)d.train, seconds = (now_us() - epoch_start) * 1e-6;
        accuracy = tally[1] / (double)held_out;
        if (rank == 0) {
            printf("epoch %3d/%d  loss %.6f  test accuracy %.4f  %.3f s\n", epoch, o.epochs, loss, accuracy, seconds);
            fflush(stdout);
        }
        if (json)
            fprintf(json,
                    "{\"type\":\"epoch\",\"rank\":%d,\"epoch\":%d,\"loss\":%.9g,\"test_accuracy\":%.6f,\"seconds\":%.6f}\n",
                    rank, epoch, loss, accuracy, seconds);
    }
    double seconds = (now_us() - begun) * 1e-6;

    if (gpu)
        gpu_read_parameters(gpu, p.all);
    if (o.dump) {
        FILE *file = open_for(o.dump, rank, path, sizeof path);
        if (fwrite(p.all, sizeof(float), total(), file) != total())
            die("cannot write %s: %s", path, strerror(errno));
        close_written(file, path);
    }
    shouter_stats_t stats = {0};
    if (!alone) {
        double longest_us = blocked_total_us;
        int who = slowest(x.shouter, rank, size, &longest_us);
        if (rank == 0)
            printf("rank %d has waited longest for gradients: %.3f s\n", who, longest_us * 1e-6);
        check(shouter_barrier(x.shouter), "shouter_barrier");
        check(shouter_stats(x.shouter, &stats), "shouter_stats");
        check(shouter_finalize(x.shouter), "shouter_finalize");
    }
    if (gpu)
        gpu_close(gpu); /* after the group, which may use its memory until then */
    if (json) {
        fprintf(json,
                "{\"type\":\"done\",\"rank\":%d,\"size\":%d,\"steps\":%llu,\"seconds\":%.6f,\"test_accuracy\":%.6f,"
                "\"gradient_bytes_per_step\":%zu,\"blocked_us\":%.1f,\"operations\":%llu,\"bytes_reduced\":%llu,"
                "\"allreduce_ns\":%llu,\"frames_sent\":%llu,\"frames_received\":%llu,\"resent\":%llu,\"crc_dropped\":%llu}\n",
                rank, size, (unsigned long long)step, seconds, accuracy, gradient_bytes, blocked_total_us,
                (unsigned long long)stats.operations, (unsigned long long)stats.bytes_reduced,
                (unsigned long long)stats.time_in_allreduce_ns, (unsigned long long)stats.frames_sent,
                (unsigned long long)stats.frames_received, (unsigned long long)stats.resent,
                (unsigned long long)stats.crc_dropped);
        close_written(json, json_path);
    }
    if (rank == 0)
        printf("trained in %.2f s, test accuracy %.4f\n", seconds, accuracy);
    free(d.row);
    free(order);
    free(p.all);
    free(velocity.all);
    free(g.all);
    free(share.all);
    free(w.act);
    free(w.delta);
    free(w.below);
    return 0;
}
