/*
 * Tests of GPU eviction that keeps different numbers of tokens per layer or KV head
 * (methods/tokens/cuda/uneven.h). Kept tokens are compared with the choice of the method's CPU
 * code. Both sets must have the same size; where they differ, the scores must be near ties, which
 * are counted.
 *
 * Methods whose budgets depend on all layers run on several layers with different queries. A layer
 * may then differ by one token because of rounding.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

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

static const uneven_case uneven_cases[] = {
    {"pyramidkv,window=16,budget=40", 0, 4, SHAPE(8, 2, 64, 48, 1, 7, 64, 65, 130, 300)},
    {"pyramidkv,window=16,budget=40", 3, 4, SHAPE(8, 2, 64, 48, 1, 7, 64, 65, 130, 300)},
    {"pyramidkv,window=8,budget=0.3,kernel=1", 1, 2, SHAPE(6, 2, 16, 128, 200, 33, 129)},
    {"pyramidkv,window=32,budget=0.9", 0, 2, SHAPE(4, 4, 128, 128, 200, 31, 32, 33)},
    {"adakv,window=16,budget=40", 0, 1, SHAPE(8, 2, 64, 48, 1, 7, 64, 65, 130, 300)},
    {"adakv,window=16,budget=48,alpha=0", 0, 1, SHAPE(32, 8, 128, 128, 16, 17, 80, 300)},
    {"adakv,window=16,budget=48,alpha=1", 0, 1, SHAPE(32, 2, 16, 32, 16, 18, 80, 300)},
    {"adakv,window=4,budget=1,kernel=3", 0, 1, SHAPE(40, 40, 32, 32, 5, 100)},
    {"adakv,window=32,budget=0.2", 0, 1, SHAPE(4, 2, 128, 64, 1300, 1100)},
    {"adakv,window=8,budget=5000", 0, 1, SHAPE(8, 2, 64, 64, 100, 3)},
    {"taskkv,window=16,budget=40", 0, 1, SHAPE(16, 4, 64, 48, 1, 7, 64, 65, 130, 300)},
    {"taskkv,window=32,budget=0.3,heads=0.5,sink=2", 0, 1, SHAPE(32, 8, 128, 128, 300, 33)},
    {"taskkv,window=4,budget=3,heads=0.1,sink=8", 0, 1, SHAPE(6, 2, 16, 128, 200, 3)},
    {"taskkv,window=8,budget=40,heads=0,middle=1", 0, 1, SHAPE(5, 5, 48, 80, 41, 90)},
    {"taskkv,window=4,budget=3,heads=0,sink=8", 0, 1, SHAPE(6, 2, 16, 128, 200, 3, 9)},
    {"adakv,window=16,budget=40", 0, 1, SHAPE(8, 2, 256, 256, 1, 64, 130, 300)},
    {"taskkv,window=16,budget=40", 0, 1, SHAPE(16, 4, 256, 240, 1, 65, 130, 300)},
};

/*
 * Computes exact attention of prompt b. Writes to recent [n_heads][n] the probabilities summed over
 * the last `window` queries, and to lse [n_heads][n_q8] the log-sum-exps of scores. n_q8 counts the
 * tokens of all prompts, each rounded up to a multiple of 8.
 */
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
    /* [n_heads][n] attention probabilities, summed over the last `window` queries */
    double *recent;
    kvd_prompt_attention *p;
    uint8_t **level;
    double *score; /* [n_kv_heads][n] scores of the tokens that may be dropped */
    float *v;      /* [n_kv_heads][n][d_v] values */
} layer_case;

static layer_case layer_make(const fixture *f, const uneven_case *u, const kvd_parameter_values *v,
                             int b)
{
    const size_t n = (size_t)f->len[b], kv = (size_t)f->map.n_kv_heads,
                 group = (size_t)f->map.group;
    layer_case c = {need(kv * group * n * sizeof *c.recent), need(kv * sizeof *c.p),
                    need(kv * sizeof *c.level), need(kv * n * sizeof *c.score),
                    need(kv * n * KVD_WIDTH_MAX * sizeof *c.v)};
    for (size_t g = 0; g < kv; g++) {
        const size_t d = (size_t)f->map.d_v[g];
        float *const values = c.v + g * n * KVD_WIDTH_MAX;
        for (size_t i = 0; i < n * d; i++)
            values[i] = bf16_wide(*cell(f, f->pool, b, (int)g, 1, (int)(i / d), (int)(i % d)));
        c.level[g] = need(n);
        memset(c.level[g], KVD_LEVEL_HIGH, n);
        c.p[g] = (kvd_prompt_attention){.layer = u->layer,
                                        .kv_head = (int)g,
                                        .group = (int)group,
                                        .n = n,
                                        .n_expected = n,
                                        .window = kvd_tokens_window_rows(v),
                                        .d = d,
                                        .v = values,
                                        .ld = d,
                                        .recent = c.recent + g * group * n};
    }
    return c;
}

static void layer_release(const fixture *f, layer_case *c)
{
    for (int g = 0; g < f->map.n_kv_heads; g++)
        free(c->level[g]);
    free(c->v);
    free(c->recent);
    free(c->p);
    free(c->level);
    free(c->score);
}

static void note(fixture *f, double got, double want)
{
    f->worst = worse(f->worst, fabs(got - want) / (fabs(want) + 1e-4));
}

/*
 * Compares the tokens that the device and the CPU keep for prompt b. Tokens from number `old` on
 * must be kept. Tokens that only one of the two keeps must have nearly equal scores. Returns the
 * number of errors.
 */
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
            wrong += t >= old; /* tokens from number `old` on must be kept */
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

