/* softmax(q kᵀ · scale + bias) v, with both products in 16-bit integers and the softmax in float: see attention.py.

   A thread does one head of one image at a time. Keys and values are packed into panels once, then a few queries at
   a time ask all of them; what they compute on the way never leaves the cache. */

#include "products.h"

typedef struct { const float *at; long batch, head, row; } Place; /* where rows are: strides in numbers */

typedef struct {
    long batch, heads, queries, keys, width, depth; /* `width` numbers in a query and a key, `depth` in a value */
    Place q, k, v, bias, out;
    float scale;
} Attention;

enum { ROWS = ROWS16, AHEAD = ROWS };
enum { TOP_VALUE = 2047, ALL_WEIGHTS = 1 << 20 }; /* a weighted sum of values stays below 2³¹ */

static inline const float *row_of(const Place *place, long batch, long head, long row) {
    return place->at + batch * place->batch + head * place->head + row * place->row;
}

/* The size of the largest number in some rows, at least `least`; NaN if one of them is. */
static inline float largest(const float *x, long stride, long rows, long width, float least) {
    ints most = {0};
    for (long r = 0; r < rows; r++, x += stride)
        for (long i = 0; i < width; i += LANES) {
            __builtin_prefetch(x + AHEAD * stride + i); /* rows lie too far apart for the processor to guess */
            most = highest(sizes(some(x + i, width - i)), most);
        }
    float size = largest_size(most);
    return size < least ? least : size;
}

/* eˣ for x ≤ 0, wrong by less than 6 · 10⁻⁶ of itself; nearly 0 from −87 on, and NaN for NaN. */
static inline floats exponential(floats x) {
    floats lowest = (floats){0} - 126, octaves = larger(lowest, x * 1.44269504f);
    ints whole = nearest(octaves);
    floats part = octaves - as_floats(whole);
    floats result = 1 + part * (0.693147181f + part * (0.240226507f + part * (0.0555041087f + part * (0.00961812911f
                  + part * 0.00133335581f))));
    return (floats)((ints)result + (whole << 23));
}

/* What a thread works in, for one head: numbers as they are packed, and a few rows on their way. */
typedef struct { char *keys, *values; int16_t *rows; float *logits; int32_t *sums; } Desk;

static long desk(const Attention *all, char *at, Desk *desk) {
    long keys = up(all->keys, PANEL), width = up(all->width, 2), depth = up(all->depth, PANEL);
    long rows = up(ROWS * (width > keys ? width : keys), 2 * depth); /* also of two values, while they are packed */
    long sizes[] = {keys * width * 2, depth * up(all->keys, 2) * 2, rows * 2, ROWS * keys * 4, ROWS * ABREAST * PANEL * 4};
    char *places[5];
    for (int i = 0; i < 5; i++) places[i] = at, at += up(sizes[i], LINE);
    *desk = (Desk){places[0], places[1], (int16_t *)places[2], (float *)places[3], (int32_t *)places[4]};
    return at - places[0];
}

/* Keys as the panels of a product with queries: a group is two numbers of one key. */
static void pack_keys(const Attention *all, long batch, long head, float inverse, Desk *desk) {
    long width = up(all->width, 2), groups = width / 2;
    for (long first = 0; first < all->keys; first += PANEL) {
        int32_t *panel = (int32_t *)(desk->keys + first * width * 2);
        for (long i = 0; i < PANEL; i++) {
            int16_t *row = desk->rows;
            row[width - 1] = 0;
            if (first + i < all->keys) round16(row_of(&all->k, batch, head, first + i), all->width, 0, inverse, row);
            else memset(row, 0, width * 2);
            for (long g = 0; g < groups; g++) memcpy(panel + g * PANEL + i, row + 2 * g, 4);
        }
    }
}

/* Values as the panels of a product with weights: a group is one number of two values. */
static void pack_values(const Attention *all, long batch, long head, float inverse, Desk *desk) {
    long groups = up(all->keys, 2) / 2, depth = up(all->depth, PANEL);
    int16_t *one = desk->rows, *other = one + depth;
    memset(one, 0, 2 * depth * sizeof *one);
    for (long g = 0; g < groups; g++) {
        round16(row_of(&all->v, batch, head, 2 * g), all->depth, 0, inverse, one);
        if (2 * g + 1 < all->keys) round16(row_of(&all->v, batch, head, 2 * g + 1), all->depth, 0, inverse, other);
        else memset(other, 0, depth * sizeof *other);
        for (long left = 0; left < depth; left += PANEL) {
            int32_t *to = (int32_t *)desk->values + left * groups + g * PANEL;
            for (int i = 0; i < PANEL; i++) to[i] = (uint16_t)one[left + i] | (uint32_t)(uint16_t)other[left + i] << 16;
        }
    }
}

/* Logits of a few queries with all keys, −∞ behind the last one, and the largest in each row. `step` is what 1 stands
   for in the sums. */
