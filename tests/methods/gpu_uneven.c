/* Compares eviction kernels on the GPU with functions on the CPU. KV heads keep different numbers
 * of tokens. */
#include "uneven_case.h"

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
    kvd_uneven_prompts_args a = {
        .prompt = prompts_of(f, rule, u->layer, lse, on_device(f->pool, f->pool_n * 2)),
        .n_all = (int32_t)kv,
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
    device_free(a.prompt.pool, a.least, a.count, a.table, a.heads, a.vector, a.is_whole);
}

/* Runs a decode step, in which each request appends a copy of the K and V of its token 0. One more
 * request is padding. */
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
    device_free(a.slot, a.from_table, a.from, a.kv_len, a.table, a.heads);
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
    shape.steps = 8; /* With 8 steps, the pages have room for a decode step. */
    make(&f, &shape);
    const size_t kv = (size_t)f.map.n_kv_heads, rows = (size_t)f.n_q8;
    const kvd_config config = {.n_layers = u->n_layers,
                               .n_heads = shape.n_heads,
                               .n_kv_heads = shape.n_kv_heads,
                               .d_head = 128};
    const kvd_method_setup setup = {.config = &config};
    if (kvd_method_parse(u->method, &m, &err) ||
        kvd_tokens_open(m.plan.tokens, &m.plan.tokens_values, &setup, &self, &err)) {
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
    kvd_tokens_close(m.plan.tokens, self);
    void *const all[] = {lse,     o.score, o.mass, o.kept, o.count, o.table,
                         o.heads, f.table, f.pool, f.q,    f.score, f.position};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Test case of the eviction method mpcache, which keeps tokens with a mean attention probability of
 * at least `threshold`. rows: fraction of the prompt's queries, counted from the end, that are
 * used. */
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
    {0.3, 0.006, SHAPE(4, 2, 256, 208, 300, 33, 129)},
};

/* For each of the last `rows` queries, takes the mean over heads of each token's attention
 * probability. Writes a token's largest mean to `best`. */
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
    kvd_evict_prompts_args a = prompts_of(&f, &rule, 0, lse, on_device(f.pool, f.pool_n * 2));
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
    device_free(a.pool, length);
    void *const all[] = {lse, kept, pool, f.table, f.pool, f.q, f.score, f.position};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* usage: gpu_uneven [quick]; quick: fewer cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("uneven", 1))
        return 0;
    for (size_t i = 0; i < sizeof uneven_cases / sizeof *uneven_cases; i++)
        if (!quick || i == 0 || i == 4 || i == 7)
            run_case(&uneven_cases[i]);
    for (size_t i = 0; i < sizeof marked_cases / sizeof *marked_cases; i++)
        if (!quick || i == 0)
            run_marked(&marked_cases[i]);
    return failures ? 1 : 0;
}
