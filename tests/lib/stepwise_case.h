/* Random Q, K and V whose attention output is computed twice: token by token from a cache, and by
 * dense attention over all tokens. */
#ifndef KVD_TESTS_STEPWISE_CASE_H
#define KVD_TESTS_STEPWISE_CASE_H

#include "code_rows.h"
#include "common/rng.h"
#include "methods/cache.h"
#include "worst.h"

enum { HEADS = 4, KV_HEADS = 2, D = 16, LONGEST = 70, TOKENS = 45 + LONGEST };
static const size_t offset[] = {0, 45, TOKENS};

typedef struct {
    kvd_config config;
    float q[TOKENS * HEADS * D], k[TOKENS * KV_HEADS * D], v[TOKENS * KV_HEADS * D];
    kvd_attention_in in;
} problem;

static inline void fill(kvd_rng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kvd_rng_normal(r);
}

static problem *make(size_t window)
{
    static problem p;
    kvd_rng r;
    kvd_rng_seed(&r, 7, 1);
    memset(&p, 0, sizeof p);
    p.config = (kvd_config){.n_layers = 1,
                            .n_heads = HEADS,
                            .n_kv_heads = KV_HEADS,
                            .d_head = D,
                            .d_model = HEADS * D,
                            .max_positions = 128,
                            .rope_theta = 1e4};
    fill(&r, p.q, sizeof p.q / sizeof *p.q);
    fill(&r, p.k, sizeof p.k / sizeof *p.k);
    fill(&r, p.v, sizeof p.v / sizeof *p.v);
    p.in = (kvd_attention_in){.config = &p.config,
                              .n_sequences = 2,
                              .offset = offset,
                              .n_tokens = TOKENS,
                              .q = p.q,
                              .k = p.k,
                              .v = p.v,
                              .q_pre = p.q,
                              .k_pre = p.k,
                              .window = window};
    return &p;
}

static void dense(const problem *p, size_t window, float *out)
{
    kvd_attention_in in = p->in;
    kvd_dense_attention a;
    kvd_err err = {""};
    in.window = window;
    kvd_dense_attention_init(&a);
    assert_int_equal(a.hook.run(&a.hook, &in, out, &err), 0);
    kvd_dense_attention_release(&a);
}

static void run(const kvd_plan *plan, const problem *p, float *out, kvd_stepwise_account *account)
{
    kvd_err err = {""};
    memset(account, 0, sizeof *account);
    for (size_t i = 0; i < (size_t)TOKENS * HEADS * D; i++)
        out[i] = NAN;
    for (size_t s = 0; s < 2; s++)
        for (int g = 0; g < KV_HEADS; g++)
            OK(kvd_stepwise_heads(plan, NULL, &p->in, s, g, 1, NULL, NULL, out, account, &err));
}

static double worst(const float *a, const float *b)
{
    double most = 0;
    for (size_t i = 0; i < (size_t)TOKENS * HEADS * D; i++)
        most = worse(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static float want[TOKENS * HEADS * D], got[TOKENS * HEADS * D];

/* The method's function state_bytes, for methods that store no state: returns 0 bytes. */
static inline size_t no_state(const void *self, size_t n)
{
    (void)self, (void)n;
    return 0;
}

#endif
