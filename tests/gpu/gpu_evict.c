/* Compares eviction kernels with a reference in double precision. The kernels may keep another
 * token than the reference only if the two tokens have nearly equal scores. */
#include <math.h>
#include <stdbool.h>

#include "evict_case.h"
#include "methods/tokens/tokens.h"
#include "worst.h"

static int notes(const fixture *f)
{
    return f->c->steps && f->c->rule.ranking == KVD_EVICT_ATTENTION;
}

static double product(const double *a, const double *b, int d)
{
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Computes the importance `want` of keys [n][d]. For the ranking KVD_EVICT_SHORT_KEYS, it is minus
 * a key's length, otherwise minus its cosine with the mean direction of the keys. */
static void reference_keys(const fixture *f, const double *keys, int n, int d, double *want)
{
    double anchor[KVD_WIDTH_MAX] = {0};
    for (int t = 0; t < n; t++)
        for (int i = 0; i < d; i++)
            anchor[i] += keys[t * d + i] / sqrt(product(keys + t * d, keys + t * d, d)) / n;
    for (int t = 0; t < n; t++) {
        const double length = sqrt(product(keys + t * d, keys + t * d, d));
        want[t] = f->c->rule.ranking == KVD_EVICT_SHORT_KEYS
                      ? -length
                      : -product(keys + t * d, anchor, d) / length;
    }
}

/* RoPE tables. cosine, sine [positions][half]: values at each position. future
 * [positions][half][2]: mean cosine and mean sine over the positions that follow. */
typedef struct {
    int half, positions;
    float *cosine, *sine, *future;
} rope;

static rope rope_make(const fixture *f)
{
    const test_case *const c = f->c;
    rope r = {.half = f->map.d_qk[0] / 2, .positions = 1};
    for (int b = 0; b < f->batch; b++)
        r.positions = f->len[b] >= r.positions ? f->len[b] + 1 : r.positions;
    const size_t floats = (size_t)(r.positions + c->rule.future) * (size_t)r.half;
    r.cosine = need(floats * sizeof *r.cosine);
    r.sine = need(floats * sizeof *r.sine);
    r.future = need(2 * floats * sizeof *r.future);
    for (int t = 0; t < r.positions + c->rule.future; t++)
        for (int i = 0; i < r.half; i++) {
            const double angle = t * pow(10000, -2.0 * i / fmax(c->rope_dims, 1));
            r.cosine[t * r.half + i] = (float)((double)c->factor * cos(angle));
            r.sine[t * r.half + i] = (float)((double)c->factor * sin(angle));
        }
    for (int n = 0; n < r.positions; n++)
        for (int i = 0; i < r.half; i++) {
            double sum[2] = {0, 0};
            for (int t = n; t < n + c->rule.future; t++) {
                sum[0] += (double)r.cosine[t * r.half + i];
                sum[1] += (double)r.sine[t * r.half + i];
            }
            for (int side = 0; side < 2; side++)
                r.future[(n * r.half + i) * 2 + side] = (float)(sum[side] / c->rule.future);
        }
    return r;
}

static void rope_release(rope *r)
{
    host_free(r->cosine, r->sine, r->future);
}

/* Rotates x [d] by RoPE for sign 1, or by the opposite angles for sign -1. */
static void rotate(const test_case *c, double (*turn)(const rope *, int, int, int), const rope *r,
                   int row, double sign, double *x)
{
    for (int i = 0; i < c->rope_dims / 2; i++) {
        const int a = c->interleaved ? 2 * i : i, b = c->interleaved ? a + 1 : i + c->rope_dims / 2;
        const double u = x[a], v = x[b], co = turn(r, row, i, 0), si = sign * turn(r, row, i, 1);
        x[a] = u * co - v * si;
        x[b] = v * co + u * si;
    }
}

static double of_position(const rope *r, int t, int i, int side)
{
    return (double)(side ? r->sine : r->cosine)[t * r->half + i];
}

static double of_future(const rope *r, int n, int i, int side)
{
    return (double)r->future[(n * r->half + i) * 2 + side];
}

/* For each token, adds the attention probability that head h's later queries are expected to give
 * it. */
static void add_expected(const fixture *f, int b, int h, const double *keys, double *want)
{
    const int n = f->len[b], d = f->map.d_qk[0], sink = f->c->rule.sink, rows = n - sink;
    rope r = rope_make(f);
    double *const x = need((size_t)(n * d) * sizeof *x), *const z = need((size_t)n * sizeof *z);
    double mean[KVD_WIDTH_MAX] = {0}, top = -INFINITY, sum = 0;
    for (int t = sink; t < n; t++) {
        double *const q = x + t * d;
        for (int i = 0; i < d; i++)
            q[i] = (double)bf16_wide(*query(f, b, h, t, i));
        rotate(f->c, of_position, &r, t, -1, q);
        for (int i = 0; i < f->c->rope_dims; i++)
            q[i] /= (double)f->c->factor * (double)f->c->factor;
        for (int i = 0; i < d; i++)
            mean[i] += q[i] / rows;
    }
    for (int t = sink; t < n; t++) {
        double key[KVD_WIDTH_MAX], square = 0;
        memcpy(key, keys + t * d, (size_t)d * sizeof *key);
        rotate(f->c, of_future, &r, n, -1, key);
        for (int s = sink; s < n; s++) {
            double off = 0;
            for (int i = 0; i < d; i++)
                off += key[i] * (x[s * d + i] - mean[i]);
            square += off * off / rows;
        }
        z[t] = product(key, mean, d) * (double)f->map.scale;
        if (f->c->rule.covariance)
            z[t] += square * (double)f->map.scale * (double)f->map.scale / 2;
        top = fmax(top, z[t]);
    }
    for (int t = sink; t < n; t++)
        sum += exp(z[t] - top);
    for (int t = sink; t < n; t++)
        want[t] += exp(z[t] - top) / sum / f->map.group;
    host_free(x, z);
    rope_release(&r);
}

/* Computes for each token the log of the expected attention of later queries; infinity for the
 * first `sink` tokens, which are always kept. */
static void reference_expected(const fixture *f, int b, int g, const double *keys, double *want)
{
    const int n = f->len[b], sink = f->c->rule.sink, group = f->map.group;
    memset(want, 0, (size_t)n * sizeof *want);
    for (int h = g * group; h < (g + 1) * group && n > sink; h++)
        add_expected(f, b, h, keys, want);
    for (int t = 0; t < n; t++) {
        double square = 0;
        for (int i = 0; i < f->map.d_v[g]; i++) {
            const double v = (double)bf16_wide(*cell(f, f->pool, b, g, 1, t, i));
            square += v * v;
        }
        want[t] = t < sink ? INFINITY : log((want[t] + (double)f->c->rule.epsilon) * sqrt(square));
    }
}

/* Computes the importance `want` of request b's tokens in KV head g. If importance is computed from
 * attention, also writes lse [n_heads][n_q8], the log-sum-exp of each query's scores. */
static void reference_head(const fixture *f, int b, int g, float *lse, double *want)
{
    const int n = f->len[b], d = f->map.d_qk[g], window = f->c->rule.window;
    const int from = window && n > window ? n - window : 0;
    double *const keys = need((size_t)(n * d) * sizeof *keys), *const s =
                                                                   need((size_t)n * sizeof *s);
    double *const p = need((size_t)n * sizeof *p);
    want += (size_t)g * (size_t)f->n_q8 + (size_t)f->start[b];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < d; i++)
            keys[k * d + i] = (double)bf16_wide(*cell(f, f->pool, b, g, 0, k, i));
    const int ranking = f->c->rule.ranking, attends = ranking == KVD_EVICT_ATTENTION;
    if (ranking == KVD_EVICT_EXPECTED)
        reference_expected(f, b, g, keys, want);
    else if (!attends && ranking != KVD_EVICT_FIRST)
        reference_keys(f, keys, n, d, want);
    for (int h = g * f->map.group; attends && h < (g + 1) * f->map.group; h++)
        for (int t = 0; t < n; t++) {
            lse[(size_t)h * (size_t)f->n_q8 + (size_t)(f->start[b] + t)] =
                (float)row_of(f, b, h, t, keys, s, p);
            for (int k = 0; k <= t && t >= from; k++)
                want[k] += p[k];
        }
    host_free(keys, s, p);
}

