/* mpi_collectives.c: times MPI's collectives, messages, accesses to windows and new communicators, for `shouter bench ... --against openmpi,mpich`.
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
 * Options: --collective NAME (allreduce, reduce, broadcast, allgather, gather, scatter, reduce_scatter, alltoall, scan, exscan,
 * allgather_v, gather_v, scatter_v, reduce_scatter_v, alltoall_v, barrier, incast, sendrecv, put, get, accumulate, fetch_and_op, split,
 * group or duplicate; default allreduce), --who NAME, --bytes LIST (sizes separated by commas, or FIRST..LAST in powers of four; Ki and Mi are
 * understood; a barrier, and what makes a communicator, has none), --seconds S (about this long a size, default 0.5), --hosts H (only repeated in the output).
 *
 * Rank 0 prints one JSON object a line. Each rank pins itself to one of the CPUs it may use, in turn. An iteration is
 * timed on every rank from a barrier's end to the return of the call; the slowest rank counts. Roots take turns. The input is new in
 * each iteration, and every iteration's result is checked outside of the timed part; a wrong one ends the run with status 1. Of a
 * barrier it is checked that no rank leaves before all have entered.
 *
 * sendrecv is between two ranks, and timed as osu_latency does: half of there and back, on rank 0, without a barrier between.
 *
 * incast: all other ranks send to rank 0 at once, in turn with one sender alone. The times are those from the start of the first sender, on
 * the clock that all processes of a host share, until rank 0 has a message, of all; goodput_gbits is the rate at which a round's bytes have come, share_of_one that rate as a share of one sender's. The
 * first and last byte of each message are checked.
 *
 * Blocks of allgather_v and the like differ: rank r's has a share of r + 1.
 *
 * put, get, accumulate and fetch_and_op are between two ranks, too: rank 0 accesses 64-bit integers in the window of rank 1, which waits in
 * a barrier, and flushes; timed on rank 0. The target's elements are checked in the end.
 *
 * split, group and duplicate make a communicator of two ranks: MPI_Comm_split, MPI_Comm_create_group and MPI_Comm_dup. used_us is the time until
 * the first all-reduce in it has ended, too. Its sum is checked, and the communicator is freed outside of the timed part.
 *
 * bytes, algbw and busbw count as in cli/src/bench/workload.rs: bytes are those of the tensor of allreduce, reduce, broadcast, scan and
 * exscan, of one rank's block of allgather, gather, scatter and alltoall, and of a rank's whole input of reduce_scatter; of blocks that
 * differ those of the average one.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SIZES = 64, WARM_UP = 5, FEWEST = 11, MOST = 20000 };

enum collective {
    ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, GATHER, SCATTER, REDUCE_SCATTER, ALLTOALL, SCAN, EXSCAN,
    ALLGATHER_V, GATHER_V, SCATTER_V, REDUCE_SCATTER_V, ALLTOALL_V, BARRIER, INCAST, SENDRECV, PUT, GET, ACCUMULATE, FETCH_AND_OP,
    SPLIT, GROUP, DUPLICATE, COLLECTIVES
};

static const char *const names[COLLECTIVES] = {
    "allreduce", "reduce", "broadcast", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "scan", "exscan",
    "allgather_v", "gather_v", "scatter_v", "reduce_scatter_v", "alltoall_v", "barrier", "incast", "sendrecv",
    "put", "get", "accumulate", "fetch_and_op", "split", "group", "duplicate",
};

static enum collective collective = ALLREDUCE;
static int rank, ranks;
/* Of accesses: the window, its memory, and the value that is due there. */
static MPI_Win window;
static long long *exposed, due;
/* Of a new communicator: the time until it was used, in microseconds. */
static double until_used;

/* Elements of a block; of the average one, where they differ. */
static size_t average;
/* Where blocks differ, for MPI: the elements of each rank's block, and of the blocks before it. */
static int *lengths, *begins;
/* Of an all-to-all, what this rank gives to each. */
static int *given, *given_at;

/* Whether it is an access to a window. */
static int is_access(void) { return collective >= PUT && collective <= FETCH_AND_OP; }

