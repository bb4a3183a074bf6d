#include "methods/head.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "model/pass/blocks.h"

const kvd_dims_head *kvd_head_dims(const kvd_dims *dims, int layer, int g)
{
    return dims ? &dims->head[(size_t)layer * (size_t)dims->n_kv_heads + (size_t)g] : NULL;
}

void kvd_head_release(kvd_head *h)
{
    kvd_pool_free(&h->pool);
    kvd_pool_free(&h->of_prompt);
}

void kvd_head_end_prompt(kvd_head *h)
{
    kvd_pool_free(&h->of_prompt);
    h->block = NULL;
    h->statistics = NULL;
}

int kvd_head_allocate(kvd_head *h, kvd_err *err)
{
    const kvd_plan *p = h->p;
    kvd_pool *const pool = &h->pool;
    const size_t n = h->most,
                 states = p->bits && p->bits->states ? p->bits->states(p->bits_self) : 1;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        h->cut[side] = kvd_pool_new(pool, h->room * h->width[side] * sizeof(float));
        h->x[side] = kvd_pool_new(pool, n * h->width[side] * sizeof(float));
        h->payload[side] = kvd_pool_new(pool, n * sizeof(double));
        h->side[side] = kvd_pool_new(pool, n * sizeof(double));
        h->stream[side] = kvd_pool_new(pool, states * sizeof(uint32_t));
    }
    h->q_cut = kvd_pool_new(pool, h->group * h->step_room * h->read * sizeof(float));
    h->o_cut = kvd_pool_new(pool, h->group * h->step_room * h->width[KVD_VALUES] * sizeof(float));
    h->position = kvd_pool_new(pool, n * sizeof *h->position);
    h->level = kvd_pool_new(pool, n);
    h->k_read = kvd_pool_new(pool, h->before_rope ? n * h->read * sizeof(float) : 0);
    h->mass = kvd_pool_new(pool, n * sizeof *h->mass);
    h->seen = kvd_pool_new(pool, n * sizeof *h->seen);
    h->score = kvd_pool_new(pool, h->group * n * sizeof *h->score);
    h->prob = kvd_pool_new(pool, h->group * n * sizeof *h->prob);
    h->decision = kvd_pool_new(pool, n);
    h->kept = kvd_pool_new(pool, n * sizeof *h->kept);
    h->keep = kvd_pool_new(pool, h->d);
    h->balance = kvd_pool_new(pool, h->d * sizeof *h->balance);
    if (h->tokens && h->tokens->state_bytes)
        h->state = kvd_pool_new(pool, h->tokens->state_bytes(p->tokens_self, n));
    h->block = kvd_pool_new(&h->of_prompt, KVD_ATTEND_ROWS * h->n0 * sizeof *h->block);
    h->statistics = kvd_pool_new(&h->of_prompt, (5 + h->group) * h->n0 * sizeof *h->statistics);
    return kvd_status(kvd_pool_check(pool, "a head's entries", err) ||
                      kvd_pool_check(&h->of_prompt, "statistics of a prompt", err));
}

static void describe_window(kvd_head *h, size_t window)
{
    const kvd_plan *const p = h->p;
    const bool leave = window && window < h->n;
    h->tokens = leave ? NULL : p->tokens;
    h->leaving = kvd_plan_block(p);
    /* The cache has room for one block more than the window, because tokens leave in whole
     * blocks. */
    h->most = leave && window + h->leaving < h->n ? window + h->leaving : h->n;
}

