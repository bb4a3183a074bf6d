/*
 * kvquant: keys per channel before RoPE, values per token, non-uniform levels from calibration, outliers apart (Hooper et al. 2024,
 * "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization", sections 3.1 to 3.5).
 *
 * Offline, from a dump of calibration text: for every channel of keys the range between its outlier quantiles; and for keys and
 * values of every layer 2^bits levels in [-1, 1] by k-means over what the normalised numbers are. Online a key number beyond its channel's
 * range is an outlier; of a value vector the `outliers` share is, half of it the smallest and half the largest (of each at least
 * one), and the rest gives its range. A vector is one head's, in the paper that of all heads. Outliers are kept in 16 bits with a 16-bit
 * index. The first `sink` tokens of a sequence are exact (attention sinks). `qnorm` moves and stretches
 * the levels when they are read, so that mean and deviation after coding are those before.
 *
 * The paper weighs k-means with squared gradients; without them every number weighs the same, which it calls the plain form.
 * Behind a dims method, keys are coded after RoPE in the rotated and cut space, for which the calibration rows are rotated and cut too.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "methods/bits/bits.h"

enum { BITS, OUTLIERS, SINK, QNORM, ROWS };
static const kvd_parameter parameters[] = {
    {"bits", 4, 1, 8, true, "bits of a number"},
    {"outliers", 0.01, 0, 0.2, false, "share of numbers kept apart"},
    {"sink", 1, 0, 1024, true, "first tokens that are exact"},
    {"qnorm", 0, 0, 1, true, "1: levels keep mean and deviation"},
    {"rows", 4096, 64, 1 << 20, true, "calibration tokens that are read"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"bits", 8, 1, false, NULL, 0, 0};

enum { BINS = 4096 };

typedef struct {
    const kvd_values *v;
    const kvd_dims *dims;
    int n_layers, n_kv_heads, d_head, first_layer, range_width;
    float *range; /* [n_layers][n_kv_heads][range_width][2] of keys: middle, half width */
    float *
        levels; /* [n_layers][KVD_N_SIDES][2][2^bits], rising: what a number is compared with, what it is read as */
} kvquant;

static float *levels_of(const kvquant *q, int layer, int side)
{
    return q->levels + ((size_t)layer * KVD_N_SIDES + (size_t)side) * (2U << (int)q->v->value[BITS]);
}

/* ---- levels ------------------------------------------------------------------------------------------ */

static double middle_of(int bin)
{
    return -1 + (2.0 * bin + 1) / BINS;
}

/* Lloyd's k-means in one dimension over a histogram of [-1, 1]; starts from quantiles, ends when nothing moves. */
static void find_levels(const double *histogram, int n, double *level)
{
    double total = 0, sum = 0;
    for (int b = 0; b < BINS; b++)
        total += histogram[b];
    for (int b = 0, k = 0; b < BINS && k < n; b++)
        for (sum += histogram[b]; k < n && sum >= total * (k + 0.5) / n; k++)
            level[k] = middle_of(b);
    for (int it = 0; it < 500; it++) {
        double moved = 0;
        for (int k = 0, b = 0; k < n; k++) {
            const double end = k + 1 < n ? (level[k] + level[k + 1]) / 2 : 2;
            double weight = 0, mean = 0;
            for (; b < BINS && middle_of(b) < end; b++) {
                weight += histogram[b];
                mean += histogram[b] * middle_of(b);
            }
            if (weight > 0) {
                moved = fmax(moved, fabs(mean / weight - level[k]));
                level[k] = mean / weight;
            }
        }
        if (moved < 1e-6)
            return;
    }
}

