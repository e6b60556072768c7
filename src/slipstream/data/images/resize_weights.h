/* The weights of a resize along one axis, computed and rounded as in Pillow: which source pixels contribute to each
 * result pixel, and with which weight. The computation is in double precision and in Pillow's order, because the last
 * bit matters. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22     /* fractional bits of weights */
#define LOW_BITS 16 /* bits of the low part of a weight */
#define PI 3.14159265358979323846

/* Two weights, each split into high * 2^16 + low. Sums modulo 2^32 of these parts are exact. */
typedef struct {
    int32_t low;  /* two words */
    int32_t high; /* two words for horizontal passes; two bytes, repeated once, for vertical passes */
} Pair;

typedef struct {
    int count;        /* number of results */
    int most;         /* largest number of weights of a result */
    int groups;       /* number of groups of four weights that hold all weights of a result */
    int length;       /* of the source */
    int *first;       /* for each result, the source of its first weight */
    int *taps;        /* for each result, the number of its weights */
    int *start;       /* as first, moved left where reading four at a time would go beyond the edge */
    int32_t *weights; /* count x most */
    int is_tame;      /* whether all high parts are small enough that the vector code does not saturate */
    Pair *pairs;      /* count x groups x 2: the same weights in the layout of the vector code */
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

/* Determines the first source and the number of weights of each result. Returns 0 if memory is short. */
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

/* Computes the weights. It takes the filter as a function, so that it is inlined once for every filter. Returns 0 if
 * memory is short. */
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

/* Computes the weights for a filter with Pillow's number. Returns 0 if memory is short or the number is unknown. */
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

/* The weight of a result for the source at `place`, counted from its start; 0 outside its own weights. */
static inline int32_t weight_at(const Axis *axis, int i, int place) {
    int k = axis->start[i] + place - axis->first[i];
    return k >= 0 && k < axis->taps[i] ? axis->weights[(size_t)i * axis->most + k] : 0;
}

/* Fills `pairs` and `start`. Returns 0 if memory is short. A horizontal pass reads four pixels at a time, so a start
 * may have to move left. */
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
