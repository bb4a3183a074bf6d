/* Method waterfill: transform coding of K and V.
 *
 * A matrix decorrelates the elements of all KV heads of a layer and weights errors by the gradients
 * of the loss (reverse water-filling: Cover and Thomas, section 10.3.3). The results are rounded to
 * multiples of parameter `step` and entropy-coded. */
#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/memory.h"
#include "common/rng.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/rans.h"

enum { STEP, SINK, BLOCK, ROWS };
static const kvd_parameter parameters[] = {
    {"step", 0.01, 1e-7, 1, false, "distance of two levels, in roots of nats per token"},
    {"sink", 1, 0, 1024, true, "number of first tokens kept exact"},
    {"block", 0, 0, 4096, true,
     "tokens of a block that 32 lanes decode at once (GPUs: 64); 0: all tokens are one stream"},
    {"rows", 16384, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Symbol ZERO + q means integer q. Symbol ESCAPE is followed by the 4 bytes of an integer
 * that has no symbol. */
enum { ZERO = 127, ESCAPE = 255, ESCAPE_BYTES = 4 };
/* Regularisation of the second moment of gradients: this fraction of its mean diagonal element is
 * added to each diagonal element. */
static const double RIDGE = 1e-3;

typedef struct {
    float *mean; /* [wide] mean of the calibration data */
    /* Transform matrices, [wide][wide]. y = (x - mean) * to transforms K or V of a token, and x =
     * mean + y * from transforms y back. */
    float *to, *from;
    /* [wide + 1] Frequency table of each channel after the transform, then a table for the bytes of
     * integers that have no symbol. */
    kvd_rans_table *table;
    /* Correction that decoding adds to the magnitude of each nonzero quantised integer, in units of
     * `step`. It is the mean rounding error of magnitudes in the calibration data. */
    double offset;
    /* [wide] Frequency table of each channel after the transform, for coding in blocks of tokens.
     * Channels from number `kept` on are always 0. */
    kvd_stream_component *component;
    uint16_t *start;
    size_t n_starts, kept;
    int16_t *escape; /* [wide] of kvd_stream_coder */
} coder;

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    int n_layers;
    size_t wide;
    coder *coder;
    bool drawn;
} waterfill;

typedef struct {
    /* x, y: calibration data before and after the decorrelating transform, [n][wide]. head: scratch
     * for one KV head, [2][n][d_head]. */
    float *x, *y, *head;
    /* [wide][wide] Scratch: Cholesky factor (a), covariance (c), eigenvectors (u), and a matrix
     * product. */
    double *a, *c, *u, *product;
    double *sigma, *scratch;
} making;

static void multiply(bool left, bool right, size_t n, const double *a, const double *b, double *c)
{
    cblas_dgemm(CblasRowMajor, left ? CblasTrans : CblasNoTrans, right ? CblasTrans : CblasNoTrans,
                (blasint)n, (blasint)n, (blasint)n, 1, a, (blasint)n, b, (blasint)n, 0, c,
                (blasint)n);
}

/* Computes the linear transform that decorrelates K or V, and its inverse. moment [d][d] is the sum
 * of g g^T over the loss gradients g of n_tokens tokens. */
static int transform(const coder *to, const double *moment, double n_tokens, size_t n, size_t d,
                     making *m, kvd_err *err)
{
    double trace = 0;
    for (size_t i = 0; i < d; i++)
        trace += moment[i * d + i] / n_tokens;
    if (!(trace > 0))
        return kvd_fail(err, "all gradients of --fisher are 0");
    for (size_t i = 0; i < d * d; i++)
        m->a[i] = moment[i] / n_tokens + (i / d == i % d ? RIDGE * trace / (double)d : 0);
    if (LAPACKE_dpotrf(LAPACK_ROW_MAJOR, 'U', (lapack_int)d, m->a, (lapack_int)d))
        return kvd_fail(err, "the moment of gradients in --fisher is not positive definite");
    for (size_t i = 0; i < d; i++)
        memset(m->a + i * d, 0, i * sizeof *m->a);
    memset(m->c, 0, d * d * sizeof *m->c);
    if (kvd_gram_add(m->c, d, m->x, n, d, m->scratch, err))
        return -1;
    multiply(false, false, d, m->a, m->c, m->product);
    multiply(false, true, d, m->product, m->a, m->c);
    /* Restores the symmetry of the matrix c, which rounding errors break. */
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < i; j++)
            m->c[i * d + j] = m->c[j * d + i] = (m->c[i * d + j] + m->c[j * d + i]) / 2;
    if (kvd_gram_svd(m->c, d, m->sigma, m->u, err))
        return -1;
    multiply(true, false, d, m->a, m->u, m->product);
    for (size_t i = 0; i < d * d; i++)
        to->to[i] = (float)m->product[i];
    if (LAPACKE_dtrtrs(LAPACK_ROW_MAJOR, 'U', 'N', 'N', (lapack_int)d, (lapack_int)d, m->a,
                       (lapack_int)d, m->u, (lapack_int)d))
        return kvd_fail(err, "the moment of gradients in --fisher has no inverse");
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            to->from[j * d + i] = (float)m->u[i * d + j];
    return 0;
}