static void reference(const fixture *f, float *lse, double *want)
{
    const int kv = f->map.n_kv_heads;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < f->batch * kv; i++)
        reference_head(f, i / kv, i % kv, lse, want);
    for (int t = 0; f->c->rule.whole_layer && t < f->n_q8; t++) {
        double sum = 0;
        for (int g = 0; g < kv; g++)
            sum += want[g * f->n_q8 + t];
        for (int g = 0; g < kv; g++)
            want[g * f->n_q8 + t] = sum;
    }
}

/* Records the relative error of a score from the GPU. If scores are logarithms, records the error
 * of their exponentials. */
static void note(fixture *f, double got, double want)
{
    const bool logs = f->c->rule.ranking == KVD_EVICT_EXPECTED;
    const double e = logs ? isinf(want) ? got < want : fabs(expm1(got - want))
                          : fabs(got - want) / (fabs(want) + 1e-4);
    f->worst = worse(f->worst, e);
}

/* Returns the number of errors in `kept`, the list of tokens that were not evicted. The tokens with
 * the highest scores must be kept, up to rounding. */
static int check_choice(fixture *f, const double *want, const float *rank, int n,
                        const int32_t *kept)
{
    const kvd_evict_budget *const b = &f->c->budget;
    const int newest = n < b->keep_new ? n : b->keep_new, old = n - newest;
    const int k = old < b->keep_old ? old : b->keep_old;
    uint8_t *const level = need((size_t)n + 1);
    double *const x = need((size_t)(n + 1) * sizeof *x);
    kvd_err err;
    int wrong = 0;
    for (int t = 0; t < old; t++)
        x[t] = (double)rank[t];
    memset(level, KVD_LEVEL_HIGH, (size_t)n);
    wrong = kvd_tokens_keep_top(x, (size_t)old, (size_t)k, level, &err);
    for (int t = 0, i = 0; t < n; t++)
        if (level[t] != KVD_LEVEL_DROPPED)
            wrong += kept[i++] != t;
    memset(level, KVD_LEVEL_HIGH, (size_t)n);
    wrong += kvd_tokens_keep_top(want, (size_t)old, (size_t)k, level, &err);
    double least = INFINITY, most = -INFINITY;
    size_t differs = 0;
    for (int i = 0; i < k; i++)
        if (level[kept[i]] == KVD_LEVEL_DROPPED) {
            differs++;
            least = fmin(least, want[kept[i]]);
        }
    for (int t = 0, i = 0; t < old && differs; t++) {
        const int stays = i < k && kept[i] == t;
        i += stays;
        if (!stays && level[t] != KVD_LEVEL_DROPPED)
            most = fmax(most, want[t]);
    }
    f->near += differs;
    wrong += differs && most - least > 2e-4 * (fabs(most) + 1e-4);
    host_free(level, x);
    return wrong;
}

