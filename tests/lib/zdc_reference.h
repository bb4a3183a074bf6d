/* CPU reference of the method zdc. Important tokens keep more dimensions of K and V (`high`) than
 * other tokens (`low`). */
#ifndef KVD_TESTS_ZDC_REFERENCE_H
#define KVD_TESTS_ZDC_REFERENCE_H

#include <cblas.h>

#include "common/threads.h"
#include "dims_fixture.h"
#include "engine_schedule.h"
#include "methods/cache.h"
#include "methods/method.h"

/* Attention hook that removes dimensions of Q, K and V, then calls the hook `inner`. The dimensions
 * that remain are those that zdc keeps for important tokens. */
typedef struct {
    kvd_attention hook;
    kvd_attention *inner;
    const kvd_dims *dims;
    float *q, *k, *v, *work; /* copies of Q, K and V, and scratch [rows][d_head] */
} cutter;

/* Replaces x by x a b^T with b [d][width] if `transposed`, otherwise by x a b with b [width][d]. */
static inline void there_and_back(size_t n, size_t d, int width, float *x, size_t ld,
                                  const float *a, const float *b, bool transposed, float *work)
{
    const blasint w = width;
    if (!a)
        return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, w, (blasint)d, 1, x,
                (blasint)ld, a, w, 0, work, w);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, (blasint)n,
                (blasint)d, w, 1, work, w, b, transposed ? w : (blasint)d, 0, x, (blasint)ld);
}

static inline int run_cutter(kvd_attention *self, const kvd_attention_in *in, float *out,
                             kvd_err *err)
{
    cutter *const c = (cutter *)(void *)self;
    const size_t n = in->n_tokens, d = (size_t)in->config->d_head,
                 kv = (size_t)in->config->n_kv_heads, heads = (size_t)in->config->n_heads;
    kvd_attention_in cut = *in;
    memcpy(c->q, in->q, n * heads * d * sizeof *c->q);
    memcpy(c->k, in->k, n * kv * d * sizeof *c->k);
    memcpy(c->v, in->v, n * kv * d * sizeof *c->v);
    const int saved = kvd_blas_serial(); /* one thread: the products are small */
    for (size_t h = 0; h < heads; h++) {
        const kvd_dims_head *const x = &c->dims->head[(size_t)in->layer * kv + h / (heads / kv)];
        there_and_back(n, d, x->d_qk, c->q + h * d, heads * d, x->a_q, x->a_k, true, c->work);
    }
    for (size_t g = 0; g < kv; g++) {
        const kvd_dims_head *const x = &c->dims->head[(size_t)in->layer * kv + g];
        there_and_back(n, d, x->d_qk, c->k + g * d, kv * d, x->a_k, x->a_q, true, c->work);
        there_and_back(n, d, x->d_v, c->v + g * d, kv * d, x->a_v, x->b_v, false, c->work);
    }
    kvd_blas_restore(saved);
    cut.q = c->q;
    cut.k = c->k;
    cut.v = c->v;
    return c->inner->run(c->inner, &cut, out, err);
}

static inline cutter cutter_make(const kvd_dims *dims, const kvd_config *c, size_t rows)
{
    const size_t d = (size_t)c->d_head;
    return (cutter){.hook = {.run = run_cutter},
                    .dims = dims,
                    .q = need(rows * (size_t)c->n_heads * d * sizeof(float)),
                    .k = need(rows * (size_t)c->n_kv_heads * d * sizeof(float)),
                    .v = need(rows * (size_t)c->n_kv_heads * d * sizeof(float)),
                    .work = need(rows * d * sizeof(float))};
}

static inline void cutter_release(cutter *c)
{
    host_free(c->q, c->k, c->v, c->work);
}

typedef struct {
    kvd_forward *f;
    cutter *cut;
} passes;

static inline int first_pass(void *ctx, const kvd_batch *first, kvd_prompts *p, kvd_err *err)
{
    const passes *const x = ctx;
    x->cut->inner = &p->hook;
    return kvd_forward_run(x->f, first, &x->cut->hook, -1, NULL, err);
}

