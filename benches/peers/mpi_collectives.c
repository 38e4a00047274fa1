/* mpi_collectives.c: times MPI's collectives, for `shouter bench COLLECTIVE --against openmpi,mpich`.
 *
 * Build (each MPI has its own wrapper; Debian names them apart):
 *   mpicc.openmpi -std=gnu99 -O2 mpi_collectives.c -o mpi_collectives.openmpi
 *   mpicc.mpich   -std=gnu99 -O2 mpi_collectives.c -o mpi_collectives.mpich
 * Run:
 *   mpirun.openmpi -n 2 --bind-to none --mca pml ob1 --mca btl self,vader ./mpi_collectives.openmpi --who openmpi-shm --bytes 4..64Mi
 *   mpirun.openmpi -n 2 --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo \
 *                  ./mpi_collectives.openmpi --who openmpi-tcp --collective alltoall --bytes 4,65536
 *   mpirun.mpich   -n 2 ./mpi_collectives.mpich --who mpich --collective barrier
 * As root Open MPI also needs --allow-run-as-root, and --oversubscribe with more ranks than cores.
 *
 * Options: --collective NAME (allreduce, reduce, broadcast, allgather, gather, scatter, reduce_scatter, alltoall, barrier or sendrecv;
 * default allreduce), --who NAME, --bytes LIST (sizes separated by commas, or FIRST..LAST in powers of four; Ki and Mi are understood; a
 * barrier has none), --seconds S (about this long a size, default 0.5), --hosts H (only repeated in the output).
 *
 * Rank 0 prints one JSON object a line. Each rank pins itself to one of the CPUs it may use, in turn. An iteration is
 * timed on every rank from a barrier's end to the return of the call; the slowest rank counts. Roots take turns. The input is new in
 * each iteration, and every iteration's result is checked outside of the timed part; a wrong one ends the run with status 1. Of a
 * barrier it is checked that no rank leaves before all have entered.
 *
 * sendrecv is between two ranks, and timed as osu_latency does: half of there and back, on rank 0, without a barrier between.
 *
 * bytes, algbw and busbw count as in cli/src/bench/workload.rs: bytes are those of the tensor of allreduce, reduce and broadcast, of one
 * rank's block of allgather, gather, scatter and alltoall, and of a rank's whole input of reduce_scatter.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SIZES = 64, WARM_UP = 5, FEWEST = 11, MOST = 20000 };

enum collective { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, GATHER, SCATTER, REDUCE_SCATTER, ALLTOALL, BARRIER, SENDRECV, COLLECTIVES };

static const char *const names[COLLECTIVES] = {
    "allreduce", "reduce", "broadcast", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "barrier", "sendrecv",
};

static enum collective collective = ALLREDUCE;
static int rank, ranks;

static void fail(const char *what) {
    fprintf(stderr, "mpi_collectives: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Pins this process to the CPU numbered by its rank among those it may use. */
static void pin(void) {
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) != 0)
        fail("sched_getaffinity failed");
    int wanted = rank % CPU_COUNT(&may);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && wanted-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            if (sched_setaffinity(0, sizeof one, &one) != 0)
                fail("sched_setaffinity failed");
            return;
        }
}

static size_t size_of(const char *text, char **end) {
    size_t value = strtoull(text, end, 10);
    if (!strncmp(*end, "Ki", 2))
        value <<= 10, *end += 2;
    else if (!strncmp(*end, "Mi", 2))
        value <<= 20, *end += 2;
    return value;
}

