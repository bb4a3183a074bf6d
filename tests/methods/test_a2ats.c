/* Tests the method a2ats, which stores each key as the index of a centroid, against a k-means
 * reference. */
#include "calibration_dump.h"
#include "code_rows.h"
#include "model/pass/blocks.h"

enum { N = 60, LAYER = 1, HEAD = 1, SINK = 3, LOCAL = 7, RELATIVE = 100 };

static void rotate(uint32_t position, float *x)
{
    static float cosine[(RELATIVE + 1) * D / 2], sine[(RELATIVE + 1) * D / 2];
    kvd_rope_tables(&config, false, RELATIVE + 1, RELATIVE + 1, cosine, sine);
    kvd_rope_apply(&config, cosine, sine, &position, 1, 1, x);
}

/* Sets read [N] to 1 for the tokens that the method `text` selects for the last token's query. */
static void choose(const char *text, uint8_t *read)
{
    static float k[N * D], q[KVD_CONFIG_WINDOW_LAYERS * D];
    const int group = config.n_heads / config.n_kv_heads;
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    static uint32_t position[N];
    const kvd_method m = parsed(text);
    void *self = NULL;
    kvd_err err = {""};
    OK(m.plan.tokens->open(&m.plan.tokens_values, &setup, &self, &err));
    head_rows(KVD_X_K_PRE, LAYER, HEAD, N, k);
    for (uint32_t t = 0; t < N; t++) {
        position[t] = t;
        rotate(t, k + t * D);
        read[t] = 1;
    }
    for (int j = 0; j < group; j++) {
        static float rows[N * D];
        head_rows(KVD_X_Q_PRE, LAYER, HEAD * group + j, N, rows);
        memcpy(q + j * D, rows + (N - 1) * D, D * sizeof *q);
        rotate(N - 1, q + j * D);
    }
    const kvd_read_choice c = {.layer = LAYER,
                               .kv_head = HEAD,
                               .group = group,
                               .n = N,
                               .d = D,
                               .position = position,
                               .k = k,
                               .q = q,
                               .ldq = D,
                               .type = KVD_F32};
    void *const state = unit_alloc(m.plan.tokens->state_bytes(self, N));
    assert_int_equal(m.plan.tokens->select(self, state, &c, read, &err), 0);
    assert_true(fabs(m.plan.tokens->select_bits(self, NULL, position, N, D, 32) -
                     N * ceil(log2(m.plan.tokens_values.value[1]))) < 1e-9);
    m.plan.tokens->close(self);
}

/* Sets want [N] to 1 for the tokens that a decode step must read, found with plain loops. The keys
 * [N][D] are without RoPE. */
static void expected(const double *keys, size_t budget, uint8_t *want)
{
    const int group = config.n_heads / config.n_kv_heads;
    for (size_t t = 0; t < N; t++)
        want[t] = t < SINK || t + LOCAL >= N;
    for (int j = 0; j < group; j++) {
        static float rows[N * D];
        double score[N];
        head_rows(KVD_X_Q_PRE, LAYER, HEAD * group + j, N, rows);
        float *const q = rows + (N - 1) * D;
        rotate(RELATIVE, q);
        for (size_t t = 0; t < N; t++) {
            score[t] = 0;
            for (size_t c = 0; c < D; c++)
                score[t] += (double)q[c] * keys[t * D + c];
        }
        for (size_t t = SINK; t + LOCAL < N; t++) {
            size_t better = 0; /* of two equal scores, the later token's counts as better */
            for (size_t i = SINK; i + LOCAL < N; i++)
                better += score[i] > score[t] || (i > t && score[i] >= score[t]);
            want[t] |= better < budget;
        }
    }
}

static void compare(int size, const double *keys)
{
    for (int budget = 1; budget < 40; budget += 4) {
        uint8_t read[N], want[N];
        char text[100];
        snprintf(text, sizeof text, "a2ats,size=%d,rows=60,sink=3,local=7,budget=%d,relative=100",
                 size, budget);
        choose(text, read);
        expected(keys, (size_t)budget, want);
        for (size_t t = 0; t < N; t++)
            if (read[t] != want[t])
                fail_msg("%s, token %zu: %d", text, t, read[t]);
    }
}