static inline int one_request(const passes *x, const kvd_config *config, const load *l, size_t r,
                              const kvd_plan *plan, float *hidden, float *to, kvd_err *err)
{
    const size_t offset[2] = {0, l->offset[r + 1] - l->offset[r]}, from = l->r[r].input - 1;
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = l->id + l->offset[r]};
    kvd_dense_attention dense;
    kvd_prompts prompts = {0};
    kvd_cache cache = {0};
    kvd_plan mine = *plan;
    passes both = *x;
    mine.prompt = l->r[r].input;
    kvd_dense_attention_init(&dense);
    int status = 0;
    x->cut->inner = &dense.hook;
    if (plan->tokens) {
        status = kvd_prompts_make(&prompts, config, &mine, &b, SIZE_MAX, first_pass, &both, err) ||
                 kvd_cache_init(&cache, config, &mine, offset[1], err);
        cache.prompts = &prompts;
        x->cut->inner = &cache.hook;
    }
    status =
        status || kvd_forward_run(x->f, &b, &x->cut->hook, -1, hidden, err) ||
        kvd_forward_logits(x->f, hidden + from * (size_t)config->d_model, l->r[r].output, to, err);
    if (plan->tokens) {
        kvd_cache_release(&cache);
        kvd_prompts_release(&prompts);
    }
    kvd_dense_attention_release(&dense);
    return status ? -1 : 0;
}

static inline float *reference(const kvd_checkpoint *c, const load *l, const kvd_plan *plan,
                               kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    float *const logits = need(l->first[l->n] * l->vocab * sizeof *logits),
                 *const hidden = need(l->max_len * (size_t)config->d_model * sizeof *hidden);
    kvd_forward *const f = kvd_forward_new(c, l->max_len, l->max_len, err);
    cutter cut = cutter_make(plan->dims, config, l->max_len);
    const passes x = {f, &cut};
    int status = f ? 0 : -1;
    for (size_t r = 0; !status && r < l->n; r++)
        status = one_request(&x, config, l, r, plan, hidden, logits + l->first[r] * l->vocab, err);
    kvd_forward_free(f);
    cutter_release(&cut);
    free(hidden);
    if (!status)
        return logits;
    free(logits);
    return NULL;
}

/* a model, its requests, and the projections for important tokens (`high`) and for other tokens
 * (`low`) */
typedef struct {
    kvd_checkpoint *c;
    const kvd_config *config;
    load l;
    kvd_spectrum spectrum;
    kvd_dims high, low;
} model;

static inline int kept_low(const kvd_config *c, int i, int side)
{
    return fixture_uneven(c, i, side) / 2 - i % 2;
}

static inline int model_open(model *m, const char *path, const kvd_dims_method *method,
                             const request *r, size_t n, kvd_err *err)
{
    *m = (model){.c = checkpoint_or_end(path)};
    m->config = kvd_checkpoint_config(m->c);
    m->l = load_make(m->c, r, n, 41);
    return fixture_spectrum(&m->spectrum, m->config, 7, err) ||
                   fixture_dims(&m->high, &m->spectrum, m->config, method, fixture_uneven, err) ||
                   fixture_dims(&m->low, &m->spectrum, m->config, method, kept_low, err)
               ? -1
               : 0;
}

static inline void model_close(model *m)
{
    kvd_dims_release(&m->high);
    kvd_dims_release(&m->low);
    kvd_spectrum_release(&m->spectrum);
    load_release(&m->l);
    kvd_checkpoint_close(m->c);
}

static inline int plan_of(const model *m, const char *text, kvd_plan *plan, kvd_err *err)
{
    /* Static, because an open kvd_plan keeps pointers into this variable. */
    static kvd_method method;
    const kvd_method_setup setup = {.config = m->config, .seed = 3};
    if (kvd_method_parse(text, &method, err))
        return -1;
    *plan = method.plan;
    plan->type = KVD_BF16;
    plan->dims = &m->high;
    plan->dims_low = &m->low;
    plan->prompt = m->l.max_len;
    return kvd_plan_open(plan, &setup, err);
}

#endif
