/* softmax(q kᵀ · scale + bias) v, with both products in 16-bit integers and the softmax in float: see attention.py.

   A thread computes one head of one image at a time. Keys and values are packed into panels once, then a few queries
   attend to all of them at a time, so that logits and weights never leave the cache. */

#include "products.h"

typedef struct { const float *data; long batch, head, row; } Strides; /* strides in elements; rows are contiguous */

typedef struct {
    long batch, heads, queries, keys, width, depth; /* width of queries and keys, depth of values */
    Strides q, k, v, bias, out;
    float scale;
} AttentionArgs;

enum { ROWS = ROWS16, PREFETCH_ROWS = ROWS };
enum { MAX_VALUE = 2047, WEIGHT_SUM = 1 << 20 }; /* a weighted sum of values stays below 2³¹ */

static inline const float *row_at(const Strides *x, long batch, long head, long row) {
    return x->data + batch * x->batch + head * x->head + row * x->row;
}

/* The largest absolute value in some rows, at least `minimum`; NaN if any of them is. */
static inline float max_abs(const float *x, long stride, long rows, long width, float minimum) {
    ints peaks = {0};
    for (long r = 0; r < rows; r++, x += stride)
        for (long i = 0; i < width; i += LANES) {
            __builtin_prefetch(x + PREFETCH_ROWS * stride + i); /* rows lie too far apart for the hardware prefetcher */
            peaks = max_ints(magnitudes(load_partial(x + i, width - i)), peaks);
        }
    float peak = max_magnitude(peaks);
    return peak < minimum ? minimum : peak;
}

/* eˣ for x ≤ 0 with a relative error below 6 · 10⁻⁶; nearly 0 below −87, and NaN for NaN. */
static inline floats exp_negative(floats x) {
    floats lowest = (floats){0} - 126, octaves = max_floats(lowest, x * 1.44269504f);
    ints exponent = round_to_ints(octaves);
    floats part = octaves - as_floats(exponent);
    floats result = 1 + part * (0.693147181f + part * (0.240226507f + part * (0.0555041087f + part * (0.00961812911f
                  + part * 0.00133335581f))));
    return (floats)((ints)result + (exponent << 23));
}

/* A thread's buffers for one head: packed keys and values, and the rows in progress. */
typedef struct { char *keys, *values; int16_t *rows; float *logits; int32_t *sums; } Workspace;

static long lay_out_workspace(const AttentionArgs *args, char *at, Workspace *ws) {
    long keys = round_up(args->keys, PANEL), width = round_up(args->width, 2), depth = round_up(args->depth, PANEL);
    long rows = round_up(ROWS * (width > keys ? width : keys), 2 * depth); /* also holds two rows of values while packing */
    long num_bytes[] = {keys * width * 2, depth * round_up(args->keys, 2) * 2, rows * 2, ROWS * keys * 4,
                        ROWS * PANELS_WIDE * PANEL * 4};
    char *buffers[5];
    for (int i = 0; i < 5; i++) buffers[i] = at, at += round_up(num_bytes[i], LINE);
    *ws = (Workspace){buffers[0], buffers[1], (int16_t *)buffers[2], (float *)buffers[3], (int32_t *)buffers[4]};
    return at - buffers[0];
}

/* Pack keys into panels for q kᵀ: a group is two numbers of one key. */
static void pack_keys(const AttentionArgs *args, long batch, long head, float inverse, Workspace *ws) {
    long width = round_up(args->width, 2), groups = width / 2;
    for (long first = 0; first < args->keys; first += PANEL) {
        int32_t *panel = (int32_t *)(ws->keys + first * width * 2);
        for (long i = 0; i < PANEL; i++) {
            int16_t *row = ws->rows;
            row[width - 1] = 0;
            if (first + i < args->keys) round16(row_at(&args->k, batch, head, first + i), args->width, 0, inverse, row);
            else memset(row, 0, width * 2);
            for (long g = 0; g < groups; g++) memcpy(panel + g * PANEL + i, row + 2 * g, 4);
        }
    }
}

/* Pack values into panels for weights · v: a group is one channel of two values. */
static void pack_values(const AttentionArgs *args, long batch, long head, float inverse, Workspace *ws) {
    long groups = round_up(args->keys, 2) / 2, depth = round_up(args->depth, PANEL);
    int16_t *even = ws->rows, *odd = even + depth;
    memset(even, 0, 2 * depth * sizeof *even);
    for (long g = 0; g < groups; g++) {
        round16(row_at(&args->v, batch, head, 2 * g), args->depth, 0, inverse, even);
        if (2 * g + 1 < args->keys) round16(row_at(&args->v, batch, head, 2 * g + 1), args->depth, 0, inverse, odd);
        else memset(odd, 0, depth * sizeof *odd);
        for (long left = 0; left < depth; left += PANEL) {
            int32_t *to = (int32_t *)ws->values + left * groups + g * PANEL;
            for (int i = 0; i < PANEL; i++) to[i] = (uint16_t)even[left + i] | (uint32_t)(uint16_t)odd[left + i] << 16;
        }
    }
}