static void ask(const Attention *all, const Desk *desk, long stride, float step, const float **bias, float *most) {
    long groups = up(all->width, 2) / 2, keys = up(all->keys, PANEL), width;
    floats peak[ROWS], none = (floats){0} - INFINITY;
    for (int r = 0; r < ROWS; r++) peak[r] = none;
    for (long left = 0; left < keys; left += width) {
        sum_block *sum = left + ABREAST * PANEL <= keys ? vectors16 : narrow16;
        width = sum == vectors16 ? ABREAST * PANEL : PANEL;
        sum((const char *)desk->rows, stride, desk->keys + left * groups * 4, groups, desk->sums, 0);
        for (int r = 0; r < ROWS; r++) {
            floats peaks = peak[r];
            for (long place = left; place < left + width; place += LANES) {
                floats logits = step * as_floats(*(ints *)(desk->sums + r * width + place - left));
                long here = all->keys - place;
                if (bias[r]) logits += some(bias[r] + place, here);
                if (here < LANES) logits = first_of(here > 0 ? here : 0, logits, none);
                *(floats *)(desk->logits + r * keys + place) = logits;
                peaks = larger(peaks, logits);
            }
            peak[r] = peaks;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        most[r] = largest_of(peak[r]);
        if (most[r] == -INFINITY) most[r] = 0; /* a query that may look nowhere */
    }
}

/* Logits become the weights of a softmax, as integers; the answer is what 1 stands for. */
static inline float weigh(float *logits, float most, long keys, int16_t *weights) {
    floats totals = {0};
    for (long i = 0; i < keys; i += LANES) {
        floats share = exponential(*(floats *)(logits + i) - most);
        *(floats *)(logits + i) = share;
        totals += share;
    }
    float total = sum_of(totals), one = (ALL_WEIGHTS - keys) / (total > 1 ? total : 1);
    one = one < INT16_MAX ? one : INT16_MAX;
    ints wholes = {0};
    for (long i = 0; i < keys; i += LANES) {
        ints whole = nearest(*(floats *)(logits + i) * one);
        store16(weights + i, whole);
        wholes += whole;
    }
    float whole = sum_of(as_floats(wholes));
    return total == total ? 1 / (whole > 1 ? whole : 1) : total;
}

/* Sums of values, as the weights say, for a few queries. */
static void mix(const Attention *all, const Desk *desk, long stride, long batch, long head, long first, const float *step) {
    long groups = up(all->keys, 2) / 2, depth = up(all->depth, PANEL), width;
    long rows = all->queries - first < ROWS ? all->queries - first : ROWS;
    for (long left = 0; left < depth; left += width) {
        sum_block *sum = left + ABREAST * PANEL <= depth ? vectors16 : narrow16;
        width = sum == vectors16 ? ABREAST * PANEL : PANEL;
        float *to = (float *)row_of(&all->out, batch, head, first) + left;
        Soon soon = {.write = to, .stride = all->out.row};
        sum((const char *)desk->rows, stride, desk->values + left * groups * 4, groups, desk->sums, &soon);
        long count = all->depth - left < width ? all->depth - left : width;
        for (long r = 0; r < rows; r++, to += all->out.row)
            for (long i = 0; i < count; i += LANES)
                put(step[r] * as_floats(*(ints *)(desk->sums + r * width + i)), to + i, count - i);
    }
}

static void one_head(const Attention *all, long batch, long head, Desk *desk) {
    float top = floorf(sqrtf((float)(INT32_MAX - 128) / up(all->width, 2)));
    top = top < INT16_MAX ? top : INT16_MAX;
    float query = largest(row_of(&all->q, batch, head, 0), all->q.row, all->queries, all->width, 1e-30f);
    float key = largest(row_of(&all->k, batch, head, 0), all->k.row, all->keys, all->width, 1e-30f);
    float value = largest(row_of(&all->v, batch, head, 0), all->v.row, all->keys, all->depth, 1e-30f);
    pack_keys(all, batch, head, top / key, desk);
    pack_values(all, batch, head, TOP_VALUE / value, desk);
    long width = up(all->width, 2), keys = up(all->keys, PANEL);
    for (long first = 0; first < all->queries; first += ROWS) {
        const float *bias[ROWS];
        float step[ROWS], most[ROWS];
        for (int r = 0; r < ROWS; r++) {
            long row = first + r < all->queries ? first + r : all->queries - 1;
            desk->rows[(r + 1) * width - 1] = 0;
            round16(row_of(&all->q, batch, head, row), all->width, 0, top / query, desk->rows + r * width);
            bias[r] = all->bias.at ? row_of(&all->bias, batch, head, row) : 0;
        }
        ask(all, desk, width * 2, all->scale * (query / top) * (key / top), bias, most);
        for (int r = 0; r < ROWS; r++) {
            float one = weigh(desk->logits + r * keys, most[r], keys, desk->rows + r * keys);
            step[r] = one * value / TOP_VALUE;
        }
        mix(all, desk, keys * 2, batch, head, first, step);
    }
}

/* How many bytes `attention` needs to work in. */
long attention_room(const Attention *all) {
    Desk unused;
    return desk(all, 0, &unused) * omp_get_max_threads();
}

void attention(const Attention *all, char *work) {
#pragma omp parallel
    {
        Desk own;
        long size = desk(all, work, &own);
        desk(all, work + size * omp_get_thread_num(), &own);
#pragma omp for collapse(2) schedule(dynamic)
        for (long batch = 0; batch < all->batch; batch++)
            for (long head = 0; head < all->heads; head++) one_head(all, batch, head, &own);
    }
}
