/* y = act(x Wᵀ + b) with x and W quantized to 8 or 16 bits, or in bfloat16 or float32: see linear.py for the scheme. */

#include "products.h"

typedef struct {
    long kind, inputs, outputs, groups, has_gelu;
    const char *weights;
    const float *scale, *weight_sum, *bias; /* per channel: the weights' scale, the sum of their integers, the bias */
    const float *norm_weight, *norm_bias;   /* of a LayerNorm before the layer; NULL without one */
    float epsilon;
    float max_activation;                   /* the largest integer of a quantized activation */
    float low, step;                        /* activation ≈ low + step · integer; step 0: a range per row (dynamic) */
} Layer;

/* Request what the kernels need from the operating system; 0 on success. */
long init(void) { return request_tiles(); }

/* What packed weights are padded to (multiples of columns and of groups), and the largest integers in 8 bits. */
void packing(long *columns, long *groups, long *max_weight, long *max_activation) {
    *columns = PANEL * PANEL_MULTIPLE, *groups = GROUP_MULTIPLE;
    *max_weight = MAX_WEIGHT8, *max_activation = MAX_ACTIVATION8;
}

/* Loop over a row with four independent accumulators, which hides the latency of dependent additions. */
enum { STRIP = 4 };
#define STRIPS(AT, S, WIDTH) \
    for (long FIRST = 0; FIRST < WIDTH; FIRST += STRIP * LANES) \
        for (long S = 0, AT = FIRST; S < STRIP; S++, AT += LANES)
#define REDUCE_STRIPS(JOIN, X) JOIN(JOIN(X[0], X[1]), JOIN(X[2], X[3]))
static inline floats add(floats a, floats b) { return a + b; }