static void report(const fixture *f, const char *part, int wrong)
{
    test_result(!wrong && f->worst < 2e-4, f->c->name,
                "%s: scores off by %.2g, %zu choices by rounding, %d wrong", part, f->worst,
                f->near, wrong);
}

static int check_rows(const fixture *f, const uint16_t *after, int b, int g, const int32_t *kept,
                      int m)
{
    int wrong = 0;
    for (int i = 0; i < (m + 7) / 8 * 8; i++)
        for (int side = 0; side < 2; side++)
            for (int c = 0; c < (side ? f->map.d_v[g] : f->map.d_qk[g]); c++)
                wrong += *cell(f, (uint16_t *)after, b, g, side, i, c) !=
                         (i < m ? *cell(f, f->pool, b, g, side, kept[i], c) : 0);
    return wrong;
}

static int check_prompt(fixture *f, int b, int g, double *want, const float *mass,
                        const float *score, const int32_t *kept, const uint16_t *after)
{
    const kvd_evict_rule *const r = &f->c->rule;
    const int n = f->len[b], group = f->map.group;
    const size_t at = (size_t)g * (size_t)f->n_q8 + (size_t)f->start[b];
    double *const p = need((size_t)n * sizeof *p);
    float *const order = need((size_t)n * sizeof *order);
    for (int t = 0; t < n; t++)
        if (r->ranking == KVD_EVICT_FIRST)
            want[t] = (double)(order[t] = (float)-t);
        else
            note(f, (double)score[at + (size_t)t], want[t]);
    const int newest = n < f->c->budget.keep_new ? n : f->c->budget.keep_new, old = n - newest;
    const float *rank = r->ranking == KVD_EVICT_FIRST ? order : score + at;
    if (r->smooth > 1) {
        for (int t = 0; t < old; t++) {
            p[t] = 0;
            for (int i = t - r->smooth / 2; i <= t + r->smooth / 2; i++)
                p[t] += i >= 0 && i < old ? want[i] : 0;
        }
        memcpy(want, p, (size_t)old * sizeof *want);
        rank = mass + (size_t)(g * group) * (size_t)f->n_q8 + (size_t)f->start[b];
        for (int t = 0; t < old; t++)
            note(f, (double)rank[t], want[t]);
    }
    int wrong = check_choice(f, want, rank, n, kept + at);
    const int m = newest + (old < f->c->budget.keep_old ? old : f->c->budget.keep_old);
    f->n[b] = m;
    wrong += check_rows(f, after, b, g, kept + at, m);
    for (int i = 0; i < m && !notes(f); i++)
        f->position[state_at(f, b, g) + (size_t)i] = (uint32_t)kept[at + (size_t)i];
    for (int i = 0; i < m && notes(f); i++)
        wrong +=
            f->position[state_at(f, b, g) + (size_t)i] != (uint32_t)kept[at + (size_t)i] ||
            f->score[state_at(f, b, g) + (size_t)i] != score[at + (size_t)kept[at + (size_t)i]];
    host_free(order, p);
    return wrong;
}