/* Makes the entropy coder's frequency table for component j of the transformed vectors. `count` has
 * the number of occurrences of each integer; its contents are lost. */
static void make_component(coder *to, size_t j, uint64_t *count, int least, int most)
{
    const size_t n = (size_t)(most - least + 1);
    for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
        count[s] = 64 * count[s] + ((s >= least && s <= most) || s == ESCAPE);
    kvd_rans_table_make(&to->table[j], count, KVD_RANS_SYMBOLS);
    to->component[j] =
        (kvd_stream_component){(uint32_t)to->n_starts, (int16_t)(least - ZERO), (uint16_t)n};
    memcpy(to->start + to->n_starts, to->table[j].start + least, (n + 1) * sizeof *to->start);
    to->n_starts += n + 1;
    /* Stores the code length of an integer that is missing from the frequency table (symbol ESCAPE
     * and 4 bytes), minus the code length of integer 0. Unit: 1/16 bit. */
    const uint16_t *const start = to->table[j].start;
    const double frequency = start[ESCAPE + 1] - start[ESCAPE],
                 of_zero = start[ZERO + 1] - start[ZERO];
    to->escape[j] = (int16_t)lrint(16 * (8 * ESCAPE_BYTES + log2(of_zero / frequency)));
    to->kept = n > 1 || !j ? j + 1 : to->kept;
}

static void begin_tables(coder *to, size_t d)
{
    uint64_t equal[KVD_RANS_SYMBOLS];
    for (size_t i = 0; i < KVD_RANS_SYMBOLS; i++)
        equal[i] = 1;
    kvd_rans_table_make(&to->table[d], equal, KVD_RANS_SYMBOLS);
    to->n_starts = 0;
}

/* Makes each component's frequency table from calibration data y [n][d], divided by `step` and
 * rounded. The table covers the range of the component's integers in y. */
static void count_multiples(coder *to, const float *y, size_t n, size_t d, double step)
{
    double sum = 0, others = 0;
    begin_tables(to, d);
    for (size_t j = 0; j < d; j++) {
        uint64_t count[KVD_RANS_SYMBOLS] = {0};
        int least = ZERO, most = ZERO;
        for (size_t i = 0; i < n; i++) {
            const double q = kvd_stream_multiple((double)y[i * d + j], step);
            if (fabs(q) > 0) {
                sum += fabs((double)y[i * d + j]) / step - fabs(q);
                others++;
            }
            const int s = fabs(q) <= ZERO ? ZERO + (int)q : ESCAPE;
            count[s]++;
            least = s < least ? s : least;
            most = s < ESCAPE && s > most ? s : most;
        }
        make_component(to, j, count, least, most);
    }
    to->offset = others > 0 ? sum / others : 0;
}

static int calibrate(waterfill *w, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t d = w->wide, n = kvd_calibration_tokens(s, w->v->value[ROWS]);
    kvd_pool pool = {0};
    making m = {.x = kvd_pool_new(&pool, n * d * sizeof *m.x),
                .y = kvd_pool_new(&pool, n * d * sizeof *m.y),
                .head = kvd_pool_new(&pool, 2 * n * (size_t)s->config->d_head * sizeof *m.head),
                .a = kvd_pool_new(&pool, d * d * sizeof *m.a),
                .c = kvd_pool_new(&pool, d * d * sizeof *m.c),
                .u = kvd_pool_new(&pool, d * d * sizeof *m.u),
                .product = kvd_pool_new(&pool, d * d * sizeof *m.product),
                .sigma = kvd_pool_new(&pool, d * sizeof *m.sigma),
                .scratch = kvd_pool_new(&pool, kvd_gram_scratch(d) * sizeof *m.scratch)};
    int status = kvd_pool_check(&pool, "calibration rows", err);
    for (int l = 0; !status && l < w->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++) {
            coder *const to = &w->coder[l * KVD_N_SIDES + side];
            const kvd_x what = side == KVD_VALUES ? KVD_X_V : pre ? KVD_X_K_PRE : KVD_X_K;
            const size_t kept = kvd_calibration_all_heads(s, what, l, n, (size_t)w->v->value[SINK],
                                                          m.head, m.x, err);
            if (!kept) {
                status = -1;
                break;
            }
            kvd_subtract_means(m.x, kept, d, to->mean);
            status = transform(to, s->fisher->moment[side] + (size_t)l * d * d,
                               (double)s->fisher->n_tokens, kept, d, &m, err);
            if (status)
                break;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)kept, (blasint)d,
                        (blasint)d, 1, m.x, (blasint)d, to->to, (blasint)d, 0, m.y, (blasint)d);
            count_multiples(to, m.y, kept, d, w->v->value[STEP]);
        }
    kvd_pool_free(&pool);
    return status;
}

