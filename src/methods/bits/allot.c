/* Method allot: each dimension has its own number of bits, by reverse water-filling (Shannon). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/levels.h"
#include "methods/dims/dims.h"

enum { BITS, SINK, ROWS };
static const kvd_parameter parameters[] = {
    {"bits", 3, 0.05, 8, false, "mean number of bits per number"},
    {"sink", 1, 0, 1024, true, "number of first tokens kept exact"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};

enum { BINS = 2048, MOST_BITS = KVD_ALLOT_BITS };
/* Largest magnitude of a quantisation level, in standard deviations of the quantised dimension. */
static const double RANGE = 8;

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    int n_layers, n_kv_heads;
    size_t wide;
    float *scale;   /* [n_layers][n_kv_heads][KVD_N_SIDES][wide][2]: mean, standard deviation */
    uint8_t *given; /* [n_layers][n_kv_heads][KVD_N_SIDES][wide] bits */
    /* [n_layers][KVD_N_SIDES][MOST_BITS + 1][2^MOST_BITS] Ascending quantisation levels of K and of
     * V for each number of bits. */
    float *levels;
} allot;

typedef struct {
    /* [n_layers][n_kv_heads][KVD_N_SIDES][wide] Weighted squared error of each dimension if it is
     * stored with 0 bits. */
    double *cost;
    size_t *width;
    /* [n_layers][KVD_N_SIDES] Squared quantisation error of numbers of variance 1, for each number
     * of bits. */
    double (*loss)[MOST_BITS + 1];
} making;

static size_t place(const allot *a, int layer, int g, int side)
{
    return ((size_t)layer * (size_t)a->n_kv_heads + (size_t)g) * KVD_N_SIDES + (size_t)side;
}

static float *levels_of(const allot *a, int layer, int side, int bits)
{
    return a->levels +
           (((size_t)layer * KVD_N_SIDES + (size_t)side) * (MOST_BITS + 1) + (size_t)bits) *
               (1U << MOST_BITS);
}

static bool weighed(const kvd_method_setup *s, int side)
{
    const kvd_dims *const d = s->dims;
    return d && !d->rebuild && s->spectrum && kvd_pair_balanced(d->pair[side]) &&
           (side == KVD_KEYS ? d->head[0].a_k : d->head[0].a_v);
}

/* Returns the weight of squared errors in dimension j: its squared singular value divided by
 * `square`, the mean square of the numbers in this dimension. Without singular values, returns
 * 1. */
static double unit_cost(const kvd_method_setup *s, int side, int layer, int g, size_t j,
                        double square)
{
    if (!weighed(s, side) || !(square > 0))
        return 1;
    const double sigma = kvd_spectrum_sigma(s->spectrum, s->dims->pair[side], layer, g)[j];
    return sigma * sigma / square;
}

static void measure(allot *a, making *m, const kvd_method_setup *s, int layer, int g, int side,
                    const float *cut, size_t n, size_t width, double *histogram)
{
    float *const scale = a->scale + place(a, layer, g, side) * a->wide * 2;
    double *const cost = m->cost + place(a, layer, g, side) * a->wide;
    m->width[place(a, layer, g, side)] = width;
    for (size_t j = 0; j < width; j++) {
        double sum = 0, square = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)cut[i * width + j];
        const double mean = sum / (double)n;
        for (size_t i = 0; i < n; i++)
            square += ((double)cut[i * width + j] - mean) * ((double)cut[i * width + j] - mean);
        square /= (double)n;
        cost[j] = square * unit_cost(s, side, layer, g, j, square + mean * mean);
        scale[2 * j] = (float)mean;
        scale[2 * j + 1] = (float)sqrt(square);
        for (size_t i = 0; i < n && square > 0; i++) {
            const double x = ((double)cut[i * width + j] - mean) / sqrt(square) / RANGE;
            const int b = (int)((x + 1) / 2 * BINS);
            histogram[b < 0 ? 0 : b >= BINS ? BINS - 1 : b] += cost[j];
        }
    }
}

