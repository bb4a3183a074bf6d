/* Compares sampled output rows of attention with a double-precision reference (impl.h). */
#include "kernels/timing/impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_ref.h"

enum { SAMPLE_REQUESTS = 8, SAMPLE_KV_HEADS = 8 };
static const double all_pairs = 0x1p26;

double kvd_row_tolerance(kvd_dtype dtype)
{
    return dtype == KVD_BF16 ? 4e-3 : dtype == KVD_F16 ? 1e-3 : 1e-5;
}

typedef struct {
    kvd_row_check *check;
    const kvd_problem *p;
    const kvd_attn_heads *heads;
    size_t capacity, n_ref;
} choosing;

static int add(choosing *c, int request, int head, size_t t, kvd_err *err)
{
    kvd_row_check *const k = c->check;
    if (k->n == c->capacity) {
        const size_t more = c->capacity ? 2 * c->capacity : 256;
        kvd_checked_row *const grown = realloc(k->row, more * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "rows to check", (unsigned long long)more * sizeof *grown);
        k->row = grown;
        c->capacity = more;
    }
    const int d_v = c->heads->d_v[head / (c->heads->n_heads / c->heads->n_kv_heads)];
    k->row[k->n++] = (kvd_checked_row){request, head, t, c->n_ref, d_v};
    c->n_ref += (size_t)d_v;
    return 0;
}

/* Returns the i-th query position to check. The first positions are next to multiples of 64, the
 * others are spread over the request. */
static size_t position(int i, size_t len)
{
    static const size_t edge[] = {0, 1, 63, 64, 127, 128, 191, 192};
    enum { EDGES = sizeof edge / sizeof *edge };
    const size_t t = i < EDGES ? edge[i] : len * (size_t)(i - EDGES + 1) / 5 + (size_t)(7 * i);
    return t < len ? t : len - 1;
}
enum { POSITIONS = 12 };

static int add_head(choosing *c, int b, int g, bool all, kvd_err *err)
{
    const int group = c->heads->n_heads / c->heads->n_kv_heads;
    const size_t q_len = (size_t)c->p->q_len[b];
    if (all || q_len == 1) {
        for (int h = g * group; h < (g + 1) * group; h++)
            for (size_t t = 0; t < q_len; t++)
                if (add(c, b, h, t, err))
                    return -1;
        return 0;
    }
    /* At each position, only one query head is checked. The head changes from position to
     * position. */
    size_t last = SIZE_MAX;
    for (int i = 0; i < POSITIONS; i++) {
        const size_t t = i == POSITIONS - 1 ? q_len - 1 : position(i, q_len);
        if (t != last && add(c, b, g * group + (i + b) % group, t, err))
            return -1;
        last = t;
    }
    return 0;
}

/* Returns the i-th of n requests to check: the shortest, the longest, then requests with evenly
 * spaced indexes. */
static int sampled_request(const kvd_problem *p, int i, int n)
{
    int shortest = 0, longest = 0;
    if (n == p->batch)
        return i;
    for (int b = 1; b < p->batch; b++) {
        if (p->kv_len[b] < p->kv_len[shortest])
            shortest = b;
        if (p->kv_len[b] > p->kv_len[longest])
            longest = b;
    }
    return i == 0   ? shortest
           : i == 1 ? longest
                    : (int)((long long)(i - 1) * (p->batch - 1) / (n - 2));
}

static int choose(choosing *c, bool all, kvd_err *err)
{
    const kvd_problem *const p = c->p;
    const int n_kv = c->heads->n_kv_heads;
    const int requests = all || p->batch <= SAMPLE_REQUESTS ? p->batch : SAMPLE_REQUESTS;
    const int heads = all || n_kv <= SAMPLE_KV_HEADS ? n_kv : SAMPLE_KV_HEADS;
    for (int i = 0; i < requests; i++)
        for (int j = 0; j < heads; j++)
            if (add_head(c, sampled_request(p, i, requests), (int)((long long)j * n_kv / heads),
                         all, err))
                return -1;
    return 0;
}

