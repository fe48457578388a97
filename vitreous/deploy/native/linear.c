/* y = act(x Wᵀ + b) with x and W in small integers, or in floats: see linear.py for what the numbers mean. */

#include "products.h"

typedef struct {
    long kind, inputs, outputs, groups, gelu;
    const char *weights;
    const float *scale, *total, *bias;      /* of each column: what 1 stands for, the sum of its integers, the bias */
    const float *norm_weight, *norm_bias;   /* of the LayerNorm before it; 0: there is none */
    float epsilon;
    float top;                              /* the largest integer of an activation */
    float low, step;                        /* activations are low + step · integer; step 0: found for each row */
} Layer;

/* 0 if the instructions may be used. */
long ready(void) { return ask_for_tiles(); }

/* Columns and groups come in multiples of the first two; integers of 8 bits go up to the others. */
void rules(long *columns, long *groups, long *weight, long *activation) {
    *columns = PANEL * MULTIPLE, *groups = GROUPS, *weight = LARGEST8, *activation = TOP8;
}

/* A row, vector by vector, in four strips side by side, since a sum must wait for the sum before it. */
enum { STRIP = 4 };
#define STRIPS(AT, S, WIDTH) \
    for (long FIRST = 0; FIRST < WIDTH; FIRST += STRIP * LANES) \
        for (long S = 0, AT = FIRST; S < STRIP; S++, AT += LANES)
#define OVER_STRIPS(JOIN, X) JOIN(JOIN(X[0], X[1]), JOIN(X[2], X[3]))
static inline floats plus(floats a, floats b) { return a + b; }

