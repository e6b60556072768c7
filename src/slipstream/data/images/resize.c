/* Antialiased resizing of 8-bit images with exactly the same bytes as Pillow: the same weights in double precision,
 * rounded to the same 22 bits, and the same two passes with 8 bits between them. Integer sums do not depend on the
 * order, so many are computed at a time. The code does not use Python. Rows are given as tables of pointers, and no row
 * is read or written outside its width. Four rows of an image with one byte per pixel are processed as one row with
 * four bytes per pixel. */

#include "resize_weights.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLAIN_ONLY)
#define HAS_AVX2_CODE 1
#include <immintrin.h>
#endif

#define HALF (1u << (BITS - 1))
#define ROWS 4 /* rows of four-byte pixels that are processed together, so that each weight is loaded once for them */

typedef const uint8_t *Row;

/* --- one pass in plain C ------------------------------------------------------------------------------------------ */

static inline uint8_t settle(uint32_t sum) {
    int32_t value = (int32_t)sum >> BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Horizontal pass over ROWS rows of four-byte pixels. */
static void along_plain(const Axis *axis, const Row *rows, uint8_t *const *results, uint32_t mask) {
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < axis->count; i++) {
            uint32_t sums[4] = {HALF, HALF, HALF, HALF}, pixel;
            const int32_t *weights = axis->weights + (size_t)i * axis->most;
            Row source = rows[row] + 4 * (size_t)axis->first[i];
            uint8_t bytes[4];
            for (int k = 0; k < axis->taps[i]; k++)
                for (int byte = 0; byte < 4; byte++) sums[byte] += (uint32_t)weights[k] * source[4 * k + byte];
            for (int byte = 0; byte < 4; byte++) bytes[byte] = settle(sums[byte]);
            memcpy(&pixel, bytes, 4);
            pixel &= mask;
            memcpy(results[row] + 4 * (size_t)i, &pixel, 4);
        }
    }
}

/* Vertical pass for result row `y`, bytes from `from` to `to`; `from` is a multiple of four. */
static void down_plain(const Axis *axis, int y, const Row *rows, uint8_t *result, int from, int to, uint32_t mask) {
    const int32_t *weights = axis->weights + (size_t)y * axis->most;
    int taps = axis->taps[y];
    enum { AT_ONCE = 64 };
    uint8_t keep[4];
    memcpy(keep, &mask, 4);
    for (int begin = from; begin < to; begin += AT_ONCE) {
        int width = to - begin < AT_ONCE ? to - begin : AT_ONCE;
        uint32_t sums[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) sums[i] = HALF;
        for (int k = 0; k < taps; k++) {
            Row row = rows[k] + begin;
            for (int i = 0; i < width; i++) sums[i] += (uint32_t)weights[k] * row[i];
        }
        for (int i = 0; i < width; i++) result[begin + i] = settle(sums[i]) & keep[i & 3];
    }
}

/* --- one pass, eight sums at a time ------------------------------------------------------------------------------- */

#ifdef HAS_AVX2_CODE
#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

/* One result pixel for each of two rows, one row in each half of the register. The upper bits of the sums are the
 * result. */
AVX2 INLINE __m256i result_of(Row one, Row other, const Pair *pairs, const int groups) {
    const __m256i first_two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i last_two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    __m256i low = _mm256_set1_epi32(HALF), high = _mm256_setzero_si256();
    for (int g = 0; g < groups; g++, pairs += 2, one += 16, other += 16) {
        __m256i pixels = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)one));
        pixels = _mm256_inserti128_si256(pixels, _mm_loadu_si128((const __m128i *)other), 1);
        __m256i a = _mm256_shuffle_epi8(pixels, first_two), b = _mm256_shuffle_epi8(pixels, last_two);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(a, _mm256_set1_epi32(pairs[0].low)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(a, _mm256_set1_epi32(pairs[0].high)));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(b, _mm256_set1_epi32(pairs[1].low)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(b, _mm256_set1_epi32(pairs[1].high)));
    }
    return _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, LOW_BITS)), BITS);
}

