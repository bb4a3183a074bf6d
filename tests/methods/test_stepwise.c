/* Tests a cache to which tokens are added one after another. References: dense attention, and a
 * cache that stores blocks of tokens. */
#include "model/pass/blocks.h"
#include "stepwise_case.h"

static const size_t windows[] = {0, 5}, prompts[] = {0, 1, 20, 44, 1000};

static void shrink(kvd_rng *r, float *x, size_t n)
{
    fill(r, x, n);
    for (size_t i = 0; i < n; i++)
        x[i] *= 0.25f;
}

TEST(identity_is_dense_attention)
{
    kvd_stepwise_account a;
    for (size_t w = 0; w < 2; w++) {
        const problem *p = make(windows[w]);
        dense(p, windows[w], want);
        for (size_t i = 0; i < 5; i++) {
            const kvd_plan plan = {.type = KVD_F32, .prompt = prompts[i]};
            run(&plan, p, got, &a);
            assert_true(worst(got, want) < 2e-6);
            assert_true(a.payload == a.dense && a.side == 0 && a.entries == 0 && a.dropped == 0);
        }
    }
}

/* Drops all prompt tokens but the last `keep`. */
static int keep_prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                       kvd_err *err)
{
    const size_t keep = *(const size_t *)self;
    double sum = 0;
    (void)state, (void)err;
    for (size_t t = 0; t < p->n; t++) {
        sum += p->mass[t];
        if (t + keep < p->n + 1)
            level[t] = KVD_LEVEL_DROPPED;
    }
    assert_true(fabs(sum - (double)p->n * p->group) < 1e-4 * (double)p->n);
    return 0;
}
static int keep_step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                     kvd_err *err)
{
    const size_t keep = *(const size_t *)self;
    (void)state, (void)err;
    for (int j = 0; j < a->group; j++) {
        double sum = 0;
        for (size_t i = 0; i < a->n; i++)
            sum += (double)a->prob[(size_t)j * a->n + i];
        assert_true(fabs(sum - 1) < 1e-5);
    }
    for (size_t i = 0; i < a->n; i++)
        if (a->position[i] + keep < a->now + 2)
            level[i] = KVD_LEVEL_DROPPED;
    return 0;
}

/* A layer with a sliding window stores only the tokens in the window. */
TEST(a_window_is_all_that_is_held)
{
    enum { WINDOW = 5 };
    const problem *const p = make(WINDOW);
    kvd_stepwise_account a;
    dense(p, WINDOW, want);
    for (size_t i = 0; i < 5; i++) {
        const kvd_plan plan = {.type = KVD_F32, .prompt = prompts[i]};
        run(&plan, p, got, &a);
        assert_true(worst(got, want) < 2e-6);
        double bits = 0;
        for (size_t s = 0; s < 2; s++) {
            const size_t n = p->in.offset[s + 1] - p->in.offset[s],
                         n0 = plan.prompt < n ? plan.prompt : n - 1;
            for (size_t t = n0; t < n; t++)
                bits += 2.0 * D * 32 * KV_HEADS * (double)(t + 1 < WINDOW ? t + 1 : WINDOW);
        }
        assert_true(a.payload == bits && a.dense == bits);
        assert_true(a.peak == 2.0 * 2 * D * 32 * KV_HEADS * WINDOW);
    }

    size_t keep = 2;
    const kvd_tokens_method method = {.info = {.name = "last", .needs = KVD_NEEDS_PROBABILITIES},
                                      .prompt = keep_prompt,
                                      .step = keep_step,
                                      .state_bytes = no_state,
                                      .entry_bits = 32};
    const kvd_plan plan = {.type = KVD_F32, .tokens = &method, .tokens_self = &keep};
    run(&plan, p, got, &a);
    assert_true(worst(got, want) < 2e-6);
    assert_true(a.dropped == 0 && a.entries == 0);
    problem wide = *p;
    wide.in.window = TOKENS;
    run(&plan, &wide, got, &a);
    assert_true(a.dropped > 0 && a.entries > 0);
}

/* Runs the method `text` on the random problem p. Writes what it stored and read to *a. */
static void run_text(const char *text, size_t prompt, const problem *p, kvd_stepwise_account *a)
{
    kvd_method m;
    kvd_err err = {""};
    const kvd_method_setup setup = {.config = &p->config};
    OK(kvd_method_parse(text, &m, &err));
    m.plan.type = KVD_F32;
    m.plan.prompt = prompt;
    OK(kvd_plan_open(&m.plan, &setup, &err));
    run(&m.plan, p, got, a);
    kvd_plan_close(&m.plan);
}