/*
 * Returns the address of dimension i of K (side 0) or V (side 1) of the token at index `place` in
 * KV head g.
 */
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

/*
 * Returns the number of wrong elements of K and V in the pages of KV head g of prompt b. Expected
 * are the m tokens `kept`; then, if `step` is 1, token 0 again; then zeros up to a multiple of 8
 * tokens.
 */
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

/*
 * Copies the prompts and the log-sum-exps `lse` [n_heads][n_q8] to the device, and allocates the
 * outputs there. The caller must call free_prompts.
 */
static kvd_evict_prompts_args prompts_of(const fixture *f, const kvd_evict_rule *rule, int layer,
                                         const float *lse)
{
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8, batch = (size_t)f->batch;
    kvd_evict_prompts_args a = {
        .map = f->map,
        .rule = *rule,
        .budget = on_device(f->budget, sizeof f->budget),
        .hopper = on_hopper(),
        .layer = layer,
        .batch = f->batch,
        .n_q8 = f->n_q8,
        .max_pages = f->max_pages,
        .q_start = on_device(f->start, sizeof f->start),
        .q_len = on_device(f->len, sizeof f->len),
        .slot = on_device(f->slot, sizeof f->slot),
        .page_table = on_device(f->table, batch * (size_t)f->max_pages * sizeof *f->table),
        .q = on_device(f->q, (size_t)f->map.q_pitch * rows * 2),
        .pool = on_device(f->pool, f->pool_n * 2),
        .lse = on_device(lse, heads * rows * sizeof *lse),
        .mass = on_device(NULL, heads * rows * sizeof *lse),
        .score = on_device(NULL, kv * rows * sizeof *lse),
        .kept = on_device(NULL, kv * rows * sizeof(int32_t))};
    for (int b = 0; b < f->batch; b++)
        a.longest = f->len[b] > a.longest ? f->len[b] : a.longest;
    return a;
}

static void free_prompts(const kvd_evict_prompts_args *a)
{
    const void *const all[] = {a->budget, a->q_start, a->q_len, a->slot,  a->q,   a->page_table,
                               a->pool,   a->lse,     a->mass,  a->score, a->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "cudaFree");
}

typedef struct {
    float *score, *mass;
    int32_t *kept, *count, *table;
    uint16_t *heads;
    size_t heads_n, pages;
} outputs;

static void run_prompts(fixture *f, const uneven_case *u, const kvd_evict_rule *rule,
                        const float *lse, outputs *o)
{
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8, batch = (size_t)f->batch;
    kvd_uneven_prompts_args a = {.prompt = prompts_of(f, rule, u->layer, lse),
                                 .least = on_device(NULL, batch * (kv + 1) * sizeof *a.least),
                                 .count = on_device(NULL, batch * kv * sizeof *a.count),
                                 .whole = (int32_t)ceil(rule->whole_heads * (double)kv),
                                 .vector = on_device(NULL, batch * kv * KVD_WIDTH_MAX * 4),
                                 .is_whole = on_device(NULL, batch * kv * sizeof *a.is_whole),
                                 .table = on_device(o->table, o->pages * sizeof *o->table),
                                 .heads = on_device(NULL, o->heads_n * 2)};
    check(kvd_uneven_prompts(&a, NULL), "kvd_uneven_prompts");
    check(cudaDeviceSynchronize(), "prompts");
    fetch(o->score, a.prompt.score, kv * rows * sizeof *o->score);
    fetch(o->mass, a.prompt.mass, heads * rows * sizeof *o->mass);
    fetch(o->kept, a.prompt.kept, kv * rows * sizeof *o->kept);
    fetch(o->count, a.count, batch * kv * sizeof *o->count);
    fetch(o->heads, a.heads, o->heads_n * 2);
    free_prompts(&a.prompt);
    const void *const all[] = {a.least, a.count, a.table, a.heads, a.vector, a.is_whole};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "cudaFree");
}

/*
 * Runs a decode step in which the new K and V of every request equal those of its first token. One
 * more step in the batch is padding.
 */
static void run_step(const fixture *f, outputs *o)
{
    const size_t kv = (size_t)f->map.n_kv_heads, pitch = (size_t)f->max_pages;
    int32_t slot[BATCH + 1];
    int32_t *const length = need((size_t)(f->batch + 1) * kv * sizeof *length),
                   *const from = need((size_t)(f->batch + 1) * pitch * sizeof *from),
                   *const table = need(((size_t)f->batch + 1) * kv * pitch * sizeof *table);
    memcpy(from, f->table, (size_t)f->batch * pitch * sizeof *from);
    memcpy(table, o->table, o->pages * sizeof *table);
    for (int b = 0; b <= f->batch; b++) {
        slot[b] = b < f->batch ? f->slot[b] : f->batch;
        for (size_t g = 0; g < kv; g++)
            length[(size_t)b * kv + g] =
                b < f->batch ? o->count[(size_t)f->slot[b] * kv + g] + 1 : 1;
    }
    const kvd_uneven_step_args a = {
        .map = f->map,
        .batch = f->batch + 1,
        .max_pages = f->max_pages,
        .slot = on_device(slot, sizeof slot),
        .n_slots = f->batch,
        .from_table = on_device(from, (size_t)(f->batch + 1) * pitch * sizeof *from),
        .from = on_device(f->pool, f->pool_n * 2),
        .kv_len = on_device(length, (size_t)(f->batch + 1) * kv * sizeof *length),
        .table = on_device(table, (size_t)(f->batch + 1) * kv * pitch * sizeof *table),
        .heads = on_device(o->heads, o->heads_n * 2)};
    check(kvd_uneven_step(&a, NULL), "kvd_uneven_step");
    check(cudaDeviceSynchronize(), "a step");
    fetch(o->heads, a.heads, o->heads_n * 2);
    const void *const all[] = {a.slot, a.from_table, a.from, a.kv_len, a.table, a.heads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "cudaFree");
    free(length);
    free(from);
    free(table);
}

