/* Tests methods that change K and V one token at a time. Compares their attention outputs with
 * dense attention. */
#include "common/linalg.h"
#include "stepwise_case.h"

TEST(coded_entries)
{
    const problem *p = make(0);
    kvd_stepwise_account a;
    dense(p, 0, want);
    const kvd_bits_method *const methods[] = {&kvd_bits_kivi, &kvd_bits_hetero};
    const kvd_parameter_values values[] = {{.value = {8, 8, 16}}, {.value = {8, 8, 8, 8}}};
    for (size_t m = 0; m < 2; m++)
        for (size_t prompt = 0; prompt < 60; prompt += 30) {
            kvd_plan plan = {
                .type = KVD_F16, .bits = methods[m], .bits_values = values[m], .prompt = prompt};
            const kvd_method_setup setup = {.config = &p->config};
            kvd_err err = {""};
            assert_int_equal(kvd_plan_open(&plan, &setup, &err), 0);
            run(&plan, p, got, &a);
            const double e = worst(got, want);
            assert_true(e > 1e-6 && e < 0.05);
            assert_true(a.coded > 0 && a.side > 0);
            /* The second method is hetero, which stores 8 bits per number and 32 bits of scales per
             * vector. */
            if (m)
                assert_true(fabs((a.payload + a.side) / a.dense - (8.0 + 32.0 / D) / 16) < 1e-12);
            kvd_plan_close(&plan);
        }
}

/* Makes a quantisation method quantise every token separately when it arrives. *newest: number of
 * newest tokens left unquantised. *block: number of tokens quantised together. */
static void all_newest(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)v, (void)side;
    *newest = 0;
    *block = 1;
}
static int check_rows(const void *self, const kvd_bits_block *b, float *decoded,
                      kvd_bits_count *count, kvd_err *err)
{
    const problem *const p = self;
    (void)err;
    assert_true(b->d == KV_HEADS * D && b->kv_head == 0);
    for (size_t i = 0; i < b->n; i++) {
        const float *const rows = b->side == KVD_KEYS ? p->k : p->v, *const x = b->x + i * b->d;
        assert_true(!memcmp(x, rows + b->position[i] * b->d, b->d * sizeof *x) ||
                    !memcmp(x, rows + (offset[1] + b->position[i]) * b->d, b->d * sizeof *x));
    }
    memcpy(decoded, b->x, b->n * b->d * sizeof *decoded);
    *count = (kvd_bits_count){(double)(b->n * b->d), 2.0 * (double)b->n};
    return 0;
}

TEST(codes_of_all_heads)
{
    const kvd_bits_method method = {
        .info = {.name = "rows"}, .all_heads = true, .window = all_newest, .code = check_rows};
    const problem *p = make(0);
    kvd_stepwise_account a;
    dense(p, 0, want);
    for (size_t prompt = 0; prompt < 60; prompt += 30) {
        const kvd_plan plan = {
            .type = KVD_F32, .prompt = prompt, .bits = &method, .bits_self = (void *)(uintptr_t)p};
        run(&plan, p, got, &a);
        assert_true(worst(got, want) < 2e-6);
        assert_true(fabs(a.payload - a.dense / 32) < 1e-9 * a.dense);
        assert_true(fabs(a.side - a.dense / 32 * 2 / (KV_HEADS * D)) < 1e-9 * a.dense);
    }
}

/* BLOCK: number of keys that are quantised together. NEWEST: number of newest values that are not
 * quantised. */
enum { BLOCK = 8, NEWEST = 3 };
static void block_newest(const kvd_parameter_values *v, kvd_side side, size_t *newest,
                         size_t *block)
{
    (void)v;
    *newest = side == KVD_KEYS ? 0 : NEWEST;
    *block = side == KVD_KEYS ? BLOCK : 1;
}
/* Quantiser for tests: leaves the numbers unchanged, but counts 1 bit for each number. */
static int check_blocks(const void *self, const kvd_bits_block *b, float *decoded,
                        kvd_bits_count *count, kvd_err *err)
{
    (void)self, (void)err;
    assert_true(b->side == KVD_VALUES || (b->position[0] % BLOCK == 0 && b->n % BLOCK == 0));
    memcpy(decoded, b->x, b->n * b->d * sizeof *decoded);
    *count = (kvd_bits_count){(double)(b->n * b->d), 0};
    return 0;
}