/* Tests the cache size of a layer with a sliding window. The methods mikv, leankv and think must
 * compress the tokens in the window. */
TEST(a_window_stores_compressed_tokens)
{
    enum { WINDOW = 5, NEWEST = 2 };
    const problem *const p = make(WINDOW);
    for (size_t i = 2; i < 5; i++) {
        kvd_stepwise_account mikv, leankv, think;
        size_t tokens = 0, pruned = 0, first = 0, steps = 0;
        for (size_t s = 0; s < 2; s++) {
            const size_t n = p->in.offset[s + 1] - p->in.offset[s],
                         n0 = prompts[i] < n ? prompts[i] : n - 1;
            first += WINDOW - NEWEST;
            steps += n - n0;
            for (size_t t = n0; t < n; t++) {
                tokens += WINDOW;
                pruned += n0 - NEWEST > t + 1 - WINDOW ? n0 - NEWEST - (t + 1 - WINDOW) : 0;
            }
        }
        run_text("mikv", prompts[i], p, &mikv);
        run_text("leankv", prompts[i], p, &leankv);
        run_text("think,window=2,p=0.5", prompts[i], p, &think);
        assert_true(mikv.payload == (double)(tokens * KV_HEADS * D * (8 + 8)));
        assert_true(leankv.payload == (double)(tokens * KV_HEADS * D * (8 + 4)));
        assert_true(mikv.side == (double)(tokens * KV_HEADS * 64) && leankv.side == mikv.side);
        assert_true(mikv.lowered == 0 && leankv.dropped == 0 && mikv.entries == 0);
        assert_true(think.payload == 32.0 * KV_HEADS * (double)(tokens * 2 * D - pruned * (D / 2)));
        assert_true(think.side == (double)(steps * KV_HEADS * D));
        assert_int_equal(think.pruned, first * KV_HEADS);
    }
}

TEST(dropping_what_is_old_is_a_window)
{
    const kvd_tokens_method method = {.info = {.name = "last", .needs = KVD_NEEDS_PROBABILITIES},
                                      .prompt = keep_prompt,
                                      .step = keep_step,
                                      .state_bytes = no_state};
    const problem *p = make(0);
    size_t keep = 9;
    kvd_stepwise_account a;
    dense(p, keep, want);
    const kvd_plan plan = {.type = KVD_F32, .tokens = &method, .tokens_self = &keep};
    run(&plan, p, got, &a);
    assert_true(worst(got, want) < 2e-6);
    assert_int_equal(a.dropped, (TOKENS - 2 * (keep - 1)) * KV_HEADS);
    assert_true(a.payload < a.dense);

    dense(p, 0, got);
    for (size_t s = 0; s < 2; s++)
        memcpy(want + offset[s] * HEADS * D, got + offset[s] * HEADS * D,
               (size_t)30 * HEADS * D * sizeof *want);
    const kvd_plan late = {.type = KVD_F32, .tokens = &method, .tokens_self = &keep, .prompt = 30};
    run(&late, p, got, &a);
    assert_true(worst(got, want) < 2e-6);
}

TEST(widths_are_those_of_the_cache)
{
    const problem *p = make(0);
    kvd_rng r;
    kvd_err err = {""};
    static float a_q[D * 10], a_k[D * 10], a_v[D * 7], b_v[7 * D];
    kvd_rng_seed(&r, 3, 1);
    shrink(&r, a_q, D * 10);
    shrink(&r, a_k, D * 10);
    shrink(&r, a_v, D * 7);
    shrink(&r, b_v, D * 7);
    kvd_dims_head heads[KV_HEADS] = {{10, 7, .a_q = a_q, .a_k = a_k, .a_v = a_v, .b_v = b_v},
                                     {D, 7, .a_v = a_v, .b_v = b_v}};
    const kvd_dims dims = {.n_layers = 1, .n_kv_heads = KV_HEADS, .d_head = D, .head = heads};
    for (int type = KVD_F32; type <= KVD_BF16; type++) {
        kvd_cache cache;
        kvd_stepwise_account a;
        const kvd_plan blocked = {.type = (kvd_dtype)type, .dims = &dims};
        assert_int_equal(kvd_cache_init(&cache, &p->config, &blocked, LONGEST, &err), 0);
        assert_int_equal(cache.hook.run(&cache.hook, &p->in, want, &err), 0);
        run(&blocked, p, got, &a);
        /* Accepted error of attention outputs: one rounding error in the 16-bit types. */
        assert_true(worst(got, want) < (type == KVD_F32 ? 1e-5 : type == KVD_F16 ? 2e-3 : 2e-2));
        assert_true(fabs(a.payload / a.dense - (10 + 7 + D + 7) / (4.0 * D)) < 1e-12);
        kvd_cache_release(&cache);
    }
}