static int sizes(char *list, size_t *out) {
    int count = 0;
    for (char *end = list; *list; list = *end ? end + 1 : end) {
        size_t first = size_of(list, &end), last = first;
        if (end == list)
            fail("--bytes: expected sizes such as 4,64Ki or 4..64Mi");
        if (!strncmp(end, "..", 2)) {
            char *text = end + 2;
            last = size_of(text, &end);
        }
        if (first < 4 || first % 4 || (*end && *end != ','))
            fail("--bytes: a size must be a multiple of 4, of at least 4");
        for (; first <= last && count < MOST_SIZES; first *= 4)
            out[count++] = first;
    }
    return count;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small whole numbers, so that the sum is exact in float32 whatever the order. */
static float input(size_t i, int of, int iteration) { return (float)((i + 31u * (unsigned)of + 7u * (unsigned)iteration) % 1021u); }

/* Blocks in a rank's input. */
static int input_blocks(void) {
    return collective == SCATTER || collective == REDUCE_SCATTER || collective == ALLTOALL ? ranks : collective == BARRIER ? 0 : 1;
}

/* Blocks in a rank's output, if it has one. */
static int output_blocks(void) {
    return collective == ALLGATHER || collective == GATHER || collective == ALLTOALL ? ranks : collective == BARRIER ? 0 : 1;
}

static void run(float *data, float *result, int count, int root) {
    switch (collective) {
    case ALLREDUCE: MPI_Allreduce(data, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case REDUCE: MPI_Reduce(data, result, count, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(data, count, MPI_FLOAT, root, MPI_COMM_WORLD); break;
    case ALLGATHER: MPI_Allgather(data, count, MPI_FLOAT, result, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    case GATHER: MPI_Gather(data, count, MPI_FLOAT, result, count, MPI_FLOAT, root, MPI_COMM_WORLD); break;
    case SCATTER: MPI_Scatter(data, count, MPI_FLOAT, result, count, MPI_FLOAT, root, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(data, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALLTOALL: MPI_Alltoall(data, count, MPI_FLOAT, result, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    default: MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* The expected element i of block `block` of this rank's result. */
static float expected(size_t i, int block, size_t count, int root, int iteration) {
    float sum = 0.0f;
    switch (collective) {
    case BROADCAST: return input(i, root, iteration);
    case ALLGATHER:
    case GATHER: return input(i, block, iteration);
    case SCATTER: return input((size_t)rank * count + i, root, iteration);
    case ALLTOALL: return input((size_t)rank * count + i, block, iteration);
    case REDUCE_SCATTER: i += (size_t)rank * count; break;
    default: break;
    }
    for (int r = 0; r < ranks; r++)
        sum += input(i, r, iteration);
    return sum;
}

/* Seconds on the clock that all processes of the host share. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One iteration with `count` elements a block; returns the time of the slowest rank, in microseconds. No rank checks before all have
   returned: with more ranks than cores, a check would take the core from a rank that is still in the timed call. */
static double once(float *data, float *result, size_t count, int iteration) {
    int root = iteration % ranks;
    for (size_t i = 0; i < count * (size_t)input_blocks(); i++)
        data[i] = input(i, rank, iteration);
    MPI_Barrier(MPI_COMM_WORLD);
    double entered = collective == BARRIER ? now() : 0.0, start = MPI_Wtime();
    run(data, result, (int)count, root);
    double took = (MPI_Wtime() - start) * 1e6, left = collective == BARRIER ? now() : 0.0;
    if (collective != BARRIER)
        MPI_Barrier(MPI_COMM_WORLD);
    const float *found = collective == BROADCAST ? data : result;
    int due = (collective == REDUCE || collective == GATHER) && rank != root ? 0 : output_blocks();
    /* Checks all of a small result, and of a large one a sample that moves, both ends included. */
    size_t stride = count > 4096 ? 61 : 1;
    for (int block = 0; block < due; block++)
        for (size_t k = (size_t)iteration % stride; k < count + stride; k += stride) {
            size_t i = k < count ? k : count - 1;
            if (found[(size_t)block * count + i] != expected(i, block, count, root, iteration))
                fail("a result is wrong");
        }
    double mine[3] = {took, entered, -left}, most[3];
    MPI_Allreduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (most[1] > -most[2])
        fail("a rank left the barrier before all had entered");
    return most[0];
}

/* One round trip; returns half of its time, in microseconds. */
static double there_and_back(float *data, float *result, size_t count, int iteration) {
    data[0] = data[count - 1] = input(0, 0, iteration);
    double start = MPI_Wtime();
    if (rank == 0) {
        MPI_Send(data, (int)count, MPI_FLOAT, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(result, (int)count, MPI_FLOAT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(result, (int)count, MPI_FLOAT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(result, (int)count, MPI_FLOAT, 0, 1, MPI_COMM_WORLD);
    }
    double took = (MPI_Wtime() - start) * 1e6 / 2.0;
    if (result[0] != data[0] || result[count - 1] != data[0])
        fail("a message came back wrong");
    return took;
}

/* One iteration of the measured operation. */
static double iterate(float *data, float *result, size_t count, int iteration) {
    return collective == SENDRECV ? there_and_back(data, result, count, iteration) : once(data, result, count, iteration);
}

static void *block_memory(size_t bytes, int blocks) {
    void *memory = NULL;
    size_t all = bytes * (size_t)blocks;
    /* MPI_Alloc_mem: memory that this MPI may share between the processes of a host. Some give no address for no bytes. */
    MPI_Alloc_mem((MPI_Aint)(all ? all : 1), MPI_INFO_NULL, &memory);
    if (!memory)
        fail("out of memory");
    return memory;
}

/* Prints the figures of one size; `took` is sorted. */
static void print_line(const char *who, int hosts, size_t bytes, const double *took, int iterations) {
    double p50 = took[iterations / 2], p99 = took[(int)((iterations - 1) * 0.99 + 0.5)];
    printf("{\"bench\":\"%s\",\"who\":\"%s\",\"ranks\":%d,\"hosts\":%d,", names[collective], who, ranks, hosts);
    if (collective != BARRIER)
        printf("\"bytes\":%zu,", bytes);
    printf("\"iterations\":%d,\"p50_us\":%.3f,\"p99_us\":%.3f", iterations, p50, p99);
    if (collective != BARRIER) {
        double rest = (double)(ranks - 1) / ranks;
        double share = collective == ALLREDUCE ? 2.0 * rest : collective == REDUCE || collective == BROADCAST ? 1.0 : rest;
        int is_block = collective == ALLGATHER || collective == GATHER || collective == SCATTER || collective == ALLTOALL;
        double algbw = (double)bytes * (is_block ? ranks : 1) / (p50 * 1e3);
        printf(",\"algbw_gbytes\":%.6g", algbw);
        if (collective != SENDRECV)
            printf(",\"busbw_gbytes\":%.6g", algbw * share);
    }
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *who = "mpi";
    char *list = NULL;
    int hosts = 1;
    double seconds = 0.5;
    for (int i = 1; i < argc; i++) {
        char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            fail("an option lacks its value: --collective NAME --who NAME --bytes LIST --seconds S --hosts H");
        if (!strcmp(argv[i], "--who"))
            who = value;
        else if (!strcmp(argv[i], "--collective")) {
            for (collective = 0; collective < COLLECTIVES && strcmp(value, names[collective]); collective++)
                ;
            if (collective == COLLECTIVES)
                fail("--collective: there is no such collective");
        } else if (!strcmp(argv[i], "--bytes"))
            list = value;
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(value);
        else if (!strcmp(argv[i], "--hosts"))
            hosts = atoi(value);
        else
            fail("unknown option; known are --collective NAME --who NAME --bytes LIST --seconds S --hosts H");
        i++;
    }
    char usual[] = "4..64Mi";
    size_t bytes[MOST_SIZES];
    int count = 1;
    if (collective == BARRIER)
        bytes[0] = 0;
    else
        count = sizes(list ? list : usual, bytes);
    if (collective == SENDRECV && ranks != 2)
        fail("sendrecv is between two ranks");
    pin();

    for (int n = 0; n < count; n++) {
        size_t block = collective == REDUCE_SCATTER ? bytes[n] / (size_t)ranks : bytes[n], length = block / 4;
        if (collective == REDUCE_SCATTER && bytes[n] % (4 * (size_t)ranks))
            fail("--bytes: a size of reduce_scatter must be a multiple of 4 for each rank");
        float *data = block_memory(block, input_blocks()), *result = block_memory(block, output_blocks());
        double *took = malloc(MOST * sizeof *took), trial = 0.0;
        if (!took)
            fail("out of memory");
        for (int i = 0; i < WARM_UP; i++) {
            double start = MPI_Wtime();
            iterate(data, result, length, i);
            trial = MPI_Wtime() - start; /* the preparation and the check included: it bounds the run */
        }
        MPI_Bcast(&trial, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        double wanted = seconds / (trial > 1e-7 ? trial : 1e-7);
        int iterations = wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
        for (int i = 0; i < iterations; i++)
            took[i] = iterate(data, result, length, WARM_UP + i);
        qsort(took, (size_t)iterations, sizeof *took, ascending);
        if (rank == 0)
            print_line(who, hosts, bytes[n], took, iterations);
        MPI_Free_mem(data);
        MPI_Free_mem(result);
        free(took);
    }
    MPI_Finalize();
    return 0;
}
