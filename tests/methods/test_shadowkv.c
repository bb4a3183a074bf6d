/* Tests the method shadowkv, which stores low-rank keys and reads in a step only chunks with large
 * scores. The test model has no RoPE. */
#include "code_rows.h"
#include "common/rng.h"

enum { N = 96, PROMPT = 70, STEPS = 1 + N - PROMPT, HEADS = 4, KV = 2, D = 16, RANK = 12 };
enum { CHUNK = 4, OUTLIERS = 3, LOCAL = 2, CHUNKS = PROMPT / CHUNK - LOCAL, READ = 5 };

static const kvd_config config = {.n_layers = 1,
                                  .n_heads = HEADS,
                                  .n_kv_heads = KV,
                                  .d_head = D,
                                  .max_positions = 256,
                                  .positions = KVD_POSITIONS_LEARNED};
static float q[N * HEADS * D], k[N * KV * D], v[N * KV * D], out[N * HEADS * D],
    want[N * HEADS * D];
static uint8_t kept[KV * STEPS * N];

/* Makes keys [tokens][all heads] of rank RANK. Keys of neighbouring tokens are correlated. */
static int set_up(void **state)
{
    static double left[N * RANK], right[RANK * KV * D];
    kvd_rng r;
    (void)state;
    kvd_rng_seed(&r, 5, 1);
    for (size_t i = 0; i < (size_t)N * RANK; i++)
        left[i] = kvd_rng_normal(&r) + (i >= RANK ? 0.7 * left[i - RANK] : 0);
    for (size_t i = 0; i < (size_t)RANK * KV * D; i++)
        right[i] = kvd_rng_normal(&r) / 3;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < (size_t)KV * D; j++) {
            double sum = 0;
            for (size_t c = 0; c < RANK; c++)
                sum += left[i * RANK + c] * right[c * KV * D + j];
            k[i * KV * D + j] = (float)sum;
            v[i * KV * D + j] = (float)kvd_rng_normal(&r);
        }
    for (size_t i = 0; i < (size_t)N * HEADS * D; i++)
        q[i] = (float)kvd_rng_normal(&r);
    return 0;
}

static kvd_stepwise_account run(const char *text)
{
    static const size_t offset[] = {0, N};
    const kvd_attention_in in = {.config = &config,
                                 .n_sequences = 1,
                                 .offset = offset,
                                 .n_tokens = N,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .k_pre = k};
    return kept_tokens(text, &in, PROMPT, kept, out);
}

/* Computes the mean key of each chunk of tokens. outlier[c] is true for chunks whose keys are far
 * from the mean; these chunks are always read. */
static void find_chunks(size_t g, double mean[CHUNKS][D], bool outlier[CHUNKS])
{
    double least[CHUNKS];
    for (size_t c = 0; c < CHUNKS; c++) {
        double length = 0;
        least[c] = 1;
        outlier[c] = false;
        for (size_t j = 0; j < D; j++) {
            mean[c][j] = 0;
            for (size_t i = 0; i < CHUNK; i++)
                mean[c][j] += (double)k[((c * CHUNK + i) * KV + g) * D + j] / CHUNK;
            length += mean[c][j] * mean[c][j];
        }
        for (size_t i = 0; i < CHUNK; i++) {
            double dot = 0, own = 0;
            for (size_t j = 0; j < D; j++) {
                const double x = (double)k[((c * CHUNK + i) * KV + g) * D + j];
                dot += x * mean[c][j];
                own += x * x;
            }
            least[c] = fmin(least[c], dot / sqrt(own * length));
        }
    }
    for (size_t n = 0; n < OUTLIERS; n++) {
        size_t worst = CHUNKS;
        for (size_t c = 0; c < CHUNKS; c++)
            if (!outlier[c] && (worst == CHUNKS || least[c] < least[worst]))
                worst = c;
        outlier[worst] = true;
    }
}

