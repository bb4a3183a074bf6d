#include "kernels/rivals/palu_layout.h"

#include <math.h>
#include <stdlib.h>

#include "common/half.h"

int kvd_palu_shape_check(const kvd_palu_shape *s)
{
    if (s->n_kv_heads < KVD_PALU_GROUP || s->n_kv_heads % KVD_PALU_GROUP != 0 ||
        s->n_heads < s->n_kv_heads || s->n_heads % s->n_kv_heads != 0 ||
        s->n_heads / s->n_kv_heads > KVD_PALU_QUERIES_MAX || s->n_kv_heads > 1024)
        return -1;
    if (s->rank_k < KVD_PALU_RANK_K_MIN || s->rank_k > KVD_PALU_RANK_MAX ||
        s->rank_k % KVD_PALU_RANK_STEP != 0)
        return -1;
    if (s->rank_v < KVD_PALU_RANK_STEP || s->rank_v > KVD_PALU_RANK_MAX ||
        s->rank_v % KVD_PALU_RANK_STEP != 0)
        return -1;
    return 0;
}

size_t kvd_palu_page_elements(const kvd_palu_shape *s)
{
    return (size_t)(s->n_kv_heads / KVD_PALU_GROUP) * KVD_PALU_PAGE_TOKENS *
           (size_t)(s->rank_k + s->rank_v);
}

size_t kvd_palu_up_elements(const kvd_palu_shape *s)
{
    return (size_t)s->n_kv_heads * (size_t)s->rank_k * KVD_PALU_D_HEAD;
}

static void put_row(uint16_t *page, size_t t, size_t rank, int dtype, const float *row)
{
    for (size_t r = 0; r < rank; r += 8)
        kvd_from_f32((kvd_dtype)dtype, row + r, page + r / 8 * 512 + t / 8 * 64 + t % 8 * 8, 8);
}

void kvd_palu_pack_latents(const kvd_palu_shape *s, int batch, const int32_t *kv_len, int dtype,
                           const float *k_latent, const float *v_latent, const int32_t *page_table,
                           int max_pages, uint16_t *pool)
{
    const size_t rk = (size_t)s->rank_k, rv = (size_t)s->rank_v, tokens = KVD_PALU_PAGE_TOKENS;
    const float zero[KVD_PALU_RANK_MAX] = {0};
    size_t n_kv = 0, first = 0;
    for (int b = 0; b < batch; b++)
        n_kv += (size_t)kv_len[b];
    for (int b = 0; b < batch; b++) {
        const size_t len = (size_t)kv_len[b];
        for (size_t t = 0; t < (len + tokens - 1) / tokens * tokens; t++) {
            const size_t entry = (size_t)b * (size_t)max_pages + t / tokens;
            uint16_t *page = pool + (size_t)page_table[entry] * kvd_palu_page_elements(s);
            for (size_t g = 0; g < (size_t)(s->n_kv_heads / KVD_PALU_GROUP); g++) {
                uint16_t *k = page + g * tokens * (rk + rv), *v = k + tokens * rk;
                if (t < len)
                    put_row(k, t % tokens, rk, dtype, k_latent + (g * n_kv + first + t) * rk);
                put_row(v, t % tokens, rv, dtype,
                        t < len ? v_latent + (g * n_kv + first + t) * rv : zero);
            }
        }
        first += len;
    }
}

void kvd_palu_pack_up(const kvd_palu_shape *s, int dtype, const float *up, uint16_t *out)
{
    const size_t rank = (size_t)s->rank_k, d = KVD_PALU_D_HEAD;
    for (size_t h = 0; h < (size_t)s->n_kv_heads; h++) {
        uint16_t *pair = out + h / 2 * 2 * d * rank;
        for (size_t r = 0; r < rank; r++)
            for (size_t i = 0; i < d; i++) {
                const size_t n = h % 2 * d + i;
                kvd_from_f32((kvd_dtype)dtype, up + (h * rank + r) * d + i,
                             pair + r / 8 * 2048 + n / 8 * 64 + n % 8 * 8 + r % 8, 1);
            }
    }
}

typedef struct {
    size_t group, rank_k, rank_v, len; /* `group` is the number of query heads per KV head. */
} task;

