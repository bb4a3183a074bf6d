/*
 * Tests of GPU selection at read time (methods/tokens/cuda/selection.h). Bounds must equal those of
 * plain code. The pages that a step reads are compared with the choice of method quest on the CPU.
 * Both sets must have the same size; where they differ, the bounds must be near ties. The output of
 * attention must be that of double precision over the pages that the GPU chose, and with a budget
 * for all tokens that of attention to all tokens.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "bf16.h"
#include "common/rng.h"
#include "gpu_case.h"
#include "kernels/cuda/decode.h"
#include "methods/method.h"
#include "methods/tokens/cuda/selection.h"
#include "methods/tokens/tokens.h"
#include "worst.h"

enum { BATCH = 6 };

typedef struct {
    const char *method;
    int n_heads, n_kv_heads, d_k, d_v;
    int len[BATCH], batch;
} selection_case;

static const selection_case cases[] = {
    {"quest,budget=64,page=16", 8, 2, 64, 48, {1, 16, 17, 65, 130, 300}, 6},
    {"quest,budget=0.25,page=64", 8, 2, 64, 64, {1, 64, 65, 128, 700, 300}, 6},
    {"quest,budget=0.3,page=8", 6, 2, 16, 128, {200, 33, 129}, 3},
    {"quest,budget=40,page=1", 4, 4, 128, 128, {200, 39, 40, 41}, 4},
    {"quest,budget=0.1,page=2", 32, 8, 128, 128, {16, 17, 333}, 3},
    {"quest,budget=1,page=16", 40, 40, 48, 48, {5, 100, 64}, 3},
    {"quest,budget=0.2,page=32", 16, 1, 96, 32, {1300, 1100}, 2},
    {"quest,budget=1024,page=16", 32, 8, 128, 128, {9000, 1, 1024, 1025}, 4},
    {"quest,budget=5000,page=16", 8, 2, 64, 64, {100, 3, 1000}, 3},
    {"quest,budget=5000,page=64", 8, 2, 64, 64, {100, 3, 1000}, 3},
};

static int failures;

typedef struct {
    const selection_case *c;
    kvd_attn_map map, one;
    size_t page, most;
    int max_pages, n_pages;
    uint16_t *pool, *q;
    size_t pool_n;
    int32_t *table, slot[BATCH + 1], len[BATCH + 1];
} fixture;

static uint16_t *cell(const fixture *f, int b, int g, int side, int t, int i)
{
    const int d_k = f->map.d_qk[g], d = side ? f->map.d_v[g] : d_k;
    return f->pool +
           (size_t)f->table[b * f->max_pages + t / KVD_PAGE_TOKENS] * (size_t)f->map.page_elements +
           (size_t)(f->map.kv_offset[g] + (side ? KVD_PAGE_TOKENS * d_k : 0)) +
           kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, (size_t)d);
}

static void *fetched(const void *from, size_t bytes)
{
    void *const to = need(bytes);
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy back");
    return to;
}

/*
 * Fills the pages with random tokens in a random order of pages. Places after the last token are
 * NaN, except for the zeros that the layout requires. The batch has one row of padding at its end.
 */