static void prefer(size_t g, size_t t, double mean[CHUNKS][D], const bool outlier[CHUNKS],
                   bool chosen[CHUNKS])
{
    double score[CHUNKS] = {0};
    for (size_t h = g * HEADS / KV; h < (g + 1) * HEADS / KV; h++) {
        double weight[CHUNKS], sum = 0;
        for (size_t c = 0; c < CHUNKS; c++) {
            double dot = 0;
            for (size_t j = 0; j < D; j++)
                dot += (double)q[(t * HEADS + h) * D + j] * mean[c][j];
            /* softmax weight of a chunk of tokens; 0 for chunks that every step reads, called
             * outliers */
            sum += weight[c] = outlier[c] ? 0 : exp(dot / 4);
        }
        for (size_t c = 0; c < CHUNKS; c++)
            score[c] = fmax(score[c], weight[c] / sum);
    }
    memset(chosen, 0, CHUNKS * sizeof *chosen);
    for (size_t n = 0; n < READ; n++) {
        size_t best = CHUNKS;
        for (size_t c = 0; c < CHUNKS; c++)
            if (!outlier[c] && !chosen[c] && (best == CHUNKS || score[c] > score[best]))
                best = c;
        chosen[best] = true;
    }
}

TEST(steps_read_the_chunks_of_the_definition)
{
    const kvd_stepwise_account a = run("shadowkv,chunk=4,outliers=3,local=2,budget=20,rank=12");
    double read = 0, stored = 0;
    const double number = 32, low = RANK * number / KV + D * number, full = 2 * D * number,
                 landmarks = (CHUNKS - OUTLIERS) * D * number, basis = RANK * D * number;
    for (size_t g = 0; g < KV; g++) {
        double mean[CHUNKS][D];
        bool outlier[CHUNKS], chosen[CHUNKS];
        find_chunks(g, mean, outlier);
        for (size_t t = PROMPT; t < N; t++) {
            prefer(g, t, mean, outlier, chosen);
            for (size_t i = 0; i < N; i++) {
                const bool cut = i / CHUNK < CHUNKS && !outlier[i / CHUNK],
                           wanted = i <= t && (!cut || chosen[i / CHUNK]);
                if (kept[(g * STEPS + t + 1 - PROMPT) * N + i] != wanted)
                    fail_msg("KV head %zu, row %zu, token %zu: %d", g, t, i, !wanted);
                stored += i <= t ? cut ? low : full : 0;
                read += wanted ? cut ? low : full : 0;
            }
            read += landmarks + basis;
        }
    }
    const double rows = KV * (double)(N - PROMPT);
    assert_true(fabs(a.payload - stored) < 1e-6 * stored);
    assert_true(fabs(a.side - rows * basis) < 1);
    assert_true(fabs(a.entries - rows * landmarks) < 1);
    assert_true(fabs(a.read - read) < 1e-6 * read);
    assert_true(a.unread > 0 && a.dropped == 0);
}

static double difference(const char *text, size_t *unread)
{
    double most = 0;
    *unread = run(text).unread;
    for (size_t i = 0; i < (size_t)N * HEADS * D; i++)
        most = fmax(most, fabs((double)out[i] - (double)want[i]));
    return most;
}

TEST(whole_budget_and_rank_are_the_model)
{
    size_t unread;
    run("h2o,heavy=96,recent=96");
    memcpy(want, out, sizeof want);
    assert_true(difference("shadowkv,budget=96,rank=12,outliers=0,local=0", &unread) < 2e-5);
    assert_int_equal(unread, 0);
    assert_true(difference("shadowkv,budget=96,outliers=0,local=0", &unread) < 2e-5);
    assert_true(difference("shadowkv,budget=96,rank=6,outliers=0,local=0", &unread) > 1e-2);
    assert_int_equal(unread, 0);
    assert_true(difference("shadowkv,budget=96,rank=1", &unread) < 2e-6);
}

TEST(refusals)
{
    static const char *const text[] = {"shadowkv+kivi", "shadowkv+minicache", "shadowkv+think"};
    const kvd_method_setup setup = {.config = &config};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        refuse_plan(text[i], PROMPT, &setup, "'shadowkv' stores the keys of a prompt in low rank");
}

TEST_MAIN(set_up, NULL)
