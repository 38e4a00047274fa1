/* arithmetic.h: the trainer's arithmetic whose order matters, once for the CPU and, as text, for the GPU.
 *
 * Only additions, products, quotients and exact scalings: IEEE 754 fixes the bits of each, so both give the same, as long as
 * no product and sum are contracted (cc -ffp-contract=off, NVRTC --fmad=false). The libraries' expf and logf do not promise that.
 */
#ifndef ARITHMETIC_H
#define ARITHMETIC_H

#include <math.h>

/* Compiles the definitions here and keeps their text in `name`. They hold no preprocessor directives. */
#define ON_BOTH(name, ...) __VA_ARGS__ static const char name[] = #__VA_ARGS__;

ON_BOTH(ARITHMETIC_SOURCE,

enum {
    CLASSES = 10,
    LANES = 8 /* partial sums of a dot product, added up in a fixed order */
};

static inline float dot(const float *a, const float *b, int count) {
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += a[i + k] * b[i + k];
    for (int k = 0; i < count; i++, k++)
        lane[k] += a[i] * b[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* e to the power of x, for x <= 0: 2^k e^r with |r| <= ln(2) / 2, and e^r by its Taylor series to the 11th power. */
static inline float exponential(float x) {
    if (!(x > -104.0f))
        return x == x ? 0.0f : x; /* below the least float, or no number */
    int k = (int)(x * 1.4426950408889634 - 0.5);
    double r = x - k * 0.6931471805599453;
    double sum = 1.0;
    for (int n = 11; n > 0; n--)
        sum = 1.0 + sum * r / n;
    return (float)ldexp(sum, k);
}

/* The natural logarithm, for x >= 1: x = 2^k m with m near 1, and ln(m) = 2 atanh((m - 1) / (m + 1)) by its series. */
static inline float logarithm(float x) {
    if (!(x < 1e30f))
        return x; /* training has diverged */
    int k;
    double m = frexp((double)x, &k);
    if (m < 0.7071067811865476) {
        m *= 2.0;
        k--;
    }
    double t = (m - 1.0) / (m + 1.0);
    double sum = 0.0;
    for (int n = 21; n > 0; n -= 2)
        sum = sum * t * t + 1.0 / n;
    return (float)(k * 0.6931471805599453 + 2.0 * t * sum);
}

/* Turns the last layer's scores into probabilities and returns the cross-entropy of the right digit, in nats. */
static inline float softmax_loss(float *score, int digit) {
    float top = score[0];
    float sum = 0.0f;
    for (int k = 1; k < CLASSES; k++)
        top = score[k] > top ? score[k] : top;
    float chosen = score[digit] - top;
    for (int k = 0; k < CLASSES; k++)
        sum += score[k] = exponential(score[k] - top);
    for (int k = 0; k < CLASSES; k++)
        score[k] /= sum;
    return logarithm(sum) - chosen;
}

static inline int best_of(const float *score) {
    int best = 0;
    for (int k = 1; k < CLASSES; k++)
        best = score[k] > score[best] ? k : best;
    return best;
}

)

#endif