static int nearest(const float *level, int n, float x)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (x > (level[mid] + level[mid + 1]) / 2)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void keep_moments(const double *histogram, int n, double *level)
{
    float as_float[256];
    double weight = 0, mean = 0, square = 0, mean_q = 0, square_q = 0;
    for (int k = 0; k < n; k++)
        as_float[k] = (float)level[k];
    for (int b = 0; b < BINS; b++) {
        const double x = middle_of(b), q = level[nearest(as_float, n, (float)x)];
        weight += histogram[b];
        mean += histogram[b] * x;
        square += histogram[b] * x * x;
        mean_q += histogram[b] * q;
        square_q += histogram[b] * q * q;
    }
    mean /= weight;
    mean_q /= weight;
    const double deviation = sqrt(square / weight - mean * mean),
                 deviation_q = sqrt(square_q / weight - mean_q * mean_q);
    for (int k = 0; k < n && deviation_q > 0; k++)
        level[k] = (level[k] - mean_q) * deviation / deviation_q + mean;
}

static void add_to(double *histogram, float normalised)
{
    int b = (int)(((double)normalised + 1) / 2 * BINS);
    b = b < 0 ? 0 : b >= BINS ? BINS - 1 : b;
    histogram[b] += 1;
}

/* ---- vectors of values ----------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Numbers apart at each end of a vector of n; always some between them. */
static size_t count_apart(const kvd_values *v, size_t n)
{
    const size_t k = (size_t)ceil(v->value[OUTLIERS] / 2 * (double)n);
    return 2 * k < n ? k : (n - 1) / 2;
}

/* Marks the k smallest and the k largest numbers; middle and half width of the others. sorted [n] is scratch. */
static void find_outliers(const float *x, size_t n, size_t k, float *sorted, uint8_t *outlier, float *middle,
                          float *half)
{
    memcpy(sorted, x, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_size);
    const float lo = sorted[k], hi = sorted[n - 1 - k];
    size_t low = 0, high = 0; /* of equal numbers at an end the first ones */
    for (size_t i = 0; i < n; i++)
        low += x[i]<lo, high += x[i]> hi;
    for (size_t i = 0; i < n; i++) {
        outlier[i] = x[i] < lo || x[i] > hi;
        if (!outlier[i] && x[i] <= lo && low < k)
            outlier[i] = 1, low++;
        else if (!outlier[i] && x[i] >= hi && high < k)
            outlier[i] = 1, high++;
    }
    *middle = (lo + hi) / 2;
    *half = (hi - lo) / 2;
}

/* ---- calibration ------------------------------------------------------------------------------------------- */

/* The quantile of sorted numbers, between two of them linearly. */
static float quantile(const float *sorted, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t i = (size_t)at, next = i + 1 < n ? i + 1 : i;
    return (float)((double)sorted[i] + (at - (double)i) * ((double)sorted[next] - (double)sorted[i]));
}

static void project(const float *x, size_t n, size_t d, const float *a, size_t m, float *y)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) {
            double sum = 0;
            for (size_t l = 0; l < d; l++)
                sum += (double)x[i * d + l] * (double)a[l * m + j];
            y[i * m + j] = (float)sum;
        }
}

/* Rows of one head as the coder will see them: cut [n][*width]. */
static int calibration_rows(const kvquant *q, kvd_activations *a, kvd_side side, bool pre, int layer, int g,
                            size_t n, float *rows, float *cut, size_t *width, kvd_err *err)
{
    const size_t d = (size_t)q->d_head;
    const bool latent = q->dims && q->dims->rebuild;
    const size_t heads = latent ? (size_t)q->dims->heads : 1, wide = heads * d;
    const kvd_x x = side == KVD_VALUES ? KVD_X_V : pre ? KVD_X_K_PRE : KVD_X_K;
    const kvd_dims_head *h =
        q->dims ? &q->dims->head[(size_t)layer * (size_t)q->n_kv_heads + (size_t)g] : NULL;
    const float *const matrix = h ? (side == KVD_KEYS ? h->a_k : h->a_v) : NULL;
    for (size_t k = 0; k < heads; k++) {
        if (kvd_activations_rows(a, x, layer - q->first_layer, g - g % (int)heads + (int)k, 0, n, cut,
                                 cut + n * d, err))
            return -1;
        for (size_t i = 0; i < n; i++)
            memcpy(rows + i * wide + k * d, cut + i * d, d * sizeof *rows);
    }
    *width = !h ? d : (size_t)(side == KVD_KEYS ? h->d_qk : h->d_v);
    if (matrix)
        project(rows, n, wide, matrix, *width, cut);
    else
        memcpy(cut, rows, n * d * sizeof *cut);
    return 0;
}

