/* Method expectedattention: keeps the prompt tokens to which later queries are expected to attend
 * (Devoto et al. 2025, Expected Attention, arXiv 2510.00636, section 3).
 *
 * Later queries are predicted by the mean and covariance of the prompt's queries, rotated by the
 * mean RoPE of the positions after the prompt. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "methods/tokens/tokens.h"
#include "model/pass/blocks.h"

enum { BUDGET, FUTURE, SINK, COVARIANCE, EPSILON };
static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, KVD_BUDGET_MOST, false,
     "tokens kept, sinks included: below 1 a fraction of the prompt, else a number"},
    {"future", 512, 1, 1 << 16, true, "number of later positions whose queries are expected"},
    {"sink", 4, 0, 4096, true, "first tokens kept, and left out of the mean of queries"},
    {"covariance", 1, 0, 1, true, "1: use the covariance of queries; 0: their mean alone"},
    {"epsilon", 0, 0, 1, false, "number added to expected attention before values weigh it"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    /* [n + future + 1][d / 2] RoPE tables for the prompt and the next `future` positions. The last
     * row is the mean of the `future` rows. */
    float *cosine, *sine;
    float *x; /* [n][d] one query head's queries */
    /* [n][d] k: keys multiplied by M^T, where M is the mean RoPE matrix of the `future` positions
     * after the prompt. y: k multiplied by the covariance of the queries. */
    float *k, *y;
    float *cov, *mean; /* covariance [d][d], mean [d] of queries */
    /* [n] z: logits that one query head is expected to give each token. score: softmax of z,
     * averaged over query heads. */
    double *z, *score;
    uint32_t *position;
} buffers;

static int allocate(buffers *b, size_t n, size_t d, size_t table, kvd_pool *pool, kvd_err *err)
{
    *b = (buffers){.cosine = kvd_pool_new(pool, (table + d) * sizeof *b->cosine),
                   .sine = kvd_pool_new(pool, (table + d) * sizeof *b->sine),
                   .x = kvd_pool_new(pool, n * d * sizeof *b->x),
                   .k = kvd_pool_new(pool, n * d * sizeof *b->k),
                   .y = kvd_pool_new(pool, n * d * sizeof *b->y),
                   .cov = kvd_pool_new(pool, d * d * sizeof *b->cov),
                   .mean = kvd_pool_new(pool, d * sizeof *b->mean),
                   .z = kvd_pool_new(pool, n * sizeof *b->z),
                   .score = kvd_pool_new(pool, n * sizeof *b->score),
                   .position = kvd_pool_new(pool, n * sizeof *b->position)};
    return kvd_pool_check(pool, "expected attention", err);
}

/* Multiplies the keys by M^T and writes them to b->k. M is the mean of the RoPE matrices of
 * positions after the prompt. */
static void turn_keys(const kvd_tokens_self *e, const kvd_prompt_attention *p, buffers *b)
{
    const size_t n = p->n, half = p->d / 2, future = (size_t)e->v->value[FUTURE], all = n + future;
    for (size_t t = 0; t < n; t++)
        memcpy(b->k + t * p->d, p->k + t * p->ld, p->d * sizeof *b->k);
    if (e->config->positions != KVD_POSITIONS_ROPE)
        return;
    kvd_rope_tables(e->config, kvd_rope_local(e->config, p->layer), p->n_expected, all, b->cosine,
                    b->sine);
    for (size_t i = 0; i < half; i++) {
        double cosine = 0, sine = 0;
        for (size_t t = n; t < all; t++) {
            cosine += (double)b->cosine[t * half + i];
            sine += (double)b->sine[t * half + i];
        }
        b->cosine[all * half + i] = (float)(cosine / (double)future);
        b->sine[all * half + i] = (float)(-sine / (double)future);
    }
    for (size_t i = 0; i < all * half; i++)
        b->sine[i] = -b->sine[i];
    for (size_t t = 0; t < n; t++)
        b->position[t] = (uint32_t)all;
    kvd_rope_apply(e->config, b->cosine, b->sine, b->position, n, 1, b->k);
}

