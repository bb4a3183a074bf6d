#include "kernels/timing/problem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

const char *const kvd_attn_phase_name[KVD_N_ATTN_PHASES] = {"prefill", "decode"};
const char *const kvd_lengths_name[KVD_N_LENGTHS] = {"equal", "lognormal", "one-long", "file"};

/* Draws log-normal request lengths of mean seq_len. Lengths above 4 seq_len are reduced to 4
 * seq_len, which lowers the mean slightly. */
static int lognormal_lengths(kvd_problem *p, kvd_err *err)
{
    kvd_rng r;
    kvd_rng_seed(&r, p->seed, 1);
    double sum = 0;
    double *const x = malloc((size_t)p->batch * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "lengths", (unsigned long long)p->batch * sizeof *x);
    for (int b = 0; b < p->batch; b++)
        sum += x[b] = exp(0.8 * kvd_rng_normal(&r));
    for (int b = 0; b < p->batch; b++) {
        const double n = floor(x[b] * (double)p->seq_len * p->batch / sum + 0.5),
                     most = 4 * (double)p->seq_len;
        p->kv_len[b] = (int32_t)(n < 1 ? 1 : n > most ? most : n);
    }
    free(x);
    return 0;
}

int kvd_problem_lengths(kvd_problem *p, kvd_lengths lengths, int batch, size_t seq_len,
                        const int32_t *given, kvd_err *err)
{
    assert(batch >= 1 && seq_len >= 1 && (lengths == KVD_LENGTHS_FILE) == (given != NULL));
    /* Limits the lengths, because kernels compute 4 * position and 4 * row as 32-bit numbers. */
    if (seq_len > INT32_MAX / 8 || (size_t)batch > INT32_MAX / 8 / seq_len)
        return kvd_fail(err, "%d requests of %zu tokens are more than kernels can count", batch,
                        seq_len);
    p->lengths = lengths;
    p->batch = batch;
    p->seq_len = seq_len;
    p->q_len = malloc((size_t)batch * sizeof *p->q_len);
    p->kv_len = malloc((size_t)batch * sizeof *p->kv_len);
    if (!p->q_len || !p->kv_len)
        return kvd_no_memory(err, "lengths", 2 * (unsigned long long)batch * sizeof *p->q_len);
    for (int b = 0; b < batch; b++) {
        const size_t n = lengths == KVD_LENGTHS_ONE_LONG && b > 0 ? (seq_len + 15) / 16 : seq_len;
        p->kv_len[b] = given ? given[b] : (int32_t)n;
    }
    if (lengths == KVD_LENGTHS_LOGNORMAL && lognormal_lengths(p, err))
        return -1;
    for (int b = 0; b < batch; b++)
        p->q_len[b] = p->phase == KVD_DECODE ? 1 : p->kv_len[b];
    return 0;
}

void kvd_problem_release(kvd_problem *p)
{
    free(p->q_len);
    free(p->kv_len);
    p->q_len = p->kv_len = NULL;
}

kvd_attn_batch kvd_problem_batch(const kvd_problem *p)
{
    return (kvd_attn_batch){p->batch, p->q_len, p->kv_len};
}

size_t kvd_problem_tokens(const kvd_problem *p, bool queries)
{
    size_t n = 0;
    for (int b = 0; b < p->batch; b++)
        n += (size_t)(queries ? p->q_len : p->kv_len)[b];
    return n;
}

double kvd_heads_p(const kvd_attn_heads *heads)
{
    double kept = 0;
    for (int g = 0; g < heads->n_kv_heads; g++)
        kept += heads->d_qk[g] + heads->d_v[g];
    return 1 - kept / (2.0 * heads->d_head * heads->n_kv_heads);
}

double kvd_heads_mean(const int *width, int n)
{
    double sum = 0;
    for (int g = 0; g < n; g++)
        sum += width[g];
    return sum / n;
}

int kvd_heads_widest(const kvd_attn_heads *heads)
{
    int most = 0;
    for (int g = 0; g < heads->n_kv_heads; g++) {
        most = heads->d_qk[g] > most ? heads->d_qk[g] : most;
        most = heads->d_v[g] > most ? heads->d_v[g] : most;
    }
    return most;
}

kvd_attn_heads kvd_heads_dense(const kvd_attn_heads *heads)
{
    kvd_attn_heads dense = *heads;
    for (int g = 0; g < dense.n_kv_heads; g++)
        dense.d_qk[g] = dense.d_v[g] = dense.d_head;
    return dense;
}

void kvd_problem_rows(const kvd_problem *p, kvd_operand tensor, int request, int head, size_t first,
                      size_t n, int d, float *rows)
{
    const uint64_t key = kvd_value_key(p->seed, (int)tensor, (uint32_t)request, (uint32_t)head);
    uint16_t rounded[256];
    assert(d >= 1 && d <= 256);
    for (size_t t = 0; t < n; t++) {
        float *const row = rows + t * (size_t)d;
        for (int i = 0; i < d; i++)
            row[i] = kvd_value(key, (int)tensor, p->sharp, (uint32_t)(first + t), (uint32_t)i);
        if (p->dtype != KVD_F32) {
            kvd_from_f32(p->dtype, row, rounded, (size_t)d);
            kvd_to_f32(p->dtype, rounded, row, (size_t)d);
        }
    }
}

float *kvd_problem_plain(const kvd_problem *p, kvd_operand tensor, kvd_err *err)
{
    const bool q = tensor == KVD_OPERAND_Q;
    const int n_heads = q ? p->heads.n_heads : p->heads.n_kv_heads,
              group = p->heads.n_heads / p->heads.n_kv_heads;
    const int *const width = tensor == KVD_OPERAND_V ? p->heads.d_v : p->heads.d_qk;
    const int32_t *const len = q ? p->q_len : p->kv_len;
    const size_t tokens = kvd_problem_tokens(p, q);
    size_t columns = 0, at = 0;
    for (int h = 0; h < n_heads; h++)
        columns += (size_t)width[q ? h / group : h];
    if (tokens > SIZE_MAX / sizeof(float) / columns) {
        kvd_no_memory(err, "Q, K and V", (unsigned long long)-1);
        return NULL;
    }
    float *const all = malloc(tokens * columns * sizeof *all);
    if (!all) {
        kvd_no_memory(err, "Q, K and V", (unsigned long long)(tokens * columns) * sizeof *all);
        return NULL;
    }
    for (int h = 0; h < n_heads; h++) {
        const int d = width[q ? h / group : h];
        for (int b = 0; b < p->batch; b++) {
            const size_t n = (size_t)len[b], first = (size_t)(p->kv_len[b] - len[b]);
            enum { PIECE = 256 };
#pragma omp parallel for schedule(static)
            for (size_t t = 0; t < n; t += PIECE)
                kvd_problem_rows(p, tensor, b, h, first + t, n - t < PIECE ? n - t : PIECE, d,
                                 all + at + t * (size_t)d);
            at += n * (size_t)d;
        }
    }
    return all;
}