static int check_prompt(fixture *f, const kvd_method *m, const void *self, int b,
                        const layer_case *c, const outputs *o)
{
    const kvd_tokens_method *const method = m->plan.tokens;
    const kvd_parameter_values *const v = &m->plan.tokens_values;
    const size_t kv = (size_t)f->map.n_kv_heads, n = (size_t)f->len[b],
                 newest = (size_t)f->budget[f->slot[b]].keep_new, old = n > newest ? n - newest : 0;
    const bool single = method == &kvd_tokens_taskkv,
               smooth = !single && v->value[KVD_WINDOW_KERNEL] > 1;
    kvd_err err = {""};
    int wrong = 0;
    for (size_t g = 0; g < kv; g++) {
        const float *const rank = (smooth ? o->mass + g * (size_t)f->map.group * (size_t)f->n_q8
                                          : o->score + g * (size_t)f->n_q8) +
                                  f->start[b];
        if (!single)
            kvd_tokens_window_scores(v, &c->p[g], c->score + g * n);
        for (size_t i = 0; single && i < (size_t)f->map.group * old; i++)
            c->score[g * n + i % old] += c->p[g].recent[i / old * n + i % old];
        for (size_t t = 0; t < old; t++)
            note(f, (double)rank[t], c->score[g * n + t]);
        if (method->prompt)
            wrong += method->prompt(self, NULL, &c->p[g], c->level[g], &err) != 0;
    }
    if (method->prompt_heads)
        wrong += method->prompt_heads(self, NULL, c->p, kv, c->level, &err) != 0;
    return wrong + check_sets(f, b, c, old, o->kept, o->count + (size_t)f->slot[b] * kv);
}