static int compute(const kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                   kvd_row_maker make, size_t first, size_t last, kvd_err *err)
{
    const int group = heads->n_heads / heads->n_kv_heads, b = c->row[first].request,
              g = c->row[first].head / group;
    const int d_qk = heads->d_qk[g], d_v = heads->d_v[g];
    const size_t before = (size_t)(p->kv_len[b] - p->q_len[b]);
    size_t n = 0;
    for (size_t i = first; i < last; i++)
        n = c->row[i].t + before + 1 > n ? c->row[i].t + before + 1 : n;
    float *const k = malloc(n * (size_t)d_qk * sizeof *k),
                 *const v = malloc(n * (size_t)d_v * sizeof *v), q[KVD_WIDTH_MAX * 2];
    int status = k && v ? 0
                        : kvd_no_memory(err, "keys of a checked row",
                                        (unsigned long long)(n * (size_t)(d_qk + d_v)) * 4);
    assert(d_qk <= (int)(sizeof q / sizeof *q));
    if (!status) {
        make(p, KVD_OPERAND_K, b, g, 0, n, d_qk, k);
        make(p, KVD_OPERAND_V, b, g, 0, n, d_v, v);
    }
    const kvd_attn_heads one = {1, 1, heads->d_head, {d_qk}, {d_v}, heads->window};
    for (size_t i = first; !status && i < last; i++) {
        const kvd_checked_row *const r = &c->row[i];
        const int32_t q_len = 1, kv_len = (int32_t)(r->t + before + 1);
        const kvd_attn_batch batch = {1, &q_len, &kv_len};
        make(p, KVD_OPERAND_Q, b, r->head, r->t + before, 1, d_qk, q);
        status = kvd_attention_ref_row(&one, &batch, 0, 0, 0, q, k, v, c->ref + r->at, err);
    }
    free(k);
    free(v);
    return status;
}

int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err)
{
    memset(c, 0, sizeof *c);
    if (mode == KVD_CHECK_NONE)
        return 0;
    double pairs = 0;
    for (int b = 0; b < p->batch; b++)
        pairs += (double)p->q_len[b] * p->kv_len[b] * heads->n_heads;
    choosing choice = {c, p, heads, 0, 0};
    size_t *border = NULL, pieces = 0;
    int status = choose(
        &choice, mode == KVD_CHECK_ALL || (mode == KVD_CHECK_AUTO && pairs <= all_pairs), err);
    if (!status) {
        c->ref = malloc(choice.n_ref * sizeof *c->ref);
        border = malloc((c->n + 1) * sizeof *border);
        if (!c->ref || !border)
            status =
                kvd_no_memory(err, "references", (unsigned long long)choice.n_ref * sizeof *c->ref);
    }
    const int group = heads->n_heads / heads->n_kv_heads;
    for (size_t i = 0; !status && i < c->n; i++)
        if (i == 0 || c->row[i].request != c->row[i - 1].request ||
            c->row[i].head / group != c->row[i - 1].head / group)
            border[pieces++] = i;
    if (!status) {
        border[pieces] = c->n;
#pragma omp parallel for schedule(dynamic)
        for (size_t i = 0; i < pieces; i++) {
            kvd_err mine = {""};
            if (compute(c, p, heads, make, border[i], border[i + 1], &mine)) {
#pragma omp critical
                {
                    *err = mine;
                    status = -1;
                }
            }
        }
    }
    free(border);
    if (status)
        kvd_row_check_release(c);
    return status;
}

void kvd_row_check_release(kvd_row_check *c)
{
    free(c->row);
    free(c->ref);
    memset(c, 0, sizeof *c);
}

int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx,
                          kvd_row_error *out, kvd_err *err)
{
    double diff = 0, norm = 0, worst = 0;
    float row[2 * KVD_WIDTH_MAX];
    *out = (kvd_row_error){NAN, NAN, c->n};
    for (size_t i = 0; i < c->n; i++) {
        const kvd_checked_row *const r = &c->row[i];
        double row_diff = 0, row_norm = 0;
        source(ctx, r->request, r->head, r->t, r->d_v, row);
        for (int j = 0; j < r->d_v; j++) {
            const double e = (double)row[j] - c->ref[r->at + (size_t)j],
                         x = c->ref[r->at + (size_t)j];
            row_diff += e * e;
            row_norm += x * x;
        }
        if (!(row_norm > 0) || !isfinite(row_norm))
            return kvd_fail(err, "the reference of request %d, head %d, query %zu has norm %g",
                            r->request, r->head, r->t, sqrt(row_norm));
        diff += row_diff;
        norm += row_norm;
        /* Written with a negation, so that the condition is also true if the error is NaN. */
        if (!(sqrt(row_diff / row_norm) <= worst))
            worst = isnan(worst) ? worst : sqrt(row_diff / row_norm);
    }
    if (c->n) {
        out->rel_err = sqrt(diff / norm);
        out->worst = worst;
    }
    return 0;
}