static void one_head(const task *w, const float *q, const float *kl, const float *vl,
                     const float *up, const float *cosine, const float *sine, double *scores,
                     double *out)
{
    enum { D = KVD_PALU_D_HEAD, HALF = KVD_PALU_D_HEAD / 2 };
    for (size_t t = 0; t < w->len; t++) {
        double k[D] = {0}, turned[D];
        for (size_t r = 0; r < w->rank_k; r++)
            for (size_t i = 0; i < D; i++)
                k[i] += (double)kl[t * w->rank_k + r] * (double)up[r * D + i];
        for (size_t i = 0; i < HALF; i++) {
            const double c = (double)cosine[t * HALF + i], s = (double)sine[t * HALF + i];
            turned[i] = k[i] * c - k[i + HALF] * s;
            turned[i + HALF] = k[i + HALF] * c + k[i] * s;
        }
        for (size_t j = 0; j < w->group; j++) {
            double sum = 0;
            for (size_t i = 0; i < D; i++)
                sum += (double)q[j * D + i] * turned[i];
            scores[j * w->len + t] = sum / sqrt((double)D);
        }
    }
    for (size_t j = 0; j < w->group; j++) {
        double *s = scores + j * w->len, *o = out + j * w->rank_v, top = s[0], total = 0;
        for (size_t t = 1; t < w->len; t++)
            top = fmax(top, s[t]);
        for (size_t r = 0; r < w->rank_v; r++)
            o[r] = 0;
        for (size_t t = 0; t < w->len; t++) {
            const double p = exp(s[t] - top);
            total += p;
            for (size_t r = 0; r < w->rank_v; r++)
                o[r] += p * (double)vl[t * w->rank_v + r];
        }
        for (size_t r = 0; r < w->rank_v; r++)
            o[r] /= total;
    }
}

int kvd_palu_ref(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, const float *q,
                 const float *k_latent, const float *v_latent, const float *up, const float *cosine,
                 const float *sine, double *out, kvd_err *err)
{
    if (shape->n_kv_heads < KVD_PALU_GROUP || shape->n_kv_heads % KVD_PALU_GROUP != 0 ||
        shape->n_heads < shape->n_kv_heads || shape->n_heads % shape->n_kv_heads != 0)
        return kvd_fail(err, "%d query heads on %d KV heads: KV heads must come in groups of %d",
                        shape->n_heads, shape->n_kv_heads, KVD_PALU_GROUP);
    if (shape->rank_k < 1 || shape->rank_v < 1 || batch < 1)
        return kvd_fail(err, "rank_k %d, rank_v %d, batch %d: each must be at least 1",
                        shape->rank_k, shape->rank_v, batch);
    const size_t d = KVD_PALU_D_HEAD;
    task w = {(size_t)(shape->n_heads / shape->n_kv_heads), (size_t)shape->rank_k,
              (size_t)shape->rank_v, 0};
    size_t n_kv = 0, longest = 0, first = 0;
    for (int b = 0; b < batch; b++) {
        if (kv_len[b] < 1)
            return kvd_fail(err, "request %d has %d tokens, at least 1 is needed", b,
                            (int)kv_len[b]);
        n_kv += (size_t)kv_len[b];
        longest = (size_t)kv_len[b] > longest ? (size_t)kv_len[b] : longest;
    }
    double *scores = malloc(w.group * longest * sizeof *scores);
    if (!scores)
        return kvd_no_memory(err, "scores", w.group * longest * sizeof *scores);
    for (size_t b = 0; b < (size_t)batch; b++) {
        w.len = (size_t)kv_len[b];
        for (size_t h = 0; h < (size_t)shape->n_kv_heads; h++) {
            const size_t g = h / KVD_PALU_GROUP;
            one_head(&w, q + (b * (size_t)shape->n_heads + h * w.group) * d,
                     k_latent + (g * n_kv + first) * w.rank_k,
                     v_latent + (g * n_kv + first) * w.rank_v, up + h * w.rank_k * d, cosine, sine,
                     scores, out + (b * (size_t)shape->n_heads + h * w.group) * w.rank_v);
        }
        first += w.len;
    }
    free(scores);
    return 0;
}