/* Assumed standard deviations of the first and the last component of a transformed vector, in units
 * of `step`. Timing runs that have no calibration data use them. */
static const double DRAWN_FIRST = 5, DRAWN_LAST = 0.03;
enum { DRAWN_ROWS = 16384 };

static void draw_component(coder *to, size_t j, double sigma)
{
    const int most = (int)fmin(6 * sigma + KVD_STREAM_ROUND, ZERO);
    const double wide = sqrt(2) * sigma;
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    for (int q = -most; q <= most; q++) {
        const double low = abs(q) - KVD_STREAM_ROUND, up = erf((low + 1) / wide);
        count[ZERO + q] = (uint64_t)(DRAWN_ROWS * (q ? (up - erf(low / wide)) / 2 : up));
    }
    make_component(to, j, count, ZERO - most, ZERO + most);
}

/* Creates a transform for timing runs without calibration data: a random reflection times a
 * scale. */
static void draw(coder *to, size_t d, double step, kvd_rng *r)
{
    float *const v = to->mean; /* vector v of the reflection, temporarily stored as the mean */
    double square = 0;
    begin_tables(to, d);
    for (size_t i = 0; i < d; i++) {
        v[i] = (float)kvd_rng_normal(r);
        square += (double)v[i] * (double)v[i];
    }
    for (size_t j = 0; j < d; j++) {
        const double sigma = DRAWN_FIRST * pow(DRAWN_LAST / DRAWN_FIRST, (double)j / (double)d);
        draw_component(to, j, sigma);
        for (size_t i = 0; i < d; i++) {
            const double x = (i == j) - 2 * (double)v[i] * (double)v[j] / square;
            to->to[i * d + j] = (float)(x * step * sigma);
            to->from[j * d + i] = (float)(x / (step * sigma));
        }
    }
    memset(v, 0, d * sizeof *v);
}

static int draw_all(waterfill *w, const kvd_method_setup *s)
{
    kvd_rng r;
    kvd_rng_seed(&r, s->seed, 0);
    for (int i = 0; i < w->n_layers * KVD_N_SIDES; i++)
        draw(&w->coder[i], w->wide, w->v->value[STEP], &r);
    return 0;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_config *const c = s->config;
    (void)v;
    if (s->drawn)
        return 0;
    if (kvd_calibration_fits(s, c->positions == KVD_POSITIONS_ROPE, err))
        return -1;
    if (s->fisher->first_layer != 0 || s->fisher->n_layers != c->n_layers)
        return kvd_fail(err, "--fisher holds layers %d to %d, the model has %d",
                        s->fisher->first_layer, s->fisher->first_layer + s->fisher->n_layers - 1,
                        c->n_layers);
    if (!s->fisher->moment[KVD_KEYS] || !s->fisher->moment[KVD_VALUES])
        return kvd_fail(err, "--fisher has no /moment/k_pre and /moment/v, which 'waterfill' "
                             "needs: make it again with kvdim-collect --fisher");
    return 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const bool pre = c->positions == KVD_POSITIONS_ROPE;
    const size_t wide = (size_t)c->n_kv_heads * (size_t)c->d_head;
    const int coders = c->n_layers * KVD_N_SIDES;
    waterfill *const w = kvd_pool_open(sizeof *w);
    if (!w)
        return kvd_no_memory(err, "a method", sizeof *w);
    w->v = v;
    w->n_layers = c->n_layers;
    w->wide = wide;
    w->drawn = s->drawn;
    w->coder = kvd_pool_new(&w->pool, (size_t)coders * sizeof *w->coder);
    for (int i = 0; w->coder && i < coders; i++) {
        coder *const to = &w->coder[i];
        to->mean = kvd_pool_new(&w->pool, wide * sizeof *to->mean);
        to->to = kvd_pool_new(&w->pool, wide * wide * sizeof *to->to);
        to->from = kvd_pool_new(&w->pool, wide * wide * sizeof *to->from);
        to->table = kvd_pool_new(&w->pool, (wide + 1) * sizeof *to->table);
        to->component = kvd_pool_new(&w->pool, wide * sizeof *to->component);
        to->escape = kvd_pool_new(&w->pool, wide * sizeof *to->escape);
        to->start = kvd_pool_new(&w->pool, wide * KVD_RANS_SYMBOLS * sizeof *to->start);
    }
    const bool failed = kvd_pool_check(&w->pool, "transforms", err) ||
                        (s->drawn ? draw_all(w, s) : calibrate(w, s, pre, err));
    return kvd_pool_give(w, failed, self);
}

