#include "kernels/attention_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"

/* Adds n * d to *total. Returns 0 if the result overflows, else 1. */
static int add_product(size_t *total, size_t n, size_t d)
{
    size_t x;
    return !__builtin_mul_overflow(n, d, &x) && !__builtin_add_overflow(*total, x, total);
}

static int check_heads(const kvd_attn_heads *heads, kvd_err *err)
{
    const int n = heads->n_heads, n_kv = heads->n_kv_heads;
    if (n < 1 || n > KVD_HEADS_MAX)
        return kvd_fail(err, "%d query heads, want 1 to %d", n, KVD_HEADS_MAX);
    if (n_kv < 1 || n_kv > n || n % n_kv)
        return kvd_fail(err, "%d KV heads do not divide %d query heads", n_kv, n);
    if (heads->d_head < 1)
        return kvd_fail(err, "d_head is %d, want at least 1", heads->d_head);
    if (heads->window < 0)
        return kvd_fail(err, "the window is %d, want at least 1, or 0 for none", heads->window);
    for (int g = 0; g < n_kv; g++)
        if (heads->d_qk[g] < 1 || heads->d_v[g] < 1)
            return kvd_fail(err, "KV head %d: d_qk is %d and d_v is %d, want at least 1", g,
                            heads->d_qk[g], heads->d_v[g]);
    return 0;
}

static int add_requests(const kvd_attn_batch *batch, kvd_attn_plain *plain, kvd_err *err)
{
    if (batch->batch < 1)
        return kvd_fail(err, "%d requests, want at least 1", batch->batch);
    for (int b = 0; b < batch->batch; b++) {
        const int32_t q_len = batch->q_len[b], kv_len = batch->kv_len[b];
        if (q_len < 1 || kv_len < q_len)
            return kvd_fail(err,
                            "request %d: q_len is %d and kv_len is %d, want 1 <= q_len <= kv_len",
                            b, (int)q_len, (int)kv_len);
        plain->n_q += (size_t)q_len;
        plain->n_kv += (size_t)kv_len;
        plain->max_q = (size_t)q_len > plain->max_q ? (size_t)q_len : plain->max_q;
        plain->max_kv = (size_t)kv_len > plain->max_kv ? (size_t)kv_len : plain->max_kv;
    }
    return 0;
}

int kvd_attn_plain_make(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                        kvd_attn_plain *plain, kvd_err *err)
{
    memset(plain, 0, sizeof *plain);
    if (check_heads(heads, err) || add_requests(batch, plain, err))
        return -1;
    const size_t n_q = plain->n_q, n_kv = plain->n_kv;
    const size_t limit = SIZE_MAX / 2 / sizeof(double);
    int fits = 1;
    plain->group = heads->n_heads / heads->n_kv_heads;
    for (int g = 0; g < heads->n_kv_heads; g++) {
        const size_t d_qk = (size_t)heads->d_qk[g], d_v = (size_t)heads->d_v[g];
        plain->k_at[g] = plain->k_elements;
        plain->v_at[g] = plain->v_elements;
        fits = fits && add_product(&plain->k_elements, n_kv, d_qk) &&
               add_product(&plain->v_elements, n_kv, d_v);
        for (int h = g * plain->group; h < (g + 1) * plain->group; h++) {
            plain->q_at[h] = plain->q_elements;
            plain->o_at[h] = plain->o_elements;
            fits = fits && add_product(&plain->q_elements, n_q, d_qk) &&
                   add_product(&plain->o_elements, n_q, d_v);
        }
    }
    if (!fits || plain->q_elements > limit || plain->k_elements > limit ||
        plain->v_elements > limit || plain->o_elements > limit)
        return kvd_fail(err, "%zu query rows and %zu KV rows of %d heads do not fit in memory", n_q,
                        n_kv, heads->n_heads);
    return 0;
}