TEST(centroids_of_all_keys_are_exact)
{
    static float k[N * D];
    static double keys[N * D];
    head_rows(KVD_X_K_PRE, LAYER, HEAD, N, k);
    for (size_t i = 0; i < (size_t)N * D; i++)
        keys[i] = (double)k[i];
    compare(60, keys);
}

/* The centroids must minimise the sum over keys k of (k - c) H (k - c)^T, with k's centroid c and
 * the queries' second moment H. */
TEST(few_centroids_are_those_of_queries)
{
    enum { SIZE = 6 };
    static float k[N * D], q[N * D];
    static double h[D * D], centroid[SIZE * D], keys[N * D];
    const int group = config.n_heads / config.n_kv_heads;
    size_t code[N] = {0};
    head_rows(KVD_X_K_PRE, LAYER, HEAD, N, k);
    for (int j = 0; j < group; j++) {
        head_rows(KVD_X_Q_PRE, LAYER, HEAD * group + j, N, q);
        for (size_t t = 0; t < N; t++) {
            rotate(RELATIVE, q + t * D);
            for (size_t i = 0; i < D * D; i++)
                h[i] += (double)q[t * D + i / D] * (double)q[t * D + i % D];
        }
    }
    for (size_t m = 0; m < SIZE; m++)
        for (size_t c = 0; c < D; c++)
            centroid[m * D + c] = (double)k[m * N / SIZE * D + c];
    for (int i = 0; i <= 10; i++) {
        for (size_t t = 0; t < N; t++) {
            double least = INFINITY;
            for (size_t m = 0; m < SIZE; m++) {
                double sum = 0;
                for (size_t a = 0; a < D * D; a++)
                    sum += h[a] * ((double)k[t * D + a / D] - centroid[m * D + a / D]) *
                           ((double)k[t * D + a % D] - centroid[m * D + a % D]);
                if (sum < least) {
                    least = sum;
                    code[t] = m;
                }
            }
        }
        for (size_t m = 0; m < SIZE && i < 10; m++) {
            double n = 0, sum[D] = {0};
            for (size_t t = 0; t < N; t++)
                for (size_t c = 0; code[t] == m && c < D; c++) {
                    sum[c] += (double)k[t * D + c];
                    n += c == 0;
                }
            for (size_t c = 0; n > 0 && c < D; c++)
                centroid[m * D + c] = sum[c] / n;
        }
    }
    for (size_t i = 0; i < (size_t)N * D; i++)
        keys[i] = centroid[code[i / D] * D + i % D];
    compare(SIZE, keys);
}

/* For timing without calibration data, the codebook has random centroids, and distances between
 * keys and centroids are not weighted. */
TEST(timing_draws_codebooks)
{
    const kvd_method_setup setup = {.config = &config, .drawn = true, .seed = 3};
    const kvd_method m = parsed("a2ats,size=16");
    kvd_plan plan = m.plan;
    kvd_err err = {""};
    OK(kvd_plan_open(&plan, &setup, &err));
    const kvd_read_codes c = plan.tokens->read_codes(plan.tokens_self);
    const size_t heads = (size_t)(config.n_layers * config.n_kv_heads), n = heads * 16 * D;
    for (size_t i = 0; i < n; i += D) {
        assert_true(fabs(kvd_tokens_length(c.centroid + i, D) - 1) < 1e-5);
        assert_true(!i || kvd_tokens_dot(c.centroid + i, c.centroid, D) < 0.999);
    }
    assert_memory_equal(c.moved, c.centroid, n * sizeof *c.moved);
    for (size_t i = 0; i < heads * D * D; i++)
        assert_int_equal((int)c.factor[i], i / D % D == i % D);
    kvd_plan_close(&plan);
}

TEST(refusals)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump},
                           without = {.config = &config},
                           drawn = {.config = &config, .drawn = true};
    refuse_plan("a2ats,size=61", 4, &setup,
                "size = 61 centroids need as many calibration tokens: there are 60");
    refuse_plan("a2ats,size=8,budget=0", 4, &setup, "budget = 0 keeps nothing");
    refuse_plan("a2ats", 4, &without, "'a2ats' needs activations of calibration text");
    refuse_plan("a2ats+kivi", 4, &drawn, "'a2ats' needs activations of calibration text");
}

TEST_MAIN_WITH_DUMP(N)
