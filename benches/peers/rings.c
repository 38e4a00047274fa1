/* rings.c: the ceiling of a link between two processes of one machine, for `shouter bench stream --against rings`.
 *
 *   cc -std=gnu11 -O3 -march=native rings.c -o rings
 *   ./rings --frame 8960 --seconds 1 --passes 5 --duplex
 *
 * One ring in shared memory for each direction, and nothing else: no headers, no acknowledgements, no queues. A sender copies frames from
 * 64 MiB of its own memory, colder than its second-level cache, into 64 slots; the receiver takes them where they lie. Prints a JSON object a
 * line for each way of taking them, which says how much of the payload comes to the receiver's core:
 *   rings-touch  a byte of each frame is read, as `raw` does
 *   rings-read   all is read once, as any check of the payload must
 *   rings-fold   all is added, as float32, to 64 MiB of the receiver's memory, as a reduction does
 * goodput_gbits is per direction, the median of the passes.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sched.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COLD = 64 << 20, SLOTS = 64, BURST = 32, MOST_PASSES = 101 };
enum mode { TOUCH, READ, FOLD, MODES };
static const char *const names[] = {"touch", "read", "fold"};

/* One direction; each side writes its own line. */
struct ring {
    _Alignas(128) atomic_ulong sent;
    _Alignas(128) atomic_ulong taken;
    _Alignas(128) unsigned char slots[];
};

static size_t frame, stride;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

/* Pins the process to the first or the second of the processors that it may use. */
static void pin(const cpu_set_t *allowed, int which) {
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, allowed) || which--)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (sched_setaffinity(0, sizeof one, &one)) {
            perror("sched_setaffinity");
            exit(1);
        }
        return;
    }
    fprintf(stderr, "rings: two processors are needed\n");
    exit(1);
}

/* Sums of eight independent words, which compilers turn into vector instructions. */
static uint64_t sum(const unsigned char *restrict bytes) {
    uint64_t lanes[8] = {0};
    for (size_t at = 0; at + sizeof lanes <= frame; at += sizeof lanes) {
        uint64_t words[8];
        memcpy(words, bytes + at, sizeof words);
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += words[lane];
    }
    uint64_t all = 0;
    for (int lane = 0; lane < 8; lane++)
        all += lanes[lane];
    return all;
}

static void fold(float *restrict into, const float *restrict from) {
    for (size_t at = 0; at < frame / sizeof *into; at++)
        into[at] += from[at];
}

/* One side, for so many seconds: frames that it took in, and whatever it read of them. Without a ring `out` it sends nothing. */
static unsigned long side(struct ring *out, struct ring *in, enum mode mode, double start, double seconds, volatile uint64_t *seen) {
    unsigned char *source = malloc(COLD), *target = aligned_alloc(64, COLD);
    memset(source, 0, COLD);
    memset(target, 0, COLD);
    unsigned long sent = 0, taken = 0;
    size_t from = 0, into = 0;
    while (now() < start) {
    }
    while (now() < start + seconds) {
        unsigned long room = out ? SLOTS - (sent - atomic_load_explicit(&out->taken, memory_order_acquire)) : 0;
        for (unsigned long count = room < BURST ? room : BURST; count; count--) {
            memcpy(out->slots + sent++ % SLOTS * stride, source + from, frame);
            from = from + 2 * stride <= COLD ? from + stride : 0;
        }
        if (out)
            atomic_store_explicit(&out->sent, sent, memory_order_release);
        unsigned long ready = atomic_load_explicit(&in->sent, memory_order_acquire) - taken;
        for (unsigned long count = ready < BURST ? ready : BURST; count; count--) {
            const unsigned char *at = in->slots + taken++ % SLOTS * stride;
            if (mode == TOUCH)
                *seen += *at;
            else if (mode == READ)
                *seen += sum(at);
            else
                fold((float *)(target + into), (const float *)at);
            into = into + 2 * stride <= COLD ? into + stride : 0;
        }
        atomic_store_explicit(&in->taken, taken, memory_order_release);
    }
    free(source);
    free(target);
    return taken;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int count, char **arguments) {
    static const struct option options[] = {
        {"frame", required_argument, NULL, 'f'},
        {"seconds", required_argument, NULL, 's'},
        {"passes", required_argument, NULL, 'p'},
        {"duplex", no_argument, NULL, 'd'},
        {0},
    };
    double seconds = 1;
    int passes = 5;
    bool duplex = false;
    for (int option; (option = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        switch (option) {
        case 'f': frame = strtoul(optarg, NULL, 10) / 64 * 64; break;
        case 's': seconds = atof(optarg); break;
        case 'p': passes = atoi(optarg); break;
        case 'd': duplex = true; break;
        default: return 2;
        }
    }
    if (frame == 0 || frame > 65536 || seconds <= 0 || passes < 1 || passes > MOST_PASSES) {
        fprintf(stderr, "rings: --frame is 64 to 65536, --seconds positive, --passes 1 to %d\n", MOST_PASSES);
        return 2;
    }
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) {
        perror("sched_getaffinity");
        return 1;
    }
    stride = (frame + 127) / 128 * 128;
    size_t bytes = sizeof(struct ring) + SLOTS * stride;
    struct ring *rings[2] = {shared(bytes), shared(bytes)};
    unsigned long *other = shared(4096);
    uint64_t *seen = shared(4096);
    for (enum mode mode = TOUCH; mode < MODES; mode++) {
        double rates[MOST_PASSES];
        for (int pass = 0; pass < passes; pass++) {
            for (int way = 0; way < 2; way++)
                atomic_store(&rings[way]->sent, 0), atomic_store(&rings[way]->taken, 0);
            /* Time for both to fill their memory. */
            double start = now() + 0.3;
            pid_t child = fork();
            if (child < 0) {
                perror("fork");
                return 1;
            }
            int way = child == 0;
            pin(&allowed, way);
            struct ring *out = way == 1 || duplex ? rings[way] : NULL;
            unsigned long taken = side(out, rings[!way], mode, start, seconds, &seen[way * 16]);
            if (child == 0) {
                *other = taken;
                _exit(0);
            }
            int status;
            if (waitpid(child, &status, 0) != child || status != 0) {
                fprintf(stderr, "rings: the other side failed\n");
                return 1;
            }
            rates[pass] = (double)(taken + *other) / (duplex ? 2 : 1) * frame * 8 / seconds / 1e9;
        }
        qsort(rates, passes, sizeof *rates, ascending);
        printf("{\"bench\":\"stream\",\"who\":\"rings-%s\",%s\"bytes\":%zu,\"goodput_gbits\":%.4f,\"passes\":%d}\n", names[mode],
               duplex ? "\"duplex\":true," : "", frame, rates[passes / 2], passes);
        fflush(stdout);
    }
    return 0;
}