static int set_levels(allot *a, making *m, int layer, int side, const double *histogram,
                      kvd_err *err)
{
    double level[1 << MOST_BITS], *const loss = m->loss[layer * KVD_N_SIDES + side];
    double weight = 0;
    for (int b = 0; b < BINS; b++)
        weight += histogram[b];
    loss[0] = 1;
    if (!(weight > 0))
        return kvd_fail(err, "layer %d: all %s of the calibration are equal", layer,
                        side ? "values" : "keys");
    for (int bits = 1; bits <= MOST_BITS; bits++) {
        const int n = 1 << bits;
        float *const to = levels_of(a, layer, side, bits);
        if (kvd_levels_find(histogram, BINS, n, level, err))
            return -1;
        for (int k = 0; k < n; k++)
            to[k] = (float)(level[k] * RANGE);
        loss[bits] = 0;
        for (int b = 0; b < BINS; b++) {
            const double x = kvd_level_bin(b, BINS) * RANGE,
                         y = (double)to[kvd_level_nearest(to, n, (float)x)];
            loss[bits] += histogram[b] / weight * (x - y) * (x - y);
        }
    }
    return 0;
}

static int calibrate(allot *a, making *m, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t n = kvd_calibration_tokens(s, a->v->value[ROWS]);
    kvd_calibration_rows rows;
    double *const histogram = malloc(BINS * sizeof *histogram);
    int status = kvd_calibration_rows_open(&rows, s, pre, n, err);
    if (!status && !histogram)
        status = kvd_no_memory(err, "a histogram", BINS * sizeof *histogram);
    for (int l = 0; !status && l < a->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++) {
            memset(histogram, 0, BINS * sizeof *histogram);
            for (int g = 0; !status && g < a->n_kv_heads; g++) {
                size_t width;
                status = kvd_calibration_rows_read(&rows, (kvd_side)side, l, g, &width, err);
                if (!status)
                    measure(a, m, s, l, g, side, rows.cut, n, width, histogram);
            }
            status = status || set_levels(a, m, l, side, histogram, err);
        }
    kvd_calibration_rows_close(&rows);
    free(histogram);
    return status ? -1 : 0;
}

/* Sets up statistics without calibration data, as if K and V were normally distributed, with
 * standard deviations from 1 to 1/16. */
static int make_up(allot *a, making *m, const kvd_dims *dims, int d_head, kvd_err *err)
{
    const size_t places = (size_t)a->n_layers * (size_t)a->n_kv_heads * KVD_N_SIDES;
    double histogram[BINS];
    for (int b = 0; b < BINS; b++)
        histogram[b] = exp(-pow(RANGE * kvd_level_bin(b, BINS), 2) / 2);
    for (size_t at = 0; at < places; at++) {
        const kvd_dims_head *const head = dims ? &dims->head[at / KVD_N_SIDES] : NULL;
        const int width = !head ? d_head : at % KVD_N_SIDES == KVD_VALUES ? head->d_v : head->d_qk;
        m->width[at] = (size_t)width;
        for (size_t j = 0; j < m->width[at]; j++) {
            const double deviation = pow(16, -(double)j / width);
            a->scale[(at * a->wide + j) * 2 + 1] = (float)deviation;
            m->cost[at * a->wide + j] = deviation * deviation;
        }
    }
    if (set_levels(a, m, 0, 0, histogram, err))
        return -1;
    const size_t each = (size_t)(MOST_BITS + 1) << MOST_BITS;
    for (size_t i = 1; i < (size_t)a->n_layers * KVD_N_SIDES; i++) {
        memcpy(a->levels + i * each, a->levels, each * sizeof *a->levels);
        memcpy(m->loss[i], m->loss[0], sizeof *m->loss);
    }
    return 0;
}

/* Chooses the number of bits of each dimension of K or V in one head. A dimension gets one more bit
 * while that bit lowers its squared error by at least `price`. Returns the total number of bits. */
static double give(allot *a, const making *m, size_t at, double price)
{
    const size_t heads = (size_t)a->n_kv_heads * KVD_N_SIDES, layer = at / heads,
                 side = at % KVD_N_SIDES;
    const double *const loss = m->loss[layer * KVD_N_SIDES + side];
    double sum = 0;
    for (size_t j = 0; j < m->width[at]; j++) {
        int bits = 0;
        while (bits < MOST_BITS &&
               m->cost[at * a->wide + j] * (loss[bits] - loss[bits + 1]) >= price)
            bits++;
        a->given[at * a->wide + j] = (uint8_t)bits;
        sum += bits;
    }
    return sum;
}

/* Divides a number of bits among the dimensions of heads first .. last - 1 such that the squared
 * error is least. */
static void share_out(allot *a, const making *m, size_t first, size_t last)
{
    double most = 0, budget = 0, lo = -700, hi = 700;
    for (size_t at = first; at < last; at++) {
        budget += a->v->value[BITS] * (double)m->width[at];
        for (size_t j = 0; j < m->width[at]; j++)
            most = m->cost[at * a->wide + j] > most ? m->cost[at * a->wide + j] : most;
    }
    if (!(most > 0))
        return;
    for (int i = 0; i < 80; i++) {
        const double middle = (lo + hi) / 2;
        double sum = 0;
        for (size_t at = first; at < last; at++)
            sum += give(a, m, at, most * exp(middle));
        *(sum > budget ? &lo : &hi) = middle;
    }
    for (size_t at = first; at < last; at++)
        (void)give(a, m, at, most * exp(hi));
}