static size_t differences(const fixture *f, const float *mass, const float *score)
{
    size_t n = 0;
    for (int b = 0; b < f->batch; b++)
        for (int g = 0; g < f->map.n_kv_heads; g++)
            for (int t = 0; t < f->len[b]; t++) {
                double sum = 0;
                for (int h = 0; h < f->map.n_heads; h++)
                    if (f->c->rule.whole_layer || h / f->map.group == g)
                        sum += (double)mass[(size_t)(h * f->n_q8 + f->start[b] + t)];
                n += !(fabs(sum - (double)score[g * f->n_q8 + f->start[b] + t]) <
                       2e-4 * (sum + 1e-4));
            }
    return n;
}

static void run_prompts(fixture *f, kvd_evict_state *state, uint16_t *pool)
{
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8;
    float *const lse = need(heads * rows * sizeof *lse);
    double *const want = need(kv * rows * sizeof *want);
    int wrong = 0;
    reference(f, lse, want);
    kvd_evict_prompts_args a = prompts_of(f, &f->c->rule, LAYER, lse, pool);
    a.state = *state;
    rope r = {0};
    if (f->c->rule.ranking == KVD_EVICT_EXPECTED) {
        r = rope_make(f);
        const size_t floats = (size_t)(r.positions * r.half);
        const bool turns = f->c->rope_dims > 0;
        a.expected = (kvd_evict_expected){
            .dims = f->c->rope_dims,
            .half = r.half,
            .interleaved = f->c->interleaved,
            .cosine = turns ? on_device(r.cosine, floats * sizeof *r.cosine) : NULL,
            .sine = turns ? on_device(r.sine, floats * sizeof *r.sine) : NULL,
            .future = turns ? on_device(r.future, 2 * floats * sizeof *r.future) : NULL,
            .square = turns ? f->c->factor * f->c->factor : 1,
            .work = on_device(NULL, kvd_evict_expected_bytes(f->map.n_heads, f->map.d_qk[0]))};
    }
    kvd_evict_prompts_args other = a;
    other.lse = on_device(lse, heads * rows * sizeof *lse);
    other.mass = on_device(NULL, heads * rows * sizeof *lse);
    const int attends = f->c->rule.ranking == KVD_EVICT_ATTENTION;
    if (attends)
        check(kvd_evict_score(&other, NULL), "kvd_evict_score");
    check(kvd_evict_score_any(&a, NULL), "kvd_evict_score_any");
    check(kvd_evict_choose(&a, NULL), "kvd_evict_choose");
    check(cudaDeviceSynchronize(), "prompts");
    float *const mass = from_device(a.mass, heads * rows * sizeof *mass),
                 *const score = from_device(a.score, kv * rows * sizeof *score);
    int32_t *const kept = from_device(a.kept, kv * rows * sizeof *kept);
    fetch(lse, other.mass, heads * rows * sizeof *lse);
    wrong += attends ? (int)differences(f, lse, score) : 0;
    device_free(other.lse, other.mass);
    uint16_t *const after = from_device(pool, f->pool_n * 2);
    if (notes(f)) {
        fetch(f->score, state->score, f->state_n * sizeof *f->score);
        fetch(f->position, state->position, f->state_n * sizeof *f->position);
    }
    for (int b = 0; b < f->batch; b++)
        for (int g = 0; g < f->map.n_kv_heads; g++)
            wrong += check_prompt(f, b, g, want + (size_t)g * rows + (size_t)f->start[b], mass,
                                  score, kept, after);
    memcpy(f->pool, after, f->pool_n * 2);
    report(f, "prompts", wrong);
    free_prompts(&a);
    device_free(a.expected.cosine, a.expected.sine, a.expected.future, a.expected.work);
    rope_release(&r);
    host_free(lse, want, mass, score, kept, after);
}