/* (x − mean) / √(variance + ε) · weight + bias */
static void normalize(const Layer *layer, const float *restrict x, float *restrict to) {
    const float *restrict weight = layer->norm_weight, *restrict bias = layer->norm_bias;
    floats sums[STRIP] = {0}, squares[STRIP] = {0};
    long width = layer->inputs;
    STRIPS(at, s, width) sums[s] += some(x + at, width - at);
    float mean = sum_of(OVER_STRIPS(plus, sums)) / width;
    STRIPS(at, s, width) {
        floats apart = some(x + at, width - at) - mean, none = {0};
        if (width - at < LANES) apart = first_of(width > at ? width - at : 0, apart, none);
        squares[s] += apart * apart;
    }
    float inverse = 1 / sqrtf(sum_of(OVER_STRIPS(plus, squares)) / width + layer->epsilon);
    for (long i = 0; i < width; i++) to[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

/* How many bits of a fine token's integers are in its second row: as many as in its first, unless sums overflow. */
static int lower_bits(const Layer *layer) {
    int bits = 0;
    while (2 << bits <= TOP8 + 1 && layer->inputs * LARGEST8 * ((TOP8 + 1L) << (bits + 1)) < INT32_MAX) bits++;
    return bits;
}

/* The integers of a fine token in two rows, its upper and its lower bits. */
static void split_row(const float *restrict x, long width, float start, float inverse, int bits, uint8_t *restrict upper,
                      uint8_t *restrict lower) {
    float most = ((TOP8 + 1) << bits) - 1;
    for (long i = 0; i < width; i++) {
        float place = (x[i] - start) * inverse;
        place = place > 0 ? place : 0;
        int whole = (int)rintf(place < most ? place : most);
        upper[i] = whole >> bits, lower[i] = whole & ((1 << bits) - 1);
    }
}

/* A token as it goes into the sums: as floats, or x ≈ low + step · integer; a fine one as two rows, `stride` apart.
   Where a number is not finite, no answer of the token will be. */
static void take_row(const Layer *layer, const float *restrict x, int fine, char *restrict to, long stride, float *low,
                     float *step) {
    long width = layer->inputs;
    *low = 0, *step = 1;
    if (layer->kind == FP32) {
        memcpy(to, x, width * sizeof *x);
        return;
    }
    if (layer->kind == BF16) {
        for (long i = 0; i < width; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            uint16_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            ((uint16_t *)to)[i] = (bits & INT32_MAX) > 0x7f800000 ? 0x7fc0 : rounded; /* NaN stays NaN */
        }
        return;
    }
    floats lowest[STRIP] = {0}, uppermost[STRIP] = {0};
    ints most_of_all[STRIP] = {0};
    STRIPS(at, s, width) {
        floats here = some(x + at, width - at);
        lowest[s] = smaller(here, lowest[s]), uppermost[s] = larger(here, uppermost[s]);
        most_of_all[s] = highest(sizes(here), most_of_all[s]);
    }
    float least = smallest_of(OVER_STRIPS(smaller, lowest)), most = largest_of(OVER_STRIPS(larger, uppermost));
    float broken = largest_size(OVER_STRIPS(highest, most_of_all)) < INFINITY ? 0 : NAN, top = layer->top;
    most = most < 1e-30f ? 1e-30f : most;
    if (layer->kind == INT16) {
        float largest = most > -least ? most : -least, inverse = top / largest;
        *low = broken, *step = largest / top;
        round16(x, width, 0, inverse, (int16_t *)to);
        return;
    }
    float start = layer->step ? layer->low : least, one = layer->step ? layer->step : (most - least) / top;
    *low = start + broken, *step = one;
    if (fine) {
        int bits = lower_bits(layer);
        *step = one * top / (((TOP8 + 1) << bits) - 1);
        split_row(x, width, start, 1 / *step, bits, (uint8_t *)to, (uint8_t *)to + stride);
    } else round8(x, width, start, 1 / one, (uint8_t *)to);
}

/* x Φ(x), with erf as a quotient of two polynomials: wrong by less than 5 · 10⁻⁷. */
static inline floats gelu(floats x) {
    floats four = (floats){0} + 4, z = larger(-four, smaller(four, x * 0.70710678f));
    floats s = z * z;
    floats above = -1.60960333e-2f + s * (-2.95459981e-3f + s * (-7.34990630e-4f + s * (-5.69250639e-5f
                 + s * (-2.10102402e-6f + s * (2.77068142e-8f + s * -2.72614226e-10f)))));
    floats below = -1.42647390e-2f + s * (-7.37332917e-3f + s * (-1.68282697e-3f + s * (-2.13374055e-4f
                 + s * -1.45660718e-5f)));
    return 0.5f * x * (1 + z * above * reciprocal(below));
}

#if defined(__AVX512F__)
/* The same to 6 · 10⁻⁶, which is enough beside integers: x/2 + |x| (Φ(|x|) − 1/2), with the bracket from 32 parabolas. */
enum { PARABOLAS = 32, EACH_UNIT = 7 };
static float parabolas[3][PARABOLAS];
static void __attribute__((constructor)) fit_parabolas(void) {
    for (int i = 0; i < PARABOLAS; i++) {
        double middle = (double)i / EACH_UNIT, apart = 0.8660254 / (2 * EACH_UNIT), at[3];
        for (int j = 0; j < 3; j++) at[j] = erf((middle + (j - 1) * apart) * 0.70710678118654752) / 2;
        double slope = (at[2] - at[0]) / (2 * apart), bend = (at[2] - 2 * at[1] + at[0]) / (2 * apart * apart);
        parabolas[0][i] = at[1] - middle * (slope - middle * bend);
        parabolas[1][i] = slope - 2 * middle * bend;
        parabolas[2][i] = bend;
    }
}
static inline floats quick_gelu(floats x) {
    floats size = (floats)sizes(x), last = (floats){0} + (PARABOLAS - 0.51f) / EACH_UNIT, z = smaller(size, last);
    __m512i which = (__m512i)(z * EACH_UNIT + 0x1p23f); /* its last bits are the nearest integer */
    floats term[3];
    for (int i = 0; i < 3; i++)
        term[i] = (floats)_mm512_permutex2var_ps(_mm512_loadu_ps(parabolas[i]), which, _mm512_loadu_ps(parabolas[i] + 16));
    return 0.5f * x + size * (term[0] + z * (term[1] + z * term[2]));
}
#else
static inline floats quick_gelu(floats x) { return gelu(x); }
#endif

/* The sums of a few columns and rows as numbers again, added to `more` if it is given. */
static inline void finish(const Layer *layer, long rows, long column, const int32_t *sums, long stride, const float *low,
                          const float *step, const float *more, float *y) {
    floats scale = *(const floats *)(layer->scale + column), bias = *(const floats *)(layer->bias + column);
    floats total = scale * *(const floats *)(layer->total + column);
    long outputs = layer->outputs, width = outputs - column, whole = layer->kind < BF16, bent = layer->gelu;
    for (long r = 0; r < rows; r++, sums += stride, y += outputs) {
        floats done = whole ? scale * step[r] * as_floats(*(const ints *)sums) + (low[r] * total + bias)
                            : *(const floats *)sums + bias;
        if (bent) done = whole ? quick_gelu(done) : gelu(done);
        if (more) done += some(more + r * outputs, width);
        put(done, y, width);
    }
}

/* Tokens of a batch of images, `of_each` from every one. The answer is read from the first `fine` of these: they have
   more than 8 bits, in two rows of integers each. */
typedef struct { long count, of_each, fine; } Tokens;

static long rows_before(const Tokens *tokens, long token) {
    long image = token / tokens->of_each, place = token % tokens->of_each;
    return token + image * tokens->fine + (place < tokens->fine ? place : tokens->fine);
}
/* The token that begins with a row, or behind it. */
static long token_at(const Tokens *tokens, long row) {
    long rows = tokens->of_each + tokens->fine, place = row % rows, fine = tokens->fine;
    return row / rows * tokens->of_each + (place < 2 * fine ? (place + 1) / 2 : place - fine);
}

/* What a thread works in: rows as the sums take them, with the token that each belongs to, its low and step, and one
   row as floats. */
typedef struct { char *rows; float *low, *step; int32_t *token; float *row; } Desk;
enum { LOWER_HALF = -1, UNUSED = -2 }; /* rows that no token ends with */

static long lay_out(const Layer *layer, long rows, char *at, Desk *desk) {
    long padded = 2 * rows + 32; /* some rows stay unused, and blocks of sums may reach beyond the last one */
    long sizes[] = {padded * layer->groups * GROUP, padded * 4, padded * 4, padded * 4, layer->inputs * 4};
    char *places[5], *start = at;
    for (int i = 0; i < 5; i++) places[i] = at, at += up(sizes[i], LINE);
    *desk = (Desk){places[0], (float *)places[1], (float *)places[2], (int32_t *)places[3], (float *)places[4]};
    return at - start;
}

/* Tokens from `first` to `end` become rows; how many. Both halves of a fine one lie in the same block of sums. */
static long take_tokens(const Layer *layer, const float *x, const Tokens *tokens, long first, long end, const Desk *desk) {
    long stride = layer->groups * GROUP, block = KIND[layer->kind].rows, r = 0;
    for (long token = first; token < end; token++, r++, x += layer->inputs) {
        int fine = layer->kind == INT8 && token % tokens->of_each < tokens->fine;
        const float *row = x;
        if (layer->norm_weight) normalize(layer, row, desk->row), row = desk->row;
        if (fine && r % block == block - 1) desk->token[r++] = UNUSED;
        char *to = desk->rows + r * stride;
        for (int half = 0; half <= fine; half++) memset(to + (half + 1) * stride - GROUPS * GROUP, 0, GROUPS * GROUP);
        take_row(layer, row, fine, to, stride, desk->low + r, desk->step + r);
        desk->token[r] = token - first;
        if (fine) desk->token[++r] = LOWER_HALF;
    }
    return r;
}

/* The sums of a fine token's two rows become those of the first. */
static void join_halves(const int32_t *token, long height, long width, int32_t times, int32_t *sums) {
    for (long i = 1; i < height; i++)
        if (token[i] == LOWER_HALF)
            for (int32_t *upper = sums + (i - 1) * width, c = 0; c < width; c++) upper[c] = upper[c] * times + upper[c + width];
}

/* Tokens from `first` to `end`, for the columns from `left` to `right`; x, `more` and y begin with the first. */
static void some_tokens(const Layer *layer, const Tokens *tokens, long first, long end, const float *x, const float *more,
                        float *y, long left, long right, const Desk *desk) {
    Kind kind = KIND[layer->kind];
    long stride = layer->groups * GROUP, rows = take_tokens(layer, x, tokens, first, end, desk), width;
    int bits = lower_bits(layer);
    _Alignas(LINE) int32_t sums[32 * 32];
    for (long column = left; column < right; column += width) {
        sum_block *sum = column + kind.panels * PANEL <= right || !kind.narrow ? kind.wide : kind.narrow;
        width = sum == kind.wide ? kind.panels * PANEL : PANEL;
        for (long r = 0; r < rows; r += kind.rows) {
            const int32_t *token = desk->token + r;
            long height = kind.rows < rows - r ? kind.rows : rows - r, at = token[0] * layer->outputs + column, count;
            Soon soon = {y + at, more ? more + at : 0, layer->outputs};
            sum(desk->rows + r * stride, stride, layer->weights + column * stride, layer->groups, sums, &soon);
            join_halves(token, height, width, 1 << bits, sums);
            for (long i = 0; i < height; i += count) {
                count = 1;
                if (token[i] < 0) continue;
                while (i + count < height && token[i + count] == token[i] + count) count++;
                at = token[i] * layer->outputs + column;
                for (long c = 0; c < width && column + c < right; c += LANES)
                    finish(layer, count, column + c, sums + i * width + c, width, desk->low + r + i, desk->step + r + i,
                           more ? more + at + c : 0, y + at + c);
            }
        }
    }
}

enum { CHUNK = 128 }; /* rows that a thread takes at most at a time */

/* Rows in chunks that threads share evenly, and few rows also by columns. */
typedef struct { long rows, count, columns; } Chunks;

static Chunks divide(const Layer *layer, const Tokens *tokens) {
    long rows = rows_before(tokens, tokens->count), threads = omp_get_max_threads();
    long turns = (rows + threads * CHUNK - 1) / (threads * CHUNK);
    Chunks chunks = {.rows = up((rows + threads * turns - 1) / (threads * turns), KIND[layer->kind].rows)};
    chunks.count = (rows + chunks.rows - 1) / chunks.rows;
    long parts = chunks.count < threads ? threads / chunks.count : 1;
    chunks.columns = up((layer->outputs + parts - 1) / parts, KIND[layer->kind].panels * PANEL);
    return chunks;
}
/* The first token of a chunk; behind the last chunk, the number of all. */
static long chunk_start(const Chunks *chunks, const Tokens *tokens, long number) {
    return number < chunks->count ? token_at(tokens, number * chunks->rows) : tokens->count;
}

/* How many bytes `linear` needs to work in; and `mlp`. */
long room(const Layer *layer, const Tokens *tokens) {
    Desk unused;
    return lay_out(layer, divide(layer, tokens).rows, 0, &unused) * omp_get_max_threads();
}
long mlp_room(const Layer *first, const Layer *second, const Tokens *tokens) {
    Desk unused;
    long most = divide(first, tokens).rows, other = divide(second, tokens).rows;
    most = most > other ? most : other;
    long own = up(most * first->outputs * 4, LINE) + lay_out(first, most, 0, &unused) + lay_out(second, most, 0, &unused);
    return own * omp_get_max_threads();
}

/* y = act(norm(x) Wᵀ + b), or that added to `more`. */
void linear(const Layer *layer, const float *x, const Tokens *tokens, const float *more, float *y, char *work) {
    Chunks chunks = divide(layer, tokens);
#pragma omp parallel
    {
        Desk desk;
        long size = lay_out(layer, chunks.rows, work, &desk);
        lay_out(layer, chunks.rows, work + size * omp_get_thread_num(), &desk);
        start_tiles();
#pragma omp for collapse(2) schedule(dynamic)
        for (long number = 0; number < chunks.count; number++)
            for (long left = 0; left < layer->outputs; left += chunks.columns) {
                long first = chunk_start(&chunks, tokens, number), end = chunk_start(&chunks, tokens, number + 1);
                long right = left + chunks.columns < layer->outputs ? left + chunks.columns : layer->outputs;
                long out = first * layer->outputs;
                some_tokens(layer, tokens, first, end, x + first * layer->inputs, more ? more + out : 0, y + out, left,
                            right, &desk);
            }
        stop_tiles();
    }
}

/* Two layers, one behind the other: what is between them stays with the thread, in its cache. */
void mlp(const Layer *one, const Layer *two, const float *x, const Tokens *tokens, const float *more, float *y, char *work) {
    Chunks chunks = divide(one, tokens), others = divide(two, tokens);
    if (chunks.count < omp_get_max_threads()) { /* too few rows: threads share the columns of each layer */
        float *hidden = (float *)work;
        work += up(tokens->count * one->outputs * 4, LINE);
        linear(one, x, tokens, 0, hidden, work);
        linear(two, hidden, tokens, more, y, work);
        return;
    }
    if (others.rows > chunks.rows) chunks = others;
#pragma omp parallel
    {
        Desk first_desk, second_desk;
        long hidden_size = up(chunks.rows * one->outputs * 4, LINE);
        long first_size = lay_out(one, chunks.rows, work, &first_desk);
        long size = hidden_size + first_size + lay_out(two, chunks.rows, work, &second_desk);
        char *own = work + size * omp_get_thread_num();
        float *hidden = (float *)own;
        lay_out(one, chunks.rows, own + hidden_size, &first_desk);
        lay_out(two, chunks.rows, own + hidden_size + first_size, &second_desk);
        start_tiles();
#pragma omp for schedule(dynamic)
        for (long number = 0; number < chunks.count; number++) {
            long first = chunk_start(&chunks, tokens, number), end = chunk_start(&chunks, tokens, number + 1);
            long out = first * two->outputs;
            some_tokens(one, tokens, first, end, x + first * one->inputs, 0, hidden, 0, one->outputs, &first_desk);
            some_tokens(two, tokens, first, end, hidden, more ? more + out : 0, y + out, 0, two->outputs, &second_desk);
        }
        stop_tiles();
    }
}
