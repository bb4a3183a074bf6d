/* Compares eviction methods on the GPU with the CPU. GPU and CPU may evict different tokens only if
 * the tokens' scores are nearly equal. */
#include <math.h>
#include <stdbool.h>

#include "evict_case.h"
#include "methods/method.h"
#include "methods/tokens/tokens.h"
#include "worst.h"

typedef struct {
    const char *method;
    bool quick;
    test_case shape;
} method_case;

#define SHAPE(heads, kv, d_k, d_v, n_steps, ...)                                                   \
    {                                                                                              \
        .n_heads = (heads), .n_kv_heads = (kv), .len = {__VA_ARGS__},                              \
        .n_len = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .width = {{d_k, d_v}}, .n_width = 1,  \
        .steps = (n_steps)                                                                         \
    }

static const method_case method_cases[] = {
    {"scissorhands,budget=48,recent=16,drop=8,history=32", true,
     SHAPE(8, 2, 64, 48, 40, 1, 7, 47, 48, 49, 300)},
    {"scissorhands,budget=0.3,recent=0.1,drop=1", false, SHAPE(6, 2, 80, 64, 20, 200, 33, 129)},
    {"scissorhands,budget=20,recent=30,drop=100", false, SHAPE(20, 2, 96, 32, 20, 90, 25)},
    {"scissorhands,budget=70,recent=0,drop=64,history=8", false, SHAPE(4, 4, 128, 128, 80, 100, 3)},
    {"kvcrush,window=16,budget=48", true, SHAPE(8, 2, 64, 48, 0, 1, 16, 17, 65, 130, 300)},
    {"kvcrush,window=8,budget=0.4,crush=0.5,anchor=1", false, SHAPE(6, 6, 32, 128, 0, 200, 33, 70)},
    {"kvcrush,window=8,budget=60,crush=1,anchor=1,kernel=1", false,
     SHAPE(8, 1, 64, 64, 0, 100, 60)},
    {"d2o,heavy=20,recent=12", true, SHAPE(8, 2, 64, 48, 40, 1, 7, 31, 33, 130, 300)},
    {"d2o,heavy=0.2,recent=0.1,beta=0.3", false, SHAPE(6, 2, 80, 64, 20, 200, 33, 129)},
    {"d2o,heavy=40,recent=0,beta=1", false, SHAPE(20, 2, 96, 32, 20, 90, 39)},
    {"d2o,heavy=300,recent=333", false, SHAPE(4, 1, 128, 128, 4, 1300, 1100)},
    {"ems,window=16,budget=40,threshold=0.2", true,
     SHAPE(8, 2, 64, 48, 0, 1, 16, 17, 65, 130, 300)},
    {"ems,window=8,budget=0.3,merge=0.5,threshold=-1,kernel=1", false,
     SHAPE(6, 6, 32, 128, 0, 200, 33, 9)},
    {"ems,window=32,budget=0.2,threshold=0.15", false, SHAPE(32, 8, 128, 128, 0, 1300, 1100)},
    {"elasticcache,budget=40", true, SHAPE(8, 2, 64, 48, 0, 1, 2, 3, 65, 130, 300)},
    {"elasticcache,budget=0.3,sink=4", false, SHAPE(6, 6, 32, 128, 0, 5, 200, 33)},
    {"elasticcache,budget=3,sink=0", false, SHAPE(20, 2, 96, 32, 0, 1200, 100)},
    {"kvmerger,threshold=0.1", true, SHAPE(8, 2, 64, 48, 0, 1, 2, 33, 65, 130, 300)},
    {"kvmerger,threshold=-1,heavy=3,recent=10", false, SHAPE(6, 6, 32, 128, 0, 10, 11, 200, 1100)},
    {"kvmerger,threshold=0,heavy=0,recent=0", false, SHAPE(32, 8, 128, 128, 0, 40, 2100)},
    {"kvcrush,window=32,budget=0.1,crush=0", false, SHAPE(32, 8, 128, 128, 0, 2100, 1500)},
};

typedef struct {
    void *state;
    size_t n;
    uint32_t *position;
    /* true after rounding made GPU and CPU evict different tokens of this KV head; it is then no
     * longer compared */
    bool ended;
} cpu_head;