void kvd_head_describe(kvd_head *h, const kvd_attention_in *in)
{
    const kvd_plan *p = h->p;
    const kvd_config *const c = in->config;
    const int layer = in->layer;
    const kvd_dims_head *low = kvd_head_dims(p->dims_low, layer, h->g);
    h->d = (size_t)c->d_head;
    h->group = (size_t)(c->n_heads / c->n_kv_heads);
    h->dims = kvd_head_dims(p->dims, layer, h->g);
    h->width[KVD_KEYS] = h->dims ? (size_t)h->dims->d_qk : h->d;
    h->width[KVD_VALUES] = h->dims ? (size_t)h->dims->d_v : h->d;
    h->low[KVD_KEYS] = low ? (size_t)low->d_qk : h->width[KVD_KEYS];
    h->low[KVD_VALUES] = low ? (size_t)low->d_v : h->width[KVD_VALUES];
    h->exact = kvd_plan_exact(p);
    h->scoring = kvd_config_scores(c);
    h->before_rope =
        h->dims ? p->dims->rebuild : p->bits && p->bits->keys_before_rope && !h->prompts;
    h->heads = h->before_rope && h->dims ? (size_t)p->dims->heads : 1;
    h->read = h->before_rope ? h->d : h->width[KVD_KEYS];
    describe_window(h, in->window);
}

double kvd_head_entry_bits(const kvd_head *h)
{
    const kvd_tokens_method *const t = h->tokens;
    const double bits = t ? (double)h->m * kvd_plan_entry_bits(h->p) : 0;
    return t && t->select_bits
               ? bits + t->select_bits(h->p->tokens_self, h->state, h->position, h->m, h->read,
                                       8 * kvd_dtype_bytes(h->p->type))
               : bits;
}

const float *kvd_head_query(const kvd_head *h, size_t j, size_t t)
{
    const size_t ld = (size_t)h->in->config->n_heads * h->d;
    return h->in->q + (h->first + t - h->base) * ld + ((size_t)h->g * h->group + j) * h->d;
}

size_t kvd_head_step_base(const kvd_head *h)
{
    return h->base > h->n0 ? h->base : h->n0;
}

const float *kvd_head_key(const kvd_head *h, const float *k, size_t t)
{
    return k + ((h->first + t - h->base) * (size_t)h->in->config->n_kv_heads + (size_t)h->g) * h->d;
}

void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y)
{
    if (a)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)m, (blasint)d,
                    1.0F, x, (blasint)ldx, a, (blasint)m, 0.0F, y, (blasint)m);
    else
        for (size_t i = 0; i < n; i++)
            memcpy(y + i * m, x + i * ldx, m * sizeof *y);
}

/* Multiplies K (`side` 0) or V (`side` 1) of new tokens by `matrix` into h->cut[side]. */
static void project_side(kvd_head *h, int side, const float *x, const float *matrix)
{
    const size_t ld = (size_t)h->in->config->n_kv_heads * h->d, w = h->width[side];
    const size_t back = (size_t)h->g % h->heads * h->d;
    const size_t shared = h->prompts && !h->base ? h->n0 : 0;
    if (shared)
        kvd_head_project(shared, h->d, w,
                         kvd_prompts_rows(h->prompts, (kvd_side)side, h->in->layer, h->sequence) +
                             (size_t)h->g * h->d,
                         ld, matrix, h->cut[side]);
    kvd_head_project(h->end - h->base - shared, h->heads * h->d, w,
                     kvd_head_key(h, x, h->base + shared) - back, ld, matrix,
                     h->cut[side] + shared * w);
}

void kvd_head_project_rows(kvd_head *h)
{
    const size_t ldq = (size_t)h->in->config->n_heads * h->d, from = kvd_head_step_base(h);
    project_side(h, KVD_KEYS, h->before_rope ? h->in->k_pre : h->in->k,
                 h->dims ? h->dims->a_k : NULL);
    project_side(h, KVD_VALUES, h->in->v, h->dims ? h->dims->a_v : NULL);
    for (size_t j = 0; j < h->group; j++)
        kvd_head_project(h->end > from ? h->end - from : 0, h->d, h->read,
                         kvd_head_query(h, j, from), ldq, h->dims ? h->dims->a_q : NULL,
                         h->q_cut + j * h->step_room * h->read);
}

size_t kvd_head_seen_from(const kvd_head *h, size_t t)
{
    return h->in->window && t + 1 > h->in->window ? t + 1 - h->in->window : 0;
}
