/* Tests mean attention scores of tokens, and the choice of unimportant tokens, against numbers
 * computed by hand. */

#include "analysis/tokens.h"
#include "collect/sums.h"
#include "unit.h"

enum { N = 4, HEADS = 2, LAYERS = 2 };

/* The score of query i and key j, summed over heads, is (q[i][0] + q[i][1]) * k[j]. Layer 0:
 * q[i][0] + q[i][1] = 1 3 0 1, k = 1 -1 2 0. Layer 1: 4 3 2 1 and 1 1 1 9. */
static const float q[LAYERS][N][HEADS] = {{{1, 0}, {2, 1}, {-1, 1}, {3, -2}},
                                          {{4, 0}, {1, 2}, {1, 1}, {0.5F, 0.5F}}};
static const float k[LAYERS][N] = {{1, -1, 2, 0}, {1, 1, 1, 9}};
static const float v[N] = {1, 2, 3, 4};

static const kvd_config config = {
    .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = 1, .d_head = 1, .d_model = HEADS};

static void record(kvd_attention_stats *s, size_t window)
{
    static const size_t offset[2] = {0, N};
    kvd_err err;
    kvd_tally t;
    *s = (kvd_attention_stats){.model = {.name = "by hand",
                                         .n_layers = LAYERS,
                                         .n_heads = HEADS,
                                         .n_kv_heads = 1,
                                         .d_head = 1},
                               .n_tokens = N,
                               .n_requests = 1,
                               .seq_len = N,
                               .n_layers = LAYERS,
                               .n_kept = 1};
    OK(kvd_attention_stats_alloc(s, &err));
    OK(kvd_tally_init(&t, s, 1, &err));
    for (int l = 0; l < LAYERS; l++) {
        const kvd_attention_in in = {.config = &config,
                                     .layer = l,
                                     .n_sequences = 1,
                                     .offset = offset,
                                     .n_tokens = N,
                                     .q = &q[l][0][0],
                                     .k = k[l],
                                     .v = v,
                                     .window = window};
        OK(kvd_tally_record(&t, &in, &err));
    }
    kvd_tally_release(&t);
}

static void same(const kvd_attention_stats *s, kvd_a field, int layer, const double want[N])
{
    for (size_t j = 0; j < N; j++)
        assert_float_equal(kvd_attention_stats_kept(s, field, 0, layer)[j].x, want[j], 1e-15);
}

/* With 4 tokens under the causal mask, the mean score of query i is taken over i + 1 keys. The mean
 * score of key j is taken over 4 - j queries. */
TEST(test_mean_scores)
{
    kvd_attention_stats s;
    record(&s, 0);
    same(&s, KVD_A_KEPT_QUERY_SCORE, 0, (const double[]){0.5, 0, 0, 0.25});
    same(&s, KVD_A_KEPT_KEY_SCORE, 0, (const double[]){0.625, -2.0 / 3, 0.5, 0});
    same(&s, KVD_A_KEPT_QUERY_SCORE, 1, (const double[]){2, 1.5, 1, 1.5});
    same(&s, KVD_A_KEPT_KEY_SCORE, 1, (const double[]){1.25, 1, 0.75, 4.5});
    kvd_attention_stats_release(&s);
}

TEST(test_window)
{
    kvd_attention_stats s;
    record(&s, 2);
    same(&s, KVD_A_KEPT_QUERY_SCORE, 0, (const double[]){0.5, 0, 0, 0.5});
    same(&s, KVD_A_KEPT_KEY_SCORE, 0, (const double[]){1, -0.75, 0.5, 0});
    kvd_attention_stats_release(&s);
}

/* Tests how many unimportant tokens two layers have in common: all if tokens are ranked by their
 * queries' scores, half if by their keys' scores. */
TEST(test_sets)
{
    static const struct {
        kvd_ranking by;
        double low, high;
    } want[] = {{KVD_RANK_SCORE, 1, 1}, {KVD_RANK_SCORE_AS_KEY, 0.5, 0.5}};
    kvd_err err;
    kvd_attention_stats s;
    kvd_tokens t;
    record(&s, 0);
    OK(kvd_tokens_study(&s, 0.5, 0.95, &t, &err));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_float_equal(kvd_tokens_at_distance(&t, KVD_T_UNIMPORTANT, want[i].by, 1).mean,
                           want[i].low, 1e-15);
        assert_float_equal(kvd_tokens_at_distance(&t, KVD_T_IMPORTANT, want[i].by, 1).mean,
                           want[i].high, 1e-15);
    }
    assert_true(t.data[KVD_T_GROUP][KVD_RANK_SCORE * LAYERS + 1] < 0.5);
    assert_true(t.data[KVD_T_GROUP][KVD_RANK_SCORE_AS_KEY * LAYERS + 1] > 0.5);
    kvd_tokens_release(&t);
    kvd_attention_stats_release(&s);
}

TEST_MAIN(NULL, NULL)
