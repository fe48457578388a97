/* Micro-kernels: tiles of a matrix product in int8, int16, bfloat16 or float32, with the best instructions available.

   The right-hand side is packed into panels of 16 columns. A panel stores the numbers of a column in groups of four
   bytes (one float, two 16-bit or four 8-bit numbers), group after group, with the 16 columns side by side: 64 bytes,
   the width of a 512-bit vector or of one row of an AMX tile. Precisions differ only in how a group is multiplied and
   accumulated. Left-hand rows are contiguous, in groups of the same size. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(TILES)
#include TILES /* the header that declares the tile instructions */
#endif

#if defined(_OPENMP)
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_max_threads(void) { return 1; }
#endif

static inline long round_up(long number, long multiple) { return (number + multiple - 1) / multiple * multiple; }

enum { INT16, INT8, BF16, FP32 };
enum { PANEL = 16, GROUP = 4, LINE = PANEL * GROUP };

/* Vectors of floats and of integers, without an alignment requirement. */
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

/* `max_floats` and `min_floats` return b where a or b is NaN. */
#if defined(__AVX512F__)
static inline floats max_floats(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
static inline floats min_floats(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
static inline ints max_ints(ints a, ints b) { return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline ints round_to_ints(floats x) { return (ints)_mm512_cvtps_epi32((__m512)x); }
static inline float reduce_max(floats x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float reduce_min(floats x) { return _mm512_reduce_min_ps((__m512)x); }
static inline float reduce_add(floats x) { return _mm512_reduce_add_ps((__m512)x); }
static inline int32_t reduce_max_int(ints x) { return _mm512_reduce_max_epi32((__m512i)x); }
static inline floats reciprocal(floats x) { /* 14 bits of precision, 22 after one Newton step */
    floats estimate = (floats)_mm512_rcp14_ps((__m512)x);
    return estimate * (2 - x * estimate);
}
#else
#if defined(__AVX2__)
static inline floats max_floats(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
static inline floats min_floats(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
static inline ints max_ints(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }
static inline ints round_to_ints(floats x) { return (ints)_mm256_cvtps_epi32((__m256)x); }
#else
static inline floats select_lanes(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }
static inline floats max_floats(floats a, floats b) { return select_lanes(a > b, a, b); }
static inline floats min_floats(floats a, floats b) { return select_lanes(a < b, a, b); }
static inline ints max_ints(ints a, ints b) { return ((a > b) & a) | (~(a > b) & b); }
static inline ints round_to_ints(floats x) {
    floats half = (floats){0} + 0.5f;
    return __builtin_convertvector(x + select_lanes(x < 0, -half, half), ints);
}
#endif
static inline float reduce_max(floats x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}
static inline float reduce_min(floats x) { return -reduce_max(-x); }
static inline float reduce_add(floats x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
static inline int32_t reduce_max_int(ints x) {
    int32_t most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}
static inline floats reciprocal(floats x) { return 1 / x; }
#endif

/* The bits of |x|, which as integers have the same order, with NaN above infinity; and the largest of them. */
static inline ints magnitudes(floats x) { return (ints)x & INT32_MAX; }
static inline float max_magnitude(ints bit_patterns) {
    int32_t bits = reduce_max_int(bit_patterns);
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

/* Load the first `count` numbers, and zeros for the rest. */
static inline floats load_partial(const float *x, long count) {
    if (count >= LANES) return *(const floats *)x;
    floats few = {0};
    if (count > 0) memcpy(&few, x, count * sizeof *x);
    return few;
}
static inline void store_partial(floats x, float *to, long count) {
    if (count >= LANES) *(floats *)to = x;
    else memcpy(to, &x, count * sizeof *to);
}
static inline floats keep_first(long count, floats x, floats others) {
    memcpy(&others, &x, count * sizeof(float));
    return others;
}

/* ---- sixteen columns at once: accumulate the products of one group (16 bits) or STEP8 groups (8 bits) ---- */

#if defined(__AVX512VNNI__)
/* 27 accumulators, 3 panels and 1 row: 31 of 32 registers. */
enum { ROWS16 = 9, ROWS8 = 9, PANELS_WIDE = 3, STEP8 = 1, MAX_ACTIVATION8 = 255, MAX_WEIGHT8 = 127 };
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
enum { ROWS16 = 6, ROWS8 = 4, PANELS_WIDE = 1, STEP8 = 2, MAX_ACTIVATION8 = 127, MAX_WEIGHT8 = 63 };
typedef struct { __m256i low, high; } vec;
static inline vec zero(void) { return (vec){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline void store(int32_t *to, vec v) {
    _mm256_storeu_si256((__m256i *)to, v.low);
    _mm256_storeu_si256((__m256i *)to + 1, v.high);
}
/* In assembly, since compilers reorder the intrinsics until the twelve accumulators spill. */
static inline vec dot16(vec sum, const int32_t *a, const char *b) {
    __m256i x = _mm256_set1_epi32(*a), product;
    __asm__("vpmaddwd %4, %2, %3\n\tvpmaddwd %5, %2, %2\n\tvpaddd %3, %0, %0\n\tvpaddd %2, %1, %1"
            : "+x"(sum.low), "+x"(sum.high), "+x"(x), "=&x"(product)
            : "x"(*(const __m256i *)b), "x"(((const __m256i *)b)[1]));
    return sum;
}
/* Four products are added in 16 bits: with 7 bits on both sides 4 · 127 · 63 does not overflow. */
static inline vec dot8(vec sum, const int32_t *a, const char *b) {
    static const int16_t one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const __m256i *w = (const __m256i *)b;
    __m256i x, low, high, scratch;
    __asm__("vpbroadcastd %6, %2\n\tvpmaddubsw %8, %2, %3\n\tvpmaddubsw %9, %2, %4\n\t"
            "vpbroadcastd %7, %2\n\tvpmaddubsw %10, %2, %5\n\tvpmaddubsw %11, %2, %2\n\t"
            "vpaddw %5, %3, %3\n\tvpaddw %2, %4, %4\n\tvpmaddwd %12, %3, %3\n\tvpmaddwd %12, %4, %4\n\t"
            "vpaddd %3, %0, %0\n\tvpaddd %4, %1, %1"
            : "+x"(sum.low), "+x"(sum.high), "=&x"(x), "=&x"(low), "=&x"(high), "=&x"(scratch)
            : "m"(a[0]), "m"(a[1]), "x"(w[0]), "x"(w[1]), "x"(w[2]), "x"(w[3]), "m"(*(const __m256i *)one));
    return sum;
}
#else
enum { ROWS16 = 4, ROWS8 = 4, PANELS_WIDE = 1, STEP8 = 2, MAX_ACTIVATION8 = 255, MAX_WEIGHT8 = 127 };
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

/* Quantize a row: (x − start) · inverse, rounded and clamped to int16 or uint8. */
#if defined(__AVX512F__)
#define ROUND_ROW(NAME, TYPE, NARROW, MINIMUM, MAXIMUM)                                                           \
    static void NAME(const float *x, long count, float start, float inverse, TYPE *to) {                     \
        for (long i = 0; i < count; i += 16) {                                                               \
            __mmask16 mask = count - i >= 16 ? 0xffff : (1 << (count - i)) - 1;                              \
            __m512 scaled = _mm512_maskz_loadu_ps(mask, x + i), shift = _mm512_set1_ps(-start * inverse);     \
            scaled = _mm512_max_ps(_mm512_fmadd_ps(scaled, _mm512_set1_ps(inverse), shift), _mm512_set1_ps(MINIMUM)); \
            NARROW(to + i, mask, _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(MAXIMUM))));            \
        }                                                                                                    \
    }
#else
#define ROUND_ROW(NAME, TYPE, NARROW, MINIMUM, MAXIMUM)                                                           \
    static void NAME(const float *restrict x, long count, float start, float inverse, TYPE *restrict to) {   \
        for (long i = 0; i < count; i++) {                                                                   \
            float scaled = (x[i] - start) * inverse;                                                          \
            scaled = scaled > MINIMUM ? scaled : MINIMUM;                                                    \
            to[i] = (int)rintf(scaled < MAXIMUM ? scaled : MAXIMUM);                                         \
        }                                                                                                    \
    }
#endif
#if defined(__AVX512F__)
static inline void store16(int16_t *to, ints x) { _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16((__m512i)x)); }
#else
static inline void store16(int16_t *to, ints x) { for (int i = 0; i < LANES; i++) to[i] = x[i]; }
#endif
ROUND_ROW(round16, int16_t, _mm512_mask_cvtsepi32_storeu_epi16, -32767.0f, 32767.0f)
ROUND_ROW(round8, uint8_t, _mm512_mask_cvtusepi32_storeu_epi8, 0.0f, (float)MAX_ACTIVATION8)

/* ---- micro-kernels: a tile of rows × panels, accumulated over all groups ---- */

/* The tile of float32 outputs (and residuals) that the epilogue needs. It is prefetched row by row during the product:
   all at once, the prefetches would delay the loads of the product itself. */
typedef struct { const float *write, *read; long stride; } Prefetch;
static inline void prefetch_row(const Prefetch *prefetch, long row, long panel) {
    long offset = row * prefetch->stride + panel * PANEL;
    __builtin_prefetch(prefetch->write + offset, 1);
    if (prefetch->read) __builtin_prefetch(prefetch->read + offset);
}

typedef void micro_kernel(const char *a, long stride, const char *b, long groups, int32_t *sums, const Prefetch *prefetch);

#define UNROLL(I, COUNT) _Pragma("GCC unroll 16") for (int I = 0; I < COUNT; I++)
#define PREFETCHING_LOOP(ROWS, PANELS, STEP, ADD)                                                           \
    long share = prefetch ? groups / ROWS : groups, g = 0;                                              \
    for (int part = 0; g < groups; part++) {                                                        \
        if (prefetch) UNROLL(p, PANELS) prefetch_row(prefetch, part, p);                                             \
        for (long end = part == ROWS - 1 ? groups : g + share; g < end; g += STEP) ADD              \
    }
#define INTEGER_KERNEL(NAME, DOT, ROWS, PANELS, STEP)                                                      \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Prefetch *prefetch) { \
        vec sum[ROWS][PANELS];                                                                      \
        UNROLL(r, ROWS) UNROLL(p, PANELS) sum[r][p] = zero();                                           \
        PREFETCHING_LOOP(ROWS, PANELS, STEP, UNROLL(r, ROWS) UNROLL(p, PANELS)                                  \
                 sum[r][p] = DOT(sum[r][p], (const int32_t *)(a + r * stride) + g, b + (p * groups + g) * LINE);) \
        UNROLL(r, ROWS) UNROLL(p, PANELS) store(sums + (r * PANELS + p) * PANEL, sum[r][p]);            \
    }
INTEGER_KERNEL(wide16, dot16, ROWS16, PANELS_WIDE, 1)
INTEGER_KERNEL(narrow16, dot16, ROWS16, 1, 1)

#define FLOAT_KERNEL(NAME, ROWS, PANELS)                                                                  \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Prefetch *prefetch) { \
        enum { EACH_PANEL = PANEL / LANES, ALL = PANELS * EACH_PANEL };                             \
        floats sum[ROWS][ALL];                                                                      \
        UNROLL(r, ROWS) UNROLL(v, ALL) sum[r][v] = (floats){0};                                         \
        PREFETCHING_LOOP(ROWS, PANELS, 1, UNROLL(r, ROWS) UNROLL(v, ALL)                                        \
                 sum[r][v] += ((const float *)(a + r * stride))[g] *                                \
                              ((const floats *)(b + (v / EACH_PANEL * groups + g) * LINE))[v % EACH_PANEL];) \
        UNROLL(r, ROWS) UNROLL(v, ALL) ((floats *)sums)[r * ALL + v] = sum[r][v];                       \
    }
FLOAT_KERNEL(wide32, ROWS16, PANELS_WIDE)
FLOAT_KERNEL(narrow32, ROWS16, 1)

/* `wide` takes `panels` panels and `narrow` one. Packed weights are padded to multiples of PANEL_MULTIPLE panels and of
   GROUP_MULTIPLE groups. */
typedef struct { micro_kernel *wide, *narrow; int rows, panels; } MicroKernels;

#if defined(TILES)
/* Two by two tiles of 16 × 16 accumulators; sixteen groups fill a tile of activations or of weights. */
#define TILE_KERNEL(NAME, DOT)                                                                     \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums, const Prefetch *prefetch) { \
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
TILE_KERNEL(tiles8, _tile_dpbusd)
TILE_KERNEL(tiles_bf16, _tile_dpbf16ps)

static const MicroKernels MICRO_KERNELS[] = {
    [INT16] = {wide16, narrow16, ROWS16, PANELS_WIDE}, [INT8] = {tiles8, 0, 32, 2}, [BF16] = {tiles_bf16, 0, 32, 2},
    [FP32] = {wide32, narrow32, ROWS16, PANELS_WIDE}};
enum { PANEL_MULTIPLE = 2, GROUP_MULTIPLE = 16 };

/* The palette is fixed instead of queried: CPUID reports none on some virtual machines. */
static inline void configure_tiles(void) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = LINE, config.rows[tile] = 16;
    _tile_loadconfig(&config);
}
static inline void release_tiles(void) { _tile_release(); }

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
enum { STATE_REQUEST = 0x1023, TILE_DATA = 18 };
/* Linux enables tiles per process on request; returns 0 on success. */
static inline long request_tiles(void) { return syscall(SYS_arch_prctl, STATE_REQUEST, TILE_DATA); }
#else
static inline long request_tiles(void) { return 0; }
#endif
#else
INTEGER_KERNEL(wide8, dot8, ROWS8, PANELS_WIDE, STEP8)
INTEGER_KERNEL(narrow8, dot8, ROWS8, 1, STEP8)

static const MicroKernels MICRO_KERNELS[] = {
    [INT16] = {wide16, narrow16, ROWS16, PANELS_WIDE}, [INT8] = {wide8, narrow8, ROWS8, PANELS_WIDE},
    [FP32] = {wide32, narrow32, ROWS16, PANELS_WIDE}};
enum { PANEL_MULTIPLE = 1, GROUP_MULTIPLE = 2 };
static inline void configure_tiles(void) {}
static inline void release_tiles(void) {}
static inline long request_tiles(void) { return 0; }
#endif

