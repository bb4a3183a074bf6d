/* Scores prompt tokens by trained networks (method locret) on the GPU. */
#include <stdlib.h>

#include "common/half.h"
#include "formats/trained.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/tokens.h"
#include "model/pass/cuda/blocks.h"

static const char what[] = "retaining heads";

enum { PIECE = 8192 }; /* number of tokens whose hidden units are in memory */

/* Converts one row of weights of the token-scoring network to bf16, keeping only the inputs Q, K
 * and V of this GPU's heads. */
static void cut_row(const kvd_config *c, const kvd_gpu_share *s, const float *from, uint16_t *to)
{
    const size_t d = (size_t)c->d_head, q = (size_t)c->n_heads * d, kv = (size_t)c->n_kv_heads * d,
                 n_q = (size_t)s->n_heads * d, n_kv = (size_t)s->n_kv_heads * d,
                 first = (size_t)s->first_kv_head * d, first_q = first * (q / kv);
    kvd_from_f32(KVD_BF16, from + first_q, to, n_q);
    kvd_from_f32(KVD_BF16, from + q + first, to + n_q, n_kv);
    kvd_from_f32(KVD_BF16, from + q + kv + first, to + n_q + n_kv, n_kv);
}

static int put_fc1(const kvd_evict_trained *x, const kvd_paged_cache *c,
                   const kvd_retaining_heads *from, uint16_t *fc1, kvd_err *err)
{
    const kvd_config *const config = c->config;
    const size_t whole = ((size_t)config->n_heads + 2 * (size_t)config->n_kv_heads) *
                         (size_t)config->d_head,
                 each = x->hidden * x->inputs;
    uint16_t *const host = malloc(each * sizeof *host);
    int status = host ? 0 : kvd_no_memory(err, what, each * sizeof *host);
    for (size_t l = 0; !status && l < (size_t)config->n_layers; l++) {
        for (size_t i = 0; i < x->hidden; i++)
            cut_row(config, c->share, from->fc1 + (l * x->hidden + i) * whole,
                    host + i * x->inputs);
        status = kvd_device_put(fc1 + l * each, host, each * sizeof *host, what, err);
    }
    free(host);
    return status;
}

static int put_fc2(const kvd_evict_trained *x, const kvd_paged_cache *c,
                   const kvd_retaining_heads *from, float *fc2, kvd_err *err)
{
    const size_t all = (size_t)c->config->n_kv_heads, own = (size_t)c->share->n_kv_heads,
                 first = (size_t)c->share->first_kv_head, each = own * x->hidden;
    for (size_t l = 0; l < (size_t)c->config->n_layers; l++)
        if (kvd_device_put(fc2 + l * each, from->fc2 + (l * all + first) * x->hidden,
                           each * sizeof *fc2, what, err))
            return -1;
    return 0;
}

int kvd_evict_trained_make(kvd_evict_trained *x, const kvd_gpu_method *m, kvd_device_memory *memory,
                           kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_retaining_heads *const from = m->plan->tokens->retaining(m->plan->tokens_self);
    const size_t layers = (size_t)c->config->n_layers, kv = (size_t)c->share->n_kv_heads,
                 tokens = kvd_smaller(c->batch->max_tokens, PIECE);
    x->hidden = from->hidden;
    x->inputs = ((size_t)c->share->n_heads + 2 * kv) * (size_t)c->config->d_head;
    uint16_t *const fc1 =
        kvd_device_new(memory, layers * x->hidden * x->inputs * sizeof *fc1, what, err);
    float *const fc2 = kvd_device_new(memory, layers * kv * x->hidden * sizeof *fc2, what, err);
    x->units = kvd_device_new(memory, tokens * x->hidden * sizeof *x->units, what, err);
    x->fc1 = fc1;
    x->fc2 = fc2;
    return memory->status || put_fc1(x, c, from, fc1, err) || put_fc2(x, c, from, fc2, err) ? -1
                                                                                            : 0;
}

/* Computes c = a^T b + beta c for column-major matrices a [k][m], b [k][n] of type `type` and c
 * [m][n]. */
static int multiply(const kvd_gpu_worker *w, cudaDataType type, size_t m, size_t n, size_t k,
                    const void *a, size_t ld_a, const void *b, size_t ld_b, float beta, float *c,
                    size_t ld_c, kvd_err *err)
{
    const float one = 1;
    return kvd_cublas_check(w->lib->cublasGemmEx(w->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)m, (int)n,
                                                 (int)k, &one, a, type, (int)ld_a, b, type,
                                                 (int)ld_b, &beta, c, CUDA_R_32F, (int)ld_c,
                                                 CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                            what, err);
}

/* Computes the hidden units [n][hidden] of the token-scoring network for n prompt tokens, beginning
 * with token `first`. */
static int compute_units(const kvd_evict_trained *x, const kvd_gpu_method *m,
                         const kvd_paged_rows *r, size_t first, size_t n, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const size_t d = (size_t)c->config->d_head, at = r->steps + first,
                 qk = (size_t)(c->share->n_heads + c->share->n_kv_heads) * d,
                 ld = r->q_pre ? r->ld_pre : r->ld;
    const uint16_t *const fc1 = x->fc1 + (size_t)r->layer * x->hidden * x->inputs,
                          *const rows = r->x, *const before = r->q_pre ? r->q_pre : r->x;
    return kvd_status(multiply(c->worker, CUDA_R_16BF, x->hidden, n, qk, fc1, x->inputs,
                               before + at * ld, ld, 0, x->units, x->hidden, err) ||
                      multiply(c->worker, CUDA_R_16BF, x->hidden, n, x->inputs - qk, fc1 + qk,
                               x->inputs, rows + at * r->ld + qk, r->ld, 1, x->units, x->hidden,
                               err) ||
                      (c->share->count > 1 &&
                       kvd_gpu_method_add_up(m, x->units, n * x->hidden, r->stream, err)) ||
                      kvd_cuda_check(kvd_gpu_activate_plain(c->config->activation, x->units,
                                                            n * x->hidden, r->stream),
                                     what, err));
}

int kvd_evict_trained_score(const kvd_evict_trained *x, const kvd_gpu_method *m,
                            const kvd_paged_rows *r, float *score, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    const size_t kv = (size_t)c->share->n_kv_heads, all = b->n_tokens - r->steps;
    const float *const fc2 = x->fc2 + (size_t)r->layer * kv * x->hidden;
    for (size_t first = 0; first < all; first += PIECE) {
        const size_t last = kvd_smaller(all, first + PIECE);
        if (compute_units(x, m, r, first, last - first, err))
            return -1;
        for (size_t i = r->steps; i < r->steps + r->prompts; i++) {
            const size_t start = (size_t)b->host.start[i], from = kvd_larger(start, first),
                         to = kvd_smaller(start + (size_t)b->host.q_len[i], last);
            if (from < to &&
                multiply(c->worker, CUDA_R_32F, to - from, kv, x->hidden,
                         x->units + (from - first) * x->hidden, x->hidden, fc2, x->hidden, 0,
                         score + (size_t)b->host.q_start[i] + (from - start), b->n_q8, err))
                return -1;
        }
    }
    return 0;
}