static void run_case(const uneven_case *u)
{
    fixture f;
    kvd_err err = {""};
    kvd_method m;
    void *self = NULL;
    test_case shape = u->shape;
    shape.steps = 8; /* makes the pages large enough for a decode step */
    make(&f, &shape);
    const size_t kv = (size_t)f.map.n_kv_heads, rows = (size_t)f.n_q8;
    const kvd_config config = {.n_layers = u->n_layers,
                               .n_heads = shape.n_heads,
                               .n_kv_heads = shape.n_kv_heads,
                               .d_head = 128};
    const kvd_method_setup setup = {.config = &config};
    if (kvd_method_parse(u->method, &m, &err) ||
        m.plan.tokens->open(&m.plan.tokens_values, &setup, &self, &err)) {
        printf("not ok uneven %s: %s\n", u->method, err.msg);
        failures++;
        return;
    }
    const kvd_parameter_values *const v = &m.plan.tokens_values;
    kvd_evict_rule rule = {.smooth = 1};
    m.plan.tokens->eviction->rule(v, &rule);
    float *const lse = need((size_t)f.map.n_heads * rows * sizeof *lse);
    layer_case c[BATCH];
    for (int b = 0; b < f.batch; b++) {
        const size_t n = (size_t)f.len[b];
        const kvd_evict_request r = {n, n, u->layer, u->n_layers};
        f.budget[f.slot[b]] = m.plan.tokens->eviction->budget(v, &r);
        c[b] = layer_make(&f, u, v, b);
        attend(&f, b, (int)kvd_tokens_window_rows(v), c[b].recent, lse);
    }
    outputs o = {.score = need(kv * rows * sizeof *o.score),
                 .mass = need((size_t)f.map.n_heads * rows * sizeof *o.mass),
                 .kept = need(kv * rows * sizeof *o.kept),
                 .count = need((size_t)f.batch * kv * sizeof *o.count),
                 .pages = (size_t)f.batch * kv * (size_t)f.max_pages};
    o.heads_n = o.pages * (size_t)(KVD_PAGE_TOKENS * (shape.width[0][0] + shape.width[0][1]));
    o.heads = need(o.heads_n * 2);
    o.table = need(o.pages * sizeof *o.table);
    for (size_t i = 0; i < o.pages; i++)
        o.table[i] = (int32_t)(o.pages - 1 - i);
    run_prompts(&f, u, &rule, lse, &o);
    int wrong = 0, rest = 0;
    size_t entries = 0;
    for (int b = 0; b < f.batch; b++)
        wrong += check_prompt(&f, &m, self, b, &c[b], &o);
    for (int after = 0; after < 2; after++) {
        for (int b = 0; b < f.batch; b++)
            for (size_t g = 0; g < kv; g++) {
                const int count = o.count[(size_t)f.slot[b] * kv + g];
                entries += after ? 0 : (size_t)count;
                rest += check_rows(&f, o.heads, o.table, b, (int)g,
                                   o.kept + g * rows + (size_t)f.start[b], count, after);
            }
        if (!after)
            run_step(&f, &o);
    }
    const int ok = !wrong && !rest && f.worst < 2e-4;
    printf(
        "%s uneven %s, layer %d of %d: %zu entries, scores off by %.2g, %zu choices by rounding, "
        "%d wrong, %d wrong numbers in rows\n",
        ok ? "ok" : "not ok", u->method, u->layer, u->n_layers, entries, f.worst, f.near, wrong,
        rest);
    failures += !ok;
    for (int b = 0; b < f.batch; b++)
        layer_release(&f, &c[b]);
    if (m.plan.tokens->close)
        m.plan.tokens->close(self);
    void *const all[] = {lse,     o.score, o.mass, o.kept, o.count, o.table,
                         o.heads, f.table, f.pool, f.q,    f.score, f.position};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

enum { LAYERS_MOST = 4 };

static const uneven_case layer_cases[] = {
    {"prefixkv,budget=40", 0, 3, SHAPE(8, 2, 64, 64, 1, 7, 64, 65, 130, 300)},
    {"prefixkv,budget=0.3,sink=0", 0, 4, SHAPE(4, 4, 128, 128, 200, 31, 2, 3)},
    {"prefixkv,budget=5000", 0, 2, SHAPE(6, 2, 16, 16, 129, 40)},
    {"cake,window=16,budget=40", 0, 3, SHAPE(8, 2, 64, 64, 1, 7, 16, 17, 130, 300)},
    {"cake,window=33,budget=0.3,kernel=1,tau1=2", 0, 4, SHAPE(4, 4, 128, 128, 200, 31, 34)},
    {"cake,window=2,budget=1,gamma=0", 0, 2, SHAPE(6, 2, 16, 16, 129, 40)},
    {"cake,window=8,budget=5000", 0, 2, SHAPE(32, 2, 32, 32, 100, 9)},
    {"windowkv,window=16,review=8,budget=64,layers=2,beta=4", 0, 3,
     SHAPE(8, 2, 64, 64, 1, 7, 16, 17, 130, 300)},
    {"windowkv,window=5,review=32,budget=0.3,layers=1,beta=2,largest=1", 0, 4,
     SHAPE(4, 4, 128, 128, 200, 31, 34, 6)},
    {"windowkv,window=8,review=70,budget=90,layers=4,beta=4,largest=1", 0, 3,
     SHAPE(6, 2, 16, 16, 300, 100)},
    {"windowkv,window=8,review=16,budget=5000", 0, 2, SHAPE(6, 2, 16, 16, 129, 40)},
    {"kvzip,budget=40", 0, 3, SHAPE(8, 2, 64, 64, 1, 7, 64, 65, 130, 300)},
    {"kvzip,budget=0.3,sink=0", 0, 4, SHAPE(4, 4, 128, 128, 200, 31, 2, 3)},
    {"kvzip,budget=2,sink=8", 0, 2, SHAPE(6, 2, 16, 16, 129, 40)},
    {"kvzip,budget=5000", 0, 2, SHAPE(32, 2, 32, 32, 100, 9)},
    {"kvzip,budget=0.1", 0, 2, SHAPE(10, 2, 96, 96, 700)},
};

/* Device memory that all layers share: [batch][n_kv_heads + 1], [layers][n_kv_heads][n_q8]. */
typedef struct {
    unsigned long long *least;
    float *rank;
} scratch;

typedef struct {
    fixture f;
    float *lse; /* [n_heads][n_q8] */
    kvd_uneven_prompts_args a;
    float *rank;
    uint16_t *heads;
} layer;

/* Draws normal queries with the standard deviation `sharp`, which differs from layer to layer. */
static void draw_queries(fixture *f, double sharp)
{
    for (int b = 0; b < f->batch; b++)
        for (int h = 0; h < f->map.n_heads; h++)
            for (int t = 0; t < f->len[b]; t++)
                for (int i = 0; i < f->map.d_qk[h / f->map.group]; i++)
                    *(uint16_t *)query(f, b, h, t, i) = bf16_of(sharp * kvd_rng_normal(&rng));
}

/* Returns keys or queries of the first n tokens of prompt b. */
static float *rows_of(const fixture *f, int b, int n, bool keys)
{
    const int heads = keys ? f->map.n_kv_heads : f->map.n_heads, d = f->map.d_qk[0];
    float *const x = need((size_t)(n * heads * d) * sizeof *x);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < d; i++)
                x[(t * heads + h) * d + i] =
                    bf16_wide(keys ? *cell(f, f->pool, b, h, 0, t, i) : *query(f, b, h, t, i));
    return x;
}

typedef struct {
    double *observed; /* [layers][each] */
    uint8_t *level;   /* [layers][n_kv_heads][n] */
    size_t each;
} found;

static found find(const kvd_tokens_method *t, const void *self, const layer *l, int layers, int b,
                  kvd_err *err)
{
    const size_t n = (size_t)l->f.len[b], heads = (size_t)l->f.map.n_kv_heads;
    const int rows_n = l->f.len[b] * (t->repeats ? 2 : 1);
    found x = {.each = t->observed(self, n)};
    x.observed = need((size_t)layers * x.each * sizeof *x.observed);
    x.level = need((size_t)layers * heads * n);
    int status = 0;
    for (int i = 0; i < layers; i++) {
        float *const q = rows_of(&l[i].f, b, rows_n, false), *const k =
                                                                 rows_of(&l[i].f, b, rows_n, true);
        const kvd_observed_prompt rows = {.layer = i, .n = n, .q = q, .k = k};
        status = status || t->observe(self, &rows, x.observed + (size_t)i * x.each, err);
        free(q);
        free(k);
    }
    const kvd_prompt_layers all = {layers, n, NULL, x.observed};
    if (status || t->rank(self, &all, x.level, err)) {
        printf("not ok uneven, rank: %s\n", err->msg);
        exit(1);
    }
    return x;
}