typedef struct {
    fixture f;
    const method_case *c;
    kvd_method method;
    const kvd_tokens_method *tokens;
    const kvd_parameter_values *values;
    void *self;
    test_case shape;
    cpu_head *head;
    kvd_evict_state state;
    uint16_t *pool; /* on the device */
    size_t wrong, rounded, compared, dropped;
    /* merged: number of tokens that were merged into other tokens; rows: number of tokens into
     * which others were merged; rows_off: number of tokens whose K or V differ from the CPU's */
    size_t merged, rows, rows_off;
    size_t merged_before; /* merged tokens after the prompts */
    kvd_evict_merging merging;
} method_run;

/* Returns true if the method merges runs of adjacent tokens with similar keys, as the method
 * kvmerger does. */
static bool runs(const method_run *r)
{
    return r->shape.rule.merge == KVD_MERGE_RUNS;
}

static cpu_head *head_of(const method_run *r, int b, int g)
{
    return &r->head[b * r->f.map.n_kv_heads + g];
}

static void open_run(method_run *r, const method_case *c)
{
    const kvd_method_setup setup = {.seed = 3};
    kvd_err err = {""};
    *r = (method_run){.c = c, .shape = c->shape};
    or_end(kvd_method_parse(c->method, &r->method, &err), c->method, err.msg);
    r->tokens = r->method.plan.tokens;
    r->values = &r->method.plan.tokens_values;
    or_end(kvd_tokens_open(r->tokens, r->values, &setup, &r->self, &err), c->method, err.msg);
    r->shape.name = c->method;
    r->shape.rule = (kvd_evict_rule){.seed = 3, .smooth = 1};
    if (r->tokens->eviction->rule)
        r->tokens->eviction->rule(r->values, &r->shape.rule);
    make(&r->f, &r->shape);
    const fixture *const f = &r->f;
    r->head = need((size_t)(f->batch * f->map.n_kv_heads) * sizeof *r->head);
    for (int b = 0; b < f->batch; b++) {
        const size_t n = (size_t)f->len[b], all = n + (size_t)c->shape.steps;
        const kvd_evict_request q = {.prompt = n, .whole = all, .n_layers = 1};
        r->f.budget[f->slot[b]] = r->tokens->eviction->budget(r->values, &q);
        for (int g = 0; g < f->map.n_kv_heads; g++) {
            cpu_head *const h = head_of(r, b, g);
            h->position = need(all * sizeof *h->position);
            if (r->tokens->state_bytes)
                h->state = need(r->tokens->state_bytes(r->self, all));
        }
    }
    const bool notes = r->tokens->step && !r->shape.rule.fixed;
    r->state =
        (kvd_evict_state){.n_slots = f->batch, .n_layers = LAYERS, .room = f->room, .layer = LAYER};
    if (notes) {
        r->state.score = on_device(NULL, f->state_n * sizeof(float));
        r->state.position = on_device(NULL, f->state_n * sizeof(uint32_t));
    }
    if (notes && r->shape.rule.ranking == KVD_EVICT_PIVOTAL)
        r->state.rows = on_device(NULL, f->state_n * sizeof(uint64_t));
    const size_t kv = (size_t)f->map.n_kv_heads, all = kv * (size_t)f->n_q8,
                 rows = (size_t)f->batch + 1;
    const int32_t none[BATCH] = {0};
    if (r->shape.rule.merge)
        r->merging = (kvd_evict_merging){
            .into = on_device(NULL, all * sizeof(int32_t)),
            .weight = on_device(NULL, all * sizeof(float)),
            .length = on_device(NULL, all * sizeof(float)),
            .threshold = on_device(NULL, (size_t)f->batch * LAYERS * kv * sizeof(double)),
            .merged = on_device(none, sizeof none),
            .victim = on_device(NULL, rows * kv * sizeof(int32_t)),
            .count = runs(r) ? on_device(NULL, (size_t)f->batch * kv * sizeof(int32_t)) : NULL,
            .near = on_device(NULL, kvd_evict_near_bytes(&f->map, rows))};
    r->pool = on_device(f->pool, f->pool_n * 2);
}

