/* Compares eviction methods with simple reference loops, for random attention probabilities. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "methods/tokens/tokens.h"
#include "unit.h"

enum { GROUP = 2, PROMPT = 40, STEPS = 80, ALL = PROMPT + STEPS };

/* row[t][j][i]: attention probability that query t of head j gives to token i <= t if no token is
 * dropped */
static float row[ALL][GROUP][ALL];
static double mass[ALL], own[ALL], below[ALL], recent[GROUP * PROMPT], score_mass[ALL],
    denominator[ALL];

static void make_rows(void)
{
    kvd_rng r;
    kvd_rng_seed(&r, 5, 1);
    memset(mass, 0, sizeof mass);
    memset(own, 0, sizeof own);
    memset(recent, 0, sizeof recent);
    memset(below, 0, sizeof below);
    for (size_t t = 0; t < ALL; t++)
        for (size_t j = 0; j < GROUP; j++) {
            double sum = 0;
            for (size_t i = 0; i <= t; i++)
                sum += (double)(row[t][j][i] = (float)exp(1.5 * kvd_rng_normal(&r)));
            for (size_t i = 0; i <= t; i++) {
                row[t][j][i] = (float)((double)row[t][j][i] / sum);
                if (t < PROMPT)
                    mass[i] += (double)row[t][j][i];
            }
            own[t] += (double)row[t][j][t];
        }
}

typedef struct {
    const kvd_tokens_method *m;
    void *self, *state;
    size_t n;
    uint32_t position[ALL];
    uint8_t level[ALL];
    float prob[GROUP * ALL], score[GROUP * ALL];
} simulation;

static void apply(simulation *s, const uint8_t *decision, size_t n)
{
    size_t kept[ALL], m = 0;
    for (size_t i = 0; i < n; i++)
        if (decision[i] != KVD_LEVEL_DROPPED) {
            kept[m] = i;
            s->position[m] = s->position[i];
            s->level[m++] = decision[i];
        }
    if (m < n && s->m->forget)
        s->m->forget(s->self, s->state, kept, m);
    s->n = m;
}

static void start(simulation *s, const kvd_tokens_method *m, const kvd_parameter_values *v,
                  size_t prompt)
{
    kvd_err err = {""};
    const kvd_method_setup setup = {.seed = 3};
    uint8_t level[PROMPT];
    memset(s, 0, sizeof *s);
    s->m = m;
    assert_int_equal(kvd_tokens_open(m, v, &setup, &s->self, &err), 0);
    s->state = calloc((m->state_bytes ? m->state_bytes(s->self, ALL) : 0) + 1, 1);
    for (size_t t = 0; t < prompt; t++)
        s->position[t] = (uint32_t)t;
    memset(level, KVD_LEVEL_HIGH, sizeof level);
    const kvd_prompt_attention p = {.group = GROUP,
                                    .n = prompt,
                                    .n_expected = ALL,
                                    .mass = mass,
                                    .own = own,
                                    .window = m->window ? m->window(v) : 0,
                                    .recent = recent,
                                    .below = below,
                                    .score_mass = score_mass,
                                    .log_denominator = denominator};
    if (prompt) {
        OK(m->prompt(s->self, s->state, &p, level, &err));
        apply(s, level, prompt);
    }
}

/* amount added to the attention probability that a new token gives to itself */
static float more_own;

static void go(simulation *s, size_t t, size_t prompt)
{
    kvd_err err = {""};
    uint8_t level[ALL];
    s->position[s->n] = (uint32_t)t;
    s->level[s->n++] = KVD_LEVEL_HIGH;
    for (size_t j = 0; j < GROUP; j++) {
        double sum = 0;
        for (size_t i = 0; i < s->n; i++)
            sum += (double)row[t][j][s->position[i]];
        for (size_t i = 0; i < s->n; i++) {
            s->prob[j * s->n + i] = (float)((double)row[t][j][s->position[i]] / sum);
            s->score[j * s->n + i] = logf(row[t][j][s->position[i]]);
        }
        s->prob[j * s->n + s->n - 1] += more_own;
    }
    const kvd_step_attention a = {.group = GROUP,
                                  .n = s->n,
                                  .position = s->position,
                                  .prob = s->prob,
                                  .score = s->score,
                                  .now = t,
                                  .prompt = prompt,
                                  .n_expected = ALL};
    memcpy(level, s->level, s->n);
    OK(s->m->step && s->m->step(s->self, s->state, &a, level, &err));
    apply(s, level, s->n);
}