/* Returns the largest difference between outputs of a cache that stores blocks of tokens and of one
 * that stores single tokens. *share: stored fraction of K and V. */
static double blocks_against_rows(const kvd_plan *plan, const problem *p, double *share)
{
    kvd_cache cache;
    kvd_err err = {""};
    kvd_stepwise_account a = {0};
    float cosine[LONGEST * D / 2], sine[LONGEST * D / 2];
    for (size_t i = 0; i < (size_t)TOKENS * HEADS * D; i++)
        want[i] = got[i] = NAN;
    assert_false(kvd_plan_stepwise(plan));
    assert_int_equal(kvd_cache_init(&cache, &p->config, plan, LONGEST, &err), 0);
    assert_int_equal(cache.hook.run(&cache.hook, &p->in, want, &err), 0);
    for (size_t s = 0; s < 2; s++) {
        const size_t n = offset[s + 1] - offset[s];
        kvd_rope_tables(&p->config, false, n, n, cosine, sine);
        for (int g = 0; g < KV_HEADS; g++)
            OK(kvd_stepwise_heads(plan, NULL, &p->in, s, g, 1, cosine, sine, got, &a, &err));
    }
    OK(kvd_cache_check(&cache.account, &p->config, plan, 2, TOKENS, a.rows / KV_HEADS, 0, &err));
    *share = (double)cache.account.elements_kept / (double)cache.account.elements_dense;
    assert_true(fabs(*share - a.payload / a.dense) < 1e-12);
    kvd_cache_release(&cache);
    return worst(want, got);
}

TEST(latents_in_blocks_are_those_of_rows)
{
    enum { WIDE = KV_HEADS * D };
    static float a_k[KV_HEADS][WIDE * WIDE], b_k[KV_HEADS][WIDE * D], a_v[KV_HEADS][WIDE * WIDE],
        b_v[KV_HEADS][WIDE * D], before[TOKENS * WIDE];
    kvd_rng r;
    kvd_rng_seed(&r, 5, 1);
    fill(&r, before, TOKENS * WIDE);
    for (int heads = 1; heads <= KV_HEADS; heads++) {
        const int rank_k = heads * D - 5, rank_v = heads * D - 3;
        kvd_dims_head head[KV_HEADS];
        for (int g = 0; g < KV_HEADS; g++) {
            shrink(&r, a_k[g], WIDE * WIDE);
            shrink(&r, a_v[g], WIDE * WIDE);
            shrink(&r, b_k[g], WIDE * D);
            shrink(&r, b_v[g], WIDE * D);
            const int own = heads == 1 ? g : 0;
            head[g] = (kvd_dims_head){rank_k,        rank_v,          .a_k = a_k[own],
                                      .b_k = b_k[g], .a_v = a_v[own], .b_v = b_v[g]};
        }
        const kvd_dims dims = {.n_layers = 1,
                               .n_kv_heads = KV_HEADS,
                               .d_head = D,
                               .rebuild = true,
                               .heads = heads,
                               .head = head};
        for (int i = 0; i < 60; i++) {
            problem *const p = make(windows[i % 2]);
            p->in.k_pre = before;
            p->config.rope_layout = i % 3 == 1 ? KVD_ROPE_INTERLEAVED : KVD_ROPE_HALF;
            p->config.positions = i % 3 == 2 ? KVD_POSITIONS_LEARNED : KVD_POSITIONS_ROPE;
            const kvd_plan plan = {.type = i % 4 == 3 ? KVD_F16 : KVD_F32,
                                   .dims = &dims,
                                   .maker = &kvd_dims_palu,
                                   .prompt = prompts[i / 12]};
            double share;
            assert_true(blocks_against_rows(&plan, p, &share) <
                        (plan.type == KVD_F32 ? 1e-5 : 4e-3));
            assert_true(fabs(share - (double)(rank_k + rank_v) / (2 * heads * D)) < 1e-12);
        }
    }
}