static int make(allot *a, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t places = (size_t)a->n_layers * (size_t)a->n_kv_heads * KVD_N_SIDES,
                 n = places * a->wide;
    const bool one_unit = weighed(s, KVD_KEYS) && weighed(s, KVD_VALUES) &&
                          kvd_pair_fisher(s->dims->pair[0]) && kvd_pair_fisher(s->dims->pair[1]);
    kvd_pool pool = {0};
    making m = {.cost = kvd_pool_new(&pool, n * sizeof *m.cost),
                .width = kvd_pool_new(&pool, places * sizeof *m.width),
                .loss = kvd_pool_new(&pool, (size_t)a->n_layers * KVD_N_SIDES * sizeof *m.loss)};
    int status = kvd_pool_check(&pool, "costs", err);
    status = status || (s->calibration ? calibrate(a, &m, s, pre, err)
                                       : make_up(a, &m, s->dims, s->config->d_head, err));
    for (size_t at = 0; !status && at < places; at += one_unit ? places : 1)
        share_out(a, &m, at, one_unit ? places : at + 1);
    kvd_pool_free(&pool);
    return status ? -1 : 0;
}

static bool before_rope(const kvd_method_setup *s)
{
    return s->config->positions == KVD_POSITIONS_ROPE && (!s->dims || s->dims->rebuild);
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    (void)v;
    return s->calibration ? kvd_calibration_fits(s, before_rope(s), err) : 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const bool latent = s->dims && s->dims->rebuild, pre = before_rope(s);
    allot *const a = kvd_pool_open(sizeof *a);
    if (!a)
        return kvd_no_memory(err, "a method", sizeof *a);
    a->v = v;
    a->n_layers = c->n_layers;
    a->n_kv_heads = c->n_kv_heads;
    a->wide = (size_t)c->d_head * (size_t)(latent ? s->dims->heads : 1);
    const size_t n = (size_t)a->n_layers * (size_t)a->n_kv_heads * KVD_N_SIDES * a->wide,
                 levels = ((size_t)a->n_layers * KVD_N_SIDES * (MOST_BITS + 1)) << MOST_BITS;
    a->scale = kvd_pool_new(&a->pool, 2 * n * sizeof *a->scale);
    a->given = kvd_pool_new(&a->pool, n);
    a->levels = kvd_pool_new(&a->pool, levels * sizeof *a->levels);
    const bool failed = kvd_pool_check(&a->pool, "levels", err) || make(a, s, pre, err);
    return kvd_pool_give(a, failed, self);
}

void kvd_allot_tables_of(const void *self, kvd_allot_tables *t)
{
    const allot *const a = self;
    *t = (kvd_allot_tables){.n_kv_heads = (size_t)a->n_kv_heads,
                            .wide = a->wide,
                            .sink = (size_t)a->v->value[SINK],
                            .scale = a->scale,
                            .given = a->given,
                            .levels = a->levels};
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const allot *const a = self;
    const size_t at = place(a, b->layer, b->kv_head, (int)b->side);
    const float *const scale = a->scale + at * a->wide * 2;
    const uint8_t *const given = a->given + at * a->wide;
    (void)err;
    *count = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < b->n; i++) {
        const float *const x = b->x + i * b->d;
        float *const y = decoded + i * b->d;
        const bool exact = b->position[i] < (uint32_t)a->v->value[SINK];
        for (size_t j = 0; j < b->d; j++) {
            const float mean = scale[2 * j], deviation = scale[2 * j + 1];
            y[j] = mean;
            if (exact) {
                y[j] = kvd_round_f16(x[j]);
            } else if (given[j] && deviation > 0) {
                const float *const level = levels_of(a, b->layer, (int)b->side, given[j]);
                y[j] =
                    mean +
                    deviation *
                        level[kvd_level_nearest(level, 1 << given[j], (x[j] - mean) / deviation)];
            }
            count->payload += exact ? 16 : given[j];
        }
    }
    return 0;
}

const kvd_bits_method kvd_bits_allot = {
    .info = {.name = "allot",
             .summary = "bits of every dimension chosen by the cost of its error",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 5, 0.75, false, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_packed},
    .exact_key = "sink",
    .drawn = true,
    .keys_before_rope = true,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
