/* Random attention inputs, and PyTorch's results from tests/data/attention.bin. */
#ifndef ATTENTION_CASE_H
#define ATTENTION_CASE_H

#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "kernels/attention_ref.h"
#include "unit.h"

enum { CASE_BATCH = 16 };

typedef struct {
    kvd_attn_heads heads;
    int32_t q_len[CASE_BATCH], kv_len[CASE_BATCH];
    kvd_attn_batch batch;
    kvd_attn_plain plain;
    float *q, *k, *v;
    /* attention outputs and log-sum-exps that PyTorch computed; NULL for random inputs */
    double *out, *lse;
} attention_case;

static inline void *case_get(size_t n, size_t bytes)
{
    return unit_alloc(n * bytes);
}

static inline void case_room(attention_case *c)
{
    kvd_err err;
    c->batch.q_len = c->q_len;
    c->batch.kv_len = c->kv_len;
    assert_int_equal(kvd_attn_plain_make(&c->heads, &c->batch, &c->plain, &err), 0);
    c->q = case_get(c->plain.q_elements, sizeof *c->q);
    c->k = case_get(c->plain.k_elements, sizeof *c->k);
    c->v = case_get(c->plain.v_elements, sizeof *c->v);
}

static inline void case_normal(float *x, size_t n, double factor, kvd_rng *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(factor * kvd_rng_normal(rng));
}

/* Fills the case with random queries, keys and values; queries are multiplied by `factor`. d_qk and
 * d_v: dimensions per KV head; q_len and kv_len: tokens per request. */
static inline void case_make(attention_case *c, int n_heads, int n_kv_heads, int d_head,
                             const int *d_qk, const int *d_v, int batch, const int32_t *q_len,
                             const int32_t *kv_len, double factor, uint64_t seed)
{
    kvd_rng rng;
    memset(c, 0, sizeof *c);
    c->heads.n_heads = n_heads;
    c->heads.n_kv_heads = n_kv_heads;
    c->heads.d_head = d_head;
    memcpy(c->heads.d_qk, d_qk, (size_t)n_kv_heads * sizeof *d_qk);
    memcpy(c->heads.d_v, d_v, (size_t)n_kv_heads * sizeof *d_v);
    c->batch.batch = batch;
    memcpy(c->q_len, q_len, (size_t)batch * sizeof *q_len);
    memcpy(c->kv_len, kv_len, (size_t)batch * sizeof *kv_len);
    case_room(c);
    kvd_rng_seed(&rng, seed, 0);
    case_normal(c->q, c->plain.q_elements, factor, &rng);
    case_normal(c->k, c->plain.k_elements, 1, &rng);
    case_normal(c->v, c->plain.v_elements, 1, &rng);
}

static inline void case_read(FILE *f, void *to, size_t n, size_t bytes)
{
    assert_int_equal(fread(to, bytes, n, f), n);
}

static inline void case_next(FILE *f, attention_case *c)
{
    int32_t head[4];
    memset(c, 0, sizeof *c);
    case_read(f, head, 4, 4);
    c->heads.n_heads = head[0];
    c->heads.n_kv_heads = head[1];
    c->heads.d_head = head[2];
    c->batch.batch = head[3];
    assert_in_range(head[1], 1, KVD_HEADS_MAX);
    assert_in_range(head[3], 1, CASE_BATCH);
    case_read(f, c->heads.d_qk, (size_t)head[1], 4);
    case_read(f, c->heads.d_v, (size_t)head[1], 4);
    case_read(f, c->q_len, (size_t)head[3], 4);
    case_read(f, c->kv_len, (size_t)head[3], 4);
    case_room(c);
    const size_t n_lse = (size_t)head[0] * c->plain.n_q;
    c->out = case_get(c->plain.o_elements, sizeof *c->out);
    c->lse = case_get(n_lse, sizeof *c->lse);
    case_read(f, c->q, c->plain.q_elements, 4);
    case_read(f, c->k, c->plain.k_elements, 4);
    case_read(f, c->v, c->plain.v_elements, 4);
    case_read(f, c->out, c->plain.o_elements, 8);
    case_read(f, c->lse, n_lse, 8);
}

static inline FILE *case_open(int32_t *n_cases)
{
    char magic[9] = "";
    FILE *f = fopen("tests/data/attention.bin", "rb");
    assert_non_null(f);
    case_read(f, magic, 8, 1);
    assert_string_equal(magic, "KVDATTN1");
    case_read(f, n_cases, 1, 4);
    return f;
}

/* Returns the attention outputs, computed in float64. Also writes each query's log-sum-exp to lse
 * unless lse is NULL. */
static inline double *case_reference(const attention_case *c, double *lse)
{
    kvd_err err;
    double *const out = case_get(c->plain.o_elements, sizeof *out);
    for (size_t i = 0; i < c->plain.o_elements; i++)
        out[i] = NAN;
    if (kvd_attention_ref(&c->heads, &c->batch, c->q, c->k, c->v, out, lse, &err))
        fail_msg("%s", err.msg);
    return out;
}

/* Returns ||x - y|| / ||y||, or infinity for NaN. */
static inline double case_error(const double *x, const double *y, size_t n)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += (x[i] - y[i]) * (x[i] - y[i]);
        s += y[i] * y[i];
    }
    const double r = sqrt(e / s);
    return r == r ? r : (double)INFINITY;
}

#endif
