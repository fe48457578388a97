/* Sums of products of small integers, or of floats: blocks of them, on whatever the CPU has for that.

   The right-hand side lies in panels of 16 columns. Within a panel, what belongs to one column comes in groups of four
   bytes (a float, two 16-bit or four 8-bit numbers), group after group, the 16 columns side by side: 64 bytes that one
   vector, or one row of an AMX tile, takes at once. The kinds of arithmetic differ only in how a group is multiplied and added.
   A left-hand row lies in memory as it is, in groups of the same size. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(TILES)
#include TILES /* where the tile instructions are declared */
#endif

#if defined(_OPENMP)
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_max_threads(void) { return 1; }
#endif

static inline long up(long number, long multiple) { return (number + multiple - 1) / multiple * multiple; }

enum { INT16, INT8, BF16, FP32 };
enum { PANEL = 16, GROUP = 4, LINE = PANEL * GROUP };

/* As many floats, or integers, as one vector holds; in memory they may lie anywhere. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
static inline floats as_floats(ints x) { return __builtin_convertvector(x, floats); }

/* `larger` and `smaller` give b where a or b is no number. */
#if defined(__AVX512F__)
static inline floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
static inline floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
static inline ints highest(ints a, ints b) { return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline ints nearest(floats x) { return (ints)_mm512_cvtps_epi32((__m512)x); }
static inline float largest_of(floats x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float smallest_of(floats x) { return _mm512_reduce_min_ps((__m512)x); }
static inline float sum_of(floats x) { return _mm512_reduce_add_ps((__m512)x); }
static inline int32_t highest_of(ints x) { return _mm512_reduce_max_epi32((__m512i)x); }
static inline floats reciprocal(floats x) { /* right to 14 bits, and after one step of Newton's to 22 */
    floats about = (floats)_mm512_rcp14_ps((__m512)x);
    return about * (2 - x * about);
}
#else
#if defined(__AVX2__)
static inline floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
static inline floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
static inline ints highest(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }
static inline ints nearest(floats x) { return (ints)_mm256_cvtps_epi32((__m256)x); }
#else
static inline floats choose(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }
static inline floats larger(floats a, floats b) { return choose(a > b, a, b); }
static inline floats smaller(floats a, floats b) { return choose(a < b, a, b); }
static inline ints highest(ints a, ints b) { return ((a > b) & a) | (~(a > b) & b); }
static inline ints nearest(floats x) {
    floats half = (floats){0} + 0.5f;
    return __builtin_convertvector(x + choose(x < 0, -half, half), ints);
}
#endif
static inline float largest_of(floats x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}
static inline float smallest_of(floats x) { return -largest_of(-x); }
static inline float sum_of(floats x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
static inline int32_t highest_of(ints x) {
    int32_t most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}
static inline floats reciprocal(floats x) { return 1 / x; }
#endif

/* The sizes of numbers as integers in the same order, where NaN lies beyond infinity; and the largest of them. */
static inline ints sizes(floats x) { return (ints)x & INT32_MAX; }
static inline float largest_size(ints sizes) {
    int32_t bits = highest_of(sizes);
    float size;
    memcpy(&size, &bits, sizeof size);
    return size;
}

/* The first of `count` numbers in a row, and zeros where there are too few. */
static inline floats some(const float *x, long count) {
    if (count >= LANES) return *(const floats *)x;
    floats few = {0};
    if (count > 0) memcpy(&few, x, count * sizeof *x);
    return few;
}
static inline void put(floats x, float *to, long count) {
    if (count >= LANES) *(floats *)to = x;
    else memcpy(to, &x, count * sizeof *to);
}
static inline floats first_of(long count, floats x, floats others) {
    memcpy(&others, &x, count * sizeof(float));
    return others;
}

/* ---- sixteen columns at once: add up the products of one group (16 bits) or STEP8 groups (8 bits) ---- */

#if defined(__AVX512VNNI__)
enum { ROWS16 = 9, ROWS8 = 9, ABREAST = 3, STEP8 = 1, TOP8 = 255, LARGEST8 = 127 }; /* 27 sums, 3 columns and 1 row: 31 registers */
typedef __m512i vec;
static inline vec zero(void) { return _mm512_setzero_si512(); }
static inline void store(int32_t *to, vec v) { _mm512_storeu_si512(to, v); }
static inline vec dot16(vec sum, const int32_t *a, const char *b) {
    return _mm512_dpwssd_epi32(sum, _mm512_set1_epi32(*a), _mm512_loadu_si512(b));
}
static inline vec dot8(vec sum, const int32_t *a, const char *b) {
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(*a), _mm512_loadu_si512(b));
}
#elif defined(__AVX2__)
enum { ROWS16 = 6, ROWS8 = 4, ABREAST = 1, STEP8 = 2, TOP8 = 127, LARGEST8 = 63 };
typedef struct { __m256i low, high; } vec;
static inline vec zero(void) { return (vec){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline void store(int32_t *to, vec v) {
    _mm256_storeu_si256((__m256i *)to, v.low);
    _mm256_storeu_si256((__m256i *)to + 1, v.high);
}
/* Written out, since compilers reorder the intrinsics until twelve sums no longer fit into the registers. */
static inline vec dot16(vec sum, const int32_t *a, const char *b) {
    __m256i x = _mm256_set1_epi32(*a), product;
    __asm__("vpmaddwd %4, %2, %3\n\tvpmaddwd %5, %2, %2\n\tvpaddd %3, %0, %0\n\tvpaddd %2, %1, %1"
            : "+x"(sum.low), "+x"(sum.high), "+x"(x), "=&x"(product)
            : "x"(*(const __m256i *)b), "x"(((const __m256i *)b)[1]));
    return sum;
}
/* Four products are added in 16 bits, which 4 · 127 · 63 does not overflow: both sides have seven bits here. */
static inline vec dot8(vec sum, const int32_t *a, const char *b) {
    static const int16_t one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const __m256i *w = (const __m256i *)b;
    __m256i x, low, high, more;
    __asm__("vpbroadcastd %6, %2\n\tvpmaddubsw %8, %2, %3\n\tvpmaddubsw %9, %2, %4\n\t"
            "vpbroadcastd %7, %2\n\tvpmaddubsw %10, %2, %5\n\tvpmaddubsw %11, %2, %2\n\t"
            "vpaddw %5, %3, %3\n\tvpaddw %2, %4, %4\n\tvpmaddwd %12, %3, %3\n\tvpmaddwd %12, %4, %4\n\t"
            "vpaddd %3, %0, %0\n\tvpaddd %4, %1, %1"
            : "+x"(sum.low), "+x"(sum.high), "=&x"(x), "=&x"(low), "=&x"(high), "=&x"(more)
            : "m"(a[0]), "m"(a[1]), "x"(w[0]), "x"(w[1]), "x"(w[2]), "x"(w[3]), "m"(*(const __m256i *)one));
    return sum;
}
#else
enum { ROWS16 = 4, ROWS8 = 4, ABREAST = 1, STEP8 = 2, TOP8 = 255, LARGEST8 = 127 };
typedef struct { int32_t lane[PANEL]; } vec;
static inline vec zero(void) { return (vec){{0}}; }
static inline void store(int32_t *to, vec v) { memcpy(to, v.lane, sizeof v.lane); }
static inline vec dot16(vec sum, const int32_t *a, const char *b) {
    const int16_t *x = (const int16_t *)a, *w = (const int16_t *)b;
    for (int i = 0; i < PANEL; i++) sum.lane[i] += x[0] * w[2 * i] + x[1] * w[2 * i + 1];
    return sum;
}
static inline vec dot8(vec sum, const int32_t *a, const char *b) {
    const uint8_t *x = (const uint8_t *)a;
    const int8_t *w = (const int8_t *)b;
    for (int i = 0; i < PANEL; i++)
        for (int j = 0; j < GROUP; j++)
            sum.lane[i] += x[j] * w[GROUP * i + j] + x[GROUP + j] * w[LINE + GROUP * i + j];
    return sum;
}
#endif

/* Numbers as integers: (x − start) · inverse, rounded, of 16 bits or of 8 without a sign; those beyond the ends are cut. */
#if defined(__AVX512F__)
#define ROUND_ROW(NAME, TYPE, NARROW, LEAST, MOST)                                                           \
    static void NAME(const float *x, long count, float start, float inverse, TYPE *to) {                     \
        for (long i = 0; i < count; i += 16) {                                                               \
            __mmask16 some = count - i >= 16 ? 0xffff : (1 << (count - i)) - 1;                              \
            __m512 place = _mm512_maskz_loadu_ps(some, x + i), shift = _mm512_set1_ps(-start * inverse);     \
            place = _mm512_max_ps(_mm512_fmadd_ps(place, _mm512_set1_ps(inverse), shift), _mm512_set1_ps(LEAST)); \
            NARROW(to + i, some, _mm512_cvtps_epi32(_mm512_min_ps(place, _mm512_set1_ps(MOST))));            \
        }                                                                                                    \
    }
#else
#define ROUND_ROW(NAME, TYPE, NARROW, LEAST, MOST)                                                           \
    static void NAME(const float *restrict x, long count, float start, float inverse, TYPE *restrict to) {   \
        for (long i = 0; i < count; i++) {                                                                   \
            float place = (x[i] - start) * inverse;                                                          \
            place = place > LEAST ? place : LEAST;                                                           \
            to[i] = (int)rintf(place < MOST ? place : MOST);                                                 \
        }                                                                                                    \
    }
#endif
#if defined(__AVX512F__)
static inline void store16(int16_t *to, ints x) { _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16((__m512i)x)); }
#else
static inline void store16(int16_t *to, ints x) { for (int i = 0; i < LANES; i++) to[i] = x[i]; }
#endif
ROUND_ROW(round16, int16_t, _mm512_mask_cvtsepi32_storeu_epi16, -32767.0f, 32767.0f)
ROUND_ROW(round8, uint8_t, _mm512_mask_cvtusepi32_storeu_epi8, 0.0f, (float)TOP8)

/* ---- a block of sums: rows times panels, over all groups ---- */

/* Floats that are needed once the sums are done, as many rows and columns as there are sums. They are fetched row by row
   on the way: asked for all at once they would hold up what the sums need themselves. */
typedef struct { const float *write, *read; long stride; } Soon;
static inline void fetch(const Soon *soon, long row, long panel) {
    long place = row * soon->stride + panel * PANEL;
    __builtin_prefetch(soon->write + place, 1);
    if (soon->read) __builtin_prefetch(soon->read + place);
}

typedef void sum_block(const char *a, long stride, const char *b, long groups, int32_t *sums, const Soon *soon);

#define EACH(I, COUNT) _Pragma("GCC unroll 16") for (int I = 0; I < COUNT; I++)
#define IN_PARTS(ROWS, PANELS, STEP, ADD)                                                           \
    long share = soon ? groups / ROWS : groups, g = 0;                                              \
    for (int part = 0; g < groups; part++) {                                                        \
        if (soon) EACH(p, PANELS) fetch(soon, part, p);                                             \
        for (long end = part == ROWS - 1 ? groups : g + share; g < end; g += STEP) ADD              \
    }
#define VECTORS(NAME, DOT, ROWS, PANELS, STEP)                                                      \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Soon *soon) { \
        vec sum[ROWS][PANELS];                                                                      \
        EACH(r, ROWS) EACH(p, PANELS) sum[r][p] = zero();                                           \
        IN_PARTS(ROWS, PANELS, STEP, EACH(r, ROWS) EACH(p, PANELS)                                  \
                 sum[r][p] = DOT(sum[r][p], (const int32_t *)(a + r * stride) + g, b + (p * groups + g) * LINE);) \
        EACH(r, ROWS) EACH(p, PANELS) store(sums + (r * PANELS + p) * PANEL, sum[r][p]);            \
    }
VECTORS(vectors16, dot16, ROWS16, ABREAST, 1)
VECTORS(narrow16, dot16, ROWS16, 1, 1)

#define FLOATS(NAME, ROWS, PANELS)                                                                  \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Soon *soon) { \
        enum { EACH_PANEL = PANEL / LANES, ALL = PANELS * EACH_PANEL };                             \
        floats sum[ROWS][ALL];                                                                      \
        EACH(r, ROWS) EACH(v, ALL) sum[r][v] = (floats){0};                                         \
        IN_PARTS(ROWS, PANELS, 1, EACH(r, ROWS) EACH(v, ALL)                                        \
                 sum[r][v] += ((const float *)(a + r * stride))[g] *                                \
                              ((const floats *)(b + (v / EACH_PANEL * groups + g) * LINE))[v % EACH_PANEL];) \
        EACH(r, ROWS) EACH(v, ALL) ((floats *)sums)[r * ALL + v] = sum[r][v];                       \
    }
FLOATS(vectors32, ROWS16, ABREAST)
FLOATS(narrow32, ROWS16, 1)

/* `wide` takes `panels` at once and `narrow` takes one; panels come in a MULTIPLE, groups in multiples of GROUPS. */
typedef struct { sum_block *wide, *narrow; int rows, panels; } Kind;

#if defined(TILES)
/* Two by two tiles of 16 × 16 sums; sixteen groups fill a tile of activations or of weights. */
#define IN_TILES(NAME, DOT)                                                                     \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Soon *soon) { \
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);                             \
        for (long g = 0; g < groups; g += 16) {                                                 \
            _tile_loadd(4, a + g * GROUP, stride);                                              \
            _tile_loadd(5, a + g * GROUP + 16 * stride, stride);                                \
            _tile_loadd(6, b + g * LINE, LINE);                                                 \
            _tile_loadd(7, b + (groups + g) * LINE, LINE);                                      \
            DOT(0, 4, 6); DOT(1, 4, 7); DOT(2, 5, 6); DOT(3, 5, 7);                             \
        }                                                                                       \
        _tile_stored(0, sums, 2 * LINE);            _tile_stored(1, sums + 16, 2 * LINE);       \
        _tile_stored(2, sums + 512, 2 * LINE);      _tile_stored(3, sums + 528, 2 * LINE);      \
    }