static void step_scores(const fixture *f, int b, int g, const uint16_t *q, uint32_t now, int n,
                        double *want)
{
    const kvd_evict_rule *const r = &f->c->rule;
    const double steps = f->c->steps > 1 ? f->c->steps - 1 : 1;
    const double tau =
        (double)r->tau0 + ((double)r->tau1 - (double)r->tau0) * ((double)now - f->len[b]) / steps;
    double *const x = need((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        want[i] =
            i < n - 1 && !r->whole_layer ? (double)f->score[state_at(f, b, g) + (size_t)i] : 0;
    for (int j = 0; j < f->map.group; j++) {
        const int h = g * f->map.group + j;
        double top = scores_of(f, b, g, q + f->map.q_offset[h], NULL, n, x), sum = 0;
        for (int i = 0; i < n && r->tau0 > 0; i++) {
            const uint32_t t = i < n - 1 ? f->position[state_at(f, b, g) + (size_t)i] : now;
            x[i] = (x[i] + kvd_gumbel(kvd_gumbel_head(r->seed, LAYER, h), t)) / tau;
            top = i ? fmax(top, x[i]) : x[i];
        }
        for (int i = 0; i < n; i++)
            sum += x[i] = exp(x[i] - top);
        for (int i = 0; i < n; i++)
            want[i] += x[i] / sum;
    }
    free(x);
}

/* Checks the m cached tokens of a KV head after a step that evicts one of n tokens, `victim` (-1:
 * none). Returns how many elements of K and V are wrong. */
static int check_moved(const fixture *f, int b, int g, int m, int victim, int n,
                       const uint16_t *after)
{
    int wrong = 0;
    for (int i = 0; i < m; i++)
        for (int side = 0; side < 2; side++)
            for (int c = 0; c < (side ? f->map.d_v[g] : f->map.d_qk[g]); c++)
                wrong += *cell(f, (uint16_t *)after, b, g, side, i, c) !=
                         *cell(f, f->pool, b, g, side, i == victim ? n - 1 : i, c);
    return wrong;
}

/* Checks one decode step of a method that evicts the oldest token once a KV head has too many.
 * Updates f->position, the expected positions of the cached tokens. */
static int check_first(fixture *f, int b, int g, uint32_t now, int n, const uint16_t *after)
{
    const kvd_evict_budget *const budget = &f->c->budget;
    uint32_t *const position = f->position + state_at(f, b, g);
    const int evicts = n > budget->limit, m = n - evicts;
    int victim = n - 1;
    position[n - 1] = now;
    for (int i = 0; i < n && evicts; i++)
        if (position[i] >= (uint32_t)(budget->limit - budget->recent) &&
            position[i] < position[victim])
            victim = i;
    const int wrong = check_moved(f, b, g, m, evicts ? victim : -1, n, after);
    if (evicts)
        position[victim] = now;
    f->n[b] = g == f->map.n_kv_heads - 1 ? m : f->n[b];
    return wrong;
}

static int check_step(fixture *f, int b, int g, const uint16_t *q, uint32_t now, int n,
                      const float *score, const uint32_t *position, const uint16_t *after)
{
    const kvd_evict_budget *const budget = &f->c->budget;
    const size_t at = state_at(f, b, g);
    double *const own = need((size_t)n * sizeof *own), *const other = need((size_t)n * sizeof *own),
                  *const want = need((size_t)n * sizeof *want);
    int wrong = 0, least = -1, victim = -1;
    step_scores(f, b, g, q, now, n, own);
    memcpy(want, own, (size_t)n * sizeof *want);
    for (int h = 0; h < f->map.n_kv_heads && f->c->rule.whole_layer; h++) {
        step_scores(f, b, h, q, now, n, other);
        for (int i = 0; i < n && h != g; i++)
            want[i] += other[i];
    }
    f->position[at + (size_t)n - 1] = now;
    for (int i = 0; i < n; i++)
        if (f->position[at + (size_t)i] + (uint32_t)budget->recent <= now &&
            (least < 0 || want[i] < want[least]))
            least = i;
    const int evicts = n > budget->limit && least >= 0;
    if (evicts) {
        for (int i = 0; i < n - 1; i++)
            victim = position[at + (size_t)i] == now ? i : victim;
        victim = victim < 0 ? n - 1 : victim;
        f->near += victim != least;
        wrong += want[victim] - want[least] > 2e-4 * (want[least] + 1e-4) ||
                 f->position[at + (size_t)victim] + (uint32_t)budget->recent > now;
    }
    const int m = n - evicts;
    for (int i = 0; i < m; i++) {
        const int from = i == victim ? n - 1 : i;
        note(f, (double)score[at + (size_t)i], own[from]);
        wrong += position[at + (size_t)i] != f->position[at + (size_t)from];
    }
    wrong += check_moved(f, b, g, m, victim, n, after);
    f->n[b] = g == f->map.n_kv_heads - 1 ? m : f->n[b];
    host_free(own, other, want);
    return wrong;
}

static void run_steps(fixture *f, kvd_evict_state *state, uint16_t *pool)
{
    const size_t q_n = ((size_t)f->batch + 1) * (size_t)f->map.q_pitch;
    int32_t kv_len[BATCH + 1];
    uint32_t now[BATCH + 1];
    uint16_t *const q = need(q_n * 2);
    int wrong = 0;
    kvd_evict_steps_args a = steps_of(f, &f->c->rule, state, pool);
    f->worst = 0;
    f->near = 0;
    for (int s = 0; s < f->c->steps; s++) {
        draw_step(f, s, q, kv_len, now, &a);
        check(kvd_evict_steps(&a, NULL), "kvd_evict_steps");
        check(cudaDeviceSynchronize(), "steps");
        const size_t bytes = notes(f) ? f->state_n * sizeof(float) : 0;
        uint16_t *const after = from_device(pool, f->pool_n * 2);
        float *const score = from_device(state->score, bytes);
        uint32_t *const position = from_device(state->position, bytes);
        for (int b = 0; b < f->batch; b++)
            for (int g = 0; g < f->map.n_kv_heads; g++)
                wrong += !notes(f) ? check_first(f, b, g, now[b], kv_len[b], after)
                                   : check_step(f, b, g, q + (size_t)b * (size_t)f->map.q_pitch,
                                                now[b], kv_len[b], score, position, after);
        memcpy(f->pool, after, f->pool_n * 2);
        memcpy(f->score, score, bytes);
        memcpy(f->position, position, bytes);
        host_free(after, score, position);
        free_step(&a);
    }
    for (int b = 0; b < f->batch; b++) {
        const int left = f->len[b] + f->c->steps < f->c->budget.limit ? f->len[b] + f->c->steps
                                                                      : f->c->budget.limit;
        wrong += f->n[b] != left;
    }
    report(f, "steps", wrong);
    free_steps(&a);
    free(q);
}

static void test_noise(void)
{
    double worst = 0;
    const uint64_t head = kvd_gumbel_head(9, 3, 4);
    for (uint32_t t = 0; t < 1u << 20; t++)
        worst = worse(worst, fabs((double)kvd_gumbelf(head, t) - kvd_gumbel(head, t)));
    test_result(worst < 4e-6, "noise", "off by %.2g", worst);
}

static int is_quick(const char *name)
{
    static const char *const quick[] = {
        "sums, group 3", "one entry",  "noise, group 10", "last rows, all", "first and newest",
        "whole layer",   "short keys", "odd keys",        "expected",       "wide"};
    for (size_t i = 0; i < sizeof quick / sizeof *quick; i++)
        if (!strcmp(name, quick[i]))
            return 1;
    return 0;
}

/* usage: gpu_evict [CASE]
 * CASE   part of the names of the cases to run; "quick": small cases with five decode steps, for
 *        compute-sanitizer */
int main(int argc, char **argv)
{
    test_subject = "evict";
    test_noise();
    if (!gpu_devices("evict", 1))
        return failures ? 1 : 0;
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        if (quick ? !is_quick(cases[i].name) : argc > 1 && !strstr(cases[i].name, argv[1]))
            continue;
        test_case c = cases[i];
        c.steps = quick && c.steps > 5 ? 5 : c.steps;
        make(&f, &c);
        kvd_evict_state state = {
            .n_slots = f.batch, .n_layers = LAYERS, .room = f.room, .layer = LAYER};
        if (notes(&f)) {
            state.score = on_device(NULL, f.state_n * sizeof(float));
            state.position = on_device(NULL, f.state_n * sizeof(uint32_t));
        }
        uint16_t *const pool = on_device(f.pool, f.pool_n * 2);
        run_prompts(&f, &state, pool);
        if (c.steps)
            run_steps(&f, &state, pool);
        device_free(state.score, state.position, pool);
        release(&f);
    }
    return failures ? 1 : 0;
}