static double score_of(const kvd_evict_rule *r, const layer *l, const found *x, int i, int b, int g,
                       int t, int old, double *got)
{
    const fixture *const f = &l[i].f;
    const int from = r->review ? i / r->layers * r->layers : i;
    const double *const o = x->observed + (size_t)from * x->each;
    const float *const mine = l[from].rank + f->start[b];
    if (r->ranking == KVD_EVICT_SPREAD) {
        *got = (double)mine[g * f->n_q8 + t];
        return o[1 + g * old + t];
    }
    if (r->ranking == KVD_EVICT_REPEATED) {
        *got = (double)mine[g * f->n_q8 + t];
        return t < r->sink ? INFINITY : o[g * old + t];
    }
    *got = (double)mine[r->review ? t / r->review : t];
    return t < r->sink ? INFINITY : o[r->review ? t / r->review : t];
}

/*
 * Compares the kept tokens of one layer and prompt with the CPU's. Adds to `*off` the number of KV
 * heads that keep one token more or less than on the CPU. Returns the number of wrong choices.
 */
static int check_layer(const kvd_evict_rule *r, layer *l, const found *x, int i, int b,
                       const int32_t *kept, const int32_t *count, int *off)
{
    fixture *const f = &l[i].f;
    const size_t n = (size_t)f->len[b], kv = (size_t)f->map.n_kv_heads;
    const size_t newest = r->ranking == KVD_EVICT_REPEATED ? 0
                          : r->review || r->window         ? (size_t)r->window
                                                           : 1,
                 old = n > newest ? n - newest : 0;
    layer_case c = {.level = need(kv * sizeof *c.level), .score = need(kv * n * sizeof *c.score)};
    kvd_err err = {""};
    int wrong = 0;
    for (size_t g = 0; g < kv; g++) {
        const uint8_t *const theirs = x->level + ((size_t)i * kv + g) * n;
        const size_t mine = (size_t)count[(size_t)f->slot[b] * kv + g];
        size_t number = 0;
        for (size_t t = 0; t < n; t++)
            number += theirs[t] != KVD_LEVEL_DROPPED;
        c.level[g] = need(n);
        memcpy(c.level[g], theirs, n);
        for (size_t t = 0; t < old; t++) {
            double got;
            c.score[g * n + t] = score_of(r, l, x, i, b, (int)g, (int)t, (int)old, &got);
            if (isfinite(c.score[g * n + t]))
                note(f, got, c.score[g * n + t]);
        }
        if (number == mine)
            continue;
        /*
         * The number of kept tokens may differ by one, but they must be those with the largest
         * scores.
         */
        *off += 1;
        wrong += r->review || number > mine + 1 || mine > number + 1 || mine + old < n;
        memset(c.level[g], KVD_LEVEL_HIGH, n);
        wrong += kvd_tokens_keep_top(c.score + g * n, old, mine + old - n, c.level[g], &err) != 0;
    }
    wrong += check_sets(f, b, &c, old, kept, count + (size_t)f->slot[b] * kv);
    for (size_t g = 0; g < kv; g++)
        free(c.level[g]);
    free(c.level);
    free(c.score);
    return wrong;
}

/*
 * Makes layer i. `scratch` has the members `least` and `rank` of all layers. If the method reads
 * prompts twice, each has twice as many rows as tokens.
 */
static layer layer_of(const uneven_case *u, int i, const kvd_evict_rule *rule, scratch to)
{
    layer l = {.lse = NULL};
    test_case shape = u->shape;
    const int copies = rule->ranking == KVD_EVICT_REPEATED ? 2 : 1;
    shape.steps = 8;
    for (int b = 0; b < shape.n_len; b++)
        shape.len[b] *= copies;
    make(&l.f, &shape);
    for (int skip = 0; skip < i; skip++)
        draw_queries(&l.f, 1 + 1.5 * skip);
    const fixture *const f = &l.f;
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8, batch = (size_t)f->batch,
                 tables = batch * kv * (size_t)f->max_pages;
    l.lse = need(heads * rows * sizeof *l.lse);
    for (int b = 0; b < f->batch; b++) {
        double *const unused = need(heads * (size_t)f->len[b] * sizeof *unused);
        attend(f, b, f->len[b], unused, l.lse);
        free(unused);
    }
    int32_t *const table = need(tables * sizeof *table);
    for (size_t t = 0; t < tables; t++)
        table[t] = (int32_t)(tables - 1 - t);
    l.a = (kvd_uneven_prompts_args){
        .prompt = prompts_of(f, rule, i, l.lse),
        .least = to.least,
        .table = on_device(table, tables * sizeof *table),
        .heads = on_device(
            NULL, tables * (size_t)(KVD_PAGE_TOKENS * (f->map.d_qk[0] + f->map.d_v[0])) * 2),
        .rank = to.rank + (size_t)i * kv * rows,
        .statistic = on_device(NULL, batch * 2 * sizeof(double)),
        .spread = on_device(NULL, heads * (rows / KVD_PAGE_TOKENS + batch) * 2 * sizeof(float)),
        .layer_counts = batch * kv};
    for (int b = 0; b < f->batch; b++)
        l.f.len[b] /= copies;
    l.a.prompt.longest /= copies;
    check(cudaMemcpy((void *)l.a.prompt.q_len, f->len, sizeof f->len, cudaMemcpyHostToDevice),
          "lengths");
    l.rank = need(kv * rows * sizeof *l.rank);
    l.heads = need(tables * (size_t)(KVD_PAGE_TOKENS * (f->map.d_qk[0] + f->map.d_v[0])) * 2);
    free(table);
    return l;
}