typedef struct {
    float *x, *y; /* [n][wide] numbers minus their mean, and their components */
    uint16_t *context;
    uint8_t *symbol;
    uint8_t *stream;
    size_t n;
    uint32_t *position;
} buffers;

static bool plain(const coder *c, size_t j, double q)
{
    if (fabs(q) > ZERO)
        return false;
    const uint16_t *const start = c->table[j].start + ZERO + (int)q;
    return start[1] > start[0];
}

/* Writes the symbols of the components of n tokens to `w`. Fails if the magnitude of a component
 * exceeds 2^31 - 1 steps. */
static int set_symbols(const coder *c, buffers *w, size_t n, size_t wide, double step, kvd_err *err)
{
    w->n = 0;
    for (size_t i = 0; i < n * wide; i++) {
        const size_t j = i % wide;
        const double q = kvd_stream_multiple((double)w->y[i], step);
        if (fabs(q) > INT32_MAX)
            return kvd_fail(err, "step = %g is too small: a component is %g", step,
                            (double)w->y[i]);
        w->context[w->n] = (uint16_t)j;
        w->symbol[w->n++] = (uint8_t)(plain(c, j, q) ? ZERO + (int)q : ESCAPE);
        if (plain(c, j, q))
            continue;
        const uint32_t bits = (uint32_t)(int32_t)q;
        for (int k = 0; k < ESCAPE_BYTES; k++) {
            w->context[w->n] = (uint16_t)wide;
            w->symbol[w->n++] = (uint8_t)(bits >> 8 * k);
        }
    }
    return 0;
}

static void read_symbols(const coder *c, buffers *w, size_t n, size_t wide, double step)
{
    const uint8_t *s = w->symbol;
    for (size_t i = 0; i < n * wide; i++) {
        int32_t q = *s - ZERO;
        if (*s++ == ESCAPE) {
            uint32_t bits = 0;
            for (int k = 0; k < ESCAPE_BYTES; k++)
                bits |= (uint32_t)*s++ << 8 * k;
            q = (int32_t)bits;
        }
        w->y[i] = (float)((q + (q > 0) * c->offset - (q < 0) * c->offset) * step);
    }
}

static int code_stream(const coder *c, buffers *w, size_t n, size_t wide, double step,
                       uint32_t *state, kvd_bits_count *count, kvd_err *err)
{
    const uint32_t before = *state;
    size_t bytes;
    if (set_symbols(c, w, n, wide, step, err) ||
        kvd_rans_push(c->table, w->context, w->symbol, w->n, state, w->stream, &bytes, err))
        return -1;
    uint32_t check = *state;
    memset(w->symbol, 0, w->n);
    if (kvd_rans_pop(c->table, w->context, w->stream, bytes, &check, w->symbol, w->n, err))
        return -1;
    if (before && check != before)
        return kvd_fail(err, "an entropy code does not end in the state that it began with");
    read_symbols(c, w, n, wide, step);
    count->payload += 8 * (double)bytes;
    count->side += before ? 0 : 8 * (double)sizeof *state;
    return 0;
}

static size_t n_states(size_t kept)
{
    return (size_t)kvd_stream_count((int)kept) * KVD_LANES;
}

/* Rounds each component y[j] of a token to a multiple of `step`. Writes y[j] / step to to[j], or 0
 * if the frequency table lacks this integer. */
static int round_token(const coder *c, float *y, size_t wide, double step, int32_t *to,
                       double *bits, kvd_err *err)
{
    for (size_t j = 0; j < c->kept; j++) {
        const double q = kvd_stream_multiple((double)y[j], step);
        if (fabs(q) > INT32_MAX)
            return kvd_fail(err, "step = %g is too small: a component is %g", step, (double)y[j]);
        const bool has = kvd_stream_has(c->component[j], (int32_t)q);
        to[j] = has ? (int32_t)q : 0;
        *bits += has ? 0 : KVD_STREAM_EXCEPTION_BITS;
        y[j] = (float)((q + (q > 0) * c->offset - (q < 0) * c->offset) * step);
    }
    memset(y + c->kept, 0, (wide - c->kept) * sizeof *y);
    return 0;
}

