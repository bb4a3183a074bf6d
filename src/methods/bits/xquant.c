/* Method xquant: quantises a layer's inputs X, and computes K and V from them (Tomar et al. 2025,
 * arXiv 2508.10395). With parameter latent=1, X is first projected on singular vectors of the
 * weights. */
#include <lapacke.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "methods/bits/bits.h"
#include "model/checkpoint/weights.h"
#include "model/pass/blocks.h"

enum { BITS, GROUP, LATENT };
static const kvd_parameter parameters[] = {
    {"bits", 4, 1, 16, true, "bits per number"},
    {"group", 128, 1, 4096, true, "numbers per scale: of a token, or tokens of a channel of X U_K"},
    {"latent", 1, 0, 1, true,
     "1: stores X U_K and X U_V, as many numbers as K and V; 0: stores X, d_model numbers, for "
     "models with a KV head per query head"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    /* [rank][d_model] Left singular vectors of W_K or W_V, as rows. NULL: layer inputs are stored
     * without projection. */
    float *down;
    /* [wide][rank] Matrix that turns stored vectors into K or V: W_K or W_V if layer inputs are
     * stored without projection. */
    float *up;
    float *bias; /* [wide], or NULL */
    float *norm;
} matrices;

typedef struct {
    const kvd_config *config;
    int bits;
    /* group: quantised numbers per scale. wide: n_kv_heads * d_head. rank: length of the vector
     * that is stored for a token. */
    size_t group, wide, rank;
    bool latent;
    matrices *of; /* [n_layers][KVD_N_SIDES] */
} xquant;

static void close(void *self)
{
    xquant *const q = self;
    for (size_t i = 0; q->of && i < (size_t)q->config->n_layers * KVD_N_SIDES; i++) {
        free(q->of[i].down);
        free(q->of[i].up);
        free(q->of[i].bias);
        free(q->of[i].norm);
    }
    free(q->of);
    free(q);
}

/* Reads weights or, if `bias` is true, a bias of the model into *to, which it allocates. Sets *to
 * to NULL if the model has none. */
static int read_part(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, float **to,
                     kvd_err *err)
{
    kvd_weight w;
    *to = NULL;
    if (kvd_weight_find(c, part, bias, layer, &w, err))
        return -1;
    if (w.n && !(*to = malloc(w.n * sizeof **to)))
        return kvd_no_memory(err, "weights", w.n * sizeof **to);
    if (w.n)
        kvd_weight_read(&w, 0, w.n, *to);
    return 0;
}

/* Replaces the weights m->up by two factors of their singular value decomposition, m->down and
 * m->up. */
static int decompose(const xquant *q, matrices *m, kvd_err *err)
{
    const size_t d = (size_t)q->config->d_model, wide = q->wide, r = q->rank;
    double *const a = malloc((d * wide + d * r + r * wide + r) * sizeof *a);
    float *const up = malloc(wide * r * sizeof *up);
    m->down = malloc(r * d * sizeof *m->down);
    if (!a || !up || !m->down) {
        free(a);
        free(up);
        return kvd_no_memory(err, "a decomposition of weights", (d + wide) * r * sizeof *a);
    }
    double *const u = a + d * wide, *const b = u + d * r, *const sigma = b + r * wide;
    for (size_t i = 0; i < d * wide; i++)
        a[i] = (double)m->up[i];
    const lapack_int info =
        LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'S', (lapack_int)d, (lapack_int)wide, a, (lapack_int)d,
                       sigma, u, (lapack_int)d, b, (lapack_int)r);
    for (size_t i = 0; i < r * d; i++)
        m->down[i] = (float)u[i];
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j < r; j++)
            up[i * r + j] = (float)(b[i * r + j] * sigma[j]);
    free(a);
    free(m->up);
    m->up = up;
    return info ? kvd_fail(err, "no decomposition of weights: LAPACK returned %d", (int)info) : 0;
}

static void set_unit(float *x, size_t n)
{
    for (size_t i = 0; i < n * n; i++)
        x[i] = i % (n + 1) ? 0 : 1;
}

/* For timing runs, replaces a slow SVD: sets the two factors of the weights W to W and the identity
 * matrix. */
static int draw(const xquant *q, matrices *m, kvd_err *err)
{
    const size_t d = (size_t)q->config->d_model, wide = q->wide;
    float **const unit = wide < d ? &m->up : &m->down;
    m->down = wide < d ? m->up : NULL;
    const size_t n = wide < d ? wide : d;
    if (!(*unit = malloc(n * n * sizeof **unit)))
        return kvd_no_memory(err, "a decomposition of weights", n * n * sizeof **unit);
    set_unit(*unit, n);
    return 0;
}

