/* Moves bytes of pixels, many at a time. `slipstream_to_bytes` copies the first three bytes of each four-byte pixel to
 * contiguous memory. `slipstream_to_planes` separates such contiguous pixels into one plane per colour. Nothing is
 * computed. The code does not use Python, and does not read or write outside the memory that it is given. */

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLAIN_ONLY)
#define HAS_SSSE3_CODE 1
#include <immintrin.h>
#define SSSE3 __attribute__((target("ssse3")))
#endif

typedef const uint8_t *Row;

/* Packs the pixels of a row from `x` on. */
static void to_bytes_plain(uint8_t *result, Row row, int x, int width) {
    for (; x < width; x++)
        for (int byte = 0; byte < 3; byte++) result[3 * (size_t)x + byte] = row[4 * (size_t)x + byte];
}

/* Separates the pixels from `i` on. */
static void to_planes_plain(uint8_t *planes, Row pixels, size_t i, size_t count) {
    for (; i < count; i++)
        for (int plane = 0; plane < 3; plane++) planes[plane * count + i] = pixels[3 * i + plane];
}

#ifdef HAS_SSSE3_CODE
/* Packs four pixels at a time. Each store writes sixteen bytes for twelve, so the end of a row (at most five pixels) is
 * packed by the plain function. */
SSSE3 static void to_bytes_ssse3(uint8_t *result, Row row, int width) {
    const __m128i first_three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    int x = 0;
    for (; x + 6 <= width; x += 4) {
        __m128i pixels = _mm_loadu_si128((const __m128i *)(row + 4 * (size_t)x));
        _mm_storeu_si128((__m128i *)(result + 3 * (size_t)x), _mm_shuffle_epi8(pixels, first_three));
    }
    to_bytes_plain(result, row, x, width);
}

/* The shuffle indices that select the values of `plane` from `piece`, one of three pieces of sixteen bytes; -1 gives
 * zero. */
SSSE3 static __m128i places(int plane, int piece) {
    int8_t from[16];
    for (int i = 0; i < 16; i++) {
        int at = 3 * i + plane - 16 * piece;
        from[i] = (int8_t)(at >= 0 && at < 16 ? at : -1);
    }
    return _mm_loadu_si128((const __m128i *)from);
}

SSSE3 static void to_planes_ssse3(uint8_t *planes, Row pixels, size_t count) {
    __m128i from[3][3];
    size_t i = 0;
    for (int plane = 0; plane < 3; plane++)
        for (int piece = 0; piece < 3; piece++) from[plane][piece] = places(plane, piece);
    for (; i + 16 <= count; i += 16) {
        const __m128i *source = (const __m128i *)(pixels + 3 * i);
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2);
        for (int plane = 0; plane < 3; plane++) {
            __m128i both = _mm_or_si128(_mm_shuffle_epi8(a, from[plane][0]), _mm_shuffle_epi8(b, from[plane][1]));
            __m128i values = _mm_or_si128(both, _mm_shuffle_epi8(c, from[plane][2]));
            _mm_storeu_si128((__m128i *)(planes + plane * count + i), values);
        }
    }
    to_planes_plain(planes, pixels, i, count);
}
#endif

void slipstream_to_bytes(uint8_t *result, const Row *rows, int width, int height) {
    for (int y = 0; y < height; y++, result += 3 * (size_t)width) {
#ifdef HAS_SSSE3_CODE
        if (__builtin_cpu_supports("ssse3")) {
            to_bytes_ssse3(result, rows[y], width);
            continue;
        }
#endif
        to_bytes_plain(result, rows[y], 0, width);
    }
}

void slipstream_to_planes(uint8_t *planes, Row pixels, size_t count) {
#ifdef HAS_SSSE3_CODE
    if (__builtin_cpu_supports("ssse3")) {
        to_planes_ssse3(planes, pixels, count);
        return;
    }
#endif
    to_planes_plain(planes, pixels, 0, count);
}