static void check_merged(method_run *r)
{
    int32_t merged[BATCH];
    size_t all = 0;
    if (!r->merging.merged)
        return;
    fetch(merged, r->merging.merged, sizeof merged);
    for (int b = 0; b < r->f.batch; b++)
        all += (size_t)merged[b];
    const double off = fabs((double)(all - r->merged_before) - (double)r->merged);
    r->merged_before = all;
    r->wrong += off * 50 > (double)r->merged;
}

static void close_run(method_run *r)
{
    fixture *const f = &r->f;
    for (int i = 0; i < f->batch * f->map.n_kv_heads; i++)
        host_free(r->head[i].position, r->head[i].state);
    free(r->head);
    kvd_tokens_close(r->tokens, r->self);
    device_free(r->state.score, r->state.position, r->state.rows, r->merging.into,
                r->merging.weight, r->merging.length, r->merging.threshold, r->merging.merged,
                r->merging.victim, r->merging.near, r->merging.count, r->pool);
    release(f);
}

/* Checks mass [n_heads][n_q8], the attention that each token receives. With KVD_EVICT_PIVOTAL, mass
 * is minus the number of queries that give the token less than average attention. Writes
 * log-sum-exps to lse. */
static void check_mass(method_run *r, int b, int h, const float *mass, float *lse)
{
    fixture *const f = &r->f;
    const int n = f->len[b], g = h / f->map.group, d = f->map.d_qk[g],
              window = r->shape.rule.window;
    const int from = window && n > window ? n - window : 0;
    const bool counts = r->shape.rule.ranking == KVD_EVICT_PIVOTAL;
    double *const keys = need((size_t)(n * d) * sizeof *keys), *const s = need((size_t)n * 8),
                  *const p = need((size_t)n * 8), *const want = need((size_t)n * 8),
                  *const doubt = need((size_t)n * 8);
    for (int i = 0; i < n * d; i++)
        keys[i] = (double)bf16_wide(*cell(f, f->pool, b, g, 0, i / d, i % d));
    const size_t row = (size_t)h * (size_t)f->n_q8 + (size_t)f->start[b];
    for (int t = 0; t < n; t++) {
        lse[row + (size_t)t] = (float)row_of(f, b, h, t, keys, s, p);
        for (int k = 0; k <= t && t >= from; k++) {
            want[k] += counts ? (t > 0 && p[k] * (t + 1) < 1 ? -1.0 : 0.0) : p[k];
            doubt[k] += counts ? fabs(p[k] * (t + 1) - 1) < 1e-3 ? 1.0 : 0.0 : p[k] * 2e-4 + 1e-7;
        }
    }
    for (int t = 0; t < n && mass; t++)
        if (!(fabs((double)mass[row + (size_t)t] - want[t]) <= doubt[t]))
#pragma omp atomic
            r->wrong++;
    host_free(keys, s, p, want, doubt);
}

static void check_masses(method_run *r, const float *mass, float *lse)
{
    const int heads = r->f.map.n_heads;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < r->f.batch * heads; i++)
        check_mass(r, i / heads, i % heads, mass, lse);
}

/* Decides for each token whether it is dropped or stored with low or high precision. mass:
 * attention that each token receives from all queries; last: attention from the last queries. */
static void levels_of(method_run *r, int b, const float *mass, const float *last,
                      uint8_t *const *level)
{
    fixture *const f = &r->f;
    const size_t n = (size_t)f->len[b], group = (size_t)f->map.group, rows = (size_t)f->n_q8,
                 kv = (size_t)f->map.n_kv_heads;
    double *const x = need((2 + group) * kv * n * sizeof *x);
    float *const keys = need(kv * n * KVD_WIDTH_MAX * sizeof *keys);
    kvd_prompt_attention *const p = need(kv * sizeof *p);
    void **const state = need(kv * sizeof *state);
    kvd_err err = {""};
    int status = 0;
    for (size_t g = 0; g < kv; g++) {
        double *const sum = x + g * (2 + group) * n, *const below = sum + n, *recent = below + n;
        for (size_t i = 0; i < group * n; i++) {
            const size_t at = (g * group + i / n) * rows + (size_t)f->start[b] + i % n;
            recent[i] = (double)last[at];
            sum[i % n] += (double)mass[at];
            below[i % n] -= (double)mass[at];
        }
        const size_t d = (size_t)f->map.d_qk[g];
        float *const k = keys + g * n * KVD_WIDTH_MAX;
        for (size_t i = 0; i < n * d; i++)
            k[i] = bf16_wide(*cell(f, f->pool, b, (int)g, 0, (int)(i / d), (int)(i % d)));
        memset(level[g], KVD_LEVEL_HIGH, n);
        state[g] = head_of(r, b, (int)g)->state;
        p[g] =
            (kvd_prompt_attention){.kv_head = (int)g,
                                   .group = (int)group,
                                   .n = n,
                                   .n_expected = n + (size_t)r->shape.steps,
                                   .mass = sum,
                                   .below = below,
                                   .recent = recent,
                                   .k = k,
                                   .d = d,
                                   .ld = d,
                                   .window = r->tokens->window ? r->tokens->window(r->values) : 0};
        if (r->tokens->prompt)
            status = r->tokens->prompt(r->self, state[g], &p[g], level[g], &err) || status;
    }
    if (r->tokens->prompt_heads)
        status = r->tokens->prompt_heads(r->self, state, p, kv, level, &err);
    or_end(status, r->c->method, err.msg);
    host_free(x, keys, p, state);
}

