/* heat_shouter.c: a plate that heat flows through, with Shouter. heat_mpi.c is the same program with MPI.
 *
 *   cc -std=c99 -O2 -ffp-contract=off heat_shouter.c $(pkg-config --cflags --libs shouter) -lm -o heat_shouter
 *   shouter run -n 4 -- ./heat_shouter
 */
#include <shouter.h>

#include "heat.h"

enum { DOWN, UP, RIGHT, LEFT, MIDDLE };

static shouter_t *world;

/* MPI ends the job at an error by itself; here the program decides. Other ranks' errors have this one's text. */
static void must(shouter_status_t status) {
    if (status != SHOUTER_OK) {
        fprintf(stderr, "heat: %s\n", shouter_last_error());
        if (world != NULL)
            shouter_abort(world, shouter_last_error());
        exit(1);
    }
}

/* Adds a message to those of a step, unless there is no neighbour. */
static void add(shouter_exchange_t *batch, size_t *n, int32_t kind, double *data, size_t count, const shouter_layout_t *layout, int neighbour,
                int tag) {
    if (neighbour < 0)
        return;
    shouter_exchange_t message = {0};
    message.kind = kind;
    message.data = data;
    message.count = count;
    message.dtype = SHOUTER_F64;
    message.layout = layout;
    message.rank = neighbour;
    message.tag = tag;
    batch[(*n)++] = message;
}

int main(void) {
    must(shouter_init(NULL, &world));
    int rank = (int)shouter_rank(world), size = (int)shouter_size(world);
    struct block block = block_of(rank, size);
    int up = block.row > 0 ? rank - block.columns : -1;
    int down = block.row + 1 < block.rows ? rank + block.columns : -1;
    int left = block.column > 0 ? rank - 1 : -1;
    int right = block.column + 1 < block.columns ? rank + 1 : -1;

    /* The ranks of one row of blocks. */
    shouter_t *line;
    must(shouter_group_split(world, block.row, block.column, &line));
    /* A column of a block. */
    size_t height = (size_t)block.height, width = (size_t)block.width;
    shouter_layout_t column = {height, 1, width + 2};

    int steps = 0;
    double change;
    do {
        shouter_exchange_t batch[8];
        size_t n = 0;
        add(batch, &n, SHOUTER_RECV, cell(&block, block.now, 0, 1), width, NULL, up, DOWN);
        add(batch, &n, SHOUTER_RECV, cell(&block, block.now, block.height + 1, 1), width, NULL, down, UP);
        add(batch, &n, SHOUTER_RECV, cell(&block, block.now, 1, 0), height, &column, left, RIGHT);
        add(batch, &n, SHOUTER_RECV, cell(&block, block.now, 1, block.width + 1), height, &column, right, LEFT);
        add(batch, &n, SHOUTER_SEND, cell(&block, block.now, block.height, 1), width, NULL, down, DOWN);
        add(batch, &n, SHOUTER_SEND, cell(&block, block.now, 1, 1), width, NULL, up, UP);
        add(batch, &n, SHOUTER_SEND, cell(&block, block.now, 1, block.width), height, &column, right, RIGHT);
        add(batch, &n, SHOUTER_SEND, cell(&block, block.now, 1, 1), height, &column, left, LEFT);
        must(shouter_exchange(world, batch, n));
        change = relax(&block);
        must(shouter_allreduce(world, &change, 1, SHOUTER_F64, SHOUTER_MAX));
    } while (++steps < STEPS && change > ENOUGH);

    int64_t sum = digest(&block), cells = (int64_t)block.height * block.width, before = 0;
    must(shouter_allreduce(world, &sum, 1, SHOUTER_I64, SHOUTER_SUM));
    must(shouter_exscan(world, &cells, &before, 1, SHOUTER_I64, SHOUTER_SUM));
    must(shouter_broadcast(world, &before, 1, SHOUTER_I64, (uint32_t)size - 1));

    /* Every rank draws a number from a counter on rank 0. */
    int64_t counter = 0, one = 1, ticket, tickets;
    uint32_t window;
    must(shouter_window_create(world, &counter, 1, SHOUTER_I64, &window));
    must(shouter_window_fetch_and_op(world, window, &one, &ticket, 1, SHOUTER_I64, SHOUTER_SUM, 0, 0));
    must(shouter_window_free(world, window));
    must(shouter_reduce(world, &ticket, &tickets, 1, SHOUTER_I64, SHOUTER_SUM, 0));

    /* The plate's middle is gathered along its line, and sent to rank 0. */
    double middle[SIDE];
    int has_middle = middle_row(&block) == block.row;
    if (has_middle) {
        size_t counts[block.columns];
        for (int at = 0; at < block.columns; at++)
            counts[at] = (size_t)(begin_of(at + 1, block.columns) - begin_of(at, block.columns));
        double *own = cell(&block, block.now, SIDE / 2 - block.top + 1, 1);
        must(shouter_gatherv(line, own, width, middle, counts, SHOUTER_F64, 0));
        if (block.column == 0 && rank != 0)
            must(shouter_send(world, middle, SIDE, SHOUTER_F64, 0, MIDDLE));
    }
    if (rank == 0) {
        if (!has_middle)
            must(shouter_recv(world, middle, SIDE, SHOUTER_F64, SHOUTER_ANY_RANK, MIDDLE, NULL));
        report(steps, change, sum, tickets, before, middle);
    }
    must(shouter_finalize(line));
    free(block.now);
    free(block.next);
    must(shouter_finalize(world));
    return 0;
}
