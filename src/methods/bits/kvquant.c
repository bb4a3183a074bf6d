/* Method kvquant: quantises K before RoPE with a range per channel, and V with a range per token,
 * to calibrated levels. Stores outliers exactly (Hooper et al. 2024, KVQuant, sections 3.1 to
 * 3.5). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/levels.h"
#include "methods/dims/dims.h"

enum { BITS, OUTLIERS, SINK, QNORM, ROWS, WEIGHTS };
static const kvd_parameter parameters[] = {
    {"bits", 4, 1, 8, true, "bits per number"},
    {"outliers", 0.01, 0, 0.2, false, "fraction of numbers stored apart as outliers"},
    {"sink", 1, 0, 1024, true, "number of first tokens kept exact"},
    {"qnorm", 0, 0, 1, true,
     "1: levels are shifted and scaled to keep mean and standard deviation"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {"weights", 0, 0, 2, true,
     "weights of k-means from --fisher: 0 none, 1 squared gradients, 2 squared gradients times "
     "squared half ranges; default 1 with --fisher"},
    {NULL, 0, 0, 0, false, NULL},
};

enum { BINS = 4096 };

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    int n_layers, n_kv_heads, d_head, range_width;
    /* [n_layers][n_kv_heads][range_width][2] Middle and half width of the range of each key
     * channel. */
    float *range;
    /* [n_layers][K, V][encoding, decoding][2^bits] Quantisation levels. A code is the index of the
     * nearest encoding level, and decodes to the decoding level with the same index. */
    float *levels;
} kvquant;

static float *levels_of(const kvquant *q, int layer, int side)
{
    return q->levels +
           ((size_t)layer * KVD_N_SIDES + (size_t)side) * (2U << (int)q->v->value[BITS]);
}

