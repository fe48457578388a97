/* y = act(x Wᵀ + b) with x and W in small integers: see linear.py for what the numbers mean.

   Weights lie in panels of 16 columns. Within a panel, what belongs to one column comes in groups of four bytes (two
   16-bit or four 8-bit numbers), group after group, the 16 columns side by side: 64 bytes that one vector, or one row
   of an AMX tile, takes at once. The kinds of arithmetic differ only in how a group is multiplied and added. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(TILES)
#include TILES /* where the tile instructions are declared */
#endif

enum { INT16, INT8, BF16 };
enum { PANEL = 16, GROUP = 4, LINE = PANEL * GROUP };

/* ---- sixteen columns at once: add up the products of one group (16 bits) or two (8 bits) ---- */

#if defined(__AVX512VNNI__)
enum { ROWS16 = 12, ROWS8 = 12, TOP8 = 255, LARGEST8 = 127 };
typedef __m512i vec;
static inline vec zero(void) { return _mm512_setzero_si512(); }
static inline void store(int32_t *to, vec v) { _mm512_storeu_si512(to, v); }
static inline vec dot16(vec sum, const int32_t *a, const char *b) {
    return _mm512_dpwssd_epi32(sum, _mm512_set1_epi32(*a), _mm512_loadu_si512(b));
}
static inline vec dot8(vec sum, const int32_t *a, const char *b) {
    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(a[0]), _mm512_loadu_si512(b));
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(a[1]), _mm512_loadu_si512(b + LINE));
}
#elif defined(__AVX2__)
enum { ROWS16 = 6, ROWS8 = 4, TOP8 = 127, LARGEST8 = 63 };
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
enum { ROWS16 = 4, ROWS8 = 4, TOP8 = 255, LARGEST8 = 127 };
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

/* ---- a block of sums: rows of activations times panels of weights, over all groups ---- */

typedef void sum_block(const char *a, long stride, const char *b, long groups, int32_t *sums);

#define VECTORS(NAME, DOT, ROWS, GROUPS)                                                        \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums) {   \
        vec sum[ROWS];                                                                          \
        for (int r = 0; r < ROWS; r++) sum[r] = zero();                                         \
        for (long g = 0; g < groups; g += GROUPS)                                               \
            _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; r++)                             \
                sum[r] = DOT(sum[r], (const int32_t *)(a + r * stride) + g, b + g * LINE);      \
        for (int r = 0; r < ROWS; r++) store(sums + r * PANEL, sum[r]);                         \
    }
VECTORS(vectors16, dot16, ROWS16, 1)

#if defined(TILES)
/* Two by two tiles of 16 × 16 sums; sixteen groups fill a tile of activations or of weights. */
#define IN_TILES(NAME, DOT)                                                                     \
    static void NAME(const char *a, long stride, const char *b, long groups, int32_t *sums) {   \
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

static const struct { sum_block *sum; int rows, panels; } KIND[] = {
    [INT16] = {vectors16, ROWS16, 1}, [INT8] = {tiles8, 32, 2}, [BF16] = {tiles_bf16, 32, 2}};
enum { PANELS = 2, GROUPS = 16 };

/* The palette is set here and not read from the processor: on some virtual machines that says it has none. */
static void start_tiles(void) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = LINE, config.rows[tile] = 16;
    _tile_loadconfig(&config);
}
static void stop_tiles(void) { _tile_release(); }

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
/* Linux gives tiles to those who ask for them; 0 if it does. */
long ready(void) { return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA); }
#else
long ready(void) { return 0; }
#endif
#else
VECTORS(vectors8, dot8, ROWS8, 2)

static const struct { sum_block *sum; int rows, panels; } KIND[] = {
    [INT16] = {vectors16, ROWS16, 1}, [INT8] = {vectors8, ROWS8, 1}};
enum { PANELS = 1, GROUPS = 2 };
static void start_tiles(void) {}
static void stop_tiles(void) {}
long ready(void) { return 0; }
#endif

/* ---- one layer ---- */

typedef struct {
    long kind, inputs, outputs, groups, gelu;
    const char *weights;
    const float *scale, *total, *bias; /* of each column: what 1 stands for, the sum of its integers, the bias */
    float top;                         /* the largest integer of an activation */
    float low, step;                   /* activations are low + step · integer; step 0: found for each row */
} Layer;

/* Columns and groups come in multiples of the first two; integers of 8 bits go up to the others. */
void rules(long *columns, long *groups, long *weight, long *activation) {
    *columns = PANEL * PANELS, *groups = GROUPS, *weight = LARGEST8, *activation = TOP8;
}

/* An integer for every float, in the same order; NaN lies beyond both infinities. Compilers find the extremes of
   integers with vectors, those of floats only where they may forget about NaN. */
