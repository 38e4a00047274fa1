/* heat_mpi.c: a plate that heat flows through, with MPI. heat_shouter.c is the same program with Shouter.
 *
 *   mpicc -std=c99 -O2 -ffp-contract=off heat_mpi.c -lm -o heat_mpi && mpirun -n 4 ./heat_mpi
 */
#include <mpi.h>

#include "heat.h"

enum { DOWN, UP, RIGHT, LEFT, MIDDLE };

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    struct block block = block_of(rank, size);
    int up = block.row > 0 ? rank - block.columns : MPI_PROC_NULL;
    int down = block.row + 1 < block.rows ? rank + block.columns : MPI_PROC_NULL;
    int left = block.column > 0 ? rank - 1 : MPI_PROC_NULL;
    int right = block.column + 1 < block.columns ? rank + 1 : MPI_PROC_NULL;

    /* The ranks of one row of blocks. */
    MPI_Comm line;
    MPI_Comm_split(MPI_COMM_WORLD, block.row, block.column, &line);
    /* A column of a block. */
    MPI_Datatype column;
    MPI_Type_vector(block.height, 1, block.width + 2, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);

    int steps = 0;
    double change;
    do {
        MPI_Request requests[8];
        MPI_Irecv(cell(&block, block.now, 0, 1), block.width, MPI_DOUBLE, up, DOWN, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(cell(&block, block.now, block.height + 1, 1), block.width, MPI_DOUBLE, down, UP, MPI_COMM_WORLD, &requests[1]);
        MPI_Irecv(cell(&block, block.now, 1, 0), 1, column, left, RIGHT, MPI_COMM_WORLD, &requests[2]);
        MPI_Irecv(cell(&block, block.now, 1, block.width + 1), 1, column, right, LEFT, MPI_COMM_WORLD, &requests[3]);
        MPI_Isend(cell(&block, block.now, block.height, 1), block.width, MPI_DOUBLE, down, DOWN, MPI_COMM_WORLD, &requests[4]);
        MPI_Isend(cell(&block, block.now, 1, 1), block.width, MPI_DOUBLE, up, UP, MPI_COMM_WORLD, &requests[5]);
        MPI_Isend(cell(&block, block.now, 1, block.width), 1, column, right, RIGHT, MPI_COMM_WORLD, &requests[6]);
        MPI_Isend(cell(&block, block.now, 1, 1), 1, column, left, LEFT, MPI_COMM_WORLD, &requests[7]);
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        change = relax(&block);
        MPI_Allreduce(MPI_IN_PLACE, &change, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    } while (++steps < STEPS && change > ENOUGH);

    int64_t sum = digest(&block), cells = (int64_t)block.height * block.width, before = 0;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Exscan(&cells, &before, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(&before, 1, MPI_INT64_T, size - 1, MPI_COMM_WORLD);

    /* Every rank draws a number from a counter on rank 0. */
    int64_t counter = 0, one = 1, ticket, tickets;
    MPI_Win window;
    MPI_Win_create(&counter, sizeof counter, sizeof counter, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(0, window);
    MPI_Fetch_and_op(&one, &ticket, MPI_INT64_T, 0, 0, MPI_SUM, window);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Reduce(&ticket, &tickets, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);

    /* The plate's middle is gathered along its line, and sent to rank 0. */
    double middle[SIDE];
    int has_middle = middle_row(&block) == block.row;
    if (has_middle) {
        int counts[block.columns], places[block.columns];
        for (int at = 0; at < block.columns; at++) {
            places[at] = begin_of(at, block.columns);
            counts[at] = begin_of(at + 1, block.columns) - places[at];
        }
        double *own = cell(&block, block.now, SIDE / 2 - block.top + 1, 1);
        MPI_Gatherv(own, block.width, MPI_DOUBLE, middle, counts, places, MPI_DOUBLE, 0, line);
        if (block.column == 0 && rank != 0)
            MPI_Send(middle, SIDE, MPI_DOUBLE, 0, MIDDLE, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        if (!has_middle)
            MPI_Recv(middle, SIDE, MPI_DOUBLE, MPI_ANY_SOURCE, MIDDLE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        report(steps, change, sum, tickets, before, middle);
    }
    MPI_Type_free(&column);
    MPI_Comm_free(&line);
    free(block.now);
    free(block.next);
    MPI_Finalize();
    return 0;
}