static void end(simulation *s)
{
    free(s->state);
    kvd_tokens_close(s->m, s->self);
}

TEST(h2o)
{
    const kvd_parameter_values v = {.value = {6, 5}, .method = &kvd_tokens_h2o.info};
    for (size_t prompt = 0; prompt <= PROMPT; prompt += PROMPT) {
        simulation s;
        double sum[ALL] = {0};
        char alive[ALL] = {0};
        size_t n = 0;
        start(&s, &kvd_tokens_h2o, &v, prompt);
        for (size_t t = 0; t < prompt; t++) {
            sum[t] = mass[t];
            alive[t] = 1;
            n++;
        }
        for (size_t t = prompt; t < ALL + 1; t++) {
            /* Drops the tokens that the method h2o drops, until its budget of 11 tokens is
             * reached. */
            for (; n > 11; n--) {
                size_t worst = ALL, newest = 0;
                for (size_t i = ALL; i-- > 0;)
                    if (alive[i] && newest++ >= 5 && (worst == ALL || sum[i] <= sum[worst]))
                        worst = i;
                if (worst == ALL)
                    fail_msg("nothing is left to drop");
                else
                    alive[worst] = 0;
            }
            size_t at = 0;
            for (size_t i = 0; i < ALL; i++)
                if (alive[i])
                    assert_int_equal(s.position[at++], i);
            assert_int_equal(at, s.n);
            if (t == ALL)
                break;
            go(&s, t, prompt);
            alive[t] = 1;
            n++;
            for (size_t j = 0; j < GROUP; j++) {
                double total = 0;
                for (size_t i = 0; i <= t; i++)
                    total += alive[i] ? (double)row[t][j][i] : 0;
                for (size_t i = 0; i <= t; i++)
                    sum[i] += alive[i] ? (double)(float)((double)row[t][j][i] / total) : 0;
            }
        }
        end(&s);
    }
}

TEST(keyformer)
{
    const kvd_parameter_values v = {.value = {6, 5, 1, 2}, .method = &kvd_tokens_keyformer.info};
    simulation a, b;
    start(&a, &kvd_tokens_keyformer, &v, 0);
    start(&b, &kvd_tokens_keyformer, &v, 0);
    for (size_t t = 0; t < ALL; t++) {
        go(&a, t, 0);
        go(&b, t, 0);
        assert_int_equal(a.n, t < 11 ? t + 1 : 11);
        assert_memory_equal(a.position, b.position, a.n * sizeof *a.position);
        assert_int_equal(a.position[a.n - 1], t);
    }
    end(&a);
    end(&b);
    /* Gumbel noise has mean 0.5772 and variance pi^2 / 6; the samples must agree. */
    double sum = 0, square = 0;
    enum { DRAWS = 100000 };
    for (uint32_t i = 0; i < DRAWS; i++) {
        const double x = kvd_tokens_keyformer.regularise(&v, 1, 2, 3, i, 0, 0);
        sum += x;
        square += x * x;
        assert_true(fabs(kvd_tokens_keyformer.regularise(&v, 1, 2, 3, i, 0, 1) - x / 2) < 1e-12);
    }
    assert_true(fabs(sum / DRAWS - 0.5772) < 0.02);
    assert_true(fabs(square / DRAWS - sum / DRAWS * (sum / DRAWS) - 1.6449) < 0.05);
}

