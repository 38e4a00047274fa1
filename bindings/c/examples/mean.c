// The mean of all ranks' gradients: the shortest program.
#include <shouter.h>
#include <stdio.h>

int main(void) {
    shouter_t *group;
    float gradient[1024] = {1};
    if (shouter_init(NULL, &group) != SHOUTER_OK ||
        shouter_allreduce(group, gradient, 1024, SHOUTER_F32, SHOUTER_AVG) != SHOUTER_OK)
        return fprintf(stderr, "%s\n", shouter_last_error()), 1;
    printf("rank %u of %u: %g\n", shouter_rank(group), shouter_size(group), gradient[0]);
    return shouter_finalize(group);
}