static void layer_free(layer *l)
{
    const kvd_uneven_prompts_args *const a = &l->a;
    free_prompts(&a->prompt);
    const void *const all[] = {a->table, a->heads, a->statistic, a->spread};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "cudaFree");
    void *const host[] = {l->lse,    l->rank, l->heads,   l->f.table,
                          l->f.pool, l->f.q,  l->f.score, l->f.position};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

static size_t heads_bytes(const fixture *f)
{
    return (size_t)(f->batch * f->map.n_kv_heads * f->max_pages) *
           (size_t)(KVD_PAGE_TOKENS * (f->map.d_qk[0] + f->map.d_v[0])) * 2;
}

/*
 * Compares the pages with the tokens in `kept`, or with all tokens if it is NULL. Returns the
 * number of wrong elements.
 */
static int check_layer_rows(layer *l, const int32_t *table, const int32_t *kept,
                            const int32_t *count)
{
    const fixture *const f = &l->f;
    int wrong = 0;
    fetch(l->heads, l->a.heads, heads_bytes(f));
    for (int b = 0; b < f->batch; b++) {
        int32_t *const all = need((size_t)f->len[b] * sizeof *all);
        for (int t = 0; t < f->len[b]; t++)
            all[t] = t;
        for (int g = 0; g < f->map.n_kv_heads; g++)
            wrong +=
                check_rows(f, l->heads, table, b, g, kept ? kept + g * f->n_q8 + f->start[b] : all,
                           kept ? count[f->slot[b] * f->map.n_kv_heads + g] : f->len[b], 0);
        free(all);
    }
    return wrong;
}

static void divide(const kvd_method *m, layer *l, int layers, kvd_err *err)
{
    const kvd_tokens_eviction *const e = m->plan.tokens->eviction;
    const fixture *const f = &l->f;
    double pair[LAYERS_MOST][BATCH][2];
    for (int i = 0; i < layers; i++) {
        fetch(l[i].rank, l[i].a.rank,
              (size_t)(l->a.prompt.rule.whole_layer ? 1 : f->map.n_kv_heads) * (size_t)f->n_q8 *
                  sizeof(float));
        if (l->a.prompt.rule.ranking == KVD_EVICT_SPREAD)
            fetch(pair[i], l[i].a.statistic, (size_t)f->batch * 2 * sizeof(double));
    }
    for (int b = 0; b < f->batch; b++) {
        const bool spreads = l->a.prompt.rule.ranking == KVD_EVICT_SPREAD;
        const size_t each = spreads ? 2 : (size_t)f->len[b];
        kvd_evict_budget budget[LAYERS_MOST];
        double *const x = need((size_t)layers * each * sizeof *x);
        for (int i = 0; i < layers; i++)
            for (size_t t = 0; t < each; t++)
                x[(size_t)i * each + t] =
                    spreads ? pair[i][f->slot[b]][t] : (double)l[i].rank[(size_t)f->start[b] + t];
        const kvd_evict_layers s = {(size_t)f->len[b], layers, x, each};
        if (e->divide(&m->plan.tokens_values, &s, budget, err)) {
            printf("not ok uneven: %s\n", err->msg);
            exit(1);
        }
        for (int i = 0; i < layers; i++)
            l[i].f.budget[f->slot[b]] = budget[i];
        free(x);
    }
}

/* Returns 1 if the KV heads of all layers together keep other numbers of tokens than on the CPU. */
static int check_total(const layer *l, int layers, int b, const found *x, const int32_t *count)
{
    const size_t n = (size_t)l->f.len[b], kv = (size_t)l->f.map.n_kv_heads,
                 counts = (size_t)l->f.batch * kv;
    int64_t off = 0;
    for (size_t i = 0; i < (size_t)layers * kv * n; i++)
        off += x->level[i] != KVD_LEVEL_DROPPED;
    for (size_t i = 0; i < (size_t)layers * kv; i++)
        off -= count[i / kv * counts + (size_t)l->f.slot[b] * kv + i % kv];
    return off != 0;
}