static void calibrate_keys(kvquant *q, int layer, int g, const float *cut, size_t n, size_t width,
                           float *column, double *histogram)
{
    float *const range =
        q->range + ((size_t)layer * (size_t)q->n_kv_heads + (size_t)g) * (size_t)q->range_width * 2;
    const double share = q->v->value[OUTLIERS] / 2;
    for (size_t j = 0; j < width; j++) {
        for (size_t i = 0; i < n; i++)
            column[i] = cut[i * width + j];
        qsort(column, n, sizeof *column, by_size);
        const float lo = quantile(column, n, share), hi = quantile(column, n, 1 - share),
                    half = (hi - lo) / 2;
        range[2 * j] = (lo + hi) / 2;
        range[2 * j + 1] = half;
        for (size_t i = 0; i < n; i++)
            if (column[i] >= lo && column[i] <= hi)
                add_to(histogram, half > 0 ? (column[i] - range[2 * j]) / half : 0);
    }
}

static void calibrate_values(const kvquant *q, const float *cut, size_t n, size_t width, float *sorted,
                             uint8_t *outlier, double *histogram)
{
    for (size_t i = 0; i < n; i++) {
        float middle, half;
        find_outliers(cut + i * width, width, count_apart(q->v, width), sorted, outlier, &middle, &half);
        for (size_t j = 0; j < width; j++)
            if (!outlier[j])
                add_to(histogram, half > 0 ? (cut[i * width + j] - middle) / half : 0);
    }
}

static int calibrate(kvquant *q, kvd_activations *a, bool pre, kvd_err *err)
{
    const size_t d = (size_t)q->d_head, most = (size_t)q->v->value[ROWS],
                 n = a->n_tokens < most ? a->n_tokens : most;
    const int levels = 1 << (int)q->v->value[BITS];
    const size_t wide = d * (size_t)(q->dims && q->dims->rebuild ? q->dims->heads : 1);
    float *const rows = malloc((n * wide + 2 * n * wide + n) * sizeof *rows);
    double *const histogram = malloc(BINS * sizeof *histogram);
    float *const sorted = malloc(wide * sizeof *sorted);
    uint8_t *const outlier = malloc(wide);
    int status = rows && histogram && sorted && outlier
                     ? 0
                     : kvd_no_memory(err, "calibration rows", 2 * n * d * sizeof *rows);
    for (int l = 0; !status && l < q->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++) {
            double level[256] = {0};
            size_t width;
            memset(histogram, 0, BINS * sizeof *histogram);
            for (int g = 0; !status && g < q->n_kv_heads; g++) {
                status =
                    calibration_rows(q, a, (kvd_side)side, pre, l, g, n, rows, rows + n * wide, &width, err);
                if (!status && side == KVD_KEYS)
                    calibrate_keys(q, l, g, rows + n * wide, n, width, rows + 3 * n * wide, histogram);
                else if (!status)
                    calibrate_values(q, rows + n * wide, n, width, sorted, outlier, histogram);
            }
            find_levels(histogram, levels, level);
            float *const to = levels_of(q, l, side);
            for (int k = 0; k < levels; k++)
                to[k] = (float)level[k];
            if (q->v->value[QNORM] > 0)
                keep_moments(histogram, levels, level);
            for (int k = 0; k < levels; k++)
                to[levels + k] = (float)level[k];
        }
    free(outlier);
    free(sorted);
    free(histogram);
    free(rows);
    return status ? -1 : 0;
}

static void close(void *self)
{
    kvquant *const q = self;
    free(q->range);
    free(q->levels);
    free(q);
}