static void keep_moments(const double *histogram, int n, double *level)
{
    float as_float[256];
    double weight = 0, mean = 0, square = 0, mean_q = 0, square_q = 0;
    for (int k = 0; k < n; k++)
        as_float[k] = (float)level[k];
    for (int b = 0; b < BINS; b++) {
        const double x = kvd_level_bin(b, BINS),
                     q = level[kvd_level_nearest(as_float, n, (float)x)];
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

/* Histograms of normalised calibration numbers. `count` counts the numbers. `weight` adds up their
 * weights in the k-means search for quantisation levels. */
typedef struct {
    double count[BINS], weight[BINS];
} histograms;

/* Adds `normalised`, a number divided by `half`, to histograms of counts and of weights. Its weight
 * is 1 if gradient2 is NULL, else it is computed from the squared gradient *gradient2. */
static void add_to(const kvquant *q, histograms *to, float normalised, float half,
                   const float *gradient2)
{
    int b = (int)(((double)normalised + 1) / 2 * BINS);
    b = b < 0 ? 0 : b >= BINS ? BINS - 1 : b;
    to->count[b] += 1;
    to->weight[b] += !gradient2                   ? 1
                     : q->v->value[WEIGHTS] > 1.5 ? (double)*gradient2 * (double)half * (double)half
                                                  : (double)*gradient2;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n)
{
    const size_t k = (size_t)ceil(v->value[OUTLIERS] / 2 * (double)n);
    return 2 * k < n ? k : (n - 1) / 2;
}

/* Inserts x into `least`, the n smallest numbers seen so far in ascending order, if x is smaller
 * than the largest of them. */
static void insert(float *least, size_t n, float x)
{
    size_t i = n;
    for (; i > 0 && x < least[i - 1]; i--)
        if (i < n)
            least[i] = least[i - 1];
    if (i < n)
        least[i] = x;
}

/* Marks the k smallest and the k largest of n numbers as outliers. Writes the middle and half width
 * of the range of the other numbers. `scratch` has room for n + 1 numbers. */
static void find_outliers(const float *x, size_t n, size_t k, float *scratch, uint8_t *outlier,
                          float *middle, float *half)
{
    float *const least = scratch, *const negated = scratch + k + 1;
    for (size_t i = 0; i < 2 * (k + 1); i++)
        scratch[i] = INFINITY;
    for (size_t i = 0; i < n; i++) {
        insert(least, k + 1, x[i]);
        insert(negated, k + 1, -x[i]);
    }
    const float lo = least[k], hi = -negated[k];
    size_t low = 0, high = 0;
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

/* Returns the quantile of n sorted numbers at fraction `share`, by linear interpolation. */
static float quantile(const float *sorted, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t i = (size_t)at, next = i + 1 < n ? i + 1 : i;
    return (float)((double)sorted[i] +
                   (at - (double)i) * ((double)sorted[next] - (double)sorted[i]));
}

/* Computes the range of each key channel from the calibration keys in `cut` [n][width]. Adds the
 * elements inside these ranges, normalised, to *histogram. */
static void calibrate_keys(kvquant *q, int layer, int g, const float *cut, const float *gradient2,
                           size_t n, size_t width, float *column, histograms *histogram)
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
            if (cut[i * width + j] >= lo && cut[i * width + j] <= hi)
                add_to(q, histogram, half > 0 ? (cut[i * width + j] - range[2 * j]) / half : 0,
                       half, gradient2 ? gradient2 + i * width + j : NULL);
    }
}

static void calibrate_values(const kvquant *q, const float *cut, const float *gradient2, size_t n,
                             size_t width, float *sorted, uint8_t *outlier, histograms *histogram)
{
    for (size_t i = 0; i < n; i++) {
        float middle, half;
        find_outliers(cut + i * width, width, kvd_kvquant_apart(q->v, width), sorted, outlier,
                      &middle, &half);
        for (size_t j = 0; j < width; j++)
            if (!outlier[j])
                add_to(q, histogram, half > 0 ? (cut[i * width + j] - middle) / half : 0, half,
                       gradient2 ? gradient2 + i * width + j : NULL);
    }
}

static int set_levels(kvquant *q, int layer, int side, const histograms *h, kvd_err *err)
{
    const int levels = 1 << (int)q->v->value[BITS];
    float *const to = levels_of(q, layer, side);
    double level[256] = {0}, weight = 0;
    for (int b = 0; b < BINS; b++)
        weight += h->weight[b];
    if (!(weight > 0))
        return kvd_fail(err, "layer %d: every squared gradient of %s is 0", layer,
                        side ? "values" : "keys");
    if (kvd_levels_find(h->weight, BINS, levels, level, err))
        return -1;
    for (int k = 0; k < levels; k++)
        to[k] = (float)level[k];
    if (q->v->value[QNORM] > 0)
        keep_moments(h->count, levels, level);
    for (int k = 0; k < levels; k++)
        to[levels + k] = (float)level[k];
    return 0;
}

static int calibrate(kvquant *q, const kvd_method_setup *s, bool pre, kvd_fisher *fisher,
                     kvd_err *err)
{
    const size_t d = (size_t)q->d_head, n = kvd_calibration_tokens(s, q->v->value[ROWS]);
    kvd_pool pool = {0};
    float *const gradient2 = fisher ? kvd_pool_new(&pool, n * d * sizeof *gradient2) : NULL;
    float *const sorted = kvd_pool_new(&pool, (n + (size_t)q->range_width) * sizeof *sorted);
    histograms *const histogram = kvd_pool_new(&pool, sizeof *histogram);
    uint8_t *const outlier = kvd_pool_new(&pool, (size_t)q->range_width);
    kvd_calibration_rows rows;
    int status = kvd_calibration_rows_open(&rows, s, pre, n, err) ||
                 kvd_pool_check(&pool, "calibration rows", err);
    for (int l = 0; !status && l < q->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++) {
            size_t width;
            memset(histogram, 0, sizeof *histogram);
            for (int g = 0; !status && g < q->n_kv_heads; g++) {
                status = kvd_calibration_rows_read(&rows, (kvd_side)side, l, g, &width, err);
                status =
                    status || (fisher && kvd_fisher_rows(fisher, side, l, g, 0, n, gradient2, err));
                if (!status && side == KVD_KEYS)
                    calibrate_keys(q, l, g, rows.cut, gradient2, n, width, sorted, histogram);
                else if (!status)
                    calibrate_values(q, rows.cut, gradient2, n, width, sorted, outlier, histogram);
            }
            status = status || set_levels(q, l, side, histogram, err);
        }
    kvd_calibration_rows_close(&rows);
    kvd_pool_free(&pool);
    return status ? -1 : 0;
}

/* Returns the number x with P(|Z| > x) = `share`, where Z is a standard normal variable. */
static double normal_range(double share)
{
    double lo = 0, hi = 8;
    for (int i = 0; i < 60; i++) {
        const double x = (lo + hi) / 2;
        *(erfc(x / sqrt(2)) > share ? &lo : &hi) = x;
    }
    return hi;
}

static int make_up(kvquant *q, kvd_err *err)
{
    const double half = normal_range(q->v->value[OUTLIERS] > 0 ? q->v->value[OUTLIERS] : 1e-3);
    const size_t n = (size_t)q->n_layers * (size_t)q->n_kv_heads * (size_t)q->range_width;
    histograms *const h = malloc(sizeof *h);
    int status = h ? 0 : kvd_no_memory(err, "levels", sizeof *h);
    for (size_t i = 0; i < n; i++)
        q->range[2 * i + 1] = (float)half;
    for (int b = 0; h && b < BINS; b++) {
        const double x = half * kvd_level_bin(b, BINS);
        h->count[b] = h->weight[b] = exp(-x * x / 2);
    }
    for (int l = 0; !status && l < q->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++)
            if (l == 0 && side == 0)
                status = set_levels(q, 0, 0, h, err);
            else
                memcpy(levels_of(q, l, side), levels_of(q, 0, 0),
                       (2U << (int)q->v->value[BITS]) * sizeof(float));
    free(h);
    return status;
}

static int check_fisher(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_fisher *const f = s->fisher;
    const kvd_activations *const a = s->calibration;
    const size_t n = kvd_calibration_tokens(s, v->value[ROWS]);
    if (!f)
        return kvd_fail(err, "weights=%g needs squared gradients: give --fisher",
                        v->value[WEIGHTS]);
    if (s->dims)
        return kvd_fail(
            err,
            "weights=%g: squared gradients are of whole heads, not of what a dims method leaves",
            v->value[WEIGHTS]);
    if (!kvd_corpus_hash_same(f->corpus_hash, a->corpus_hash) || f->seq_len != a->seq_len ||
        f->n_tokens != a->n_tokens)
        return kvd_fail(
            err,
            "the squared gradients are of other tokens than the calibration ('%s', %zu tokens, and "
            "'%s', %zu): collect both in one run, or give weights=0",
            f->label, f->n_tokens, a->label, a->n_tokens);
    if (f->first_layer != 0 || f->n_layers != s->config->n_layers)
        return kvd_fail(err, "the squared gradients are of layers %d to %d, the model has %d",
                        f->first_layer, f->first_layer + f->n_layers - 1, s->config->n_layers);
    return f->n_rows < n
               ? kvd_fail(
                     err,
                     "squared gradients of %zu tokens one by one, %zu are read: collect them with "
                     "--fisher-rows %zu, or give rows=%zu",
                     f->n_rows, n, n, f->n_rows)
               : 0;
}

static bool before_rope(const kvd_method_setup *s)
{
    return s->config->positions == KVD_POSITIONS_ROPE && (!s->dims || s->dims->rebuild);
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    return kvd_status(s->calibration && (kvd_calibration_fits(s, before_rope(s), err) ||
                                         (v->value[WEIGHTS] > 0 && check_fisher(v, s, err))));
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const bool pre = before_rope(s);
    kvquant *const q = kvd_pool_open(sizeof *q);
    if (!q)
        return kvd_no_memory(err, "a method", sizeof *q);
    q->v = v;
    q->n_layers = c->n_layers;
    q->n_kv_heads = c->n_kv_heads;
    q->d_head = c->d_head;
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    const size_t levels = (size_t)c->n_layers * KVD_N_SIDES * (2U << (int)v->value[BITS]);
    q->range_width = c->d_head * (s->dims && s->dims->rebuild ? s->dims->heads : 1);
    q->range = kvd_pool_new(&q->pool, heads * (size_t)q->range_width * 2 * sizeof *q->range);
    q->levels = kvd_pool_new(&q->pool, levels * sizeof *q->levels);
    kvd_fisher *const fisher = v->value[WEIGHTS] > 0 ? s->fisher : NULL;
    const bool failed = kvd_pool_check(&q->pool, "levels", err) ||
                        (s->calibration ? calibrate(q, s, pre, fisher, err) : make_up(q, err));
    return kvd_pool_give(q, failed, self);
}

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t)
{
    const kvquant *const q = self;
    *t = (kvd_kvquant_tables){
        .range = q->range, .levels = q->levels, .range_width = (size_t)q->range_width};
}