/* `hopper` is 0 for the kernels that all devices run. */
static void run_layers(const uneven_case *u, int hopper)
{
    layer l[LAYERS_MOST];
    kvd_err err = {""};
    kvd_method m;
    void *self = NULL;
    const int layers = u->n_layers, d = u->shape.width[0][0];
    const kvd_config config = {.n_layers = layers,
                               .n_heads = u->shape.n_heads,
                               .n_kv_heads = u->shape.n_kv_heads,
                               .d_head = d,
                               .score_scale = 1 / sqrt(128)};
    const kvd_method_setup setup = {.config = &config};
    if (kvd_method_parse(u->method, &m, &err) ||
        m.plan.tokens->open(&m.plan.tokens_values, &setup, &self, &err)) {
        printf("not ok uneven %s: %s\n", u->method, err.msg);
        failures++;
        return;
    }
    const kvd_tokens_method *const method = m.plan.tokens;
    kvd_evict_rule rule = {.smooth = 1};
    method->eviction->rule(&m.plan.tokens_values, &rule);
    const bool repeats = method->repeats, late = repeats || method->eviction->divide;
    int most = 0;
    for (int b = 0; b < u->shape.n_len; b++)
        most += 2 * u->shape.len[b] + 8;
    const size_t scores = (size_t)(layers * u->shape.n_kv_heads * most);
    const scratch to = {
        on_device(NULL, BATCH * (size_t)(u->shape.n_kv_heads + 1) * sizeof *to.least),
        on_device(NULL, scores * sizeof *to.rank)};
    for (int i = 0; i < layers; i++) {
        l[i] = layer_of(u, i, &rule, to);
        l[i].a.prompt.hopper = l[i].a.prompt.hopper && hopper;
    }
    const fixture *const f = &l->f;
    const size_t kv = (size_t)f->map.n_kv_heads, rows = (size_t)f->n_q8,
                 counts = (size_t)f->batch * kv, tables = counts * (size_t)f->max_pages;
    int32_t *const kept = need(kv * rows * sizeof *kept), *const all = need(counts * sizeof *all),
                   *const table = need(tables * sizeof *table);
    int32_t *const count = on_device(NULL, (size_t)layers * counts * sizeof *count);
    int wrong = 0, rest = 0, off = 0;
    size_t entries = 0, near = 0;
    double worst = 0;
    fetch(table, l->a.table, tables * sizeof *table);
    for (int i = 0; i < layers; i++) {
        l[i].a.count = count + (size_t)i * counts;
        for (int b = 0; b < f->batch; b++) {
            const kvd_evict_request r = {(size_t)f->len[b], (size_t)f->len[b], i, layers};
            l[i].f.budget[f->slot[b]] = method->eviction->budget(&m.plan.tokens_values, &r);
        }
        if (!late)
            continue;
        check(kvd_uneven_rank(&l[i].a, NULL), "kvd_uneven_rank");
        check(kvd_uneven_store(&l[i].a, NULL), "kvd_uneven_store");
        check(cudaDeviceSynchronize(), "scores of a layer");
        rest += check_layer_rows(&l[i], table, NULL, NULL);
        l[i].a.stored = 1;
        l[i].a.decided = repeats;
        l[i].a.first_head = repeats ? (int32_t)((size_t)i * kv) : 0;
        if (repeats)
            fetch(l[i].rank, l[i].a.rank, kv * rows * sizeof(float));
    }
    if (method->eviction->divide)
        divide(&m, l, layers, &err);
    found x[BATCH];
    for (int b = 0; b < f->batch; b++)
        x[b] = find(method, self, l, layers, b, &err);
    for (int i = 0; i < layers; i++) {
        kvd_uneven_prompts_args *const a = &l[i].a;
        const bool first = rule.review && i % rule.layers == 0;
        check(cudaMemcpy((void *)a->prompt.budget, l[i].f.budget, sizeof f->budget,
                         cudaMemcpyHostToDevice),
              "budgets");
        check(cudaStreamSynchronize(NULL), "budgets");
        if (repeats && i == 0)
            check(kvd_uneven_threshold(a, layers, NULL), "kvd_uneven_threshold");
        if (first) {
            a->layers = layers - i < rule.layers ? layers - i : rule.layers;
            check(kvd_uneven_windows(a, NULL), "kvd_uneven_windows");
            check(cudaDeviceSynchronize(), "windows");
            fetch(l[i].rank, a->prompt.score, rows * sizeof(float));
        }
        if (rule.review)
            a->prompt.kept = l[i / rule.layers * rule.layers].a.prompt.kept;
        check(rule.review ? kvd_uneven_copy(a, NULL) : kvd_uneven_choose(a, NULL), "choice");
        check(cudaDeviceSynchronize(), "choice");
        fetch(kept, a->prompt.kept, kv * rows * sizeof *kept);
        fetch(all, a->count, counts * sizeof *all);
        for (int b = 0; b < f->batch; b++)
            wrong += check_layer(&rule, l, &x[b], i, b, kept, all, &off);
        rest += check_layer_rows(&l[i], table, kept, all);
        for (size_t k = 0; k < counts; k++)
            entries += (size_t)all[k];
        worst = worse(worst, l[i].f.worst);
        near += l[i].f.near;
    }
    int32_t *const all_counts = need((size_t)layers * counts * sizeof *all_counts);
    fetch(all_counts, count, (size_t)layers * counts * sizeof *all_counts);
    for (int b = 0; b < f->batch && repeats; b++)
        wrong += check_total(l, layers, b, &x[b], all_counts);
    free(all_counts);
    const int ok = !wrong && !rest && worst < 2e-4;
    printf(
        "%s uneven %s, %d layers%s: %zu entries, scores off by %.2g, %zu choices by rounding, %d "
        "numbers of heads off by one, %d wrong, %d wrong numbers in rows\n",
        ok ? "ok" : "not ok", u->method, layers, hopper ? "" : ", kernels of all devices", entries,
        worst, near, off, wrong, rest);
    failures += !ok;
    for (int b = 0; b < f->batch; b++) {
        free(x[b].observed);
        free(x[b].level);
    }
    if (method->close)
        method->close(self);
    check(cudaFree(count), "cudaFree");
    check(cudaFree(to.least), "cudaFree");
    check(cudaFree(to.rank), "cudaFree");
    free(kept);
    free(all);
    free(table);
    for (int i = 0; i < layers; i++) {
        if (rule.review && i % rule.layers)
            l[i].a.prompt.kept = NULL;
        layer_free(&l[i]);
    }
}

/* Rule of mpcache.c: a fraction of the last rows, and a mean probability. */
typedef struct {
    double rows, threshold;
    test_case shape;
} marked_case;