static void forget(method_run *r, cpu_head *h, const uint8_t *level)
{
    size_t *const kept = need(h->n * sizeof *kept), was = h->n;
    h->n = 0;
    for (size_t i = 0; i < was; i++)
        if (level[i] != KVD_LEVEL_DROPPED) {
            kept[h->n] = i;
            h->position[h->n++] = h->position[i];
        }
    r->dropped += was - h->n;
    if (h->n < was && r->tokens->forget)
        r->tokens->forget(r->self, h->state, kept, h->n);
    free(kept);
}

/* K and V of a KV head's tokens, ordered by position; merged[i] is 1 if evicted tokens were merged
 * into token i */
typedef struct {
    size_t n, d[2];
    float *x[2];
    const uint8_t *level;
    uint8_t *merged;
} head_rows;

static void merge_rows(method_run *r, void *state, head_rows *h)
{
    const kvd_merge_choice c = {h->n, h->level, h->x[0], h->x[1], h->d[0], h->d[1]};
    size_t *const into = need(h->n * sizeof *into);
    double *const weight = need(h->n * sizeof *weight), *const total = need(h->n * sizeof *total),
                  *const sum = need(h->n * sizeof *sum);
    kvd_err err = {""};
    for (size_t i = 0; i < h->n; i++) {
        into[i] = h->n;
        weight[i] = 1;
    }
    or_end(r->tokens->merge(r->self, state, &c, into, weight, &err), r->c->method, err.msg);
    for (size_t i = 0; i < h->n; i++)
        if (into[i] < h->n) {
            h->merged[into[i]] = 1;
            total[into[i]] += weight[i];
            r->merged++;
        }
    for (int side = 0; side < 2; side++)
        for (size_t c0 = 0; c0 < h->d[side]; c0++) {
            float *const x = h->x[side] + c0;
            memset(sum, 0, h->n * sizeof *sum);
            for (size_t i = 0; i < h->n; i++)
                if (into[i] < h->n)
                    sum[into[i]] += weight[i] * (double)x[i * h->d[side]];
            for (size_t j = 0; j < h->n; j++)
                if (h->merged[j])
                    x[j * h->d[side]] = (float)((weight[j] * (double)x[j * h->d[side]] + sum[j]) /
                                                (weight[j] + total[j]));
        }
    host_free(into, weight, total, sum);
}

static head_rows rows_of(method_run *r, int b, int g, const int32_t *place, const uint8_t *level,
                         size_t n)
{
    fixture *const f = &r->f;
    head_rows h = {.n = n,
                   .d = {(size_t)f->map.d_qk[g], (size_t)f->map.d_v[g]},
                   .level = level,
                   .merged = need(n)};
    for (int side = 0; side < 2; side++) {
        const size_t d = h.d[side];
        h.x[side] = need(n * d * sizeof *h.x[side]);
        for (size_t i = 0; i < n * d; i++)
            h.x[side][i] = bf16_wide(*cell(f, f->pool, b, g, side, place[i / d], (int)(i % d)));
    }
    if (r->tokens->merge && memchr(level, KVD_LEVEL_DROPPED, n))
        merge_rows(r, head_of(r, b, g)->state, &h);
    return h;
}