static int open_layer(const xquant *q, const kvd_checkpoint *c, int layer, bool drawn, kvd_err *err)
{
    static const kvd_part part[KVD_N_SIDES] = {KVD_PART_K, KVD_PART_V};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        matrices *const m = &q->of[(size_t)layer * KVD_N_SIDES + (size_t)side];
        if (read_part(c, part[side], false, layer, &m->up, err) ||
            read_part(c, part[side], true, layer, &m->bias, err) ||
            (side == KVD_KEYS && q->config->qk_norm &&
             read_part(c, KVD_PART_NORM_K, false, layer, &m->norm, err)) ||
            (q->latent && (drawn ? draw(q, m, err) : decompose(q, m, err))))
            return -1;
    }
    return 0;
}

static int open_layers(const xquant *q, const kvd_checkpoint *c, bool drawn, kvd_err *err)
{
    const int blas_threads = kvd_blas_serial();
    int failed = q->config->n_layers;
#pragma omp parallel for schedule(dynamic)
    for (int l = 0; l < q->config->n_layers; l++) {
        kvd_err mine;
        if (open_layer(q, c, l, drawn, &mine)) {
#pragma omp critical(kvd_xquant_failed)
            if (l < failed) {
                failed = l;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(blas_threads);
    return failed < q->config->n_layers ? -1 : 0;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const size_t wide = (size_t)c->n_kv_heads * (size_t)c->d_head, d = (size_t)c->d_model;
    if (c->latent)
        return kvd_fail(err,
                        "'xquant' stores inputs from which whole K and V are computed: a %s model "
                        "caches one latent vector per token instead",
                        c->family);
    if (!(v->value[LATENT] > 0) && d > 2 * wide)
        return kvd_fail(err,
                        "latent=0 stores %zu numbers per token and layer, but K and V have %zu: "
                        "give latent=1",
                        d, 2 * wide);
    return 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const size_t wide = (size_t)c->n_kv_heads * (size_t)c->d_head, d = (size_t)c->d_model;
    const bool latent = v->value[LATENT] > 0;
    xquant *const q = calloc(1, sizeof *q);
    if (!q)
        return kvd_no_memory(err, "a method", sizeof *q);
    *q = (xquant){.config = c,
                  .bits = (int)v->value[BITS],
                  .group = (size_t)v->value[GROUP],
                  .wide = wide,
                  .rank = !latent    ? d
                          : wide < d ? wide
                                     : d,
                  .latent = latent,
                  .of = calloc((size_t)c->n_layers * KVD_N_SIDES, sizeof *q->of)};
    if ((q->of ? 0 : kvd_no_memory(err, "weights", sizeof *q->of)) ||
        open_layers(q, s->checkpoint, s->drawn, err)) {
        close(q);
        return -1;
    }
    *self = q;
    return 0;
}

kvd_xquant_matrices kvd_xquant_matrices_of(const void *self, int layer, kvd_side side)
{
    const xquant *const q = self;
    const matrices *const m = &q->of[(size_t)layer * KVD_N_SIDES + (size_t)side];
    return (kvd_xquant_matrices){m->down, m->up, q->rank, m->bias, m->norm};
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const xquant *const q = self;
    const kvd_config *const c = q->config;
    const matrices *const m = &q->of[(size_t)b->layer * KVD_N_SIDES + (size_t)b->side];
    const size_t n = b->n, d = (size_t)c->d_model, heads = (size_t)c->n_kv_heads;
    float *const x = malloc(n * q->rank * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "inputs of a layer", n * q->rank * sizeof *x);
    *count = (kvd_bits_count){0, 0};
    if (q->latent)
        kvd_linear(b->input, m->down, n, d, q->rank, x, 0);
    else
        memcpy(x, b->input, n * d * sizeof *x);
    kvd_bits_code_groups(x, n, q->rank, q->latent && b->side == KVD_KEYS, q->group, q->bits, x,
                         count);
    /* K and V share the quantised layer input X, so each of them counts half of the bits. */
    if (!q->latent) {
        count->payload /= 2;
        count->side /= 2;
    }
    kvd_linear(x, m->up, n, q->rank, q->wide, decoded, 0);
    if (m->bias)
        kvd_add_bias(decoded, m->bias, n, q->wide);
    if (m->norm) {
        const size_t together = c->qk_norm_whole ? heads : 1;
        kvd_rms_norm(decoded, m->norm, c->norm_eps, n * heads / together,
                     together * (size_t)c->d_head, decoded);
    }
    free(x);
    return 0;
}

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    *newest = 0;
    *block = side == KVD_KEYS && v->value[LATENT] > 0 ? (size_t)v->value[GROUP] : 1;
}

const kvd_bits_method kvd_bits_xquant = {
    .info = {.name = "xquant",
             .summary = "inputs of layers in few bits, from which K and V are computed again",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .needs = KVD_NEEDS_PRE_ROPE | KVD_NEEDS_INPUT,
             .gpu = &kvd_gpu_xquant},
    .drawn = true,
    .keys_before_rope = true,
    .all_heads = true,
    .window = window,
    .fits = fits,
    .open = open,
    .close = close,
    .code = code,
};