IN_TILES(tiles8, _tile_dpbusd)
IN_TILES(tiles_bf16, _tile_dpbf16ps)

static const Kind KIND[] = {
    [INT16] = {vectors16, narrow16, ROWS16, ABREAST}, [INT8] = {tiles8, 0, 32, 2}, [BF16] = {tiles_bf16, 0, 32, 2},
    [FP32] = {vectors32, narrow32, ROWS16, ABREAST}};
enum { MULTIPLE = 2, GROUPS = 16 };

/* The palette is set here and not read from the processor: on some virtual machines that says it has none. */
static inline void start_tiles(void) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = LINE, config.rows[tile] = 16;
    _tile_loadconfig(&config);
}
static inline void stop_tiles(void) { _tile_release(); }

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
enum { STATE_REQUEST = 0x1023, TILE_DATA = 18 };
/* Linux gives tiles to those who ask for them; 0 if it does. */
static inline long ask_for_tiles(void) { return syscall(SYS_arch_prctl, STATE_REQUEST, TILE_DATA); }
#else
static inline long ask_for_tiles(void) { return 0; }
#endif
#else
VECTORS(vectors8, dot8, ROWS8, ABREAST, STEP8)
VECTORS(narrow8, dot8, ROWS8, 1, STEP8)

static const Kind KIND[] = {
    [INT16] = {vectors16, narrow16, ROWS16, ABREAST}, [INT8] = {vectors8, narrow8, ROWS8, ABREAST},
    [FP32] = {vectors32, narrow32, ROWS16, ABREAST}};
enum { MULTIPLE = 1, GROUPS = 2 };
static inline void start_tiles(void) {}
static inline void stop_tiles(void) {}
static inline long ask_for_tiles(void) { return 0; }
#endif