/* Returns true if K and V of a token on the GPU equal the CPU's. If other tokens were merged into
 * it, they may differ by one rounding step of bf16. */
static bool same_row(const fixture *f, uint16_t *after, int b, int g, const head_rows *h, size_t i,
                     int place)
{
    for (int side = 0; side < 2; side++)
        for (size_t c = 0; c < h->d[side]; c++) {
            const double want = (double)h->x[side][i * h->d[side] + c],
                         got = (double)bf16_wide(*cell(f, after, b, g, side, place, (int)c)),
                         most = h->merged[i] ? fabs(want) / 128 + 1e-5 : 0;
            if (!(fabs(got - want) <= most))
                return false;
        }
    return true;
}

static void check_rows(method_run *r, int b, int g, head_rows *h, uint16_t *after,
                       const int32_t *to)
{
    for (size_t i = 0, m = 0; to && i < h->n; i++) {
        if (h->level[i] == KVD_LEVEL_DROPPED)
            continue;
        const bool same = same_row(&r->f, after, b, g, h, i, to[m++]);
        r->rows += h->merged[i];
        r->wrong += !same && !h->merged[i] && !r->tokens->merge;
        r->rows_off += !same && r->tokens->merge;
    }
    host_free(h->x[0], h->x[1], h->merged);
}

static void check_prompt(method_run *r, int b, const float *mass, const float *last,
                         const int32_t *kept, uint16_t *after)
{
    fixture *const f = &r->f;
    const int n = f->len[b], kv = f->map.n_kv_heads;
    uint8_t **const level = need((size_t)kv * sizeof *level);
    int32_t *const count = need((size_t)(f->batch * kv) * sizeof *count);
    for (int g = 0; g < kv; g++)
        level[g] = need((size_t)n);
    levels_of(r, b, mass, last, level);
    if (runs(r))
        fetch(count, r->merging.count, (size_t)(f->batch * kv) * sizeof *count);
    for (int g = 0; g < kv; g++) {
        cpu_head *const h = head_of(r, b, g);
        const int32_t *const mine = kept + (size_t)g * (size_t)f->n_q8 + (size_t)f->start[b];
        int32_t *const all = need((size_t)n * sizeof *all);
        h->n = (size_t)n;
        for (int t = 0; t < n; t++)
            h->position[t] = (uint32_t)(all[t] = t);
        head_rows rows = rows_of(r, b, g, all, level[g], h->n);
        forget(r, h, level[g]);
        for (size_t i = 0; i < h->n; i++)
            all[i] = runs(r) ? (int32_t)h->position[i] : (int32_t)i;
        check_rows(r, b, g, &rows, after, all);
        free(all);
        for (size_t i = 0; i < h->n; i++)
            r->wrong += mine[i] != (int32_t)h->position[i];
        r->wrong += runs(r) && count[f->slot[b] * kv + g] != (int32_t)h->n;
        r->compared++;
        f->n[b] = (int32_t)h->n;
        free(level[g]);
    }
    host_free(count, level);
}

/* Computes the attention probabilities each token receives, summed over the last `window` queries
 * (0: all), on the GPU. Copies the sums to `mass`. */
static void fetch_mass(const kvd_evict_prompts_args *args, int window, float *mass)
{
    kvd_evict_prompts_args a = *args;
    a.rule.window = window;
    if (a.rule.ranking == KVD_EVICT_IMPORTANT)
        a.rule.ranking = KVD_EVICT_ATTENTION;
    check(kvd_evict_score_any(&a, NULL), "kvd_evict_score_any");
    check(cudaDeviceSynchronize(), "scores");
    fetch(mass, a.mass, (size_t)a.map.n_heads * (size_t)a.n_q8 * sizeof *mass);
}