/* Whether it makes a communicator. */
static int makes(void) { return collective >= SPLIT; }

static int has_bytes(void) { return collective != BARRIER && !makes(); }

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

/* The collective with blocks of equal length. */
static enum collective base(void) {
    switch (collective) {
    case ALLGATHER_V: return ALLGATHER;
    case GATHER_V: return GATHER;
    case SCATTER_V: return SCATTER;
    case REDUCE_SCATTER_V: return REDUCE_SCATTER;
    case ALLTOALL_V: return ALLTOALL;
    default: return collective;
    }
}

/* Elements of the blocks of the ranks before `of`. */
static size_t begin_of(int of) {
    size_t r = (size_t)of;
    return base() == collective ? average * r : average * r * (r + 1) / ((size_t)ranks + 1);
}

static size_t length_of(int of) { return begin_of(of + 1) - begin_of(of); }

static void set_blocks(size_t count) {
    average = count;
    for (int r = 0; r < ranks; r++) {
        lengths[r] = (int)length_of(r);
        begins[r] = (int)begin_of(r);
        given[r] = (int)length_of(rank);
        given_at[r] = r * given[r];
    }
}

/* Elements of a rank's input. */
static size_t input_length(void) {
    switch (base()) {
    case SCATTER:
    case REDUCE_SCATTER: return begin_of(ranks);
    case ALLTOALL: return length_of(rank) * (size_t)ranks;
    case BARRIER: return 0;
    default: return length_of(rank);
    }
}

/* Blocks in a rank's output, if it has one. */
static int output_blocks(void) {
    return base() == ALLGATHER || base() == GATHER || base() == ALLTOALL ? ranks : collective == BARRIER ? 0 : 1;
}