static fixture fixture_make(const selection_case *c, size_t page)
{
    fixture f = {.c = c, .page = page};
    kvd_rng r;
    kvd_attn_heads heads = {c->n_heads, c->n_kv_heads, c->d_k > c->d_v ? c->d_k : c->d_v,
                            {0},        {0},           0};
    kvd_attn_heads one = {c->n_heads / c->n_kv_heads, 1, heads.d_head, {c->d_k}, {c->d_v}, 0};
    kvd_rng_seed(&r, 11, 0);
    for (int g = 0; g < c->n_kv_heads; g++) {
        heads.d_qk[g] = c->d_k;
        heads.d_v[g] = c->d_v;
    }
    if (kvd_attn_map_make(&heads, &f.map) || kvd_attn_map_make(&one, &f.one))
        exit(1);
    for (int b = 0; b < c->batch; b++) {
        const int pages = (c->len[b] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
        f.max_pages = pages > f.max_pages ? pages : f.max_pages;
        f.len[b] = c->len[b];
        f.slot[b] = c->batch - 1 - b;
    }
    f.len[c->batch] = 1;
    f.slot[c->batch] = c->batch;
    f.n_pages = (c->batch + 1) * f.max_pages;
    f.most = (size_t)f.max_pages * (KVD_PAGE_TOKENS / page);
    f.pool_n = (size_t)f.n_pages * (size_t)f.map.page_elements;
    f.pool = need(f.pool_n * sizeof *f.pool);
    f.table = need((size_t)f.n_pages * sizeof *f.table);
    f.q = need((size_t)((c->batch + 1) * f.map.q_pitch) * sizeof *f.q);
    memset(f.pool, 0xff, f.pool_n * sizeof *f.pool);
    for (int i = 0; i < f.n_pages; i++) {
        const int j = (int)kvd_rng_below(&r, (uint64_t)i + 1);
        f.table[i] = f.table[j];
        f.table[j] = i;
    }
    for (int b = 0; b < c->batch; b++)
        for (int g = 0; g < c->n_kv_heads; g++)
            for (int side = 0; side < 2; side++)
                for (int t = 0; t < (c->len[b] + 7) / 8 * 8; t++)
                    for (int i = 0; i < (side ? c->d_v : c->d_k); i++)
                        *cell(&f, b, g, side, t, i) =
                            t < c->len[b] ? bf16_of(kvd_rng_normal(&r)) : 0;
    for (int i = 0; i < (c->batch + 1) * f.map.q_pitch; i++)
        f.q[i] = bf16_of(kvd_rng_normal(&r));
    return f;
}

static void fixture_release(fixture *f)
{
    free(f->pool);
    free(f->table);
    free(f->q);
}

/*
 * Computes the bounds in three parts, as for a prompt in two chunks and a step. Returns the number
 * of wrong bounds.
 */
static size_t check_bounds(const fixture *f, const kvd_selection *on)
{
    const selection_case *const c = f->c;
    const size_t each = KVD_PAGE_TOKENS / f->page, d = (size_t)c->d_k, kv = (size_t)c->n_kv_heads;
    size_t wrong = 0;
    for (int part = 0; part < 3; part++) {
        int32_t len[BATCH + 1] = {0}, n[BATCH + 1] = {0}, longest = 1;
        for (int b = 0; b < c->batch; b++) {
            const int all = c->len[b], half = all / 2, rest = all > half + 1 ? all - 1 : half;
            len[b] = part == 0 ? half : part == 1 ? rest : all;
            n[b] = part == 0 ? half : part == 1 ? rest - half : all - rest;
            longest = n[b] > longest ? n[b] : longest;
        }
        kvd_selection s = *on;
        s.kv_len = on_device(len, sizeof len);
        int32_t *const q_len = on_device(n, sizeof n);
        check(kvd_selection_bounds(&s, q_len, longest, NULL), "kvd_selection_bounds");
        check(cudaDeviceSynchronize(), "bounds");
        check(cudaFree((void *)s.kv_len), "cudaFree");
        check(cudaFree(q_len), "cudaFree");
    }
    uint16_t *const got = fetched(on->bounds, (size_t)f->n_pages * kv * each * 2 * d * 2);
    for (int b = 0; b < c->batch; b++)
        for (int g = 0; g < c->n_kv_heads; g++)
            for (int i = 0; i < c->d_k; i++)
                for (int first = 0; first < c->len[b]; first += (int)f->page) {
                    float low = INFINITY, high = -INFINITY;
                    for (int t = first; t < first + (int)f->page && t < c->len[b]; t++) {
                        low = fminf(low, bf16_wide(*cell(f, b, g, 0, t, i)));
                        high = fmaxf(high, bf16_wide(*cell(f, b, g, 0, t, i)));
                    }
                    const size_t at = (size_t)f->table[b * f->max_pages + first / KVD_PAGE_TOKENS],
                                 in = (size_t)(first % KVD_PAGE_TOKENS) / f->page;
                    const uint16_t *const x =
                        got + ((at * kv + (size_t)g) * each + in) * 2 * d + (size_t)i;
                    wrong += !(bf16_wide(x[0]) >= low && bf16_wide(x[0]) <= low);
                    wrong += !(bf16_wide(x[d]) >= high && bf16_wide(x[d]) <= high);
                }
    free(got);
    return wrong;
}

/* K of KV head g of request b, and the queries of its group, as float32. */
typedef struct {
    float *k, *q;
    uint32_t *position;
    uint8_t *read;
} head;

static head head_make(const fixture *f, int b, int g)
{
    const int n = f->c->len[b], d = f->c->d_k, group = f->map.group;
    head h = {need((size_t)(n * d) * sizeof *h.k), need((size_t)(group * d) * sizeof *h.q),
              need((size_t)n * sizeof *h.position), need((size_t)n)};
    for (int t = 0; t < n; t++) {
        h.position[t] = (uint32_t)t;
        h.read[t] = 1;
        for (int i = 0; i < d; i++)
            h.k[t * d + i] = bf16_wide(*cell(f, b, g, 0, t, i));
    }
    for (int j = 0; j < group; j++)
        for (int i = 0; i < d; i++)
            h.q[j * d + i] =
                bf16_wide(f->q[b * f->map.q_pitch + f->map.q_offset[g * group + j] + i]);
    return h;
}

static void head_release(head *h)
{
    free(h->k);
    free(h->q);
    free(h->position);
    free(h->read);
}

static double bound(const fixture *f, const head *h, int n, size_t page)
{
    double sum = 0;
    for (int j = 0; j < f->map.group; j++)
        for (int i = 0; i < f->c->d_k; i++) {
            double most = -INFINITY;
            for (size_t t = page * f->page; t < (page + 1) * f->page && t < (size_t)n; t++)
                most = fmax(most, (double)h->q[j * f->c->d_k + i] *
                                      (double)h->k[t * (size_t)f->c->d_k + (size_t)i]);
            sum += most;
        }
    return sum;
}

typedef struct {
    size_t sets, equal, wrong, read, cached;
    double worst;
} found;

/*
 * Compares the chosen pages of a KV head with the choice of the CPU. Sets h->read to the pages of
 * the GPU.
 */
static void check_choice(const fixture *f, int b, const kvd_method *m, head *h,
                         const int32_t *chosen, int32_t tokens, found *x)
{
    const int n = f->c->len[b];
    const size_t pages = ((size_t)n + f->page - 1) / f->page,
                 count = ((size_t)tokens + f->page - 1) / f->page;
    const kvd_read_choice c = {.group = f->map.group,
                               .n = (size_t)n,
                               .d = (size_t)f->c->d_k,
                               .position = h->position,
                               .k = h->k,
                               .q = h->q,
                               .ldq = (size_t)f->c->d_k,
                               .type = KVD_BF16};
    kvd_err err = {""};
    size_t want = 0, differ = 0;
    if (m->plan.tokens->select(&m->plan.tokens_values, NULL, &c, h->read, &err)) {
        printf("not ok %s: %s\n", m->plan.tokens->info.name, err.msg);
        exit(1);
    }
    double worst_kept = INFINITY, best_left = -INFINITY;
    for (int t = 0; t < n; t++)
        want += h->read[t];
    x->wrong += want != (size_t)tokens;
    for (size_t i = 1; i < count; i++)
        x->wrong += chosen[i] <= chosen[i - 1];
    x->wrong += chosen[count - 1] != (int32_t)pages - 1;
    for (size_t p = 0, i = 0; p < pages; p++) {
        const bool mine = i < count && chosen[i] == (int32_t)p;
        i += mine;
        if (mine != (h->read[p * f->page] != 0)) {
            const double s = bound(f, h, n, p);
            worst_kept = mine ? fmin(worst_kept, s) : worst_kept;
            best_left = mine ? best_left : fmax(best_left, s);
            differ++;
        }
        for (size_t t = p * f->page; t < (p + 1) * f->page && t < (size_t)n; t++)
            h->read[t] = mine;
    }
    x->wrong += differ && best_left - worst_kept > 1e-5 * (fabs(best_left) + 1);
    x->sets++;
    x->equal += !differ;
    x->read += (size_t)tokens;
    x->cached += (size_t)n;
}

/* Compares outputs `o` with double precision over the tokens in h->read. */
static void check_output(const fixture *f, int b, int g, const head *h, const uint16_t *o, found *x)
{
    const int n = f->c->len[b], d_k = f->c->d_k, d_v = f->c->d_v;
    double *const p = need((size_t)n * sizeof *p);
    for (int j = 0; j < f->map.group; j++) {
        double top = -INFINITY, sum = 0, off = 0, all = 0;
        for (int t = 0; t < n; t++) {
            p[t] = 0;
            for (int i = 0; i < d_k; i++)
                p[t] += (double)h->q[j * d_k + i] * (double)h->k[t * d_k + i];
            p[t] = h->read[t] ? p[t] * (double)f->map.scale : -INFINITY;
            top = fmax(top, p[t]);
        }
        for (int t = 0; t < n; t++)
            sum += p[t] = exp(p[t] - top);
        for (int i = 0; i < d_v; i++) {
            double want = 0;
            for (int t = 0; t < n; t++)
                if (h->read[t])
                    want += p[t] / sum * (double)bf16_wide(*cell(f, b, g, 1, t, i));
            const double got = (double)bf16_wide(
                o[b * f->map.o_pitch + f->map.o_offset[g * f->map.group + j] + i]);
            off += (got - want) * (got - want);
            all += want * want;
        }
        x->worst = worse(x->worst, sqrt(off / all));
    }
    free(p);
}

static void run_case(const selection_case *c)
{
    kvd_method m;
    kvd_err err = {""};
    if (kvd_method_parse(c->method, &m, &err)) {
        printf("not ok selection %s: %s\n", c->method, err.msg);
        failures++;
        return;
    }
    const kvd_read_rule rule = m.plan.tokens->read_rule(&m.plan.tokens_values);
    fixture f = fixture_make(c, rule.page);
    const size_t kv = (size_t)c->n_kv_heads, batch = (size_t)c->batch + 1, rows = batch * kv,
                 each = KVD_PAGE_TOKENS / rule.page, pages = (size_t)f.max_pages;
    const bool copies = rule.page < KVD_PAGE_TOKENS;
    int32_t live = c->batch;
    kvd_selection s = {.map = f.map,
                       .page = (int32_t)rule.page,
                       .budget = rule.budget,
                       .batch = (int32_t)batch,
                       .max_pages = f.max_pages,
                       .kv_len = on_device(f.len, sizeof f.len),
                       .slot = on_device(f.slot, sizeof f.slot),
                       .n_slots = c->batch,
                       .page_table = on_device(f.table, batch * pages * sizeof *f.table),
                       .pool = on_device(f.pool, f.pool_n * 2),
                       .bounds =
                           on_device(NULL, (size_t)f.n_pages * kv * each * 4 * (size_t)c->d_k)};
    int32_t *const table = need(rows * pages * sizeof *table), *const on_live =
                                                                   on_device(&live, sizeof live);
    for (size_t i = 0; i < rows * pages; i++)
        table[i] = (int32_t)i;
    kvd_selected to = {
        .q = on_device(f.q, batch * (size_t)f.map.q_pitch * 2),
        .score = on_device(NULL, rows * f.most * sizeof *to.score),
        .chosen = on_device(NULL, rows * f.most * sizeof *to.chosen),
        .table = on_device(table, rows * pages * sizeof *table),
        .rows = copies ? on_device(NULL, rows * pages * (size_t)f.one.page_elements * 2) : NULL,
        .row_pages = f.max_pages};
    const int ctas = kvd_decode_ctas(&f.one);
    const size_t work =
        kvd_decode_workspace_bytes(&f.one, (int)rows, f.max_pages * KVD_PAGE_TOKENS, ctas);
    kvd_decode_args a = {.dtype = KVD_BF16,
                         .map = f.one,
                         .batch = (int32_t)rows,
                         .max_pages = f.max_pages,
                         .kv_len = on_device(NULL, rows * sizeof(int32_t)),
                         .live = on_device(NULL, sizeof(int32_t)),
                         .page_table = to.table,
                         .q = to.q,
                         .pool = copies ? to.rows : s.pool,
                         .o = on_device(NULL, batch * (size_t)f.map.o_pitch * 2),
                         .n_ctas = ctas,
                         .workspace = on_device(NULL, work)};
    fill_bytes(a.workspace, 0, work);
    found x = {0};
    const size_t bounds = check_bounds(&f, &s);
    check(kvd_selection_lengths(&s, on_live, (int32_t *)a.kv_len, (int32_t *)a.live, NULL),
          "kvd_selection_lengths");
    check(kvd_decode_plan(&a, KVD_SCHEDULE_OURS, NULL), "kvd_decode_plan");
    check(kvd_selection_choose(&s, &to, NULL), "kvd_selection_choose");
    check(kvd_decode(&a, NULL), "kvd_decode");
    check(cudaDeviceSynchronize(), "a step");
    int32_t *const tokens = fetched(a.kv_len, rows * sizeof *tokens), *const chosen = fetched(
                                                                          to.chosen,
                                                                          rows * f.most *
                                                                              sizeof *chosen);
    uint16_t *const o = fetched(a.o, batch * (size_t)f.map.o_pitch * 2);
    for (int b = 0; b < c->batch; b++)
        for (int g = 0; g < c->n_kv_heads; g++) {
            const size_t row = (size_t)b * kv + (size_t)g;
            head h = head_make(&f, b, g);
            x.wrong += (size_t)tokens[row] !=
                       kvd_selection_tokens(rule.budget, rule.page, (size_t)c->len[b]);
            check_choice(&f, b, &m, &h, chosen + row * f.most, tokens[row], &x);
            check_output(&f, b, g, &h, o, &x);
            head_release(&h);
        }
    const int ok =
        !bounds && !x.wrong && x.worst < 1e-2 && (double)x.equal >= 0.99 * (double)x.sets;
    printf("%s selection %s, %d heads, %d of K and V, %d and %d dimensions: %zu of %zu tokens "
           "read, %zu of %zu sets are the CPU's, %zu wrong, %zu wrong bounds, outputs off by "
           "%.2g\n",
           ok ? "ok" : "not ok", c->method, c->n_heads, c->n_kv_heads, c->d_k, c->d_v, x.read,
           x.cached, x.equal, x.sets, x.wrong, bounds, x.worst);
    failures += !ok;
    const void *const all[] = {s.kv_len, s.slot,   s.page_table, s.pool,  s.bounds,
                               to.q,     to.score, to.chosen,    to.rows, to.table,
                               a.kv_len, a.live,   a.o,          on_live, a.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "cudaFree");
    free(tokens);
    free(chosen);
    free(o);
    free(table);
    fixture_release(&f);
}

/* usage: gpu_selection [quick]. quick: fewer cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    int devices = 0;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("skip selection: no device\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!quick || i < 3)
            run_case(&cases[i]);
    return failures ? 1 : 0;
}