/* Returns x after quantisation and decoding. level [2][n]: n levels for encoding, then n levels for
 * decoding. */
static float decode(const float *level, int n, float x, float middle, float half)
{
    return half > 0 ? middle + half * level[n + kvd_level_nearest(level, n, (x - middle) / half)]
                    : middle;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvquant *const q = self;
    const int bits = (int)q->v->value[BITS], n_levels = 1 << bits;
    const float *const level = levels_of(q, b->layer, (int)b->side);
    const float *const range =
        q->range + ((size_t)b->layer * (size_t)q->n_kv_heads + (size_t)b->kv_head) *
                       (size_t)q->range_width * 2;
    enum { WIDEST = 512 };
    float sorted[WIDEST + 1];
    uint8_t outlier[WIDEST];
    if (b->d > WIDEST)
        return kvd_fail(err, "heads of %zu dimensions, at most %d", b->d, WIDEST);
    *count = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < b->n; i++) {
        const float *const x = b->x + i * b->d;
        float *const y = decoded + i * b->d;
        if (b->position[i] < (uint32_t)q->v->value[SINK]) {
            for (size_t j = 0; j < b->d; j++)
                y[j] = kvd_round_f16(x[j]);
            count->payload += 16.0 * (double)b->d;
            continue;
        }
        float middle = 0, half = 0;
        if (b->side == KVD_VALUES) {
            find_outliers(x, b->d, kvd_kvquant_apart(q->v, b->d), sorted, outlier, &middle, &half);
            middle = kvd_round_f16(middle);
            half = kvd_round_f16(half);
            count->side += 32;
        }
        for (size_t j = 0; j < b->d; j++) {
            if (b->side == KVD_KEYS) {
                middle = range[2 * j];
                half = range[2 * j + 1];
                outlier[j] = q->v->value[OUTLIERS] > 0 && fabsf(x[j] - middle) > half;
            }
            y[j] = outlier[j] ? kvd_round_f16(x[j]) : decode(level, n_levels, x[j], middle, half);
            count->side += outlier[j] ? 32 : 0;
        }
        count->payload += (double)bits * (double)b->d;
    }
    return 0;
}

const kvd_bits_method kvd_bits_kvquant = {
    .info = {.name = "kvquant",
             .summary = "non-uniform levels, keys before RoPE per channel, outliers stored apart",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_packed},
    .exact_key = "sink",
    .fisher_key = "weights",
    .drawn = true,
    .keys_before_rope = true,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