AVX2 INLINE void along_groups(
    const Axis *axis, const Row *rows, uint8_t *const *results, uint32_t mask, const int groups) {
    const Row a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    uint8_t *const a_result = results[0], *const b_result = results[1], *const c_result = results[2];
    uint8_t *const d_result = results[3];
    const __m256i kept = _mm256_set1_epi32((int)mask);
    const int *const start = axis->start;
    for (int next = 0; next < axis->count; next += 2) {
        int i = next + 2 <= axis->count ? next : next - 1; /* with an odd count, the last but one is repeated */
        const Pair *pairs = axis->pairs + 2 * (size_t)groups * i;
        size_t one = 4 * (size_t)start[i], other = 4 * (size_t)start[i + 1], at = 4 * (size_t)i;
        __m256i upper = _mm256_packs_epi32(
            result_of(a + one, b + one, pairs, groups), result_of(a + other, b + other, pairs + 2 * groups, groups));
        __m256i lower = _mm256_packs_epi32(
            result_of(c + one, d + one, pairs, groups), result_of(c + other, d + other, pairs + 2 * groups, groups));
        __m256i bytes = _mm256_and_si256(_mm256_packus_epi16(upper, lower), kept);
        __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
        _mm_storel_epi64((__m128i *)(a_result + at), even);
        _mm_storel_epi64((__m128i *)(b_result + at), odd);
        _mm_storel_epi64((__m128i *)(c_result + at), _mm_unpackhi_epi64(even, even));
        _mm_storel_epi64((__m128i *)(d_result + at), _mm_unpackhi_epi64(odd, odd));
    }
}

AVX2 static void along_avx2(const Axis *axis, const Row *rows, uint8_t *const *results, uint32_t mask) {
    if (axis->count == 1) along_plain(axis, rows, results, mask);
    else if (axis->groups == 1) along_groups(axis, rows, results, mask, 1);
    else if (axis->groups == 2) along_groups(axis, rows, results, mask, 2);
    else along_groups(axis, rows, results, mask, axis->groups);
}

/* 32 bytes of a result row. One multiplication takes the interleaved bytes of two rows. The high parts of weights are
 * small, so they are multiplied as bytes and summed as 16-bit words; a sum modulo 2^32 needs only the lower 16 bits of
 * these words. */
AVX2 INLINE void down_32(const Pair *pairs, int taps, const Row *rows, uint8_t *result, size_t at, __m256i kept) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i low[4], high[2] = {zero, zero};
    for (int part = 0; part < 4; part++) low[part] = _mm256_set1_epi32(HALF);
    for (int k = 0; k < taps; k += 2, pairs++) {
        __m256i low_weights = _mm256_set1_epi32(pairs->low), high_weights = _mm256_set1_epi32(pairs->high);
        __m256i above = _mm256_loadu_si256((const __m256i *)(rows[k] + at));
        __m256i below = _mm256_loadu_si256((const __m256i *)(rows[k + (k + 1 < taps)] + at));
        __m256i bytes[2] = {_mm256_unpacklo_epi8(above, below), _mm256_unpackhi_epi8(above, below)};
        for (int half = 0; half < 2; half++) {
            __m256i left = _mm256_unpacklo_epi8(bytes[half], zero), right = _mm256_unpackhi_epi8(bytes[half], zero);
            low[2 * half] = _mm256_add_epi32(low[2 * half], _mm256_madd_epi16(left, low_weights));
            low[2 * half + 1] = _mm256_add_epi32(low[2 * half + 1], _mm256_madd_epi16(right, low_weights));
            high[half] = _mm256_add_epi16(high[half], _mm256_maddubs_epi16(bytes[half], high_weights));
        }
    }
    for (int part = 0; part < 4; part++) {
        __m256i words = high[part / 2];
        __m256i upper = part & 1 ? _mm256_unpackhi_epi16(zero, words) : _mm256_unpacklo_epi16(zero, words);
        low[part] = _mm256_srai_epi32(_mm256_add_epi32(low[part], upper), BITS);
    }
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
    _mm256_storeu_si256((__m256i *)(result + at), _mm256_and_si256(bytes, kept));
}