TEST(blocks_of_codes_in_a_window)
{
    enum { WINDOW = 13 };
    const size_t prompts[] = {0, 20, 41};
    const kvd_bits_method method = {
        .info = {.name = "blocks"}, .window = block_newest, .code = check_blocks};
    const problem *p = make(WINDOW);
    kvd_stepwise_account a;
    dense(p, WINDOW, want);
    for (size_t i = 0; i < 3; i++) {
        const kvd_plan plan = {.type = KVD_F32, .prompt = prompts[i], .bits = &method};
        double bits = 0;
        run(&plan, p, got, &a);
        assert_true(worst(got, want) < 2e-6);
        for (size_t s = 0; s < 2; s++)
            for (size_t n = prompts[i] + 1; n <= offset[s + 1] - offset[s]; n++) {
                const size_t first = n > WINDOW ? (n - WINDOW) / BLOCK * BLOCK : 0,
                             keys = n / BLOCK * BLOCK - first,
                             values = n > NEWEST + first ? n - NEWEST - first : 0;
                bits += (double)(KV_HEADS * D * (2 * 32 * (n - first) - 31 * (keys + values)));
            }
        assert_true(a.payload == bits);
    }
}

/* Gives all prompt tokens low precision. */
static int low_prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                      kvd_err *err)
{
    (void)self, (void)state, (void)err;
    memset(level, KVD_LEVEL_LOW, p->n);
    return 0;
}

TEST(balanced_channels)
{
    const kvd_parameter none[] = {{.key = NULL}};
    const kvd_tokens_method method = {
        .info = {.name = "low", .parameter = none}, .prompt = low_prompt, .state_bytes = no_state};
    problem *p = make(0);
    const kvd_method_setup setup = {.config = &p->config};
    double error[2], side[2];
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t g = 0; g < KV_HEADS; g++)
            p->k[(t * KV_HEADS + g) * D + 5] *= 40;
        for (size_t h = 0; h < HEADS; h++)
            p->q[(t * HEADS + h) * D + 5] /= 40;
    }
    dense(p, 0, want);
    for (int balance = 0; balance < 2; balance++) {
        kvd_stepwise_account a;
        kvd_err err = {""};
        kvd_plan plan = {.type = KVD_F16,
                         .prompt = 40,
                         .tokens = &method,
                         .bits = &kvd_bits_hetero,
                         .bits_values = {.value = {16, 16, 3, 16, balance}}};
        assert_int_equal(kvd_plan_open(&plan, &setup, &err), 0);
        run(&plan, p, got, &a);
        error[balance] = 0;
        for (size_t i = 0; i < (size_t)TOKENS * HEADS * D; i++)
            error[balance] += pow((double)got[i] - (double)want[i], 2);
        side[balance] = a.side / (double)a.rows;
        kvd_plan_close(&plan);
    }
    assert_true(error[1] < 0.25 * error[0]);
    assert_true(fabs(side[1] - side[0] - 16 * D) < 1e-9);
}

/* Tests that bits are counted per token: 8 bits per number for `heavy` and `recent` tokens, 2 bits
 * for other tokens. */
TEST(levels_count_their_own_bits)
{
    enum { PROMPT = 20, HIGH = 3 + 5 };
    const problem *p = make(0);
    const kvd_method_setup setup = {.config = &p->config};
    kvd_stepwise_account a;
    kvd_plan plan;
    double payload = 0, side = 0;
    open_plan(&plan, "lower+hetero,k=8,v=8,lk=2,lv=2,heavy=3,recent=5", PROMPT, &setup);
    run(&plan, p, got, &a);
    for (size_t s = 0; s < 2; s++)
        for (size_t n = PROMPT + 1; n <= offset[s + 1] - offset[s]; n++) {
            payload += KV_HEADS * 2 * D * (8.0 * HIGH + 2.0 * (double)(n - HIGH));
            side += KV_HEADS * 2 * 32.0 * (double)n;
        }
    assert_float_equal(a.payload, payload, 1e-6);
    assert_float_equal(a.side, side, 1e-6);
    kvd_plan_close(&plan);
}

/* The method think prunes the key channels i with the smallest |Q_i| |K_i|, summed over the query
 * heads that share the KV head. */