static inline int32_t order(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & INT32_MAX);
}
static inline float number(int32_t order) {
    int32_t bits = order ^ (order >> 31 & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A row as integers: x ≈ low + step · integer. Where a number is not finite, no answer of the row will be. */
static void to_integers(const Layer *layer, const float *restrict x, char *restrict to, float *low, float *step) {
    long width = layer->inputs;
    if (layer->kind == BF16) {
        for (long i = 0; i < width; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            ((uint16_t *)to)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        }
        *low = 0, *step = 1;
        return;
    }
    int32_t first = 0, last = order(1e-30f);
    for (long i = 0; i < width; i++) {
        int32_t place = order(x[i]);
        first = place < first ? place : first;
        last = place > last ? place : last;
    }
    float least = number(first), most = number(last), top = layer->top, broken = (least + most) * 0;
    if (layer->kind == INT16) {
        float largest = most > -least ? most : -least, inverse = top / largest;
        *low = broken, *step = largest / top;
        for (long i = 0; i < width; i++) ((int16_t *)to)[i] = (int)rintf(x[i] * inverse);
        return;
    }
    float start = layer->step ? layer->low : least, one = layer->step ? layer->step : (most - least) / top;
    float inverse = 1 / one;
    *low = start + broken, *step = one;
    for (long i = 0; i < width; i++) {
        float place = (x[i] - start) * inverse;
        place = place > 0 ? place : 0;
        ((uint8_t *)to)[i] = (int)rintf(place < top ? place : top);
    }
}

/* x Φ(x), with erf as a quotient of two polynomials: wrong by less than 5 · 10⁻⁷. */
static inline float gelu(float x) {
    float z = x * 0.70710678f;
    z = z < -4 ? -4 : z > 4 ? 4 : z;
    float s = z * z;
    float above = -1.60960333e-2f + s * (-2.95459981e-3f + s * (-7.34990630e-4f + s * (-5.69250639e-5f
                + s * (-2.10102402e-6f + s * (2.77068142e-8f + s * -2.72614226e-10f)))));
    float below = -1.42647390e-2f + s * (-7.37332917e-3f + s * (-1.68282697e-3f + s * (-2.13374055e-4f
                + s * -1.45660718e-5f)));
    return 0.5f * x * (1 + z * above / below);
}

/* The sums of one panel as numbers again, for a few rows. */
static inline void finish(const Layer *layer, long rows, long column, const int32_t *sums, long stride, const float *low,
                          const float *step, float *y) {
    const float *scale = layer->scale + column, *total = layer->total + column, *bias = layer->bias + column;
    long width = layer->outputs - column;
    for (long r = 0; r < rows; r++, sums += stride, y += layer->outputs) {
        float done[PANEL];
        if (layer->kind == BF16)
            for (int i = 0; i < PANEL; i++) done[i] = ((const float *)sums)[i] + bias[i];
        else
            for (int i = 0; i < PANEL; i++) done[i] = scale[i] * (step[r] * (float)sums[i] + low[r] * total[i]) + bias[i];
        if (layer->gelu)
            for (int i = 0; i < PANEL; i++) done[i] = gelu(done[i]);
        if (width >= PANEL) memcpy(y, done, sizeof done);
        else memcpy(y, done, width * sizeof *y);
    }
}

enum { CHUNK = 96, COLUMNS = 8 * PANEL }; /* what one thread does at a time */

/* How many bytes `linear` needs to work in. */
long room(const Layer *layer, long rows) { return (rows + CHUNK) * (layer->groups * GROUP + 2 * (long)sizeof(float)); }

void linear(const Layer *layer, const float *x, long rows, float *y, char *work) {
    long stride = layer->groups * GROUP, padded = rows + CHUNK;
    int height = KIND[layer->kind].rows, width = KIND[layer->kind].panels * PANEL;
    float *low = (float *)(work + padded * stride), *step = low + padded;
#pragma omp parallel
    {
#pragma omp for
        for (long r = 0; r < rows; r++) {
            memset(work + (r + 1) * stride - GROUPS * GROUP, 0, GROUPS * GROUP);
            to_integers(layer, x + r * layer->inputs, work + r * stride, low + r, step + r);
        }
        start_tiles();
#pragma omp for collapse(2) schedule(dynamic)
        for (long first = 0; first < rows; first += CHUNK)
            for (long left = 0; left < layer->outputs; left += COLUMNS) {
                int32_t sums[32 * 32];
                for (long column = left; column < left + COLUMNS && column < layer->outputs; column += width)
                    for (long row = first; row < first + CHUNK && row < rows; row += height) {
                        KIND[layer->kind].sum(work + row * stride, stride, layer->weights + column * stride, layer->groups, sums);
                        for (long c = column; c < column + width && c < layer->outputs; c += PANEL)
                            finish(layer, height < rows - row ? height : rows - row, c, sums + c - column, width,
                                   low + row, step + row, y + row * layer->outputs + c);
                    }
            }
        stop_tiles();
    }
}