AVX2 static void down_avx2(
    const Axis *axis, int y, const Row *rows, uint8_t *result, int from, int to, uint32_t mask) {
    const __m256i kept = _mm256_set1_epi32((int)mask);
    const Pair *pairs = axis->pairs + 2 * (size_t)axis->groups * y;
    int at = from, taps = axis->taps[y];
    for (; at + 32 <= to; at += 32) down_32(pairs, taps, rows, result, (size_t)at, kept);
    if (at == to) return;
    if (to - from >= 32) down_32(pairs, taps, rows, result, (size_t)(to - 32), kept); /* overlaps done bytes */
    else down_plain(axis, y, rows, result, at, to, mask);
}
#endif

/* --- the whole image ---------------------------------------------------------------------------------------------- */

typedef struct {
    Axis along, down;
    int pixel_bytes, rows_at_once;
    int from, to;     /* source columns that are used */
    uint32_t mask;    /* the bytes of a pixel that Pillow does not set to zero */
    uint8_t *quads;   /* two buffers of ROWS rows of four-byte pixels, for sources and results */
    size_t quad_bytes;
    void (*pass_along)(const Axis *, const Row *, uint8_t *const *, uint32_t);
    void (*pass_down)(const Axis *, int, const Row *, uint8_t *, int, int, uint32_t);
} Job;

/* Combines four rows with one byte per pixel into one row with four bytes per pixel. `deinterleave` reverses it. */
static void interleave(const Row *rows, uint8_t *quad, int from, int to) {
    Row a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    for (int i = from; i < to; i++) {
        uint32_t pixel = a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
        ((uint32_t *)quad)[i] = pixel;
    }
}

static void deinterleave(const uint8_t *quad, uint8_t *const *results, int count) {
    for (int row = 0; row < 4; row++) {
        uint8_t *result = results[row];
        for (int i = 0; i < count; i++) result[i] = (uint8_t)(((const uint32_t *)quad)[i] >> 8 * row);
    }
}

/* Horizontal pass over as many rows as are processed together. */
static void pass_along(const Job *job, const Row *rows, uint8_t *const *results) {
    Row sources[ROWS];
    uint8_t *targets[ROWS];
    int is_narrow = job->along.length < 4 * job->along.groups;
    for (int row = 0; row < ROWS; row++) {
        uint8_t *quad = job->quads + job->quad_bytes * row;
        int is_interleaved = job->pixel_bytes == 1;
        if (is_interleaved) interleave(rows + 4 * row, quad, job->from, job->to);
        else if (is_narrow) memcpy(quad, rows[row], 4 * (size_t)job->along.length);
        sources[row] = is_interleaved || is_narrow ? quad : rows[row];
        targets[row] = is_interleaved ? job->quads + job->quad_bytes * (ROWS + row) : results[row];
    }
    job->pass_along(&job->along, sources, targets, job->mask);
    if (job->pixel_bytes == 1)
        for (int row = 0; row < ROWS; row++) deinterleave(targets[row], results + 4 * row, job->along.count);
}

/* The horizontal pass processes source rows when a result row first needs them. Its results are overwritten soon
 * after, so that they stay in the CPU cache. */
static int along_then_down(const Job *job, const Row *rows, uint8_t *const *results, int is_down) {
    const Axis *down = &job->down;
    int end_down = down->first[down->count - 1] + down->taps[down->count - 1];
    int many = job->rows_at_once, last = is_down ? end_down : down->count;
    int next = is_down ? down->first[0] : 0, num_kept = is_down ? down->most + many : 0;
    size_t row_bytes = (size_t)job->along.count * job->pixel_bytes;
    size_t stride = (row_bytes + 63) / 64 * 64;
    uint8_t *kept = malloc(stride * (num_kept + 1)), *spare = kept + stride * num_kept;
    Row *column = malloc(sizeof(Row) * (is_down ? down->most : 1)), block[4 * ROWS];
    uint8_t *targets[4 * ROWS];
    int is_done = kept && column;
    for (int y = 0; is_done && y < down->count; y++) {
        int end = is_down ? down->first[y] + down->taps[y] : y + 1;
        for (; next < end; next += many) {
            for (int i = 0; i < many; i++) {
                int row = next + i < last ? next + i : last - 1;
                block[i] = rows[row];
                targets[i] = next + i >= last ? spare : is_down ? kept + stride * (row % num_kept) : results[row];
            }
            pass_along(job, block, targets);
        }
        if (is_down) {
            for (int k = 0; k < down->taps[y]; k++) column[k] = kept + stride * ((down->first[y] + k) % num_kept);
            job->pass_down(down, y, column, results[y], 0, (int)row_bytes, job->mask);
        }
    }
    free(kept);
    free(column);
    return is_done;
}