static int code_blocks(const coder *c, const buffers *w, size_t n, size_t wide, double step,
                       size_t block, uint32_t *state, kvd_bits_count *count, kvd_err *err)
{
    const kvd_stream_tables tables = {(int32_t)c->kept, c->component, c->start};
    const size_t bytes = c->kept * sizeof(int32_t) + kvd_streams_scratch(tables.kept);
    int32_t *const q = malloc(bytes);
    if (!q)
        return kvd_no_memory(err, "a block of the cache", bytes);
    int status = 0;
    for (size_t i = 0; !status && i < n; i++) {
        if (!state[0] || w->position[i] % block == 0)
            count->side += kvd_streams_begin(tables.kept, state);
        status = round_token(c, w->y + i * wide, wide, step, q, &count->payload, err) ||
                 kvd_streams_token(&tables, q, state, q + c->kept, &count->payload, err);
    }
    free(q);
    return status ? -1 : 0;
}

static int code_rows(const waterfill *t, const coder *c, buffers *w, size_t n, uint32_t *state,
                     kvd_bits_count *count, kvd_err *err)
{
    const size_t wide = t->wide, block = (size_t)t->v->value[BLOCK];
    const double step = t->v->value[STEP];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)wide, (blasint)wide,
                1, w->x, (blasint)wide, c->to, (blasint)wide, 0, w->y, (blasint)wide);
    if (block ? code_blocks(c, w, n, wide, step, block, state, count, err)
              : code_stream(c, w, n, wide, step, state, count, err))
        return -1;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)wide, (blasint)wide,
                1, w->y, (blasint)wide, c->from, (blasint)wide, 0, w->x, (blasint)wide);
    return 0;
}

static size_t states(const void *self)
{
    const waterfill *const t = self;
    size_t most = 1;
    for (int i = 0; t->v->value[BLOCK] > 0 && i < t->n_layers * KVD_N_SIDES; i++)
        most = n_states(t->coder[i].kept) > most ? n_states(t->coder[i].kept) : most;
    return most;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const waterfill *const t = self;
    const coder *const c = &t->coder[b->layer * KVD_N_SIDES + (int)b->side];
    const size_t sink = (size_t)t->v->value[SINK], size = b->n * t->wide,
                 room = (1 + ESCAPE_BYTES) * size;
    kvd_pool pool = {0};
    buffers w = {.x = kvd_pool_new(&pool, size * sizeof *w.x),
                 .y = kvd_pool_new(&pool, size * sizeof *w.y),
                 .context = kvd_pool_new(&pool, room * sizeof *w.context),
                 .symbol = kvd_pool_new(&pool, room),
                 .stream = kvd_pool_new(&pool, kvd_rans_room(room)),
                 .position = kvd_pool_new(&pool, b->n * sizeof *w.position)};
    uint32_t *const state = b->state ? b->state : kvd_pool_new(&pool, states(t) * sizeof *b->state);
    int status = kvd_pool_check(&pool, "a block of the cache", err);
    *count = (kvd_bits_count){0, 0};
    if (!status) {
        const size_t n = kvd_bits_take_rows(b, sink, c->mean, decoded, w.x, w.position, count);
        status = n ? code_rows(t, c, &w, n, state, count, err) : 0;
    }
    if (!status)
        kvd_bits_give_rows(b, sink, c->mean, w.x, decoded);
    kvd_pool_free(&pool);
    return status;
}

void kvd_waterfill_coder_of(const void *self, int layer, int side, kvd_stream_coder *to)
{
    const waterfill *const t = self;
    const coder *const c = &t->coder[layer * KVD_N_SIDES + side];
    *to = (kvd_stream_coder){.wide = t->wide,
                             .mean = c->mean,
                             .to = c->to,
                             .to_pitch = t->wide,
                             .from = c->from,
                             .step = t->v->value[STEP],
                             .offset = c->offset,
                             .streams = {(int32_t)c->kept, c->component, c->start},
                             .n_starts = c->n_starts,
                             .escape = t->v->value[BLOCK] > 0 ? NULL : c->escape,
                             .drawn = t->drawn};
}

const kvd_bits_method kvd_bits_waterfill = {
    .info = {.name = "waterfill",
             .summary = "components weighed by gradients, one step for all, an entropy coder",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"step", 0.003, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE | KVD_NEEDS_FISHER,
             .gpu = &kvd_gpu_streams},
    .exact_key = "sink",
    .drawn = true,
    .keys_before_rope = true,
    .all_heads = true,
    .stream = true,
    .states = states,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
