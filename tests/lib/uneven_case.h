/* Test cases for eviction methods that keep a different number of tokens in each KV head: the shape
 * of one layer and the lengths of prompts. */
#ifndef KVD_TESTS_UNEVEN_CASE_H
#define KVD_TESTS_UNEVEN_CASE_H

#include <math.h>

#include "common/stats.h"
#include "evict_case.h"
#include "methods/method.h"
#include "methods/tokens/cuda/uneven.h"
#include "worst.h"

typedef struct {
    const char *method;
    int layer, n_layers;
    test_case shape;
} uneven_case;

#define SHAPE(heads, kv, d_k, d_v, ...)                                                            \
    {                                                                                              \
        .n_heads = (heads), .n_kv_heads = (kv), .len = {__VA_ARGS__},                              \
        .n_len = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .width = {{d_k, d_v}}, .n_width = 1   \
    }

/* Computes log-sum-exps lse [n_heads][n_q8] of the prompt's last `window` queries, and recent
 * [n_heads][n], the attention probabilities of all tokens summed over these queries. */
static void attend(const fixture *f, int b, int window, double *recent, float *lse)
{
    const int n = f->len[b], from = n > window ? n - window : 0;
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < f->map.n_heads; h++) {
        const int g = h / f->map.group, d = f->map.d_qk[g];
        double *const p = need((size_t)n * sizeof *p);
        for (int t = from; t < n; t++) {
            double top = -INFINITY, sum = 0;
            for (int k = 0; k <= t; k++) {
                p[k] = 0;
                for (int i = 0; i < d; i++)
                    p[k] += (double)bf16_wide(*query(f, b, h, t, i)) *
                            (double)bf16_wide(*cell(f, f->pool, b, g, 0, k, i));
                p[k] *= (double)f->map.scale;
                top = fmax(top, p[k]);
            }
            for (int k = 0; k <= t; k++)
                sum += p[k] = exp(p[k] - top);
            for (int k = 0; k <= t; k++)
                recent[(size_t)h * (size_t)n + (size_t)k] += p[k] / sum;
            lse[(size_t)h * (size_t)f->n_q8 + (size_t)(f->start[b] + t)] =
                (float)(top + log(fmax(sum, 1)));
        }
        free(p);
    }
}

typedef struct {
    /* [n_heads][n] attention probabilities of tokens, summed over the prompt's last `window`
     * queries */
    double *recent;
    kvd_prompt_attention *p;
    uint8_t **level;
    double *score; /* [n_kv_heads][n] scores of tokens that may be dropped */
    float *v;      /* [n_kv_heads][n][d_v] values */
} layer_case;

static void note(fixture *f, double got, double want)
{
    f->worst = worse(f->worst, fabs(got - want) / (fabs(want) + 1e-4));
}

/* Compares the tokens that the GPU keeps (`kept`) with the tokens that the CPU keeps (c->level).
 * Returns the number of errors. Before position `old`, differences that rounding explains are no
 * errors. */
static int check_sets(fixture *f, int b, const layer_case *c, size_t old, const int32_t *kept,
                      const int32_t *count)
{
    const size_t n = (size_t)f->len[b], kv = (size_t)f->map.n_kv_heads;
    double *const theirs = need(kv * n * sizeof *theirs), *const ours = need(kv * n * sizeof *ours);
    size_t n_theirs = 0, n_ours = 0;
    int wrong = 0;
    for (size_t g = 0; g < kv; g++) {
        const int32_t *const mine = kept + g * (size_t)f->n_q8 + (size_t)f->start[b];
        for (size_t t = 0, i = 0; t < n; t++) {
            const int stays = i < (size_t)count[g] && mine[i] == (int32_t)t;
            i += (size_t)stays;
            if (stays == (c->level[g][t] != KVD_LEVEL_DROPPED))
                continue;
            wrong += t >= old;
            if (stays)
                ours[n_ours++] = c->score[g * n + t];
            else
                theirs[n_theirs++] = c->score[g * n + t];
        }
        for (int i = 1; i < count[g]; i++)
            wrong += mine[i] <= mine[i - 1];
    }
    wrong += n_ours != n_theirs;
    kvd_sort(ours, n_ours);
    kvd_sort(theirs, n_theirs);
    for (size_t i = 0; i < n_ours && i < n_theirs; i++)
        wrong += fabs(ours[i] - theirs[i]) > 2e-4 * (fabs(theirs[i]) + 1e-4);
    f->near += n_ours;
    free(theirs);
    free(ours);
    return wrong;
}

/* Returns the address of dimension i of K (side 0) or V (1) of kept token number `place`. */
static uint16_t *entry(const fixture *f, uint16_t *heads, const int32_t *table, int b, int g,
                       int side, int place, int i)
{
    const int d_k = f->map.d_qk[g], d = side ? f->map.d_v[g] : d_k;
    const int32_t page =
        table[(b * f->map.n_kv_heads + g) * f->max_pages + place / KVD_PAGE_TOKENS];
    return heads + (size_t)page * (size_t)(KVD_PAGE_TOKENS * (d_k + f->map.d_v[g])) +
           (side ? KVD_PAGE_TOKENS * d_k : 0) +
           kvd_blocked_index((size_t)place % KVD_PAGE_TOKENS, (size_t)i, (size_t)d);
}

/* Returns how many elements of K and V in a request's pages are wrong. The pages must hold m kept
 * tokens, the decode step's token if `step` is 1, then zeros. */
static int check_rows(const fixture *f, uint16_t *heads, const int32_t *table, int b, int g,
                      const int32_t *kept, int m, int step)
{
    int wrong = 0;
    for (int i = 0; i < (m + step + 7) / 8 * 8; i++)
        for (int side = 0; side < 2; side++)
            for (int c = 0; c < (side ? f->map.d_v[g] : f->map.d_qk[g]); c++) {
                const int t = i < m ? kept[i] : 0;
                const uint16_t want = i < m + step ? *cell(f, f->pool, b, g, side, t, c) : 0;
                wrong += *entry(f, heads, table, b, g, side, i, c) != want;
            }
    return wrong;
}

#endif