TEST(pruned_channels)
{
    enum { PROMPT = 30, WINDOW = 8, PRUNED = 6 };
    problem *p = make(0);
    kvd_plan plan = {.type = KVD_F32,
                     .prompt = PROMPT,
                     .channels = &kvd_channels_think,
                     .channels_values = {.value = {0.4, WINDOW}}};
    kvd_stepwise_account a;
    static float whole[TOKENS * HEADS * D];
    double payload = 0;
    run(&plan, p, got, &a);
    dense(p, 0, whole);
    for (size_t s = 0; s < 2; s++) {
        for (size_t g = 0; g < KV_HEADS; g++) {
            double score[D];
            for (size_t i = 0; i < D; i++) {
                double k2 = 0, q = 0;
                for (size_t t = 0; t < PROMPT; t++)
                    k2 += pow((double)p->k[((offset[s] + t) * KV_HEADS + g) * D + i], 2);
                for (size_t h = 2 * g; h < 2 * g + 2; h++) {
                    double q2 = 0;
                    for (size_t t = PROMPT - WINDOW; t < PROMPT; t++)
                        q2 += pow((double)p->q[((offset[s] + t) * HEADS + h) * D + i], 2);
                    q += sqrt(q2);
                }
                score[i] = q * sqrt(k2);
            }
            for (size_t i = 0; i < D; i++) {
                size_t smaller = 0;
                for (size_t j = 0; j < D; j++)
                    smaller += score[j] < score[i];
                for (size_t t = 0; smaller < PRUNED && t < PROMPT - WINDOW; t++)
                    p->k[((offset[s] + t) * KV_HEADS + g) * D + i] = 0;
            }
        }
        for (size_t t = offset[s] + PROMPT; t < offset[s + 1]; t++)
            payload += 32.0 * KV_HEADS *
                       (double)(2 * D * (t + 1 - offset[s]) - PRUNED * (PROMPT - WINDOW));
    }
    dense(p, 0, want);
    for (size_t s = 0; s < 2; s++)
        memcpy(want + offset[s] * HEADS * D, whole + offset[s] * HEADS * D,
               (size_t)PROMPT * HEADS * D * sizeof *want);
    assert_true(worst(got, want) < 2e-6);
    assert_true(a.payload == payload && a.side == (double)a.rows * D);
    assert_int_equal(a.pruned, 2 * KV_HEADS * (PROMPT - WINDOW));

    const kvd_method_setup setup = {.config = &p->config};
    kvd_err err = {""};
    plan.bits = &kvd_bits_hetero;
    plan.bits_values = (kvd_parameter_values){.value = {8, 8, 8, 8}};
    p = make(0);
    assert_int_equal(kvd_plan_open(&plan, &setup, &err), 0);
    run(&plan, p, got, &a);
    assert_true(fabs(a.payload - payload / 4) < 1e-6 * payload);
    assert_true(worst(got, want) < 0.05);
    kvd_plan_close(&plan);
}

/* Projects the K or V of one head, `from`, onto the first `width` right singular vectors of the K
 * or V of its prompt tokens. */
static void project_all(const float *from, size_t s, size_t g, size_t prompt, size_t width,
                        float *x)
{
    double rows[LONGEST * D] = {0}, R[D * D], sigma[D];
    kvd_err err = {""};
    const size_t n = offset[s + 1] - offset[s];
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < D; i++)
            rows[t * D + i] = (double)from[((offset[s] + t) * KV_HEADS + g) * D + i];
    assert_int_equal(kvd_svd_right(rows, prompt, D, sigma, R, &err), 0);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < D; i++) {
            double sum = 0;
            for (size_t j = 0; j < width; j++)
                for (size_t k = 0; k < D; k++)
                    sum += rows[t * D + k] * R[k * D + j] * R[i * D + j];
            x[((offset[s] + t) * KV_HEADS + g) * D + i] = (float)sum;
        }
}

TEST(projected_requests)
{
    enum { PROMPT = 30, WIDTH = 12 };
    problem *p = make(0);
    const kvd_plan plan = {.type = KVD_F32,
                           .prompt = PROMPT,
                           .channels = &kvd_channels_strawman,
                           .channels_values = {.value = {0.25}}};
    static float whole[TOKENS * HEADS * D], k[TOKENS * KV_HEADS * D], v[TOKENS * KV_HEADS * D];
    kvd_stepwise_account a;
    run(&plan, p, got, &a);
    dense(p, 0, whole);
    double payload = 0;
    for (size_t s = 0; s < 2; s++) {
        for (size_t g = 0; g < KV_HEADS; g++) {
            project_all(p->k, s, g, PROMPT, WIDTH, k);
            project_all(p->v, s, g, PROMPT, WIDTH, v);
        }
        for (size_t t = offset[s] + PROMPT; t < offset[s + 1]; t++)
            payload += 32.0 * KV_HEADS * 2 * WIDTH * (double)(t + 1 - offset[s]);
    }
    memcpy(p->k, k, sizeof k);
    memcpy(p->v, v, sizeof v);
    dense(p, 0, want);
    for (size_t s = 0; s < 2; s++)
        memcpy(want + offset[s] * HEADS * D, whole + offset[s] * HEADS * D,
               (size_t)PROMPT * HEADS * D * sizeof *want);
    assert_true(worst(got, want) < 1e-5);
    assert_true(a.payload == payload && a.side == (double)a.rows * 32 * 2 * D * WIDTH);

    kvd_plan coded = plan;
    const kvd_method_setup setup = {.config = &p->config};
    kvd_err err = {""};
    coded.bits = &kvd_bits_hetero;
    assert_int_not_equal(kvd_plan_open(&coded, &setup, &err), 0);
    assert_non_null(strstr(err.msg, "cannot be combined with a method of the bits axis"));
}

TEST_MAIN(NULL, NULL)
