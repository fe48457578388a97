// How many operations a second one core can do when nothing has to be fetched: everything stays in registers.
//
//     limit fp32 | int16 | int8 | int8-tiles | bf16-tiles
//
// Prints the rate of each of many short stretches, or nothing where this machine lacks the instructions.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#if defined __AVX512F__
enum { WIDTH = 64 };
#elif defined __AVX__
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
enum { SUMS = 12, STEPS = 100000, TILE_STEPS = 10000, STRETCHES = 1000 };  // twelve sums hide a product's latency

static volatile float result;  // so that the compiler may not leave the work out

typedef float Floats __attribute__((vector_size(WIDTH)));

static double fp32(void) {
    Floats sums[SUMS], factor = {0}, term = {0};
    for (int i = 0; i < WIDTH / 4; i++) factor[i] = 0.999f, term[i] = 0.001f;
    for (int i = 0; i < SUMS; i++) sums[i] = factor * (result + i);  // unlike, else one of them would do for all
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * factor + term;
    for (int i = 0; i < SUMS; i++) result += sums[i][0];
    return 2.0 * STEPS * SUMS * (WIDTH / 4);
}

#if defined __AVX512VNNI__
static double int8(void) {
    __m512i sums[SUMS], pixels = _mm512_set1_epi8(3), weights = _mm512_set1_epi8(2);
    for (int i = 0; i < SUMS; i++) sums[i] = _mm512_set1_epi32(i);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < SUMS; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], pixels, weights);
    for (int i = 0; i < SUMS; i++) result += _mm512_cvtsi512_si32(sums[i]);
    return 2.0 * STEPS * SUMS * 64;
}

static double int16(void) {
    __m512i sums[SUMS], pixels = _mm512_set1_epi16(3), weights = _mm512_set1_epi16(2);
    for (int i = 0; i < SUMS; i++) sums[i] = _mm512_set1_epi32(i);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < SUMS; i++) sums[i] = _mm512_dpwssd_epi32(sums[i], pixels, weights);
    for (int i = 0; i < SUMS; i++) result += _mm512_cvtsi512_si32(sums[i]);
    return 2.0 * STEPS * SUMS * 32;
}
#elif defined __AVX2__
enum { FEW = 4 };  // a sum of integers takes one cycle; more of them would not all stay in registers

// Two products of pairs are added in 16 bits before they are widened, which operands of seven bits allow.
static double int8(void) {
    __m256i sums[FEW], ones = _mm256_set1_epi16(1), weights = _mm256_set1_epi8(2);
    __m256i pixels = _mm256_set1_epi8(3), others = _mm256_set1_epi8(1);
    for (int i = 0; i < FEW; i++) sums[i] = _mm256_set1_epi32(i);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < FEW; i++) {
            __asm__ volatile("" : "+x"(pixels), "+x"(others));  // else the products are computed once for all steps
            __m256i pairs = _mm256_maddubs_epi16(pixels, weights);
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(others, weights));
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
        }
    for (int i = 0; i < FEW; i++) result += _mm256_extract_epi32(sums[i], 0);
    return 2.0 * STEPS * FEW * 64;
}

static double int16(void) {
    __m256i sums[FEW], weights = _mm256_set1_epi16(2), pixels = _mm256_set1_epi16(3), others = _mm256_set1_epi16(1);
    for (int i = 0; i < FEW; i++) sums[i] = _mm256_set1_epi32(i);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < FEW; i++) {
            __asm__ volatile("" : "+x"(pixels), "+x"(others));
            __m256i pairs = _mm256_madd_epi16(pixels, weights);
            pairs = _mm256_add_epi32(pairs, _mm256_madd_epi16(others, weights));
            sums[i] = _mm256_add_epi32(sums[i], pairs);
        }
    for (int i = 0; i < FEW; i++) result += _mm256_extract_epi32(sums[i], 0);
    return 2.0 * STEPS * FEW * 32;
}
#else
static double int8(void) { return 0; }
static double int16(void) { return 0; }
#endif

#if defined __AMX_TILE__ && defined __AMX_INT8__ && defined __AMX_BF16__
// Linux lends a process the tiles when it asks; all eight have 16 rows of 64 bytes.
static void ask_for_tiles(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    syscall(SYS_arch_prctl, 0x1023, 18);
    _tile_loadconfig(&shape);
}

#define FOUR_PRODUCTS(multiply) { multiply(0, 4, 6); multiply(1, 4, 7); multiply(2, 5, 6); multiply(3, 5, 7); }

static double int8_tiles(void) {
    ask_for_tiles();
    for (int step = 0; step < TILE_STEPS; step++) FOUR_PRODUCTS(_tile_dpbusd)
    return 2.0 * TILE_STEPS * 4 * 16 * 16 * 64;
}

static double bf16_tiles(void) {
    ask_for_tiles();
    for (int step = 0; step < TILE_STEPS; step++) FOUR_PRODUCTS(_tile_dpbf16ps)
    return 2.0 * TILE_STEPS * 4 * 16 * 16 * 32;
}
#else
static double int8_tiles(void) { return 0; }
static double bf16_tiles(void) { return 0; }
#endif

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

int main(int count, char **words) {
    const char *kind = count > 1 ? words[1] : "fp32";
    double (*work)(void) = !strcmp(kind, "int8")         ? int8
                           : !strcmp(kind, "int16")      ? int16
                           : !strcmp(kind, "int8-tiles") ? int8_tiles
                           : !strcmp(kind, "bf16-tiles") ? bf16_tiles
                                                         : fp32;
    for (int i = 0; i < STRETCHES; i++) {
        double start = now(), operations = work();
        if (operations > 0) printf("%.4g\n", operations / (now() - start));
    }
    return 0;
}