/* (x − mean) / √(variance + ε) · weight + bias */
static void normalize(const Layer *layer, const float *restrict x, float *restrict to) {
    const float *restrict weight = layer->norm_weight, *restrict bias = layer->norm_bias;
    floats sums[STRIP] = {0}, squares[STRIP] = {0};
    long width = layer->inputs;
    STRIPS(at, s, width) sums[s] += load_partial(x + at, width - at);
    float mean = reduce_add(REDUCE_STRIPS(add, sums)) / width;
    STRIPS(at, s, width) {
        floats deviation = load_partial(x + at, width - at) - mean, none = {0};
        if (width - at < LANES) deviation = keep_first(width > at ? width - at : 0, deviation, none);
        squares[s] += deviation * deviation;
    }
    float inverse = 1 / sqrtf(reduce_add(REDUCE_STRIPS(add, squares)) / width + layer->epsilon);
    for (long i = 0; i < width; i++) to[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

/* Number of low bits that a precise token keeps in its second row: as many as in its first, unless sums overflow. */
static int num_lower_bits(const Layer *layer) {
    int bits = 0;
    while (2 << bits <= MAX_ACTIVATION8 + 1
           && layer->inputs * MAX_WEIGHT8 * ((MAX_ACTIVATION8 + 1L) << (bits + 1)) < INT32_MAX) bits++;
    return bits;
}

/* Quantize a precise token to up to 16 bits, the upper and the lower ones in a row each. */
static void quantize_row_in_halves(const float *restrict x, long width, float start, float inverse, int bits,
                                   uint8_t *restrict upper, uint8_t *restrict lower) {
    float largest = ((MAX_ACTIVATION8 + 1) << bits) - 1;
    for (long i = 0; i < width; i++) {
        float scaled = (x[i] - start) * inverse;
        scaled = scaled > 0 ? scaled : 0;
        int integer = (int)rintf(scaled < largest ? scaled : largest);
        upper[i] = integer >> bits, lower[i] = integer & ((1 << bits) - 1);
    }
}

/* Convert a token to the layer's precision: float32, bfloat16, or x ≈ low + step · integer; a precise token takes two
   rows, `stride` bytes apart. A value that is not finite makes all outputs of its token NaN. */
static void quantize_row(const Layer *layer, const float *restrict x, int precise, char *restrict to, long stride,
                         float *low, float *step) {
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
    floats lows[STRIP] = {0}, highs[STRIP] = {0};
    ints peaks[STRIP] = {0};
    STRIPS(at, s, width) {
        floats here = load_partial(x + at, width - at);
        lows[s] = min_floats(here, lows[s]), highs[s] = max_floats(here, highs[s]);
        peaks[s] = max_ints(magnitudes(here), peaks[s]);
    }
    float minimum = reduce_min(REDUCE_STRIPS(min_floats, lows)), maximum = reduce_max(REDUCE_STRIPS(max_floats, highs));
    float nan_if_not_finite = max_magnitude(REDUCE_STRIPS(max_ints, peaks)) < INFINITY ? 0 : NAN;
    float max_activation = layer->max_activation;
    maximum = maximum < 1e-30f ? 1e-30f : maximum;
    if (layer->kind == INT16) {
        float largest = maximum > -minimum ? maximum : -minimum, inverse = max_activation / largest;
        *low = nan_if_not_finite, *step = largest / max_activation;
        round16(x, width, 0, inverse, (int16_t *)to);
        return;
    }
    float start = layer->step ? layer->low : minimum;
    float scale = layer->step ? layer->step : (maximum - minimum) / max_activation;
    *low = start + nan_if_not_finite, *step = scale;
    if (precise) {
        int bits = num_lower_bits(layer);
        *step = scale * max_activation / (((MAX_ACTIVATION8 + 1) << bits) - 1);
        quantize_row_in_halves(x, width, start, 1 / *step, bits, (uint8_t *)to, (uint8_t *)to + stride);
    } else round8(x, width, start, 1 / scale, (uint8_t *)to);
}

/* GELU: x Φ(x), with erf as a rational approximation; absolute error below 5 · 10⁻⁷. */
static inline floats gelu(floats x) {
    floats four = (floats){0} + 4, z = max_floats(-four, min_floats(four, x * 0.70710678f));
    floats s = z * z;
    floats above = -1.60960333e-2f + s * (-2.95459981e-3f + s * (-7.34990630e-4f + s * (-5.69250639e-5f
                 + s * (-2.10102402e-6f + s * (2.77068142e-8f + s * -2.72614226e-10f)))));
    floats below = -1.42647390e-2f + s * (-7.37332917e-3f + s * (-1.68282697e-3f + s * (-2.13374055e-4f
                 + s * -1.45660718e-5f)));
    return 0.5f * x * (1 + z * above * reciprocal(below));
}

#if defined(__AVX512F__)
/* GELU with an error of 6 · 10⁻⁶, below that of quantization: x/2 + |x| (Φ(|x|) − 1/2), with the bracket as
   32 quadratic pieces. */
enum { PARABOLAS = 32, PARABOLAS_PER_UNIT = 7 };
static float parabolas[3][PARABOLAS];
static void __attribute__((constructor)) fit_parabolas(void) {
    for (int i = 0; i < PARABOLAS; i++) {
        double middle = (double)i / PARABOLAS_PER_UNIT, apart = 0.8660254 / (2 * PARABOLAS_PER_UNIT), at[3];
        for (int j = 0; j < 3; j++) at[j] = erf((middle + (j - 1) * apart) * 0.70710678118654752) / 2;
        double slope = (at[2] - at[0]) / (2 * apart), bend = (at[2] - 2 * at[1] + at[0]) / (2 * apart * apart);
        parabolas[0][i] = at[1] - middle * (slope - middle * bend);
        parabolas[1][i] = slope - 2 * middle * bend;
        parabolas[2][i] = bend;
    }
}
static inline floats approximate_gelu(floats x) {
    floats size = (floats)magnitudes(x), last = (floats){0} + (PARABOLAS - 0.51f) / PARABOLAS_PER_UNIT;
    floats z = min_floats(size, last);
    __m512i which = (__m512i)(z * PARABOLAS_PER_UNIT + 0x1p23f); /* its low bits hold the nearest integer */
    floats term[3];
    for (int i = 0; i < 3; i++)
        term[i] = (floats)_mm512_permutex2var_ps(_mm512_loadu_ps(parabolas[i]), which, _mm512_loadu_ps(parabolas[i] + 16));
    return 0.5f * x + size * (term[0] + z * (term[1] + z * term[2]));
}
#else
static inline floats approximate_gelu(floats x) { return gelu(x); }
#endif

/* Dequantize the sums of some rows and columns, then add the bias, apply GELU and add `residual` (may be NULL). */
static inline void epilogue(const Layer *layer, long rows, long column, const int32_t *sums, long stride, const float *low,
                          const float *step, const float *residual, float *y) {
    floats scale = *(const floats *)(layer->scale + column), bias = *(const floats *)(layer->bias + column);
    floats weight_sum = scale * *(const floats *)(layer->weight_sum + column);
    long outputs = layer->outputs, width = outputs - column, is_integer = layer->kind < BF16, has_gelu = layer->has_gelu;
    for (long r = 0; r < rows; r++, sums += stride, y += outputs) {
        floats result = is_integer ? scale * step[r] * as_floats(*(const ints *)sums) + (low[r] * weight_sum + bias)
                                   : *(const floats *)sums + bias;
        if (has_gelu) result = is_integer ? approximate_gelu(result) : gelu(result);
        if (residual) result += load_partial(residual + r * outputs, width);
        store_partial(result, y, width);
    }
}

/* A batch with `per_image` tokens per image. In int8 the first `precise_tokens` of each, which the head reads, take two
   rows for up to 16 bits. */
typedef struct { long count, per_image, precise_tokens; } Tokens;

static long rows_before(const Tokens *tokens, long token) {
    long image = token / tokens->per_image, position = token % tokens->per_image;
    return token + image * tokens->precise_tokens + (position < tokens->precise_tokens ? position : tokens->precise_tokens);
}
/* The first token that starts at this row or later. */
static long token_at(const Tokens *tokens, long row) {
    long rows = tokens->per_image + tokens->precise_tokens, position = row % rows, precise = tokens->precise_tokens;
    return row / rows * tokens->per_image + (position < 2 * precise ? (position + 1) / 2 : position - precise);
}

/* A thread's buffers: quantized rows, each with its low, step and token, and one normalized row in float32. */
typedef struct { char *rows; float *low, *step; int32_t *token; float *row; } Workspace;
enum { LOWER_HALF = -1, UNUSED = -2 }; /* in `token`: rows without an output of their own */

static long lay_out_workspace(const Layer *layer, long rows, char *at, Workspace *ws) {
    long padded = 2 * rows + 32; /* some rows stay unused, and micro-kernels read beyond the last one */
    long num_bytes[] = {padded * layer->groups * GROUP, padded * 4, padded * 4, padded * 4, layer->inputs * 4};
    char *buffers[5], *start = at;
    for (int i = 0; i < 5; i++) buffers[i] = at, at += round_up(num_bytes[i], LINE);
    *ws = (Workspace){buffers[0], (float *)buffers[1], (float *)buffers[2], (int32_t *)buffers[3], (float *)buffers[4]};
    return at - start;
}

/* Quantize tokens [first, end) into rows and return the number of rows. Both rows of a precise token lie in one tile. */
static long quantize_tokens(const Layer *layer, const float *x, const Tokens *tokens, long first, long end,
                            const Workspace *ws) {
    long stride = layer->groups * GROUP, block = MICRO_KERNELS[layer->kind].rows, r = 0;
    for (long token = first; token < end; token++, r++, x += layer->inputs) {
        int precise = layer->kind == INT8 && token % tokens->per_image < tokens->precise_tokens;
        const float *row = x;
        if (layer->norm_weight) normalize(layer, row, ws->row), row = ws->row;
        if (precise && r % block == block - 1) ws->token[r++] = UNUSED;
        char *to = ws->rows + r * stride;
        for (int half = 0; half <= precise; half++)
            memset(to + (half + 1) * stride - GROUP_MULTIPLE * GROUP, 0, GROUP_MULTIPLE * GROUP);
        quantize_row(layer, row, precise, to, stride, ws->low + r, ws->step + r);
        ws->token[r] = token - first;
        if (precise) ws->token[++r] = LOWER_HALF;
    }
    return r;
}

/* Combine the sums of a precise token's two rows into the first. */
static void merge_halves(const int32_t *token, long height, long width, int32_t upper_scale, int32_t *sums) {
    for (long i = 1; i < height; i++)
        if (token[i] == LOWER_HALF)
            for (int32_t *upper = sums + (i - 1) * width, c = 0; c < width; c++)
                upper[c] = upper[c] * upper_scale + upper[c + width];
}

/* Compute tokens [first, end) and columns [left, right); x, `residual` and y point at token `first`. */
static void forward_tokens(const Layer *layer, const Tokens *tokens, long first, long end, const float *x,
                           const float *residual, float *y, long left, long right, const Workspace *ws) {
    MicroKernels kind = MICRO_KERNELS[layer->kind];
    long stride = layer->groups * GROUP, rows = quantize_tokens(layer, x, tokens, first, end, ws), width;
    int bits = num_lower_bits(layer);
    _Alignas(LINE) int32_t sums[32 * 32];
    for (long column = left; column < right; column += width) {
        micro_kernel *sum = column + kind.panels * PANEL <= right || !kind.narrow ? kind.wide : kind.narrow;
        width = sum == kind.wide ? kind.panels * PANEL : PANEL;
        for (long r = 0; r < rows; r += kind.rows) {
            const int32_t *token = ws->token + r;
            long height = kind.rows < rows - r ? kind.rows : rows - r, at = token[0] * layer->outputs + column, count;
            Prefetch prefetch = {y + at, residual ? residual + at : 0, layer->outputs};
            sum(ws->rows + r * stride, stride, layer->weights + column * stride, layer->groups, sums, &prefetch);
            merge_halves(token, height, width, 1 << bits, sums);
            for (long i = 0; i < height; i += count) {
                count = 1;
                if (token[i] < 0) continue;
                while (i + count < height && token[i + count] == token[i] + count) count++;
                at = token[i] * layer->outputs + column;
                for (long c = 0; c < width && column + c < right; c += LANES)
                    epilogue(layer, count, column + c, sums + i * width + c, width, ws->low + r + i, ws->step + r + i,
                           residual ? residual + at + c : 0, y + at + c);
            }
        }
    }
}

enum { CHUNK = 128 }; /* at most so many rows per task of a thread */

/* Rows are divided evenly over the threads; columns too where there are fewer chunks of rows than threads. */
typedef struct { long rows, count, columns; } Chunks;

static Chunks divide_rows(const Layer *layer, const Tokens *tokens) {
    long rows = rows_before(tokens, tokens->count), threads = omp_get_max_threads();
    long rounds = (rows + threads * CHUNK - 1) / (threads * CHUNK);
    Chunks chunks = {.rows = round_up((rows + threads * rounds - 1) / (threads * rounds), MICRO_KERNELS[layer->kind].rows)};
    chunks.count = (rows + chunks.rows - 1) / chunks.rows;
    long parts = chunks.count < threads ? threads / chunks.count : 1;
    chunks.columns = round_up((layer->outputs + parts - 1) / parts, MICRO_KERNELS[layer->kind].panels * PANEL);
    return chunks;
}
/* The first token of a chunk; the number of tokens after the last chunk. */
static long chunk_start(const Chunks *chunks, const Tokens *tokens, long number) {
    return number < chunks->count ? token_at(tokens, number * chunks->rows) : tokens->count;
}

/* Bytes of scratch memory that `linear` needs, and `mlp`. */
long linear_workspace_bytes(const Layer *layer, const Tokens *tokens) {
    Workspace unused;
    return lay_out_workspace(layer, divide_rows(layer, tokens).rows, 0, &unused) * omp_get_max_threads();
}
long mlp_workspace_bytes(const Layer *first, const Layer *second, const Tokens *tokens) {
    Workspace unused;
    long rows = divide_rows(first, tokens).rows, second_rows = divide_rows(second, tokens).rows;
    rows = rows > second_rows ? rows : second_rows;
    long per_thread = round_up(rows * first->outputs * 4, LINE) + lay_out_workspace(first, rows, 0, &unused)
                      + lay_out_workspace(second, rows, 0, &unused);
    return per_thread * omp_get_max_threads();
}

/* y = act(norm(x) Wᵀ + b) + residual; `residual` may be NULL. */
void linear(const Layer *layer, const float *x, const Tokens *tokens, const float *residual, float *y, char *work) {
    Chunks chunks = divide_rows(layer, tokens);
#pragma omp parallel
    {
        Workspace ws;
        long size = lay_out_workspace(layer, chunks.rows, work, &ws);
        lay_out_workspace(layer, chunks.rows, work + size * omp_get_thread_num(), &ws);
        configure_tiles();
#pragma omp for collapse(2) schedule(dynamic)
        for (long number = 0; number < chunks.count; number++)
            for (long left = 0; left < layer->outputs; left += chunks.columns) {
                long first = chunk_start(&chunks, tokens, number), end = chunk_start(&chunks, tokens, number + 1);
                long right = left + chunks.columns < layer->outputs ? left + chunks.columns : layer->outputs;
                long out = first * layer->outputs;
                forward_tokens(layer, tokens, first, end, x + first * layer->inputs, residual ? residual + out : 0, y + out,
                               left, right, &ws);
            }
        release_tiles();
    }
}

/* Two layers in sequence: the hidden activations of a chunk stay in its thread's cache. */
void mlp(const Layer *one, const Layer *two, const float *x, const Tokens *tokens, const float *residual, float *y,
         char *work) {
    Chunks chunks = divide_rows(one, tokens), others = divide_rows(two, tokens);
    if (chunks.count < omp_get_max_threads()) { /* too few rows: threads share the columns of each layer */
        float *hidden = (float *)work;
        work += round_up(tokens->count * one->outputs * 4, LINE);
        linear(one, x, tokens, 0, hidden, work);
        linear(two, hidden, tokens, residual, y, work);
        return;
    }
    if (others.rows > chunks.rows) chunks = others;
#pragma omp parallel
    {
        Workspace first_ws, second_ws;
        long hidden_size = round_up(chunks.rows * one->outputs * 4, LINE);
        long first_size = lay_out_workspace(one, chunks.rows, work, &first_ws);
        long size = hidden_size + first_size + lay_out_workspace(two, chunks.rows, work, &second_ws);
        char *own = work + size * omp_get_thread_num();
        float *hidden = (float *)own;
        lay_out_workspace(one, chunks.rows, own + hidden_size, &first_ws);
        lay_out_workspace(two, chunks.rows, own + hidden_size + first_size, &second_ws);
        configure_tiles();
#pragma omp for schedule(dynamic)
        for (long number = 0; number < chunks.count; number++) {
            long first = chunk_start(&chunks, tokens, number), end = chunk_start(&chunks, tokens, number + 1);
            long out = first * two->outputs;
            forward_tokens(one, tokens, first, end, x + first * one->inputs, 0, hidden, 0, one->outputs, &first_ws);
            forward_tokens(two, tokens, first, end, hidden, residual ? residual + out : 0, y + out, 0, two->outputs,
                           &second_ws);
        }
        release_tiles();
    }
}
