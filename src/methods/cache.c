#include "methods/cache.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* y [n][m] = x [n][d] a [d][m], with leading dimensions for x and y. */
static void project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a, float *y,
                    size_t ldy)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)m, (blasint)d, 1.0F, x,
                (blasint)ldx, a, (blasint)m, 0.0F, y, (blasint)ldy);
}

/* Puts rows x [n][m] into the store and hands back what a later read finds there: the same numbers,
 * rounded to the type of the store. */
static void *put(kvd_cache *c, void *at, float *x, size_t n)
{
    kvd_from_f32(c->type, x, at, n);
    kvd_to_f32(c->type, at, x, n);
    c->account.elements_kept += n;
    c->account.bytes_stored += n * kvd_dtype_bytes(c->type);
    return (char *)at + n * kvd_dtype_bytes(c->type);
}

static void copy_rows(size_t n, size_t m, const float *x, size_t ldx, float *y)
{
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * m, x + i * ldx, m * sizeof *y);
}

static void attend_sequence(kvd_cache *c, const kvd_attention_in *in, size_t sequence, float *out)
{
    const kvd_config *const cf = in->config;
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first;
    const size_t d = (size_t)cf->d_head, n_heads = (size_t)cf->n_heads, n_kv = (size_t)cf->n_kv_heads;
    const size_t group = n_heads / n_kv;
    const size_t ldq = n_heads * d, ldk = n_kv * d;
    const float scale = (float)(1.0 / sqrt((double)d)); /* of the uncut head */
    float *const k_cut = c->work, *const v_cut = k_cut + n * d, *const q_cut = v_cut + n * d,
                 *const o_cut = q_cut + n * d, *const scores = o_cut + n * d;
    void *at = c->store;

    for (size_t g = 0; g < n_kv; g++) {
        const kvd_dims_head whole = {.d_qk = (int)d, .d_v = (int)d};
        const kvd_dims_head *const h = c->dims ? &c->dims->head[(size_t)in->layer * n_kv + g] : &whole;
        const size_t d_qk = (size_t)h->d_qk, d_v = (size_t)h->d_v;
        const float *const k = in->k + first * ldk + g * d, *const v = in->v + first * ldk + g * d;

        if (h->a_k)
            project(n, d, d_qk, k, ldk, h->a_k, k_cut, d_qk);
        else
            copy_rows(n, d, k, ldk, k_cut);
        if (h->a_v)
            project(n, d, d_v, v, ldk, h->a_v, v_cut, d_v);
        else
            copy_rows(n, d, v, ldk, v_cut);
        at = put(c, at, k_cut, n * d_qk);
        at = put(c, at, v_cut, n * d_v);

        for (size_t head = g * group; head < (g + 1) * group; head++) {
            const float *q = in->q + first * ldq + head * d;
            float *const o = out + first * ldq + head * d;
            size_t ld = ldq;
            if (h->a_q) {
                project(n, d, d_qk, q, ldq, h->a_q, q_cut, d_qk);
                q = q_cut;
                ld = d_qk;
            }
            if (h->b_v) {
                kvd_attend_head(n, d_qk, d_v, q, ld, k_cut, d_qk, v_cut, d_v, scale, scores, o_cut, d_v);
                project(n, d_v, d, o_cut, d_v, h->b_v, o, ldq);
            } else {
                kvd_attend_head(n, d_qk, d_v, q, ld, k_cut, d_qk, v_cut, d_v, scale, scores, o, ldq);
            }
        }
    }
    c->account.calls++;
    c->account.tokens += n;
    c->account.elements_dense += 2 * n * n_kv * d;
}

static int run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_cache *c = (kvd_cache *)(void *)self; /* door is the first member */
    const kvd_config *const cf = in->config;
    const size_t d = (size_t)cf->d_head, n_kv = (size_t)cf->n_kv_heads;
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t n = in->offset[s + 1] - in->offset[s];
        if (n == 0)
            continue;
        if (2 * n * n_kv * d > c->store_n || n * (4 * d + n) > c->work_n)
            return kvd_fail(err, "sequence %zu has %zu tokens, more than the cache was made for",
                            in->first_sequence + s, n);
        attend_sequence(c, in, s, out);
    }
    return 0;
}