/* Logits of a few queries with all keys, −∞ in the padding, and the maximum of each row; `step` dequantizes. */
static void compute_logits(const AttentionArgs *args, const Workspace *ws, long stride, float step, const float **bias,
                           float *maxima) {
    long groups = round_up(args->width, 2) / 2, keys = round_up(args->keys, PANEL), width;
    floats peak[ROWS], none = (floats){0} - INFINITY;
    for (int r = 0; r < ROWS; r++) peak[r] = none;
    for (long left = 0; left < keys; left += width) {
        micro_kernel *sum = left + PANELS_WIDE * PANEL <= keys ? wide16 : narrow16;
        width = sum == wide16 ? PANELS_WIDE * PANEL : PANEL;
        sum((const char *)ws->rows, stride, ws->keys + left * groups * 4, groups, ws->sums, 0);
        for (int r = 0; r < ROWS; r++) {
            floats peaks = peak[r];
            for (long key = left; key < left + width; key += LANES) {
                floats logits = step * as_floats(*(ints *)(ws->sums + r * width + key - left));
                long valid = args->keys - key;
                if (bias[r]) logits += load_partial(bias[r] + key, valid);
                if (valid < LANES) logits = keep_first(valid > 0 ? valid : 0, logits, none);
                *(floats *)(ws->logits + r * keys + key) = logits;
                peaks = max_floats(peaks, logits);
            }
            peak[r] = peaks;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        maxima[r] = reduce_max(peak[r]);
        if (maxima[r] == -INFINITY) maxima[r] = 0; /* a query with every key masked */
    }
}

/* Quantized softmax weights of a row of logits; returns the step that dequantizes them. */
static inline float softmax_weights(float *logits, float maximum, long keys, int16_t *weights) {
    floats totals = {0};
    for (long i = 0; i < keys; i += LANES) {
        floats weight = exp_negative(*(floats *)(logits + i) - maximum);
        *(floats *)(logits + i) = weight;
        totals += weight;
    }
    float total = reduce_add(totals), scale = (WEIGHT_SUM - keys) / (total > 1 ? total : 1);
    scale = scale < INT16_MAX ? scale : INT16_MAX;
    ints integer_totals = {0};
    for (long i = 0; i < keys; i += LANES) {
        ints integers = round_to_ints(*(floats *)(logits + i) * scale);
        store16(weights + i, integers);
        integer_totals += integers;
    }
    float integer_total = reduce_add(as_floats(integer_totals));
    return total == total ? 1 / (integer_total > 1 ? integer_total : 1) : total;
}

/* Weighted sums of the values for a few queries. */
static void weighted_sum(const AttentionArgs *args, const Workspace *ws, long stride, long batch, long head, long first,
                         const float *step) {
    long groups = round_up(args->keys, 2) / 2, depth = round_up(args->depth, PANEL), width;
    long rows = args->queries - first < ROWS ? args->queries - first : ROWS;
    for (long left = 0; left < depth; left += width) {
        micro_kernel *sum = left + PANELS_WIDE * PANEL <= depth ? wide16 : narrow16;
        width = sum == wide16 ? PANELS_WIDE * PANEL : PANEL;
        float *to = (float *)row_at(&args->out, batch, head, first) + left;
        Prefetch prefetch = {.write = to, .stride = args->out.row};
        sum((const char *)ws->rows, stride, ws->values + left * groups * 4, groups, ws->sums, &prefetch);
        long count = args->depth - left < width ? args->depth - left : width;
        for (long r = 0; r < rows; r++, to += args->out.row)
            for (long i = 0; i < count; i += LANES)
                store_partial(step[r] * as_floats(*(ints *)(ws->sums + r * width + i)), to + i, count - i);
    }
}

static void attend_head(const AttentionArgs *args, long batch, long head, Workspace *ws) {
    float top = floorf(sqrtf((float)(INT32_MAX - 128) / round_up(args->width, 2)));
    top = top < INT16_MAX ? top : INT16_MAX;
    float query = max_abs(row_at(&args->q, batch, head, 0), args->q.row, args->queries, args->width, 1e-30f);
    float key = max_abs(row_at(&args->k, batch, head, 0), args->k.row, args->keys, args->width, 1e-30f);
    float value = max_abs(row_at(&args->v, batch, head, 0), args->v.row, args->keys, args->depth, 1e-30f);
    pack_keys(args, batch, head, top / key, ws);
    pack_values(args, batch, head, MAX_VALUE / value, ws);
    long width = round_up(args->width, 2), keys = round_up(args->keys, PANEL);
    for (long first = 0; first < args->queries; first += ROWS) {
        const float *bias[ROWS];
        float step[ROWS], maxima[ROWS];
        for (int r = 0; r < ROWS; r++) {
            long row = first + r < args->queries ? first + r : args->queries - 1;
            ws->rows[(r + 1) * width - 1] = 0;
            round16(row_at(&args->q, batch, head, row), args->width, 0, top / query, ws->rows + r * width);
            bias[r] = args->bias.data ? row_at(&args->bias, batch, head, row) : 0;
        }
        compute_logits(args, ws, width * 2, args->scale * (query / top) * (key / top), bias, maxima);
        for (int r = 0; r < ROWS; r++) {
            float weight_step = softmax_weights(ws->logits + r * keys, maxima[r], keys, ws->rows + r * keys);
            step[r] = weight_step * value / MAX_VALUE;
        }
        weighted_sum(args, ws, keys * 2, batch, head, first, step);
    }
}

/* Bytes of scratch memory that `attention` needs. */
long attention_workspace_bytes(const AttentionArgs *args) {
    Workspace unused;
    return lay_out_workspace(args, 0, &unused) * omp_get_max_threads();
}

void attention(const AttentionArgs *args, char *work) {
#pragma omp parallel
    {
        Workspace ws;
        long size = lay_out_workspace(args, work, &ws);
        lay_out_workspace(args, work + size * omp_get_thread_num(), &ws);
#pragma omp for collapse(2) schedule(dynamic)
        for (long batch = 0; batch < args->batch; batch++)
            for (long head = 0; head < args->heads; head++) attend_head(args, batch, head, &ws);
    }
}