static void run_prompts(method_run *r)
{
    fixture *const f = &r->f;
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8;
    float *const lse = need(heads * rows * sizeof *lse);
    float *const mass = need(heads * rows * sizeof *mass), *const last =
                                                               need(heads * rows * sizeof *last);
    check_masses(r, NULL, lse);
    kvd_evict_prompts_args a = prompts_of(f, &r->shape.rule, LAYER, lse, r->pool);
    a.state = r->state;
    a.distance = on_device(NULL, rows * sizeof *a.distance);
    a.merging = r->merging;
    fetch_mass(&a, r->shape.rule.window, last);
    check_masses(r, last, lse);
    memcpy(mass, last, heads * rows * sizeof *mass);
    if (r->shape.rule.ranking == KVD_EVICT_IMPORTANT)
        fetch_mass(&a, 0, mass);
    check(kvd_evict_score_any(&a, NULL), "kvd_evict_score_any");
    if (runs(r)) {
        check(kvd_evict_runs(&a, NULL), "kvd_evict_runs");
        check(kvd_evict_merge(&a, NULL), "kvd_evict_merge");
    } else {
        check(kvd_evict_choose(&a, NULL), "kvd_evict_choose");
    }
    check(cudaDeviceSynchronize(), "choice");
    int32_t *const kept = from_device(a.kept, kv * rows * sizeof *kept);
    uint16_t *const after = from_device(r->pool, f->pool_n * 2);
    for (int b = 0; b < f->batch; b++)
        check_prompt(r, b, mass, last, kept, after);
    memcpy(f->pool, after, f->pool_n * 2);
    free_prompts(&a);
    device_free(a.distance);
    host_free(lse, mass, last, kept, after);
}

static void report(const method_run *r, const char *part)
{
    const bool acted = r->dropped > 0 && (r->merged > 0 || !r->tokens->merge);
    test_result(
        !r->wrong && acted && r->rounded * 20 <= r->compared && r->rows_off * 50 <= r->rows,
        r->c->method,
        "%s: %zu KV heads compared, %zu decided by rounding, %zu tokens dropped, %zu merged "
        "into %zu, %zu of these rows differ by rounding, %zu wrong",
        part, r->compared, r->rounded, r->dropped, r->merged, r->rows, r->rows_off, r->wrong);
}

/* Computes attention probabilities [group][n] of a decode step. Returns true if one of them equals
 * the mean 1 / n up to rounding. */
static bool probabilities(const fixture *f, int b, int g, const uint16_t *q, const int32_t *place,
                          size_t n, float *prob)
{
    double *const x = need(n * sizeof *x);
    bool near = false;
    for (int j = 0; j < f->map.group; j++) {
        const uint16_t *const row = q + f->map.q_offset[g * f->map.group + j];
        const double top = scores_of(f, b, g, row, place, (int)n, x);
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += x[i] = exp(x[i] - top);
        for (size_t i = 0; i < n; i++) {
            prob[(size_t)j * n + i] = (float)(x[i] / sum);
            near = near || fabs(x[i] / sum * (double)n - 1) < 1e-5;
        }
    }
    free(x);
    return near;
}

typedef struct {
    const uint16_t *q;
    uint32_t now;
    /* positions of the cached tokens before and after the decode step */
    const uint32_t *before, *position;
    const float *score; /* the device's scores before the step */
    uint16_t *after;
} step_case;

static int32_t find(const uint32_t *position, size_t n, uint32_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (position[i] == wanted)
            return (int32_t)i;
    return -1;
}

static size_t left_of(const uint8_t *level, size_t n)
{
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        left += level[i] != KVD_LEVEL_DROPPED;
    return left;
}

/* Returns true if the two lowest scores are equal up to rounding, so that either token may be
 * evicted. */
static bool near_least(const method_run *r, int b, const float *score, const int32_t *place,
                       const float *prob, size_t n)
{
    const size_t recent = (size_t)r->f.budget[r->f.slot[b]].recent;
    double least = INFINITY, second = INFINITY;
    for (size_t i = 0; i + recent < n; i++) {
        double sum = i + 1 < n ? (double)score[place[i]] : 0;
        for (int j = 0; j < r->f.map.group; j++)
            sum += (double)prob[(size_t)j * n + i];
        second = fmin(second, fmax(sum, least));
        least = fmin(least, sum);
    }
    return second - least < 2e-4 * (least + 1e-4);
}