TEST(snapkv)
{
    const kvd_parameter_values v = {.value = {9, 8, 5}, .method = &kvd_tokens_snapkv.info};
    simulation s;
    for (size_t j = 0; j < GROUP; j++)
        for (size_t i = 0; i < PROMPT; i++)
            recent[j * PROMPT + i] = (double)row[PROMPT - 1][j][i];
    start(&s, &kvd_tokens_snapkv, &v, PROMPT);
    assert_int_equal(s.n, 9 + 8);
    double smooth[PROMPT - 8], least = INFINITY, most = -INFINITY;
    for (int t = 0; t < PROMPT - 8; t++) {
        smooth[t] = 0;
        for (int i = t - 2; i <= t + 2; i++)
            if (i >= 0 && i < PROMPT - 8)
                smooth[t] += recent[i] + recent[PROMPT + i];
    }
    for (size_t t = 0, at = 0; t < PROMPT - 8; t++)
        if (at < s.n && s.position[at] == t) {
            least = fmin(least, smooth[t]);
            at++;
        } else {
            most = fmax(most, smooth[t]);
        }
    assert_true(most <= least);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(s.position[9 + i], PROMPT - 8 + i);
    go(&s, PROMPT, PROMPT);
    assert_int_equal(s.n, 18);
    end(&s);
    memset(recent, 0, sizeof recent);
}

TEST(scissorhands)
{
    const kvd_parameter_values v = {.value = {20, 4, 8, 3},
                                    .method = &kvd_tokens_scissorhands.info};
    simulation s;
    start(&s, &kvd_tokens_scissorhands, &v, 0);
    size_t before = 0;
    for (size_t t = 0; t < ALL; t++) {
        go(&s, t, 0);
        assert_int_equal(s.n, before + 1 > 20 ? 18 : before + 1);
        before = s.n;
        for (size_t i = 0; i < 4 && i <= t; i++)
            assert_int_equal(s.position[s.n - 1 - i], t - i);
    }
    end(&s);
}

static size_t count(const simulation *s, uint8_t level)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->level[i] == level;
    return n;
}

TEST(leankv)
{
    const double th[] = {0, 0.05, 0.2, 0.5, 1}, tl[] = {0, 0.01, 0.2, 1};
    for (size_t h = 0; h < 5; h++)
        for (size_t l = 0; l < 4 && tl[l] <= th[h]; l++) {
            const kvd_parameter_values v = {.value = {th[h], tl[l], 10}};
            simulation s;
            start(&s, &kvd_tokens_leankv, &v, PROMPT);
            /* total: attention that all tokens receive. dropped: attention that dropped tokens
             * receive. lowered: attention that dropped and low-precision tokens receive. */
            double total = 0, dropped = 0, lowered = 0, least_kept = INFINITY,
                   least_high = INFINITY;
            uint8_t level[PROMPT] = {0};
            for (size_t i = 0; i < s.n; i++)
                level[s.position[i]] = s.level[i];
            for (size_t t = 0; t < PROMPT; t++) {
                const double sig = (mass[t] - own[t]) / (double)(PROMPT - t - 1);
                if (t >= PROMPT - 10) {
                    assert_int_equal(level[t], KVD_LEVEL_HIGH);
                    continue;
                }
                total += sig;
                if (level[t] == KVD_LEVEL_DROPPED)
                    dropped += sig;
                else
                    least_kept = fmin(least_kept, sig);
                if (level[t] == KVD_LEVEL_HIGH)
                    least_high = fmin(least_high, sig);
                else
                    lowered += sig;
            }
            assert_true(dropped < tl[l] * total + 1e-12 &&
                        (isinf(least_kept) || dropped + least_kept >= tl[l] * total - 1e-12));
            assert_true(lowered < th[h] * total + 1e-12 &&
                        (isinf(least_high) || lowered + least_high >= th[h] * total - 1e-12));
            if (tl[l] <= 0)
                assert_int_equal(s.n, PROMPT);
            if (tl[l] >= th[h])
                assert_int_equal(count(&s, KVD_LEVEL_LOW), 0);
            for (size_t t = PROMPT; t < ALL; t++) {
                const size_t before = s.n, low = count(&s, KVD_LEVEL_LOW);
                go(&s, t, PROMPT);
                assert_true(s.n + 1 >= before && s.n <= before + 1);
                assert_true(count(&s, KVD_LEVEL_LOW) <= low + 1);
                for (size_t i = 0; i < 10; i++)
                    assert_int_equal(s.position[s.n - 1 - i], t - i);
            }
            end(&s);
        }
}