static double dot(const float *x, const float *y, size_t n)
{
    double s[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            s[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < n; i++)
        s[0] += (double)x[i] * (double)y[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* Computes out = sum of softmax(scale q . k) v over n keys, with exp(sink) added to the softmax
 * denominator. Returns the natural log of the denominator. */
static double attend(const float *q, const float *k, const float *v, size_t n, size_t d_qk,
                     size_t d_v, double scale, double sink, double *scores, double *out)
{
    double max = sink, sum = 0;
    for (size_t j = 0; j < n; j++) {
        scores[j] = scale * dot(q, k + j * d_qk, d_qk);
        max = scores[j] > max ? scores[j] : max;
    }
    for (size_t i = 0; i < d_v; i++)
        out[i] = 0;
    for (size_t j = 0; j < n; j++) {
        const double p = exp(scores[j] - max);
        sum += p;
        for (size_t i = 0; i < d_v; i++)
            out[i] += p * (double)v[j * d_v + i];
    }
    sum += exp(sink - max);
    for (size_t i = 0; i < d_v; i++)
        out[i] /= sum;
    return max + log(sum);
}

typedef struct {
    kvd_attn_plain plain;
    const kvd_attn_heads *heads;
    const float *q, *k, *v, *sinks;
    double scale;
} job;

static double row_of(const job *x, int h, size_t row, size_t t, size_t q_len, size_t kv_len,
                     size_t kv_first, double *scores, double *out)
{
    const int g = h / x->plain.group;
    const size_t d_qk = (size_t)x->heads->d_qk[g], d_v = (size_t)x->heads->d_v[g];
    const size_t end = kv_len - q_len + t + 1, window = (size_t)x->heads->window,
                 seen = window && end > window ? window : end, from = kv_first + end - seen;
    return attend(x->q + x->plain.q_at[h] + row * d_qk, x->k + x->plain.k_at[g] + from * d_qk,
                  x->v + x->plain.v_at[g] + from * d_v, seen, d_qk, d_v, x->scale,
                  x->sinks ? (double)x->sinks[h] : -INFINITY, scores, out);
}

int kvd_attention_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const float *q,
                      const float *k, const float *v, double *out, double *lse, kvd_err *err)
{
    return kvd_attention_ref_sinks(heads, batch, NULL, q, k, v, out, lse, err);
}

int kvd_attention_ref_sinks(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                            const float *sinks, const float *q, const float *k, const float *v,
                            double *out, double *lse, kvd_err *err)
{
    job x = {.heads = heads, .q = q, .k = k, .v = v, .sinks = sinks};
    if (kvd_attn_plain_make(heads, batch, &x.plain, err))
        return -1;
    x.scale = 1 / sqrt((double)heads->d_head);
    const size_t n_threads = kvd_thread_count(), max_kv = x.plain.max_kv, n_q = x.plain.n_q;
    double *scores = calloc(n_threads * max_kv, sizeof *scores);
    if (!scores)
        return kvd_no_memory(err, "a row of scores", n_threads * max_kv * sizeof *scores);
    size_t q_first = 0, kv_first = 0;
    for (int b = 0; b < batch->batch; b++) {
        const size_t q_len = (size_t)batch->q_len[b], kv_len = (size_t)batch->kv_len[b];
#pragma omp parallel for collapse(2) schedule(dynamic)
        for (int h = 0; h < heads->n_heads; h++)
            for (size_t t = 0; t < q_len; t++) {
                const size_t row = q_first + t, d_v = (size_t)heads->d_v[h / x.plain.group];
                const double e =
                    row_of(&x, h, row, t, q_len, kv_len, kv_first,
                           scores + kvd_thread_index() * max_kv, out + x.plain.o_at[h] + row * d_v);
                if (lse)
                    lse[(size_t)h * n_q + row] = e;
            }
        q_first += q_len;
        kv_first += kv_len;
    }
    free(scores);
    return 0;
}

int kvd_attention_ref_row(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int b, int h,
                          size_t t, const float *q, const float *k, const float *v, double *out,
                          kvd_err *err)
{
    job x = {.heads = heads, .q = q, .k = k, .v = v};
    if (kvd_attn_plain_make(heads, batch, &x.plain, err))
        return -1;
    if (b < 0 || b >= batch->batch)
        return kvd_fail(err, "request %d of %d", b, batch->batch);
    if (h < 0 || h >= heads->n_heads)
        return kvd_fail(err, "query head %d of %d", h, heads->n_heads);
    if (t >= (size_t)batch->q_len[b])
        return kvd_fail(err, "query %zu of %d in request %d", t, (int)batch->q_len[b], b);
    x.scale = 1 / sqrt((double)heads->d_head);
    size_t q_first = 0, kv_first = 0;
    for (int i = 0; i < b; i++) {
        q_first += (size_t)batch->q_len[i];
        kv_first += (size_t)batch->kv_len[i];
    }
    const size_t kv_len = (size_t)batch->kv_len[b];
    double *scores = calloc(kv_len, sizeof *scores);
    if (!scores)
        return kvd_no_memory(err, "a row of scores", kv_len * sizeof *scores);
    row_of(&x, h, q_first + t, t, (size_t)batch->q_len[b], kv_len, kv_first, scores, out);
    free(scores);
    return 0;
}

static void apply_rope(const kvd_rope_table *rope, size_t pos, const float *x, size_t d_head,
                       double *y)
{
    for (size_t i = 0; i < d_head; i++)
        y[i] = (double)x[i];
    if (!rope->cos)
        return;
    const size_t half = (size_t)rope->dim / 2;
    for (size_t i = 0; i < half; i++) {
        const size_t a = rope->interleaved ? 2 * i : i,
                     b = rope->interleaved ? 2 * i + 1 : i + half;
        const double c = (double)rope->cos[pos * half + i], s = (double)rope->sin[pos * half + i];
        y[a] = (double)x[a] * c - (double)x[b] * s;
        y[b] = (double)x[b] * c + (double)x[a] * s;
    }
}

/* Computes out [d] = y R with R [d_head][d]. If R is NULL, copies d elements of y. */
static void project(const double *y, size_t d_head, const float *r, size_t d, double *out)
{
    for (size_t j = 0; j < d; j++) {
        double sum = r ? 0 : y[j];
        for (size_t i = 0; r && i < d_head; i++)
            sum += y[i] * (double)r[i * d + j];
        out[j] = sum;
    }
}

int kvd_append_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                   const int32_t *token_start, const float *x, const kvd_rope_table *rope,
                   const float *r_qk, const float *r_v, double *q, double *k, double *v,
                   kvd_err *err)
{
    const int n_heads = heads->n_heads, n_kv = heads->n_kv_heads;
    if (n_kv < 1 || n_heads < n_kv || n_heads % n_kv || n_heads > KVD_HEADS_MAX ||
        heads->d_head < 1 || heads->d_head > KVD_WIDTH_MAX)
        return kvd_fail(err, "append: %d query heads on %d KV heads of %d dims", n_heads, n_kv,
                        heads->d_head);
    if (rope->cos && (!rope->sin || rope->dim < 0 || rope->dim % 2 || rope->dim > heads->d_head))
        return kvd_fail(err, "append: RoPE on %d of %d dims", rope->dim, heads->d_head);
    size_t n_q = 0;
    for (int b = 0; b < batch->batch; b++) {
        if (batch->q_len[b] < 1 || batch->kv_len[b] < batch->q_len[b] || token_start[b] < 0)
            return kvd_fail(err, "append: request %d has %d new of %d tokens, from row %d on", b,
                            (int)batch->q_len[b], (int)batch->kv_len[b], (int)token_start[b]);
        n_q += (size_t)batch->q_len[b];
    }

    const size_t d_head = (size_t)heads->d_head, pitch = (size_t)(n_heads + 2 * n_kv) * d_head;
    const size_t group = (size_t)(n_heads / n_kv);
    const kvd_rope_table none = {0};
    for (size_t g = 0; g < (size_t)n_kv; g++) {
        if (heads->d_qk[g] < 1 || heads->d_qk[g] > heads->d_head || heads->d_v[g] < 1 ||
            heads->d_v[g] > heads->d_head)
            return kvd_fail(err, "append: KV head %zu keeps %d and %d of %d dims", g,
                            heads->d_qk[g], heads->d_v[g], heads->d_head);
        const size_t d_qk = (size_t)heads->d_qk[g], d_v = (size_t)heads->d_v[g];
        size_t row = 0;
        for (int b = 0; b < batch->batch; b++)
            for (size_t t = 0; t < (size_t)batch->q_len[b]; t++, row++) {
                const float *from = x + ((size_t)token_start[b] + t) * pitch;
                const size_t pos = (size_t)(batch->kv_len[b] - batch->q_len[b]) + t;
                double y[KVD_WIDTH_MAX];
                for (size_t i = 0; i < group; i++) {
                    apply_rope(rope, pos, from + (g * group + i) * d_head, d_head, y);
                    project(y, d_head, r_qk, d_qk, q + (i * n_q + row) * d_qk);
                }
                apply_rope(rope, pos, from + ((size_t)n_heads + g) * d_head, d_head, y);
                project(y, d_head, r_qk, d_qk, k + row * d_qk);
                apply_rope(&none, pos, from + ((size_t)n_heads + (size_t)n_kv + g) * d_head, d_head,
                           y);
                project(y, d_head, r_v, d_v, v + row * d_v);
            }
        q += group * n_q * d_qk;
        k += n_q * d_qk;
        v += n_q * d_v;
        if (r_qk)
            r_qk += d_head * d_qk;
        if (r_v)
            r_v += d_head * d_v;
    }
    return 0;
}