static void check_step(method_run *r, int b, int g, const step_case *s)
{
    fixture *const f = &r->f;
    cpu_head *const h = head_of(r, b, g);
    const size_t n = h->n + 1, at = state_at(f, b, g);
    int32_t *const place = need(n * sizeof *place);
    float *const prob = need((size_t)f->map.group * n * sizeof *prob);
    uint8_t *const level = need(n);
    kvd_err err = {""};
    memset(level, KVD_LEVEL_HIGH, n);
    h->position[h->n++] = s->now;
    for (size_t i = 0; i + 1 < n; i++)
        place[i] = find(s->before + at, n - 1, h->position[i]);
    place[n - 1] = (int32_t)n - 1;
    bool near = probabilities(f, b, g, s->q, place, n, prob);
    if (r->shape.rule.ranking == KVD_EVICT_ATTENTION)
        near = near_least(r, b, s->score + at, place, prob, n);
    const kvd_step_attention a = {.kv_head = g,
                                  .group = f->map.group,
                                  .n = n,
                                  .position = h->position,
                                  .prob = prob,
                                  .now = s->now,
                                  .prompt = (size_t)f->len[b],
                                  .n_expected = (size_t)(f->len[b] + r->shape.steps)};
    or_end(r->tokens->step(r->self, h->state, &a, level, &err), r->c->method, err.msg);
    const size_t left = left_of(level, n);
    size_t missing = 0, m = 0;
    int32_t *const to = need(n * sizeof *to);
    for (size_t i = 0; i < n; i++)
        if (level[i] != KVD_LEVEL_DROPPED) {
            to[m] = find(s->position + at, left, h->position[i]);
            missing += to[m++] < 0;
        }
    head_rows rows = rows_of(r, b, g, place, level, n);
    check_rows(r, b, g, &rows, s->after, missing ? NULL : to);
    forget(r, h, level);
    h->ended = missing && near;
    r->rounded += h->ended;
    r->wrong += near ? 0 : missing;
    r->compared++;
    host_free(place, prob, level, to);
}

static void run_steps(method_run *r)
{
    fixture *const f = &r->f;
    const size_t q_n = ((size_t)f->batch + 1) * (size_t)f->map.q_pitch,
                 bytes = f->state_n * sizeof(uint32_t);
    int32_t kv_len[BATCH + 1];
    uint32_t now[BATCH + 1];
    uint16_t *const q = need(q_n * 2);
    kvd_evict_steps_args a = steps_of(f, &r->shape.rule, &r->state, r->pool);
    a.merging = r->merging;
    for (int s = 0; s < r->shape.steps; s++) {
        draw_step(f, s, q, kv_len, now, &a);
        uint32_t *const before = from_device(r->state.position, bytes);
        float *const score = from_device(r->state.score, bytes);
        check(kvd_evict_steps(&a, NULL), "kvd_evict_steps");
        check(cudaDeviceSynchronize(), "steps");
        uint16_t *const after = from_device(r->pool, f->pool_n * 2);
        uint32_t *const position = from_device(r->state.position, bytes);
        for (int b = 0; b < f->batch; b++) {
            for (int g = 0; g < f->map.n_kv_heads; g++) {
                const step_case x = {
                    q + (size_t)b * (size_t)f->map.q_pitch, now[b], before, position, score, after};
                if (!head_of(r, b, g)->ended)
                    check_step(r, b, g, &x);
                if (!head_of(r, b, g)->ended)
                    f->n[b] = (int32_t)head_of(r, b, g)->n;
            }
        }
        memcpy(f->pool, after, f->pool_n * 2);
        host_free(after, before, position, score);
        free_step(&a);
    }
    free_steps(&a);
    free(q);
}

static void run_case(const method_case *c)
{
    method_run r;
    open_run(&r, c);
    run_prompts(&r);
    check_merged(&r);
    report(&r, "prompts");
    if (c->shape.steps) {
        r.wrong = r.compared = r.dropped = r.merged = r.rows = r.rows_off = 0;
        run_steps(&r);
        check_merged(&r);
        report(&r, "steps");
    }
    close_run(&r);
}

/* usage: gpu_evict_methods [quick|TEXT]
 * quick   only small cases, for compute-sanitizer
 * TEXT    only methods whose name or parameters contain TEXT, for example "kvcrush" */
int main(int argc, char **argv)
{
    if (!gpu_devices("evict methods", 1))
        return 0;
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    for (size_t i = 0; i < sizeof method_cases / sizeof *method_cases; i++) {
        const method_case *const c = &method_cases[i];
        if (quick ? c->quick : argc < 2 || strstr(c->method, argv[1]))
            run_case(c);
    }
    return failures ? 1 : 0;
}
