/* heat.h: the numbers of heat_mpi.c and heat_shouter.c: a plate of which one edge is hot, relaxed by Jacobi's method until nothing changes
 * much. Ranks form a grid, and each has a block of the plate with a frame of one cell, in which its neighbours' edges lie. */
#ifndef HEAT_H
#define HEAT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 90, STEPS = 2000 };
static const double ENOUGH = 0.02;

struct block {
    int row, column, rows, columns; /* place in the grid of ranks, and its shape */
    int height, width, top, left;   /* cells of this block, and where its first one is on the plate */
    double *now, *next;             /* (height + 2) rows of (width + 2) cells */
};

static int begin_of(int part, int parts) { return part * SIDE / parts; }

static double *cell(const struct block *block, double *cells, int y, int x) { return &cells[y * (block->width + 2) + x]; }

static struct block block_of(int rank, int size) {
    struct block block = {0};
    block.rows = (int)sqrt((double)size);
    while (size % block.rows)
        block.rows--;
    block.columns = size / block.rows;
    block.row = rank / block.columns;
    block.column = rank % block.columns;
    block.top = begin_of(block.row, block.rows);
    block.left = begin_of(block.column, block.columns);
    block.height = begin_of(block.row + 1, block.rows) - block.top;
    block.width = begin_of(block.column + 1, block.columns) - block.left;
    block.now = calloc((size_t)(block.height + 2) * (size_t)(block.width + 2), sizeof *block.now);
    block.next = calloc((size_t)(block.height + 2) * (size_t)(block.width + 2), sizeof *block.next);
    if (block.now == NULL || block.next == NULL) {
        fputs("heat: no memory\n", stderr);
        exit(1);
    }
    if (block.row == 0)
        for (int x = 0; x < block.width + 2; x++)
            *cell(&block, block.now, 0, x) = *cell(&block, block.next, 0, x) = 100.0;
    return block;
}

/* One step; returns the largest change of a cell. */
static double relax(struct block *block) {
    double largest = 0.0;
    for (int y = 1; y <= block->height; y++)
        for (int x = 1; x <= block->width; x++) {
            double *old = cell(block, block->now, y, x);
            double mean = 0.25 * ((old[-1] + old[1]) + (*cell(block, block->now, y - 1, x) + *cell(block, block->now, y + 1, x)));
            largest = fmax(largest, fabs(mean - *old));
            *cell(block, block->next, y, x) = mean;
        }
    double *swapped = block->now;
    block->now = block->next;
    block->next = swapped;
    return largest;
}

/* A number of the block's cells that does not depend on the order in which it is added to those of others. */
static int64_t digest(const struct block *block) {
    int64_t sum = 0;
    for (int y = 1; y <= block->height; y++)
        for (int x = 1; x <= block->width; x++)
            sum += (int64_t)(*cell(block, block->now, y, x) * 1e6) * ((block->top + y) * SIDE + block->left + x);
    return sum;
}

/* The row of the grid of ranks that has the plate's middle, and the line of its blocks that is it. */
static int middle_row(const struct block *block) {
    int row = 0;
    while (begin_of(row + 1, block->rows) <= SIDE / 2)
        row++;
    return row;
}

static void report(int steps, double change, int64_t sum, int64_t tickets, int64_t before, const double *middle) {
    printf("steps %d\nchange %.17g\ndigest %lld\ntickets %lld\ncells before the last rank %lld\nmiddle", steps, change, (long long)sum,
           (long long)tickets, (long long)before);
    for (int x = 0; x < SIDE; x += 6)
        printf(" %.9f", middle[x]);
    putchar('\n');
}

#endif