TEST(prompts_in_blocks_are_those_of_rows)
{
    static float a[4][D * D];
    kvd_rng r;
    kvd_rng_seed(&r, 6, 1);
    for (int i = 0; i < 4; i++)
        shrink(&r, a[i], D * D);
    kvd_dims_head heads[KV_HEADS] = {{10, 7, .a_q = a[0], .a_k = a[1], .a_v = a[2], .b_v = a[3]},
                                     {D, 7, .a_v = a[2], .b_v = a[3]}};
    const kvd_dims dims = {.n_layers = 1, .n_kv_heads = KV_HEADS, .d_head = D, .head = heads};
    for (int i = 0; i < 40; i++) {
        const problem *const p = make(windows[i % 2]);
        const kvd_plan plan = {.type = i % 4 > 1 ? KVD_F16 : KVD_F32,
                               .dims = i < 20 ? &dims : NULL,
                               .prompt = prompts[i / 4 % 5]};
        double share;
        assert_true(blocks_against_rows(&plan, p, &share) < (plan.type == KVD_F32 ? 1e-5 : 4e-3));
        if (i >= 20 && plan.type == KVD_F32) {
            dense(p, windows[i % 2], got);
            assert_memory_equal(got, want, sizeof got);
        }
    }
}

/* Gives tokens at odd positions low precision, and leaves the others unchanged. */
static int lower_half(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                      kvd_err *err)
{
    (void)self, (void)state, (void)err;
    for (size_t i = 0; i < a->n; i++)
        if (a->position[i] % 2)
            level[i] = KVD_LEVEL_LOW;
    return 0;
}

TEST(lowered_entries_are_cut)
{
    const problem *p = make(0);
    const kvd_tokens_method method = {.info = {.name = "odd"},
                                      .step = lower_half,
                                      .prompt = keep_prompt,
                                      .state_bytes = no_state};
    kvd_dims_head whole[KV_HEADS] = {{D, D, .a_q = NULL}, {D, D, .a_q = NULL}};
    kvd_dims_head half[KV_HEADS] = {{D / 2, D / 4, .a_q = NULL}, {D / 2, D / 4, .a_q = NULL}};
    const kvd_dims high = {.n_layers = 1, .n_kv_heads = KV_HEADS, .d_head = D, .head = whole},
                   low = {.n_layers = 1, .n_kv_heads = KV_HEADS, .d_head = D, .head = half};
    size_t keep = 1000;
    kvd_stepwise_account a;
    const kvd_plan same = {
        .type = KVD_F32, .tokens = &method, .tokens_self = &keep, .dims = &high, .dims_low = &high};
    dense(p, 0, want);
    run(&same, p, got, &a);
    assert_true(worst(got, want) < 2e-6);
    const kvd_plan cut = {
        .type = KVD_F32, .tokens = &method, .tokens_self = &keep, .dims = &high, .dims_low = &low};
    run(&cut, p, got, &a);
    assert_int_equal(a.lowered, (45 / 2 + LONGEST / 2) * KV_HEADS);
    assert_true(a.payload < a.dense);
    problem *q = make(0);
    for (size_t s = 0; s < 2; s++)
        for (size_t t = offset[s] + 1; t + 1 < offset[s + 1]; t += 2)
            for (size_t g = 0; g < KV_HEADS; g++) {
                memset(q->k + (t * KV_HEADS + g) * D + D / 2, 0, D / 2 * sizeof(float));
                memset(q->v + (t * KV_HEADS + g) * D + D / 4, 0, (D - D / 4) * sizeof(float));
            }
    dense(q, 0, want);
    for (size_t s = 0; s < 2; s++)
        /* Skips tokens at odd positions, because these lose dimensions only after their own
         * attention is computed. */
        for (size_t t = 0; offset[s] + t < offset[s + 1]; t += 2)
            for (size_t i = 0; i < (size_t)HEADS * D; i++)
                assert_true(fabsf(got[(offset[s] + t) * HEADS * D + i] -
                                  want[(offset[s] + t) * HEADS * D + i]) < 2e-6f);
}

TEST(infinite_numbers)
{
    kvd_err err = {""};
    kvd_stepwise_account a = {0};
    problem *const p = make(0);
    kvd_plan plan = {.type = KVD_F16, .prompt = 20, .bits = &kvd_bits_mxfp4};
    p->v[(30 * KV_HEADS + 1) * D + 3] = 1e5f;
    assert_int_equal(kvd_stepwise_heads(&plan, NULL, &p->in, 0, 1, 1, NULL, NULL, got, &a, &err),
                     -1);
    assert_non_null(strstr(err.msg, "'mxfp4' codes finite numbers: dimension 3 of the value at "
                                    "position 30 is inf in a cache of type f16"));
    plan.type = KVD_F32;
    OK(kvd_stepwise_heads(&plan, NULL, &p->in, 0, 1, 1, NULL, NULL, got, &a, &err));
}

TEST_MAIN(NULL, NULL)