static size_t output_length(void) {
    return collective == BARRIER ? 0 : output_blocks() == 1 ? length_of(rank) : begin_of(ranks);
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
    case SCAN: MPI_Scan(data, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case EXSCAN: MPI_Exscan(data, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALLGATHER_V: MPI_Allgatherv(data, lengths[rank], MPI_FLOAT, result, lengths, begins, MPI_FLOAT, MPI_COMM_WORLD); break;
    case GATHER_V: MPI_Gatherv(data, lengths[rank], MPI_FLOAT, result, lengths, begins, MPI_FLOAT, root, MPI_COMM_WORLD); break;
    case SCATTER_V: MPI_Scatterv(data, lengths, begins, MPI_FLOAT, result, lengths[rank], MPI_FLOAT, root, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER_V: MPI_Reduce_scatter(data, result, lengths, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALLTOALL_V: MPI_Alltoallv(data, given, given_at, MPI_FLOAT, result, lengths, begins, MPI_FLOAT, MPI_COMM_WORLD); break;
    default: MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* The expected element i of block `block` of this rank's result. */
static float expected(size_t i, int block, int root, int iteration) {
    float sum = 0.0f;
    int summands = ranks;
    switch (base()) {
    case BROADCAST: return input(i, root, iteration);
    case ALLGATHER:
    case GATHER: return input(i, block, iteration);
    case SCATTER: return input(begin_of(rank) + i, root, iteration);
    case ALLTOALL: return input((size_t)rank * length_of(block) + i, block, iteration);
    case REDUCE_SCATTER: i += begin_of(rank); break;
    case SCAN: summands = rank + 1; break;
    case EXSCAN: summands = rank; break;
    default: break;
    }
    for (int r = 0; r < summands; r++)
        sum += input(i, r, iteration);
    return sum;
}

/* Seconds on the clock that all processes of the host share. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One iteration with `count` elements a block, on average; returns the time of the slowest rank, in microseconds. No rank checks before all have
   returned: with more ranks than cores, a check would take the core from a rank that is still in the timed call. */
static double once(float *data, float *result, size_t count, int iteration) {
    int root = iteration % ranks;
    for (size_t i = 0, length = input_length(); i < length; i++)
        data[i] = input(i, rank, iteration);
    MPI_Barrier(MPI_COMM_WORLD);
    double entered = collective == BARRIER ? now() : 0.0, start = MPI_Wtime();
    run(data, result, (int)count, root);
    double took = (MPI_Wtime() - start) * 1e6, left = collective == BARRIER ? now() : 0.0;
    if (collective != BARRIER)
        MPI_Barrier(MPI_COMM_WORLD);
    const float *found = collective == BROADCAST ? data : result;
    int none = ((collective == REDUCE || base() == GATHER) && rank != root) || (collective == EXSCAN && rank == 0);
    int due = none ? 0 : output_blocks();
    for (int block = 0; block < due; block++) {
        /* Checks all of a small block, and of a large one a sample that moves, both ends included. */
        size_t length = length_of(output_blocks() == 1 ? rank : block), stride = length > 4096 ? 61 : 1;
        for (size_t k = (size_t)iteration % stride; length > 0 && k < length + stride; k += stride) {
            size_t i = k < length ? k : length - 1;
            if (found[i] != expected(i, block, root, iteration))
                fail("a result is wrong");
        }
        found += length;
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

/* Makes a window on rank 1, or checks and frees it. */
static void make_window(size_t bytes) {
    MPI_Win_allocate(rank == 1 ? (MPI_Aint)bytes : 0, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &exposed, &window);
    if (rank == 1)
        memset(exposed, 0, bytes);
    due = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
}

static void free_window(size_t bytes) {
    MPI_Win_unlock_all(window);
    MPI_Bcast(&due, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
    for (size_t i = 0; rank == 1 && i < bytes / 8; i++)
        if (exposed[i] != due)
            fail("an element of the window is wrong");
    MPI_Win_free(&window);
}

/* One access of rank 0, until it has taken effect; in microseconds. */
static double reach(long long *data, long long *result, int count, int iteration) {
    if (rank != 0)
        return 0.0;
    for (int i = 0; i < count; i++)
        data[i] = iteration;
    double start = MPI_Wtime();
    switch (collective) {
    case PUT: MPI_Put(data, count, MPI_INT64_T, 1, 0, count, MPI_INT64_T, window); break;
    case GET: MPI_Get(result, count, MPI_INT64_T, 1, 0, count, MPI_INT64_T, window); break;
    case ACCUMULATE: MPI_Accumulate(data, count, MPI_INT64_T, 1, 0, count, MPI_INT64_T, MPI_SUM, window); break;
    default:
        if (count == 1)
            MPI_Fetch_and_op(data, result, MPI_INT64_T, 1, 0, MPI_SUM, window);
        else
            MPI_Get_accumulate(data, count, MPI_INT64_T, result, count, MPI_INT64_T, 1, 0, count, MPI_INT64_T, MPI_SUM, window);
    }
    MPI_Win_flush(1, window);
    double took = (MPI_Wtime() - start) * 1e6;
    due = collective == PUT ? iteration : collective == GET ? 0 : due + iteration;
    return took;
}

/* Makes a communicator of all ranks, uses it and frees it; returns the time until it was made, of the slowest rank, in microseconds. */
static double make_communicator(void) {
    static const int members[] = {0, 1};
    int mark = rank + 1, sum = 0, size = 0;
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Group all, some;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    switch (collective) {
    case SPLIT: MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &made); break;
    case GROUP:
        MPI_Comm_group(MPI_COMM_WORLD, &all);
        MPI_Group_incl(all, 2, members, &some);
        MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &made);
        break;
    default: MPI_Comm_dup(MPI_COMM_WORLD, &made);
    }
    double took[2] = {(MPI_Wtime() - start) * 1e6, 0.0}, most[2];
    MPI_Allreduce(&mark, &sum, 1, MPI_INT, MPI_SUM, made);
    took[1] = (MPI_Wtime() - start) * 1e6;
    MPI_Comm_size(made, &size);
    if (size != ranks || sum != ranks * (ranks + 1) / 2)
        fail("a new communicator is wrong");
    MPI_Comm_free(&made);
    if (collective == GROUP) {
        MPI_Group_free(&some);
        MPI_Group_free(&all);
    }
    MPI_Allreduce(took, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    until_used = most[1];
    return most[0];
}

/* One iteration of the measured operation. */
static double iterate(float *data, float *result, size_t count, int iteration) {
    if (makes())
        return make_communicator();
    if (is_access())
        return reach((long long *)data, (long long *)result, (int)(count / 2), iteration);
    return collective == SENDRECV ? there_and_back(data, result, count, iteration) : once(data, result, count, iteration);
}

static void *float_memory(size_t length) {
    void *memory = NULL;
    /* MPI_Alloc_mem: memory that this MPI may share between the processes of a host. Some give no address for no bytes. */
    MPI_Alloc_mem((MPI_Aint)(length ? length * sizeof(float) : 1), MPI_INFO_NULL, &memory);
    if (!memory)
        fail("out of memory");
    return memory;
}

/* Prints the figures of one size; `took` and `used` are sorted. */
static void print_line(const char *who, int hosts, size_t bytes, const double *took, const double *used, int iterations) {
    double p50 = took[iterations / 2], p99 = took[(int)((iterations - 1) * 0.99 + 0.5)];
    printf("{\"bench\":\"%s\",\"who\":\"%s\",\"ranks\":%d,\"hosts\":%d,", names[collective], who, ranks, hosts);
    if (has_bytes())
        printf("\"bytes\":%zu,", bytes);
    printf("\"iterations\":%d,\"p50_us\":%.3f,\"p99_us\":%.3f", iterations, p50, p99);
    if (makes())
        printf(",\"used_us\":%.3f", used[iterations / 2]);
    if (has_bytes()) {
        double rest = (double)(ranks - 1) / ranks;
        enum collective of = base();
        int is_block = of == ALLGATHER || of == GATHER || of == SCATTER || of == ALLTOALL;
        double share = of == ALLREDUCE ? 2.0 * rest : is_block || of == REDUCE_SCATTER ? rest : 1.0;
        double algbw = (double)bytes * (is_block ? ranks : 1) / (p50 * 1e3);
        printf(",\"algbw_gbytes\":%.6g", algbw);
        if (collective < SENDRECV)
            printf(",\"busbw_gbytes\":%.6g", algbw * share);
    }
    printf("}\n");
    fflush(stdout);
}

/* The ranks from `first` to `last` send `bytes` to rank 0 at once; there `took` gets the microseconds from the start of the first of them until
 * each message has come. Returns the longest of these. */
static double converge(unsigned char *data, int bytes, int first, int last, int round, double *took) {
    double longest = 0.0, start = 1e300, earliest;
    if (rank != 0) {
        data[0] = data[bytes - 1] = (unsigned char)(round * 31 ^ rank);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank >= first && rank <= last) {
            start = now();
            MPI_Send(data, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        MPI_Reduce(&start, NULL, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        return 0.0;
    }
    int count = last - first + 1;
    MPI_Request *requests = malloc((size_t)count * sizeof *requests);
    if (!requests)
        fail("out of memory");
    for (int i = 0; i < count; i++)
        MPI_Irecv(data + (size_t)i * (size_t)bytes, bytes, MPI_BYTE, first + i, 1, MPI_COMM_WORLD, &requests[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        int which;
        MPI_Waitany(count, requests, &which, MPI_STATUS_IGNORE);
        took[which] = longest = now();
    }
    MPI_Reduce(&start, &earliest, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        took[i] = (took[i] - earliest) * 1e6;
    longest = (longest - earliest) * 1e6;
    for (int i = 0; i < count; i++) {
        const unsigned char *came = data + (size_t)i * (size_t)bytes, mark = (unsigned char)(round * 31 ^ (first + i));
        if (came[0] != mark || came[bytes - 1] != mark)
            fail("a message of an incast is wrong");
    }
    free(requests);
    return longest;
}

/* Measures and prints the incast of one size. */
static void incast(const char *who, int hosts, size_t bytes, double seconds) {
    int others = ranks - 1, length = (int)bytes;
    unsigned char *data = malloc(bytes * (size_t)(rank ? 1 : others));
    double *took = malloc((size_t)MOST * (size_t)others * sizeof *took);
    double *alone = malloc(2 * MOST * sizeof *alone), *together = alone + MOST, start = MPI_Wtime(), each;
    if (!data || !took || !alone)
        fail("out of memory");
    memset(data, 0, bytes * (size_t)(rank ? 1 : others));
    for (int i = 0; i < WARM_UP; i++)
        converge(data, length, 1, others, i, took);
    each = (MPI_Wtime() - start) / WARM_UP;
    MPI_Bcast(&each, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    double wanted = seconds / 2 / (each > 1e-7 ? each : 1e-7);
    int iterations = wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
    for (int i = 0; i < iterations; i++) {
        int one = 1 + i % others;
        alone[i] = converge(data, length, one, one, i, took + (size_t)i * (size_t)others);
        together[i] = converge(data, length, 1, others, i, took + (size_t)i * (size_t)others);
    }
    if (rank == 0) {
        int all = iterations * others;
        qsort(took, (size_t)all, sizeof *took, ascending);
        qsort(alone, (size_t)iterations, sizeof *alone, ascending);
        qsort(together, (size_t)iterations, sizeof *together, ascending);
        double one = alone[iterations / 2], many = together[iterations / 2];
        printf("{\"bench\":\"incast\",\"who\":\"%s\",\"ranks\":%d,\"hosts\":%d,\"bytes\":%zu,\"iterations\":%d,\"p50_us\":%.3f,"
               "\"p99_us\":%.3f,\"goodput_gbits\":%.4f,\"share_of_one\":%.4f}\n",
               who, ranks, hosts, bytes, iterations, took[all / 2], took[(int)((all - 1) * 0.99 + 0.5)],
               (double)bytes * others * 8 / (many * 1e3), others * one / many);
        fflush(stdout);
    }
    free(alone);
    free(took);
    free(data);
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
    if (!has_bytes())
        bytes[0] = 0;
    else
        count = sizes(list ? list : usual, bytes);
    if (collective >= SENDRECV && ranks != 2)
        fail("sendrecv, accesses to a window and new communicators are between two ranks");
    pin();
    int *blocks = calloc(4 * (size_t)ranks, sizeof *blocks);
    if (!blocks)
        fail("out of memory");
    lengths = blocks, given = blocks + ranks, given_at = blocks + 2 * ranks, begins = blocks + 3 * ranks;

    for (int n = 0; n < count; n++) {
        if (collective == INCAST) {
            incast(who, hosts, bytes[n], seconds);
            continue;
        }
        int divided = base() == REDUCE_SCATTER;
        size_t length = bytes[n] / 4 / (divided ? (size_t)ranks : 1);
        if (divided && bytes[n] % (4 * (size_t)ranks))
            fail("--bytes: a size of reduce_scatter must be a multiple of 4 for each rank");
        set_blocks(length);
        float *data = float_memory(input_length()), *result = float_memory(output_length());
        double *took = malloc(2 * MOST * sizeof *took), *used = took + MOST, trial = 0.0;
        if (!took)
            fail("out of memory");
        if (is_access())
            make_window(bytes[n]);
        for (int i = 0; i < WARM_UP; i++) {
            double start = MPI_Wtime();
            iterate(data, result, length, i);
            trial = MPI_Wtime() - start; /* the preparation and the check included: it bounds the run */
        }
        MPI_Bcast(&trial, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        double wanted = seconds / (trial > 1e-7 ? trial : 1e-7);
        int iterations = wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
        for (int i = 0; i < iterations; i++) {
            took[i] = iterate(data, result, length, WARM_UP + i);
            used[i] = until_used;
        }
        if (is_access())
            free_window(bytes[n]);
        qsort(took, (size_t)iterations, sizeof *took, ascending);
        qsort(used, (size_t)iterations, sizeof *used, ascending);
        if (rank == 0)
            print_line(who, hosts, bytes[n], took, used, iterations);
        MPI_Free_mem(data);
        MPI_Free_mem(result);
        free(took);
    }
    free(blocks);
    MPI_Finalize();
    return 0;
}