TEST(leankv_own_query)
{
    const kvd_parameter_values v = {.value = {0.5, 0.1, 10}};
    simulation a, b;
    start(&a, &kvd_tokens_leankv, &v, PROMPT);
    for (size_t t = 0; t < PROMPT; t++) {
        mass[t] += (double)t;
        own[t] += (double)t;
    }
    start(&b, &kvd_tokens_leankv, &v, PROMPT);
    make_rows();
    for (size_t t = PROMPT; t < ALL; t++) {
        more_own = 0;
        go(&a, t, PROMPT);
        more_own = (float)(t % 7);
        go(&b, t, PROMPT);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.position, b.position, a.n * sizeof *a.position);
        assert_memory_equal(a.level, b.level, a.n);
    }
    more_own = 0;
    assert_true(a.n < ALL && count(&a, KVD_LEVEL_LOW) > 0);
    end(&a);
    end(&b);
}

TEST(lower)
{
    const kvd_parameter_values v = {.value = {6, 5}, .method = &kvd_tokens_lower.info};
    for (size_t prompt = 0; prompt <= PROMPT; prompt += PROMPT) {
        simulation s;
        double sum[ALL] = {0};
        char high[ALL] = {0};
        start(&s, &kvd_tokens_lower, &v, prompt);
        for (size_t t = 0; t < prompt; t++) {
            sum[t] = mass[t];
            high[t] = 1;
        }
        for (size_t t = prompt;; t++) {
            /* Keeps the five newest tokens and the six older ones with the highest scores in high
             * precision. */
            for (;;) {
                size_t worst = ALL, n = 0;
                for (size_t i = 0; i + 5 < t; i++)
                    if (high[i]) {
                        n++;
                        worst = worst == ALL || sum[i] < sum[worst] ? i : worst;
                    }
                if (n <= 6)
                    break;
                high[worst] = 0;
            }
            assert_int_equal(s.n, t);
            for (size_t i = 0; i < t; i++)
                assert_int_equal(s.level[i], high[i] ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW);
            if (t == ALL)
                break;
            go(&s, t, prompt);
            high[t] = 1;
            for (size_t j = 0; j < GROUP; j++)
                for (size_t i = 0; i <= t; i++)
                    sum[i] += (double)row[t][j][i];
        }
        end(&s);
    }
}

enum { DEPTH = 5 };

static void rank_layers(const kvd_parameter_values *v, const double *log_denominator,
                        uint8_t *level)
{
    const kvd_tokens_self self = {.v = v};
    kvd_err err = {""};
    const kvd_prompt_layers p = {
        .n_layers = DEPTH, .n = PROMPT, .log_denominator = log_denominator};
    assert_int_equal(kvd_tokens_importance.rank(&self, &p, level, &err), 0);
}

static size_t common(const uint8_t *a, const uint8_t *b)
{
    size_t n = 0;
    for (size_t t = 0; t < PROMPT; t++)
        n += a[t] == b[t];
    return n;
}

