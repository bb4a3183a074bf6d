/* Compares eviction kernels with the CPU for methods in which a layer's budget depends on all
 * layers. */
#include "uneven_case.h"

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

/* Arrays on the device. least [batch][n_kv_heads + 1]: score below which a token is dropped; rank
 * [layers][n_kv_heads][n_q8]: scores of tokens. */
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

/* Sets queries to normally distributed numbers with standard deviation `sharp`. Large values
 * concentrate attention on few tokens. */
static void draw_queries(fixture *f, double sharp)
{
    for (int b = 0; b < f->batch; b++)
        for (int h = 0; h < f->map.n_heads; h++)
            for (int t = 0; t < f->len[b]; t++)
                for (int i = 0; i < f->map.d_qk[h / f->map.group]; i++)
                    *(uint16_t *)query(f, b, h, t, i) = bf16_of(sharp * kvd_rng_normal(&rng));
}

/* Returns the keys (or, with `keys` false, the queries) of the first n tokens of prompt b. */
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
    or_end(status || t->rank(self, &all, x.level, err), "uneven, rank", err->msg);
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

/* Compares the tokens that the GPU keeps in layer i with the CPU's. Returns how many are wrong.
 * *off: number of KV heads with one token more or less. */
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

/* Makes test data of layer i, with device arrays in `to`. Prompts are twice as long if the eviction
 * rule appends a copy to each prompt. */
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
        .prompt = prompts_of(f, rule, i, l.lse, on_device(f->pool, f->pool_n * 2)),
        .n_all = u->shape.n_kv_heads,
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
    device_free(a->prompt.pool, a->table, a->heads, a->statistic, a->spread);
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

/* Checks that layer l's pages hold K and V of the tokens at positions `kept`, or of all tokens if
 * `kept` is NULL. Returns how many elements are wrong. */
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
        or_end(e->divide(&m->plan.tokens_values, &s, budget, err), "uneven", err->msg);
        for (int i = 0; i < layers; i++)
            l[i].f.budget[f->slot[b]] = budget[i];
        free(x);
    }
}

/* Returns 1 if GPU and CPU keep different numbers of tokens of request b, summed over layers and KV
 * heads. */
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
        kvd_tokens_open(m.plan.tokens, &m.plan.tokens_values, &setup, &self, &err)) {
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
            check(kvd_uneven_review(a, NULL), "kvd_uneven_review");
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
    kvd_tokens_close(method, self);
    device_free(count, to.least, to.rank);
    free(kept);
    free(all);
    free(table);
    for (int i = 0; i < layers; i++) {
        if (rule.review && i % rule.layers)
            l[i].a.prompt.kept = NULL;
        layer_free(&l[i]);
    }
}

/* usage: gpu_uneven_layers [quick]; quick: fewer cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("uneven layers", 1))
        return 0;
    for (size_t i = 0; i < sizeof layer_cases / sizeof *layer_cases; i++)
        if (!quick || i % 4 == 0 || i == 11) {
            run_layers(&layer_cases[i], 1);
            if (!strncmp(layer_cases[i].method, "kvzip", 5))
                run_layers(&layer_cases[i], 0);
        }
    return failures ? 1 : 0;
}