static const marked_case marked_cases[] = {
    {0.2, 0.01, SHAPE(8, 2, 64, 48, 1, 7, 64, 65, 130, 300)},
    {0.5, 0.004, SHAPE(6, 6, 16, 128, 200, 33, 129)},
    {1, 0.02, SHAPE(4, 2, 128, 64, 700)},
    {0, 0.5, SHAPE(4, 4, 32, 32, 100, 3)},
    {0.1, 0, SHAPE(32, 8, 128, 128, 260, 9)},
};

/* Writes the largest mean probability that the last rows of prompt b give each token: best [n]. */
static void mean_probabilities(const fixture *f, int b, int rows, double *best)
{
    const int n = f->len[b], heads = f->map.n_heads;
    for (int t = 0; t < n; t++)
        best[t] = -1;
    for (int t = n - rows; t < n; t++) {
        double *const mean = need((size_t)n * sizeof *mean), *const p = need((size_t)n * sizeof *p);
        for (int h = 0; h < heads; h++) {
            const int g = h / f->map.group, d = f->map.d_qk[g];
            double sum = 0;
            for (int k = 0; k <= t; k++) {
                p[k] = 0;
                for (int i = 0; i < d; i++)
                    p[k] += (double)bf16_wide(*query(f, b, h, t, i)) *
                            (double)bf16_wide(*cell(f, f->pool, b, g, 0, k, i));
                sum += p[k] = exp(p[k] * (double)f->map.scale);
            }
            for (int k = 0; k <= t; k++)
                mean[k] += p[k] / sum / heads;
        }
        for (int k = 0; k <= t; k++)
            best[k] = fmax(best[k], mean[k]);
        free(mean);
        free(p);
    }
}

static void run_marked(const marked_case *c)
{
    fixture f;
    make(&f, &c->shape);
    const size_t kv = (size_t)f.map.n_kv_heads, rows = (size_t)f.n_q8;
    float *const lse = need((size_t)f.map.n_heads * rows * sizeof *lse);
    for (int b = 0; b < f.batch; b++) {
        double *const unused = need((size_t)(f.map.n_heads * f.len[b]) * sizeof *unused);
        attend(&f, b, f.len[b], unused, lse);
        free(unused);
    }
    const kvd_evict_rule rule = {.smooth = 1};
    kvd_evict_prompts_args a = prompts_of(&f, &rule, 0, lse);
    int32_t *const length = on_device(NULL, sizeof(int32_t) * BATCH);
    int32_t counts[BATCH], *const kept = need(kv * rows * sizeof *kept);
    uint16_t *const pool = need(f.pool_n * 2);
    check(kvd_evict_mark(&a, c->rows, c->threshold, NULL), "kvd_evict_mark");
    check(kvd_evict_marked(&a, length, (kvd_evict_budget *)a.budget, NULL), "kvd_evict_marked");
    check(cudaDeviceSynchronize(), "marked tokens");
    fetch(counts, length, sizeof(int32_t) * (size_t)f.batch);
    fetch(kept, a.kept, kv * rows * sizeof *kept);
    fetch(pool, a.pool, f.pool_n * 2);
    int wrong = 0, rest = 0;
    size_t entries = 0, near = 0;
    for (int b = 0; b < f.batch; b++) {
        const int n = f.len[b];
        double *const best = need((size_t)n * sizeof *best);
        mean_probabilities(&f, b, (int)ceil(c->rows * n), best);
        for (size_t g = 0; g < kv; g++) {
            const int32_t *const mine = kept + g * rows + (size_t)f.start[b];
            int i = 0;
            for (int t = 0; t < n; t++) {
                const int stays = i < counts[b] && mine[i] == t,
                          wanted = t == n - 1 || best[t] >= c->threshold;
                i += stays;
                near += stays != wanted;
                wrong += stays != wanted && fabs(best[t] - c->threshold) > 2e-4 * c->threshold;
            }
            wrong += i != counts[b];
            for (int k = 0; k < counts[b]; k++)
                for (int side = 0; side < 2; side++)
                    for (int x = 0; x < (side ? f.map.d_v[g] : f.map.d_qk[g]); x++)
                        rest += *cell(&f, pool, b, (int)g, side, k, x) !=
                                *cell(&f, f.pool, b, (int)g, side, mine[k], x);
        }
        entries += (size_t)counts[b] * kv;
        free(best);
    }
    const int ok = !wrong && !rest;
    printf("%s uneven, rows that mark, fraction %g, probability %g: %zu entries, %zu choices by "
           "rounding, %d wrong, %d wrong numbers in rows\n",
           ok ? "ok" : "not ok", c->rows, c->threshold, entries, near, wrong, rest);
    failures += !ok;
    free_prompts(&a);
    check(cudaFree(length), "cudaFree");
    void *const all[] = {lse, kept, pool, f.table, f.pool, f.q, f.score, f.position};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* usage: gpu_uneven [quick]. quick: fewer cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("uneven", 1))
        return 0;
    for (size_t i = 0; i < sizeof uneven_cases / sizeof *uneven_cases; i++)
        if (!quick || i == 0 || i == 4 || i == 7)
            run_case(&uneven_cases[i]);
    for (size_t i = 0; i < sizeof layer_cases / sizeof *layer_cases; i++)
        if (!quick || i % 4 == 0 || i == 11) {
            run_layers(&layer_cases[i], 1);
            if (!strncmp(layer_cases[i].method, "kvzip", 5))
                run_layers(&layer_cases[i], 0);
        }
    for (size_t i = 0; i < sizeof marked_cases / sizeof *marked_cases; i++)
        if (!quick || i == 0)
            run_marked(&marked_cases[i]);
    return failures ? 1 : 0;
}
