/* The weights of a resize along one axis, as Pillow computes and rounds them: which sources each result is made of, and
 * how much of each. Computes in double precision in Pillow's order, since the last bit counts. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22     /* after the point, in weights */
#define LOW_BITS 16 /* of a weight, that are one factor; the rest is the other */
#define PI 3.14159265358979323846

/* Two weights, each in two parts: high * 2^16 + low. With sums modulo 2^32 that is exact. */
typedef struct {
    int32_t low;  /* two words */
    int32_t high; /* two words for passes along a row, two bytes twice over for passes down */
} Pair;

typedef struct {
    int count;        /* of results */
    int most;         /* weights that a result has at most */
    int groups;       /* of four weights, that hold them all */
    int length;       /* of the source */
    int *first;       /* source of the first weight, of each result */
    int *taps;        /* how many weights it has */
    int *start;       /* the same as first, moved left where four at a time would reach over the edge */
    int32_t *weights; /* count x most */
    int is_tame;      /* no high part is so large that wide kernels would saturate */
    Pair *pairs;      /* count x groups x 2: the same weights as wide kernels take them */
} Axis;

static inline double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static inline double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static inline double hamming(double x) {
    x = fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= PI;
    return sin(x) / x * ((double)0.54f + (double)0.46f * cos(x));
}

static inline double bicubic(double x) {
    x = fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5;
    return 0.0;
}

static inline double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= PI;
    return sin(x) / x;
}

static inline double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

static void forget(Axis *axis) {
    free(axis->first);
    free(axis->weights);
    free(axis->pairs);
}

/* Where each result looks, and with how many weights. 0: out of memory. */
static int lay_out(Axis *axis, double from, double scale, double support) {
    int longest = 1;
    axis->first = malloc(sizeof(int) * 3 * (size_t)axis->count);
    if (!axis->first) return 0;
    axis->taps = axis->first + axis->count;
    axis->start = axis->taps + axis->count;
    for (int i = 0; i < axis->count; i++) {
        double centre = from + (i + 0.5) * scale;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        if (low < 0) low = 0;
        if (high > axis->length) high = axis->length;
        axis->first[i] = low;
        axis->taps[i] = high > low ? high - low : 0;
        if (axis->taps[i] > longest) longest = axis->taps[i];
    }
    axis->most = longest;
    axis->groups = (longest + 3) / 4;
    axis->weights = calloc((size_t)axis->count * longest, sizeof(int32_t));
    return axis->weights != NULL;
}

/* Inlined once for every filter, which is why it takes it as a function. 0: out of memory. */
static inline __attribute__((always_inline)) int fill(
    Axis *axis, double from, double scale, double stretch, double (*filter)(double)) {
    double shrink = 1.0 / stretch;
    double *exact = malloc(sizeof(double) * (size_t)axis->most);
    if (!exact) return 0;
    for (int i = 0; i < axis->count; i++) {
        double centre = from + (i + 0.5) * scale, sum = 0.0;
        int first = axis->first[i], taps = axis->taps[i];
        int32_t *weights = axis->weights + (size_t)i * axis->most;
        for (int k = 0; k < taps; k++) sum += exact[k] = filter((k + first - centre + 0.5) * shrink);
        for (int k = 0; k < taps; k++) {
            double value = (sum != 0.0 ? exact[k] / sum : exact[k]) * (1 << BITS);
            weights[k] = (int32_t)(value < 0.0 ? value - 0.5 : value + 0.5);
        }
    }
    free(exact);
    return 1;
}

/* Filters by Pillow's numbers. 0: out of memory, or a number that is none of these. */
static int weigh(Axis *axis, int filter, int length, float from, float to, int count) {
    double scale = (double)(to - from) / count, stretch = scale < 1.0 ? 1.0 : scale;
    double support = filter == 4 ? 0.5 : filter == 3 ? 2.0 : filter == 1 ? 3.0 : 1.0;
    memset(axis, 0, sizeof *axis);
    axis->count = count;
    axis->length = length;
    if (!lay_out(axis, from, scale, support * stretch)) return 0;
    switch (filter) {
        case 1: return fill(axis, from, scale, stretch, lanczos);
        case 2: return fill(axis, from, scale, stretch, bilinear);
        case 3: return fill(axis, from, scale, stretch, bicubic);
        case 4: return fill(axis, from, scale, stretch, box);
        case 5: return fill(axis, from, scale, stretch, hamming);
        default: return 0;
    }
}

static inline int32_t low_part(int32_t weight) { return (int16_t)(uint16_t)weight; }
static inline int32_t high_part(int32_t weight) { return (weight - low_part(weight)) >> LOW_BITS; }

/* Weights of one result from place `place` on: 0 before and after its own. */
static inline int32_t weight_at(const Axis *axis, int i, int place) {
    int k = axis->start[i] + place - axis->first[i];
    return k >= 0 && k < axis->taps[i] ? axis->weights[(size_t)i * axis->most + k] : 0;
}

/* 0: out of memory. Along a row four pixels are taken at a time, so their start may have to move left. */
static int pair_up(Axis *axis, int is_along) {
    int reach = 4 * axis->groups, num_pairs = 2 * axis->groups;
    Pair *pair = axis->pairs = malloc(sizeof(Pair) * (size_t)axis->count * num_pairs);
    if (!pair) return 0;
    axis->is_tame = 1;
    for (int i = 0; i < axis->count; i++) {
        int start = axis->first[i];
        if (is_along && start > axis->length - reach) start = axis->length > reach ? axis->length - reach : 0;
        axis->start[i] = start;
        for (int k = 0; k < num_pairs; k++, pair++) {
            int32_t one = weight_at(axis, i, 2 * k), other = weight_at(axis, i, 2 * k + 1);
            int32_t a = high_part(one), b = high_part(other);
            uint32_t bytes = (uint8_t)a | (uint32_t)(uint8_t)b << 8;
            if (abs(a) > 120 || abs(b) > 120 || abs(a) + abs(b) > 128) axis->is_tame = 0; /* 255 * 128 < 2^15 */
            pair->low = (int32_t)((uint16_t)low_part(one) | (uint32_t)low_part(other) << 16);
            pair->high = (int32_t)(is_along ? (uint16_t)a | (uint32_t)b << 16 : bytes | bytes << 16);
        }
    }
    return 1;
}