static int open(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    kvd_activations *const a = s->calibration;
    const bool pre = c->positions == KVD_POSITIONS_ROPE && (!s->dims || s->dims->rebuild);
    if (pre && !a->has_pre)
        return kvd_fail(err, "the calibration has no K before RoPE: collect it with --rope both");
    if (a->first_layer != 0 || a->n_layers != c->n_layers)
        return kvd_fail(err, "the calibration holds layers %d to %d, the model has %d", a->first_layer,
                        a->first_layer + a->n_layers - 1, c->n_layers);
    kvquant *const q = calloc(1, sizeof *q);
    if (!q)
        return kvd_no_memory(err, "a method", sizeof *q);
    *q = (kvquant){
        .v = v, .dims = s->dims, .n_layers = c->n_layers, .n_kv_heads = c->n_kv_heads, .d_head = c->d_head};
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    const size_t levels = (size_t)c->n_layers * KVD_N_SIDES * (2U << (int)v->value[BITS]);
    q->range_width = c->d_head * (s->dims && s->dims->rebuild ? s->dims->heads : 1);
    q->range = calloc(heads * (size_t)q->range_width * 2, sizeof *q->range);
    q->levels = calloc(levels, sizeof *q->levels);
    const int status = q->range && q->levels ? calibrate(q, a, pre, err)
                                             : kvd_no_memory(err, "levels", levels * sizeof *q->levels);
    if (status) {
        close(q);
        return -1;
    }
    *self = q;
    return 0;
}

/* ---- coding --------------------------------------------------------------------------------------------------- */

static void window(const kvd_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)v, (void)side;
    *newest = 0;
    *block = 1;
}

static float as_half(float x)
{
    uint16_t h;
    kvd_from_f32(KVD_F16, &x, &h, 1);
    kvd_to_f32(KVD_F16, &h, &x, 1);
    return x;
}

/* level [2][n]: the nearest of the first half says which of the second is read. */
static float decode(const float *level, int n, float x, float middle, float half)
{
    return half > 0 ? middle + half * level[n + nearest(level, n, (x - middle) / half)] : middle;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvquant *const q = self;
    const int bits = (int)q->v->value[BITS], n_levels = 1 << bits;
    const float *const level = levels_of(q, b->layer, (int)b->side);
    const float *const range = q->range + ((size_t)b->layer * (size_t)q->n_kv_heads + (size_t)b->kv_head) *
                                              (size_t)q->range_width * 2;
    float sorted[512];
    uint8_t outlier[512];
    if (b->d > 512)
        return kvd_fail(err, "heads of %zu dimensions, at most 512", b->d);
    *count = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < b->n; i++) {
        const float *const x = b->x + i * b->d;
        float *const y = decoded + i * b->d;
        if (b->position[i] < (uint32_t)q->v->value[SINK]) {
            for (size_t j = 0; j < b->d; j++)
                y[j] = as_half(x[j]);
            count->payload += 16.0 * (double)b->d;
            continue;
        }
        float middle = 0, half = 0;
        if (b->side == KVD_VALUES) {
            find_outliers(x, b->d, count_apart(q->v, b->d), sorted, outlier, &middle, &half);
            middle = as_half(middle);
            half = as_half(half);
            count->side += 32;
        }
        for (size_t j = 0; j < b->d; j++) {
            if (b->side == KVD_KEYS) {
                middle = range[2 * j];
                half = range[2 * j + 1];
                outlier[j] = q->v->value[OUTLIERS] > 0 && fabsf(x[j] - middle) > half;
            }
            y[j] = outlier[j] ? as_half(x[j]) : decode(level, n_levels, x[j], middle, half);
            count->side += outlier[j] ? 32 : 0;
        }
        count->payload += (double)bits * (double)b->d;
    }
    return 0;
}

const kvd_bits_method kvd_bits_kvquant = {
    .name = "kvquant",
    .summary = "non-uniform levels, keys before RoPE per channel, outliers apart",
    .parameter = parameters,
    .rate = &rate,
    .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
    .keys_before_rope = true,
    .window = window,
    .open = open,
    .close = close,
    .code = code};