static int down_then_along(const Job *job, const Row *rows, uint8_t *const *results, int is_along) {
    const Axis *down = &job->down;
    int many = is_along ? job->rows_at_once : 1, from = job->from * job->pixel_bytes, to = job->to * job->pixel_bytes;
    size_t row_bytes = (size_t)job->along.length * job->pixel_bytes;
    size_t new_bytes = (size_t)job->along.count * job->pixel_bytes;
    uint8_t *made = is_along ? malloc((row_bytes + new_bytes) * many) : NULL;
    uint8_t *spare = made ? made + row_bytes * many : NULL;
    Row block[4 * ROWS];
    uint8_t *targets[4 * ROWS];
    if (is_along && !made) return 0;
    for (int y = 0; y < down->count; y += many) {
        for (int i = 0; i < many; i++) {
            int is_real = y + i < down->count, row = is_real ? y + i : down->count - 1;
            uint8_t *result = is_along ? made + row_bytes * i : results[row];
            if (is_real) job->pass_down(down, row, rows + down->first[row], result, from, to, job->mask);
            block[i] = is_real ? result : block[0];
            targets[i] = is_real ? results[row] : spare + new_bytes * i;
        }
        if (is_along) pass_along(job, block, targets);
    }
    free(made);
    return 1;
}

static void choose_passes(Job *job) {
    job->pass_along = along_plain;
    job->pass_down = down_plain;
#ifdef HAS_AVX2_CODE
    if (__builtin_cpu_supports("avx2") && job->along.is_tame && job->down.is_tame) {
        job->pass_along = along_avx2;
        job->pass_down = down_avx2;
    }
#endif
}

static int prepare(Job *job, int is_along) {
    const Axis *along = &job->along;
    size_t length = (size_t)(along->length > 4 * along->groups ? along->length : 4 * along->groups);
    job->from = 0;
    job->to = along->length;
    if (!pair_up(&job->down, 0) || !pair_up(&job->along, 1)) return 0;
    if (!is_along) return 1;
    job->from = along->start[0];
    job->to = along->start[along->count - 1] + 4 * along->groups;
    if (job->to > along->length) job->to = along->length;
    job->quad_bytes = 4 * (length > (size_t)along->count ? length : (size_t)along->count);
    job->quads = calloc(2 * ROWS, job->quad_bytes);
    return job->quads != NULL;
}

/* The rows of a part of an image, as if the part were the whole image. */
static Row *cut_out(const Row *rows, int x, int y, int pixel_bytes, int height) {
    Row *part = malloc(sizeof(Row) * (size_t)height);
    for (int row = 0; part && row < height; row++) part[row] = rows[y + row] + (size_t)x * pixel_bytes;
    return part;
}

/* Resizes the part that begins at `x`, `y`. Returns 0 if memory is short or the filter is unknown, else 1. */
int slipstream_resize(
    uint8_t *const *results, const Row *picture, int x, int y, int pixel_bytes, uint32_t mask, int width, int height,
    int new_width, int new_height, int filter, float left, float top, float right, float bottom, int is_down_first) {
    Job job = {.pixel_bytes = pixel_bytes, .rows_at_once = pixel_bytes == 1 ? 4 * ROWS : ROWS, .mask = mask};
    int is_along = new_width != width || left != 0.0f || right != (float)new_width;
    int is_down = new_height != height || top != 0.0f || bottom != (float)new_height;
    Row *rows = cut_out(picture, x, y, pixel_bytes, height);
    int is_ready = rows && weigh(&job.along, filter, width, left, right, new_width) &&
                   weigh(&job.down, filter, height, top, bottom, new_height) && prepare(&job, is_along);
    if (is_ready) choose_passes(&job);
    if (is_ready)
        is_ready = is_along && !(is_down && is_down_first) ? along_then_down(&job, rows, results, is_down)
                                                           : down_then_along(&job, rows, results, is_along);
    forget(&job.along);
    forget(&job.down);
    free(job.quads);
    free(rows);
    return is_ready;
}