int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_dims *dims, kvd_dtype type,
                   size_t max_len, kvd_err *err)
{
    memset(c, 0, sizeof *c);
    if (dims && kvd_dims_fits(dims, config, err))
        return -1;
    const size_t d = (size_t)config->d_head, n_kv = (size_t)config->n_kv_heads;
    if (max_len == 0 || max_len > (size_t)1 << 24)
        return kvd_fail(err, "a cache for sequences of %zu tokens cannot be made", max_len);
    c->door.run = run;
    c->dims = dims;
    c->type = type;
    c->store_n = 2 * max_len * n_kv * d;
    c->work_n = max_len * (4 * d + max_len); /* K', V', Q', O' and the scores of one head */
    c->store = malloc(c->store_n * kvd_dtype_bytes(type));
    c->work = malloc(c->work_n * sizeof *c->work);
    if (!c->store || !c->work) {
        const unsigned long long bytes =
            (unsigned long long)c->store_n * kvd_dtype_bytes(type) + c->work_n * sizeof *c->work;
        kvd_cache_release(c);
        return kvd_no_memory(err, "a cache", bytes);
    }
    return 0;
}

void kvd_cache_release(kvd_cache *c)
{
    free(c->store);
    free(c->work);
    memset(c, 0, sizeof *c);
}

int kvd_cache_check(const kvd_cache *c, const kvd_config *config, size_t n_sequences, size_t n_tokens,
                    int first_layer, kvd_err *err)
{
    const kvd_cache_account *const a = &c->account;
    const size_t layers = (size_t)(config->n_layers - first_layer), n_kv = (size_t)config->n_kv_heads;
    size_t kept = 0;
    for (size_t i = (size_t)first_layer * n_kv; i < (size_t)config->n_layers * n_kv; i++)
        kept += c->dims ? (size_t)c->dims->head[i].d_qk + (size_t)c->dims->head[i].d_v
                        : 2 * (size_t)config->d_head;
    if (a->calls != n_sequences * layers)
        return kvd_fail(err, "the cache acted %zu times, not on each of %zu sequences in %zu layers",
                        a->calls, n_sequences, layers);
    if (a->tokens != n_tokens * layers)
        return kvd_fail(err, "the cache stored %zu rows, not each of %zu tokens in %zu layers", a->tokens,
                        n_tokens, layers);
    if (a->elements_kept != n_tokens * kept)
        return kvd_fail(err, "the cache stored %zu numbers, the widths make %zu", a->elements_kept,
                        n_tokens * kept);
    return 0;
}

void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out)
{
    assert(!dims || (dims->n_layers == c->n_layers && dims->n_kv_heads == c->n_kv_heads));
    const double bytes = (double)element_bytes, d = c->d_head;
    const double all = 2.0 * c->n_layers * c->n_kv_heads * d;
    double kept = 0, kept16 = 0, basis = 0;
    for (int i = 0; dims && i < c->n_layers * c->n_kv_heads; i++) {
        const kvd_dims_head *const h = &dims->head[i];
        kept += h->d_qk + h->d_v;
        kept16 += kvd_pad16(h->d_qk, c->d_head) + kvd_pad16(h->d_v, c->d_head);
        basis += (h->a_q ? d * h->d_qk : 0) + (h->a_k && h->a_k != h->a_q ? d * h->d_qk : 0);
    }
    if (!dims)
        kept = kept16 = all;
    out->dense = all * bytes;
    out->nominal = kept * bytes;
    out->padded = kept16 * bytes;
    out->basis = basis * bytes;
    out->overall_p = 1 - kept / all;
    out->overall_p16 = 1 - kept16 / all;
}