static void measure_queries(const kvd_tokens_self *e, const kvd_prompt_attention *p, int j,
                            size_t sink, buffers *b)
{
    const size_t d = p->d, rows = p->n - sink;
    for (size_t t = 0; t < rows; t++) {
        memcpy(b->x + t * d, p->q + (sink + t) * p->ldq + (size_t)j * d, d * sizeof *b->x);
        b->position[t] = (uint32_t)(sink + t);
    }
    double square = 1;
    const size_t turned = kvd_config_rope_dims(e->config);
    if (e->config->positions == KVD_POSITIONS_ROPE) {
        kvd_rope_apply(e->config, b->cosine, b->sine, b->position, rows, 1, b->x);
        /* The RoPE tables have a constant factor. Rotating forwards and backwards multiplies by its
         * square. */
        square = (double)b->cosine[0] * (double)b->cosine[0];
    }
    for (size_t c = 0; c < d; c++) {
        double sum = 0;
        for (size_t t = 0; t < rows; t++)
            sum += (double)b->x[t * d + c];
        b->mean[c] = (float)(sum / (double)rows / (c < turned ? square : 1));
    }
    for (size_t t = 0; t < rows; t++)
        for (size_t c = 0; c < d; c++)
            b->x[t * d + c] =
                (float)((double)b->x[t * d + c] / (c < turned ? square : 1)) - b->mean[c];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)d, (blasint)d, (blasint)rows,
                1.0f / (float)rows, b->x, (blasint)d, b->x, (blasint)d, 0.0f, b->cov, (blasint)d);
}

static void add_head(const kvd_tokens_self *e, const kvd_prompt_attention *p, int j, size_t sink,
                     buffers *b)
{
    const size_t d = p->d, n = p->n;
    const double scale = (double)kvd_config_scores(e->config).scale;
    double top = -INFINITY, sum = 0;
    measure_queries(e, p, j, sink, b);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)d, (blasint)d, 1.0f,
                b->k, (blasint)d, b->cov, (blasint)d, 0.0f, b->y, (blasint)d);
    for (size_t t = sink; t < n; t++) {
        double linear = 0, quadratic = 0;
        for (size_t c = 0; c < d; c++) {
            linear += (double)b->k[t * d + c] * (double)b->mean[c];
            quadratic += (double)b->k[t * d + c] * (double)b->y[t * d + c];
        }
        b->z[t] = linear * scale;
        if (e->v->value[COVARIANCE] > 0)
            b->z[t] += quadratic * scale * scale / 2;
        top = fmax(top, b->z[t]);
    }
    for (size_t t = sink; t < n; t++)
        sum += exp(b->z[t] - top);
    for (size_t t = sink; t < n; t++)
        b->score[t] += exp(b->z[t] - top) / sum / p->group;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_tokens_self *const e = self;
    const size_t n = p->n, d = p->d, sink = (size_t)e->v->value[SINK];
    const size_t budget = kvd_tokens_budget(e->v->value[BUDGET], n);
    kvd_pool pool = {0};
    buffers b;
    (void)state;
    if (n <= sink)
        return 0;
    int status = allocate(&b, n, d, (n + (size_t)e->v->value[FUTURE]) * (d / 2), &pool, err);
    if (!status) {
        turn_keys(e, p, &b);
        for (int j = 0; j < p->group; j++)
            add_head(e, p, j, sink, &b);
        for (size_t t = sink; t < n; t++)
            b.score[t] = (b.score[t] + e->v->value[EPSILON]) *
                         (double)cblas_snrm2((blasint)d, p->v + t * p->ld, 1);
        status = kvd_tokens_keep_top(b.score + sink, n - sink, budget > sink ? budget - sink : 0,
                                     level + sink, err);
    }
    kvd_pool_free(&pool);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->ranking = KVD_EVICT_EXPECTED;
    rule->sink = (int32_t)v->value[SINK];
    rule->future = (int32_t)v->value[FUTURE];
    rule->covariance = v->value[COVARIANCE] > 0;
    rule->epsilon = (float)v->value[EPSILON];
}

/* Returns the token budget. It includes the first tokens (parameter `sink`), which always stay. */
static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t budget = kvd_tokens_budget(v->value[BUDGET], r->prompt),
                 sink = (size_t)v->value[SINK];
    return kvd_evict_once(budget > sink ? budget : sink, 0);
}

const kvd_tokens_method kvd_tokens_expectedattention = {
    .info = {.name = "expectedattention",
             .summary = "tokens of the prompt that later queries are expected to attend to",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction = &(
        const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget, .whole_keys = true},
    .check = kvd_tokens_check_budget,
    .prompt = prompt,
};
