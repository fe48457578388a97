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

/* (x − mean) / √(variance + ε) · weight + bias */
static void normalise(const Layer *layer, const float *restrict x, float *restrict to) {
    const float *restrict weight = layer->norm_weight, *restrict bias = layer->norm_bias;
    floats sums = {0}, squares = {0};
    long width = layer->inputs;
    for (long i = 0; i < width; i += LANES) sums += some(x + i, width - i);
    float mean = sum_of(sums) / width;
    for (long i = 0; i < width; i += LANES) {
        floats apart = some(x + i, width - i) - mean, none = {0};
        if (width - i < LANES) apart = first_of(width - i, apart, none);
        squares += apart * apart;
    }
    float inverse = 1 / sqrtf(sum_of(squares) / width + layer->epsilon);
    for (long i = 0; i < width; i++) to[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

/* A row as it goes into the sums: as floats, or x ≈ low + step · integer. Where a number is not finite, no answer of
   the row will be. */
static void take_row(const Layer *layer, const float *restrict x, char *restrict to, float *low, float *step) {
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
    floats lowest = {0}, uppermost = {0};
    ints most_of_all = {0};
    for (long i = 0; i < width; i += LANES) {
        floats here = some(x + i, width - i);
        lowest = smaller(here, lowest), uppermost = larger(here, uppermost);
        most_of_all = highest(sizes(here), most_of_all);
    }
    float least = smallest_of(lowest), most = largest_of(uppermost), top = layer->top;
    float broken = largest_size(most_of_all) < INFINITY ? 0 : NAN;
    most = most < 1e-30f ? 1e-30f : most;
    if (layer->kind == INT16) {
        float largest = most > -least ? most : -least, inverse = top / largest;
        *low = broken, *step = largest / top;
        round16(x, width, 0, inverse, (int16_t *)to);
        return;
    }
    float start = layer->step ? layer->low : least, one = layer->step ? layer->step : (most - least) / top;
    *low = start + broken, *step = one;
    round8(x, width, start, 1 / one, (uint8_t *)to);
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

/* The sums of a few columns and rows as numbers again, added to `more` if it is given. */
static inline void finish(const Layer *layer, long rows, long column, const int32_t *sums, long stride, const float *low,
                          const float *step, const float *more, float *y) {
    floats scale = *(const floats *)(layer->scale + column), bias = *(const floats *)(layer->bias + column);
    floats total = scale * *(const floats *)(layer->total + column);
    long outputs = layer->outputs, width = outputs - column, whole = layer->kind < BF16, bent = layer->gelu;
    for (long r = 0; r < rows; r++, sums += stride, y += outputs) {
        floats done = whole ? scale * step[r] * as_floats(*(const ints *)sums) + (low[r] * total + bias)
                            : *(const floats *)sums + bias;
        if (bent) done = gelu(done);
        if (more) done += some(more + r * outputs, width);
        put(done, y, width);
    }
}

/* What a thread works in: a chunk of rows as the sums take them, with their lows and steps, and one row as floats. */
typedef struct { char *rows; float *low, *step, *row; } Desk;

static long lay_out(const Layer *layer, long rows, char *at, Desk *desk) {
    long padded = rows + 32; /* blocks of sums may reach beyond the last row */
    long sizes[] = {padded * layer->groups * GROUP, padded * 4, padded * 4, layer->inputs * 4};
    char *places[4], *start = at;
    for (int i = 0; i < 4; i++) places[i] = at, at += up(sizes[i], LINE);
    *desk = (Desk){places[0], (float *)places[1], (float *)places[2], (float *)places[3]};
    return at - start;
}

/* Some rows, for the columns from `left` to `right`. */
static void some_rows(const Layer *layer, const float *x, long rows, const float *more, float *y, long left, long right,
                      const Desk *desk) {
    Kind kind = KIND[layer->kind];
    long stride = layer->groups * GROUP, width;
    _Alignas(LINE) int32_t sums[32 * 32];
    for (long r = 0; r < rows; r++) {
        const float *row = x + r * layer->inputs;
        if (layer->norm_weight) normalise(layer, row, desk->row), row = desk->row;
        memset(desk->rows + (r + 1) * stride - GROUPS * GROUP, 0, GROUPS * GROUP);
        take_row(layer, row, desk->rows + r * stride, desk->low + r, desk->step + r);
    }
    for (long column = left; column < right; column += width) {
        sum_block *sum = column + kind.panels * PANEL <= right || !kind.narrow ? kind.wide : kind.narrow;
        width = sum == kind.wide ? kind.panels * PANEL : PANEL;
        for (long r = 0; r < rows; r += kind.rows) {
            int height = kind.rows < rows - r ? kind.rows : rows - r;
            long at = r * layer->outputs + column;
            Soon soon = {y + at, more ? more + at : 0, layer->outputs};
            sum(desk->rows + r * stride, stride, layer->weights + column * stride, layer->groups, sums, &soon);
            for (long c = 0; c < width && column + c < right; c += LANES)
                finish(layer, height, column + c, sums + c, width, desk->low + r, desk->step + r,
                       more ? more + at + c : 0, y + at + c);
        }
    }
}

enum { CHUNK = 128 }; /* rows that a thread takes at most at a time */

/* Rows in chunks that threads share evenly, and few rows also by columns. */
typedef struct { long rows, count, columns; } Chunks;

static Chunks divide(const Layer *layer, long rows) {
    long threads = omp_get_max_threads(), turns = (rows + threads * CHUNK - 1) / (threads * CHUNK);
    Chunks chunks = {.rows = up((rows + threads * turns - 1) / (threads * turns), KIND[layer->kind].rows)};
    chunks.count = (rows + chunks.rows - 1) / chunks.rows;
    long parts = chunks.count < threads ? threads / chunks.count : 1;
    chunks.columns = up((layer->outputs + parts - 1) / parts, KIND[layer->kind].panels * PANEL);
    return chunks;
}

/* How many bytes `linear` needs to work in; and `mlp`. */
long room(const Layer *layer, long rows) {
    Desk unused;
    return lay_out(layer, divide(layer, rows).rows, 0, &unused) * omp_get_max_threads();
}
long mlp_room(const Layer *first, const Layer *second, long rows) {
    Desk unused;
    long most = divide(first, rows).rows, other = divide(second, rows).rows;
    most = most > other ? most : other;
    long own = up(most * first->outputs * 4, LINE) + lay_out(first, most, 0, &unused) + lay_out(second, most, 0, &unused);
    return own * omp_get_max_threads();
}

/* y = act(norm(x) Wᵀ + b), or that added to `more`. */
void linear(const Layer *layer, const float *x, long rows, const float *more, float *y, char *work) {
    Chunks chunks = divide(layer, rows);
#pragma omp parallel
    {
        Desk desk;
        long size = lay_out(layer, chunks.rows, work, &desk);
        lay_out(layer, chunks.rows, work + size * omp_get_thread_num(), &desk);
        start_tiles();
#pragma omp for collapse(2) schedule(dynamic)
        for (long first = 0; first < rows; first += chunks.rows)
            for (long left = 0; left < layer->outputs; left += chunks.columns) {
                long here = rows - first < chunks.rows ? rows - first : chunks.rows;
                long right = left + chunks.columns < layer->outputs ? left + chunks.columns : layer->outputs;
                long out = first * layer->outputs;
                some_rows(layer, x + first * layer->inputs, here, more ? more + out : 0, y + out, left, right, &desk);
            }
        stop_tiles();
    }
}

/* Two layers, one behind the other: what is between them stays with the thread, in its cache. */
void mlp(const Layer *first, const Layer *second, const float *x, long rows, const float *more, float *y, char *work) {
    Chunks chunks = divide(first, rows), others = divide(second, rows);
    if (chunks.count < omp_get_max_threads()) { /* too few rows: threads share the columns of each layer */
        float *hidden = (float *)work;
        work += up(rows * first->outputs * 4, LINE);
        linear(first, x, rows, 0, hidden, work);
        linear(second, hidden, rows, more, y, work);
        return;
    }
    if (others.rows > chunks.rows) chunks = others;
#pragma omp parallel
    {
        Desk one, two;
        long hidden_size = up(chunks.rows * first->outputs * 4, LINE);
        long size = hidden_size + lay_out(first, chunks.rows, work, &one) + lay_out(second, chunks.rows, work, &two);
        char *own = work + size * omp_get_thread_num();
        float *hidden = (float *)own;
        own += hidden_size;
        lay_out(second, chunks.rows, own + lay_out(first, chunks.rows, own, &one), &two);
        start_tiles();
#pragma omp for schedule(dynamic)
        for (long at = 0; at < rows; at += chunks.rows) {
            long here = rows - at < chunks.rows ? rows - at : chunks.rows, out = at * second->outputs;
            some_rows(first, x + at * first->inputs, here, 0, hidden, 0, first->outputs, &one);
            some_rows(second, hidden, here, more ? more + out : 0, y + out, 0, second->outputs, &two);
        }
        stop_tiles();
    }
}
