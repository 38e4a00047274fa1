/* mpi_allreduce.c: how long MPI_Allreduce takes, for `shouter bench allreduce --against openmpi,mpich`.
 *
 * Build (each MPI has its own wrapper; Debian names them apart):
 *   mpicc.openmpi -std=gnu99 -O2 mpi_allreduce.c -o mpi_allreduce.openmpi
 *   mpicc.mpich   -std=gnu99 -O2 mpi_allreduce.c -o mpi_allreduce.mpich
 * Run:
 *   mpirun.openmpi -n 2 --bind-to none --mca pml ob1 --mca btl self,vader ./mpi_allreduce.openmpi --who openmpi-shm --bytes 4..64Mi
 *   mpirun.openmpi -n 2 --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo \
 *                  ./mpi_allreduce.openmpi --who openmpi-tcp --bytes 4,65536
 *   mpirun.mpich   -n 2 ./mpi_allreduce.mpich --who mpich --bytes 4..64Mi
 * As root Open MPI also wants --allow-run-as-root, and --oversubscribe with more ranks than cores.
 *
 * Options: --who NAME, --bytes LIST (sizes separated by commas, or FIRST..LAST in powers of four; Ki and Mi are understood),
 * --seconds S (about this long a size, default 0.5), --hosts H (only repeated in the output).
 *
 * Rank 0 prints one JSON object a line. Each rank pins itself to one of the CPUs it may use, in turn. An iteration is
 * timed on every rank from a barrier's end to the return of MPI_Allreduce; the slowest rank counts. The input is new in
 * each iteration, and every iteration's result is checked outside of the timed part; a wrong sum ends the run with status 1.
 * algbw is bytes / p50; busbw is algbw * 2 (ranks - 1) / ranks, the bytes that a bandwidth-optimal algorithm moves.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 64, WARM_UP = 5, FEWEST = 11, MOST = 20000 };

static int rank, ranks;

static void fail(const char *what) {
    fprintf(stderr, "mpi_allreduce: %s\n", what);
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

static double once(float *data, float *result, size_t count, int iteration) {
    for (size_t i = 0; i < count; i++)
        data[i] = input(i, rank, iteration);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Allreduce(data, result, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = (MPI_Wtime() - start) * 1e6, slowest;
    /* All of a small result, and of a large one a sample that moves, both ends included. */
    size_t stride = count > 4096 ? 61 : 1;
    for (size_t k = (size_t)iteration % stride; k < count + stride; k += stride) {
        size_t i = k < count ? k : count - 1;
        float expected = 0.0f;
        for (int r = 0; r < ranks; r++)
            expected += input(i, r, iteration);
        if (result[i] != expected)
            fail("a sum is wrong");
    }
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
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
            fail("an option lacks its value: --who NAME --bytes LIST --seconds S --hosts H");
        if (!strcmp(argv[i], "--who"))
            who = value;
        else if (!strcmp(argv[i], "--bytes"))
            list = value;
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(value);
        else if (!strcmp(argv[i], "--hosts"))
            hosts = atoi(value);
        else
            fail("unknown option; known are --who NAME --bytes LIST --seconds S --hosts H");
        i++;
    }
    char usual[] = "4..64Mi";
    size_t bytes[MOST_SIZES];
    int count = sizes(list ? list : usual, bytes);
    pin();

    for (int n = 0; n < count; n++) {
        size_t length = bytes[n] / 4;
        /* MPI_Alloc_mem: what this MPI can share between the processes of a host, it may. */
        float *data = NULL, *result = NULL;
        MPI_Alloc_mem((MPI_Aint)bytes[n], MPI_INFO_NULL, &data);
        MPI_Alloc_mem((MPI_Aint)bytes[n], MPI_INFO_NULL, &result);
        double *took = malloc(MOST * sizeof *took), trial = 0.0;
        if (!data || !result || !took)
            fail("out of memory");
        for (int i = 0; i < WARM_UP; i++) {
            double start = MPI_Wtime();
            once(data, result, length, i);
            trial = MPI_Wtime() - start; /* the preparation and the check included: it bounds the run */
        }
        MPI_Bcast(&trial, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        double wanted = seconds / (trial > 1e-7 ? trial : 1e-7);
        int iterations = wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
        for (int i = 0; i < iterations; i++)
            took[i] = once(data, result, length, WARM_UP + i);
        qsort(took, (size_t)iterations, sizeof *took, ascending);
        if (rank == 0) {
            double p50 = took[iterations / 2], p99 = took[(int)((iterations - 1) * 0.99 + 0.5)];
            double algbw = (double)bytes[n] / (p50 * 1e3);
            printf("{\"bench\":\"allreduce\",\"who\":\"%s\",\"ranks\":%d,\"hosts\":%d,\"bytes\":%zu,\"iterations\":%d,\"p50_us\":%.3f,"
                   "\"p99_us\":%.3f,\"algbw_gbytes\":%.6g,\"busbw_gbytes\":%.6g}\n",
                   who, ranks, hosts, bytes[n], iterations, p50, p99, algbw, algbw * 2.0 * (ranks - 1) / ranks);
            fflush(stdout);
        }
        MPI_Free_mem(data);
        MPI_Free_mem(result);
        free(took);
    }
    MPI_Finalize();
    return 0;
}