TEST(importance)
{
    double d[DEPTH * PROMPT];
    uint8_t level[DEPTH * PROMPT];
    kvd_rng r;
    kvd_rng_seed(&r, 6, 1);
    for (size_t i = 0; i < (size_t)DEPTH * PROMPT; i++)
        d[i] = 300 * kvd_rng_normal(&r); /* exponentials overflow */
    const kvd_parameter_values apart = {.value = {0.25, 0.2, 1, 0}};
    rank_layers(&apart, d, level);
    for (size_t l = 0; l < DEPTH; l++)
        for (size_t t = 0; t < PROMPT; t++) {
            size_t larger = 0;
            for (size_t i = 0; i < PROMPT; i++)
                larger += d[l * PROMPT + i] > d[l * PROMPT + t];
            assert_int_equal(level[l * PROMPT + t],
                             larger < 10 + 2 * l ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW);
        }
    const kvd_parameter_values one = {.value = {0.25, 0.2, 0, 0}};
    rank_layers(&one, d, level);
    for (size_t l = 1; l < DEPTH; l++)
        assert_int_equal(common(level, level + l * PROMPT), PROMPT);
    for (size_t t = 0; t < PROMPT; t++) {
        d[t] = (double)t;
        d[PROMPT + t] = t == 19 ? 20.5 : t == 20 ? 0.5 : (double)t;
        d[2 * PROMPT + t] = t == 18 ? 21.5 : t == 21 ? 0.25 : d[PROMPT + t];
        d[3 * PROMPT + t] = -(double)t;
        d[4 * PROMPT + t] = -2 * (double)t;
    }
    const kvd_parameter_values near = {.value = {0.5, 0, 0.95, 0}},
                               strict = {.value = {0.5, 0, 0.96, 0}};
    rank_layers(&near, d, level);
    assert_int_equal(common(level, level + PROMPT), PROMPT);
    assert_int_equal(common(level, level + 2 * PROMPT), PROMPT);
    assert_int_equal(common(level, level + 3 * PROMPT), 0);
    assert_int_equal(common(level + 3 * PROMPT, level + 4 * PROMPT), PROMPT);
    rank_layers(&strict, d, level);
    assert_int_equal(common(level, level + PROMPT), PROMPT - 2);
    assert_int_equal(common(level + PROMPT, level + 2 * PROMPT), PROMPT - 2);
    const kvd_parameter_values pairs = {.value = {0.5, 0, 1, 0, 2}};
    rank_layers(&pairs, d, level);
    assert_int_equal(common(level, level + PROMPT), PROMPT);
    assert_int_equal(common(level + PROMPT, level + 2 * PROMPT), PROMPT - 4);
    assert_int_equal(common(level + 2 * PROMPT, level + 3 * PROMPT), PROMPT);
    assert_int_equal(common(level + 3 * PROMPT, level + 4 * PROMPT), 4);
    /* With parameter mean = 1, all tokens are equally important here, so the first tokens of the
     * prompt are preferred. */
    for (size_t i = 0; i < (size_t)DEPTH * PROMPT; i++)
        d[i] = log((double)(i % PROMPT) + 1);
    const kvd_parameter_values mean = {.value = {0.5, 0, 0.95, 1}};
    rank_layers(&near, d, level);
    assert_true(level[0] == KVD_LEVEL_LOW && level[PROMPT - 1] == KVD_LEVEL_HIGH);
    rank_layers(&mean, d, level);
    assert_true(level[0] == KVD_LEVEL_HIGH && level[PROMPT - 1] == KVD_LEVEL_LOW);
}

TEST(the_top_stays)
{
    kvd_rng r;
    kvd_err err = {""};
    kvd_rng_seed(&r, 9, 1);
    for (size_t trial = 0; trial < 200; trial++) {
        double score[50];
        uint8_t level[50];
        const size_t n = 1 + (size_t)kvd_rng_below(&r, 50), k = (size_t)kvd_rng_below(&r, 55);
        for (size_t i = 0; i < n; i++) {
            score[i] = (double)kvd_rng_below(&r, 8); /* many scores are equal */
            level[i] = KVD_LEVEL_HIGH;
        }
        assert_int_equal(kvd_tokens_keep_top(score, n, k, level, &err), 0);
        for (size_t i = 0; i < n; i++) {
            size_t better = 0;
            for (size_t j = 0; j < n; j++)
                better += j > i ? score[j] >= score[i] : score[j] > score[i];
            assert_int_equal(level[i], better < k ? KVD_LEVEL_HIGH : KVD_LEVEL_DROPPED);
        }
    }
    assert_int_equal(kvd_tokens_budget(0.25, 99), 24);
    assert_int_equal(kvd_tokens_budget(3, 99), 3);
}

int main(void)
{
    make_rows();
    return unit_run(NULL, NULL);
}
