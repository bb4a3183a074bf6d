/* Tests the methods quest, alisa, a2ats and mpcache, which select the cache pages that a decode
 * step reads. The GPU must select the same pages as the CPU. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CASE_MEMORY
#include "common/rng.h"
#include "gpu_case.h"
#include "kernels/cuda/decode.h"
#include "make_dump.h"
#include "methods/method.h"
#include "methods/tokens/cuda/selection.h"
#include "methods/tokens/tokens.h"
#include "model/pass/blocks.h"
#include "temp_folder.h"
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
    {"a2ats,size=32,rows=200,budget=20,sink=3,local=9", 8, 2, 64, 64, {2, 9, 41, 65, 130, 300}, 6},
    {"a2ats,size=50,rows=100,budget=0.1,local=4", 6, 2, 32, 32, {200, 33, 129}, 3},
    {"a2ats,size=33,rows=60,budget=5000,relative=0", 4, 4, 16, 16, {200, 39, 700}, 3},
    {"a2ats,size=40,rows=200,budget=0.2,local=4", 4, 2, 256, 256, {200, 33, 129}, 3},
    {"mpcache,budget=64", 8, 2, 64, 48, {1, 16, 17, 65, 130, 300}, 6},
    {"mpcache,budget=0.25,large=64,small=8,first=0.3", 6, 2, 16, 128, {700, 33, 129}, 3},
    {"mpcache,budget=0.4,large=128,small=64,alpha=1", 4, 4, 128, 128, {1000, 63, 129}, 3},
    {"mpcache,budget=5000,large=4,small=1", 32, 8, 128, 128, {9, 333}, 2},
    {"mpcache,budget=0.01,large=16,first=0", 16, 1, 96, 96, {2000, 40}, 2},
    {"mpcache,budget=0.3,large=32,small=8", 4, 2, 256, 144, {700, 33, 129}, 3},
    {"alisa,budget=40", 8, 2, 64, 48, {2, 9, 41, 65, 130, 300}, 6},
    {"alisa,budget=0.2,history=3", 6, 2, 16, 128, {200, 33, 129}, 3},
    {"alisa,budget=0.3,local=0,history=1", 4, 4, 128, 128, {200, 39, 3}, 3},
    {"alisa,budget=100,local=1,history=64", 32, 8, 128, 128, {16, 333}, 2},
    {"alisa,budget=5000,history=20", 16, 1, 96, 32, {100, 3, 1000}, 3},
    {"alisa,budget=0.25,history=5", 24, 2, 208, 256, {200, 39, 300}, 3},
};

typedef struct {
    const selection_case *c;
    kvd_attn_map map, one;
    size_t page, most;
    int max_pages, n_pages;
    uint16_t *pool, *q;
    size_t pool_n;
    int32_t *table, slot[BATCH + 1], len[BATCH + 1];
    uint16_t *rows[BATCH]; /* [len][n_heads][d_k] queries of the prompts */
} fixture;

static uint16_t *cell(const fixture *f, int b, int g, int side, int t, int i)
{
    const int d_k = f->map.d_qk[g], d = side ? f->map.d_v[g] : d_k;
    return f->pool +
           (size_t)f->table[b * f->max_pages + t / KVD_PAGE_TOKENS] * (size_t)f->map.page_elements +
           (size_t)(f->map.kv_offset[g] + (side ? KVD_PAGE_TOKENS * d_k : 0)) +
           kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, (size_t)d);
}

/* Makes cache pages for the requests of case c and for one padding request. Unused elements are
 * NaN. */
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
    for (int b = 0; b < c->batch; b++) {
        const size_t n = (size_t)(c->len[b] * c->n_heads * c->d_k);
        f.rows[b] = need(n * sizeof *f.rows[b]);
        for (size_t i = 0; i < n; i++)
            f.rows[b][i] = bf16_of(kvd_rng_normal(&r));
    }
    return f;
}

/* Computes the attention probabilities p [n] of query q for n tokens. If `read` is not NULL, only
 * tokens t with read[t] = 1 take part. Returns the log-sum-exp of their scores. */
static double attend(const fixture *f, int b, int g, const uint16_t *q, int n, const uint8_t *read,
                     double *p)
{
    double top = -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        p[t] = 0;
        for (int i = 0; i < f->c->d_k; i++)
            p[t] += (double)bf16_wide(q[i]) * (double)bf16_wide(*cell(f, b, g, 0, t, i));
        p[t] = read && !read[t] ? -INFINITY : p[t] * (double)f->map.scale;
        top = fmax(top, p[t]);
    }
    for (int t = 0; t < n; t++)
        sum += exp(p[t] - top);
    for (int t = 0; t < n; t++)
        p[t] = exp(p[t] - top) / sum;
    return top + log(sum);
}

static const uint16_t *row_of(const fixture *f, int b, int t, int h)
{
    return f->rows[b] + (size_t)((t * f->c->n_heads + h) * f->c->d_k);
}

/* Returns the newest query t < n that uses row `row` of a ring buffer with `history` rows. Returns
 * -1 if there is no such query. */
static int position_of(int n, int row, int history)
{
    int t = n - 1;
    while (t >= 0 && t % history != row)
        t--;
    return t;
}

/* Runs the kernel that stores attention probabilities. from, to [batch]: range of query positions
 * in each request, without `to` itself. */
static void recall_rows(const fixture *f, const kvd_selection *on, const int32_t *from,
                        const int32_t *to)
{
    const selection_case *const c = f->c;
    kvd_selection s = *on;
    kvd_selection_rows rows = {.n_q8 = 0};
    int32_t start[BATCH + 1] = {0}, n[BATCH + 1] = {0};
    for (int b = 0; b < c->batch; b++) {
        start[b] = rows.n_q8;
        n[b] = to[b] - from[b];
        rows.n_q8 += (n[b] + 7) / 8 * 8;
        rows.longest = to[b] > rows.longest ? to[b] : rows.longest;
    }
    const size_t wide = (size_t)rows.n_q8;
    uint16_t *const q = need((size_t)f->map.q_pitch * wide * sizeof *q);
    float *const lse = need((size_t)c->n_heads * wide * sizeof *lse);
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < c->n_heads; h++)
        for (int b = 0; b < c->batch; b++)
            for (int t = from[b]; t < to[b]; t++) {
                double *const p = or_out_of_memory(malloc((size_t)(t + 1) * sizeof *p));
                const size_t at = (size_t)(start[b] + t - from[b]), d = (size_t)c->d_k;
                lse[(size_t)h * wide + at] =
                    (float)attend(f, b, h / f->map.group, row_of(f, b, t, h), t + 1, NULL, p);
                for (size_t i = 0; i < d; i++)
                    q[(size_t)f->map.q_offset[h] * wide + (size_t)start[b] * d +
                      kvd_blocked_index((size_t)(t - from[b]), i, d)] = row_of(f, b, t, h)[i];
                free(p);
            }
    s.batch = c->batch;
    s.kv_len = on_device(to, sizeof n);
    rows.q = on_device(q, (size_t)f->map.q_pitch * wide * sizeof *q);
    rows.lse = on_device(lse, (size_t)c->n_heads * wide * sizeof *lse);
    rows.q_start = on_device(start, sizeof start);
    rows.q_len = on_device(n, sizeof n);
    check(kvd_selection_recent(&s, &rows, NULL), "kvd_selection_recent");
    check(cudaDeviceSynchronize(), "rows of prompts");
}

/* Runs the kernels on all tokens of each request except the last, in two parts, as if prompts were
 * split. */
static void run_prompts(const fixture *f, const kvd_selection *s)
{
    int32_t at[3][BATCH + 1] = {{0}};
    for (int b = 0; b < f->c->batch; b++) {
        at[2][b] = f->c->len[b] - 1;
        at[1][b] = (at[2][b] + 1) / 2;
    }
    recall_rows(f, s, at[0], at[1]);
    recall_rows(f, s, at[1], at[2]);
}

/* Returns token t's attention probability in row `row` of the ring buffer `recent`, which has
 * `history` rows. */
static float recent_of(const fixture *f, const float *recent, int history, int b, int g, int t,
                       int row)
{
    const size_t page = (size_t)f->table[b * f->max_pages + t / KVD_PAGE_TOKENS];
    return recent[((page * (size_t)f->c->n_kv_heads + (size_t)g) * (size_t)history + (size_t)row) *
                      KVD_PAGE_TOKENS +
                  (size_t)(t % KVD_PAGE_TOKENS)];
}

/* Returns how many attention probabilities in the buffer `recent` are wrong. `read` marks the
 * tokens that the last query attended to. */
static size_t check_recent(const fixture *f, const float *recent, int history, int b, int g,
                           const uint8_t *read)
{
    const int n = f->c->len[b], group = f->map.group, last = read ? n : n - 1;
    double *const p = need((size_t)n * sizeof *p), *const sum = need((size_t)n * sizeof *sum);
    size_t wrong = 0;
    for (int row = 0; row < history; row++) {
        const int t = position_of(last, row, history);
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int j = 0; j < group && t >= 0; j++) {
            const int h = g * group + j;
            if (t == n - 1)
                (void)attend(f, b, g, f->q + b * f->map.q_pitch + f->map.q_offset[h], n, read, p);
            else
                (void)attend(f, b, g, row_of(f, b, t, h), t + 1, NULL, p);
            for (int i = 0; i <= t; i++)
                sum[i] += p[i];
        }
        for (int i = 0; i < last; i++) {
            const double got = (double)recent_of(f, recent, history, b, g, i, row);
            wrong += !(fabs(got - sum[i]) <= 1e-4 * sum[i] + 1e-6);
        }
    }
    return wrong;
}

/* Computes the codes of all keys on the GPU. If `codes` is NULL, computes the minimum and maximum
 * of the keys in each page instead. */
static void run_parts(const fixture *f, const kvd_selection *on, const kvd_selection_codes *codes)
{
    const selection_case *const c = f->c;
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
        check(codes ? kvd_selection_encode(&s, codes, q_len, longest, NULL)
                    : kvd_selection_bounds(&s, q_len, longest, NULL),
              "bounds or codes");
        check(cudaDeviceSynchronize(), "bounds or codes");
    }
}

/* Returns how many key bounds are wrong. Each page has, for every key channel, its largest and
 * smallest element. */
static size_t check_bounds(const fixture *f, const kvd_selection *on)
{
    const selection_case *const c = f->c;
    const size_t each = KVD_PAGE_TOKENS / f->page, d = (size_t)c->d_k, kv = (size_t)c->n_kv_heads;
    size_t wrong = 0;
    run_parts(f, on, NULL);
    uint16_t *const got = from_device(on->bounds, (size_t)f->n_pages * kv * each * 2 * d * 2);
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
    return wrong;
}

/* one KV head on the CPU: keys in float32, and the queries that attend to them */
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
    const kvd_tokens_method *method;
    void *self;
    /* attention probabilities of the last `history` queries, as the GPU stored them; NULL if the
     * method does not use them */
    float *recent;
    int history;
    uint16_t *code; /* codes of keys, or NULL */
    bool varies;    /* the choice determines the number of tokens read */
    kvd_activations calibration;
} chooser;

typedef struct {
    size_t n;
    uint16_t code[];
} coded;

/* Returns the keys of n tokens as the GPU quantised them, in the data structure of the CPU's method
 * a2ats. */
static coded *codes_of(const fixture *f, const chooser *m, int b, int g, size_t n)
{
    coded *const x = need(sizeof *x + (size_t)f->c->len[b] * sizeof *x->code);
    x->n = n;
    for (size_t t = 0; t < n; t++) {
        const int page = f->table[b * f->max_pages + (int)t / KVD_PAGE_TOKENS];
        x->code[t] =
            m->code[(page * f->c->n_kv_heads + g) * KVD_PAGE_TOKENS + (int)t % KVD_PAGE_TOKENS];
    }
    return x;
}

/* Returns the state of the CPU's token selection method, filled with the GPU's key codes or
 * attention probabilities. Returns NULL if the method needs neither. */
static void *state_of(const fixture *f, const chooser *m, int b, int g)
{
    const int n = f->c->len[b];
    if (m->code)
        return codes_of(f, m, b, g, (size_t)n);
    double *const x = m->recent ? need((size_t)(n * m->history) * sizeof *x) : NULL;
    for (int i = 0; x && i < (n - 1) * m->history; i++)
        x[i] = (double)recent_of(f, m->recent, m->history, b, g, i / m->history, i % m->history);
    return x;
}

static double score_of(const fixture *f, const chooser *m, const head *h, const double *state,
                       int n, size_t page)
{
    double sum = 0;
    if (!state)
        return bound(f, h, n, page);
    for (size_t r = 0; r < (size_t)m->history; r++)
        sum += state[page * (size_t)m->history + r];
    return sum;
}

typedef struct {
    size_t sets, equal, wrong, read, cached;
    double worst;
    size_t codes, other; /* number of codes, and of those that differ from the CPU */
} found;

/* Compares the pages that the GPU chose for a decode step with the CPU's choice. Sets h->read to 1
 * for tokens in the GPU's pages. */
static void check_choice(const fixture *f, int b, int g, const chooser *m, head *h,
                         const int32_t *chosen, int32_t tokens, found *x)
{
    const int n = f->c->len[b];
    const size_t pages = ((size_t)n + f->page - 1) / f->page,
                 count = ((size_t)tokens + f->page - 1) / f->page;
    const kvd_read_choice c = {.kv_head = g,
                               .group = f->map.group,
                               .n = (size_t)n,
                               .d = (size_t)f->c->d_k,
                               .position = h->position,
                               .k = h->k,
                               .q = h->q,
                               .ldq = (size_t)f->c->d_k,
                               .type = KVD_BF16};
    kvd_err err = {""};
    double *const state = state_of(f, m, b, g);
    coded *const mine = m->code ? (coded *)(void *)state : NULL, *const theirs =
                                                                     m->code
                                                                         ? codes_of(f, m, b, g, 0)
                                                                         : NULL;
    size_t want = 0, differ = 0;
    if (theirs && m->method->select(m->self, theirs, &c, h->read, &err))
        exit(1);
    for (int t = 0; t < n && theirs; t++) {
        x->codes++;
        x->other += mine->code[t] != theirs->code[t];
        h->read[t] = 1;
    }
    or_end(m->method->select(m->self, state, &c, h->read, &err), m->method->info.name, err.msg);
    double worst_kept = INFINITY, best_left = -INFINITY;
    for (int t = 0; t < n; t++)
        want += h->read[t];
    x->wrong += want != (size_t)tokens && !m->varies;
    for (size_t i = 1; i < count; i++)
        x->wrong += chosen[i] <= chosen[i - 1];
    x->wrong += chosen[count - 1] != (int32_t)pages - 1;
    for (size_t p = 0, i = 0; p < pages; p++) {
        const bool reads = i < count && chosen[i] == (int32_t)p;
        i += reads;
        if (reads != (h->read[p * f->page] != 0) && m->varies) {
            differ++;
        } else if (reads != (h->read[p * f->page] != 0)) {
            const double s = score_of(f, m, h, state, n, p);
            worst_kept = reads ? fmin(worst_kept, s) : worst_kept;
            best_left = reads ? best_left : fmax(best_left, s);
            differ++;
        }
        for (size_t t = p * f->page; t < (p + 1) * f->page && t < (size_t)n; t++)
            h->read[t] = reads;
    }
    x->wrong +=
        differ && !m->varies && best_left - worst_kept > 1e-5 * (fabs(best_left) + (state ? 0 : 1));
    x->sets++;
    x->equal += !differ;
    x->read += (size_t)tokens;
    x->cached += (size_t)n;
}

static void check_output(const fixture *f, int b, int g, const head *h, const uint16_t *o, found *x)
{
    const int n = f->c->len[b], d_v = f->c->d_v;
    double *const p = need((size_t)n * sizeof *p);
    for (int j = 0; j < f->map.group; j++) {
        double off = 0, all = 0;
        (void)attend(f, b, g, f->q + b * f->map.q_pitch + f->map.q_offset[g * f->map.group + j], n,
                     h->read, p);
        for (int i = 0; i < d_v; i++) {
            double want = 0;
            for (int t = 0; t < n; t++)
                if (h->read[t])
                    want += p[t] * (double)bf16_wide(*cell(f, b, g, 1, t, i));
            const double got = (double)bf16_wide(
                o[b * f->map.o_pitch + f->map.o_offset[g * f->map.group + j] + i]);
            off += (got - want) * (got - want);
            all += want * want;
        }
        x->worst = worse(x->worst, sqrt(off / all));
    }
}

/* Writes a file with random Q and K of one layer, and opens it as calibration data. */
static int calibrate(chooser *by, const kvd_config *c, kvd_err *err)
{
    static char path[160];
    dump_plan p;
    (void)snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    dump_plan_init(&p, 250, 1);
    p.a.model.n_heads = c->n_heads;
    p.a.model.n_kv_heads = c->n_kv_heads;
    p.a.model.d_head = c->d_head;
    p.a.model.n_layers = p.a.n_layers = 1;
    p.a.has_pre = true;
    return write_dump(&p, path, test_run(), err) ||
           kvd_activations_open(&by->calibration, path, err);
}

static kvd_selection_codes codes_make(const kvd_config *c, kvd_read_codes from, const fixture *f,
                                      size_t rows)
{
    const size_t kv = (size_t)c->n_kv_heads, d = (size_t)c->d_head, size = (size_t)from.size,
                 codes = (size_t)f->n_pages * kv * KVD_PAGE_TOKENS;
    double frequency[KVD_WIDTH_MAX];
    for (size_t i = 0; i < d / 2; i++)
        frequency[i] = kvd_rope_frequency(c, false, (size_t)c->max_positions, i);
    kvd_selection_codes x = {
        .size = from.size,
        .relative = from.relative,
        .dims = c->d_head,
        .frequency = on_device(frequency, d / 2 * sizeof *frequency),
        .factor = on_device(from.factor, kv * d * d * sizeof(float)),
        .moved = on_device(from.moved, kv * size * d * sizeof(float)),
        .centroid = on_device(from.centroid, kv * size * d * sizeof(float)),
        .code = on_device(NULL, codes * sizeof(uint16_t)),
        .product = on_device(NULL, rows * (size_t)f->map.group * size * sizeof(float))};
    return x;
}

static void run_case(const selection_case *c)
{
    kvd_method m;
    kvd_err err = {""};
    chooser by = {.recent = NULL};
    const kvd_config config = {.n_layers = 1,
                               .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .d_head = c->d_k,
                               .positions = KVD_POSITIONS_ROPE,
                               .rope_layout = KVD_ROPE_HALF,
                               .rope_theta = 1e4,
                               .max_positions = 4096};
    const bool calibrated = !strncmp(c->method, "a2ats", 5);
    const kvd_method_setup setup = {.config = &config,
                                    .calibration = calibrated ? &by.calibration : NULL};
    if ((calibrated && calibrate(&by, &config, &err)) || kvd_method_parse(c->method, &m, &err) ||
        kvd_tokens_open(m.plan.tokens, &m.plan.tokens_values, &setup, &by.self, &err)) {
        printf("not ok selection %s: %s\n", c->method, err.msg);
        failures++;
        return;
    }
    const kvd_read_rule rule = m.plan.tokens->read_rule(&m.plan.tokens_values);
    const bool recalls = rule.ranking == KVD_READ_RECENT, looks_up = rule.ranking == KVD_READ_CODES;
    by.varies = kvd_selection_varies(&rule);
    by.method = m.plan.tokens;
    by.history = rule.history;
    fixture f = fixture_make(c, rule.page);
    const size_t kv = (size_t)c->n_kv_heads, batch = (size_t)c->batch + 1, rows = batch * kv,
                 each = KVD_PAGE_TOKENS / rule.page, pages = (size_t)f.max_pages;
    int32_t live = c->batch;
    kvd_selection s = {.map = f.map,
                       .rule = rule,
                       .batch = (int32_t)batch,
                       .max_pages = f.max_pages,
                       .kv_len = on_device(f.len, sizeof f.len),
                       .slot = on_device(f.slot, sizeof f.slot),
                       .n_slots = c->batch,
                       .page_table = on_device(f.table, batch * pages * sizeof *f.table),
                       .pool = on_device(f.pool, f.pool_n * 2),
                       .bounds =
                           on_device(NULL, (size_t)f.n_pages * kv * each * 4 * (size_t)c->d_k)};
    const size_t recent = (size_t)f.n_pages * kv * (size_t)rule.history * KVD_PAGE_TOKENS * 4;
    s.recent = recalls ? on_device(NULL, recent) : NULL;
    int32_t *const on_live = on_device(&live, sizeof live);
    kvd_selected to = {
        .q = on_device(f.q, batch * (size_t)f.map.q_pitch * 2),
        .score = on_device(NULL, rows * (size_t)(f.map.group + 1) * f.most * sizeof *to.score),
        .chosen = on_device(NULL, rows * f.most * sizeof *to.chosen),
        .table = on_device(NULL, rows * f.most * sizeof *to.table),
        .row_pages = f.max_pages,
        .len = on_device(NULL, rows * sizeof(int32_t)),
        .read = on_device(NULL, batch * sizeof *to.read)};
    const int ctas = kvd_decode_ctas(&f.one);
    const size_t work =
        kvd_decode_workspace_bytes(&f.one, (int)rows, f.max_pages * KVD_PAGE_TOKENS, ctas);
    kvd_decode_args a = {.dtype = KVD_BF16,
                         .map = f.one,
                         .batch = (int32_t)rows,
                         .max_pages = f.max_pages,
                         .kv_len = to.len,
                         .live = on_device(NULL, sizeof(int32_t)),
                         .page_table = to.table,
                         .piece_tokens = kvd_selection_piece(&rule),
                         .q = to.q,
                         .pool = s.pool,
                         .o = on_device(NULL, batch * (size_t)f.map.o_pitch * 2),
                         .lse = on_device(NULL, rows * (size_t)f.map.group * sizeof(float)),
                         .n_ctas = ctas,
                         .workspace = on_device(NULL, work)};
    fill_bytes(a.workspace, 0, work);
    found x = {0};
    const size_t bounds = recalls || looks_up ? 0 : check_bounds(&f, &s);
    const kvd_selection_codes codes =
        looks_up ? codes_make(&config, m.plan.tokens->read_codes(by.self), &f, rows)
                 : (kvd_selection_codes){.size = 0};
    if (looks_up)
        run_parts(&f, &s, &codes);
    if (recalls) {
        run_prompts(&f, &s);
        by.recent = from_device(s.recent, recent);
    }
    check(kvd_selection_lengths(&s, on_live, (int32_t *)a.kv_len, (int32_t *)a.live, NULL),
          "kvd_selection_lengths");
    check(looks_up    ? kvd_selection_lookup(&s, &codes, &to, NULL)
          : by.varies ? kvd_selection_clusters(&s, &to, NULL)
                      : cudaSuccess,
          "a choice before the plan");
    check(kvd_decode_plan(&a, KVD_SCHEDULE_OURS, NULL), "kvd_decode_plan");
    check(by.varies ? cudaSuccess : kvd_selection_choose(&s, &to, NULL), "kvd_selection_choose");
    check(kvd_decode(&a, NULL), "kvd_decode");
    if (recalls)
        check(kvd_selection_recall(&s, &to, a.lse, NULL), "kvd_selection_recall");
    check(cudaDeviceSynchronize(), "a step");
    by.code =
        looks_up ? from_device(codes.code, (size_t)f.n_pages * kv * KVD_PAGE_TOKENS * 2) : NULL;
    float *const after = recalls ? from_device(s.recent, recent) : NULL;
    int32_t *const tokens = from_device(a.kv_len, rows * sizeof *tokens),
                   *const chosen = from_device(to.chosen, rows * f.most * sizeof *chosen);
    uint16_t *const o = from_device(a.o, batch * (size_t)f.map.o_pitch * 2);
    for (int b = 0; b < c->batch; b++)
        for (int g = 0; g < c->n_kv_heads; g++) {
            const size_t row = (size_t)b * kv + (size_t)g;
            head h = head_make(&f, b, g);
            x.wrong +=
                !by.varies && (size_t)tokens[row] != kvd_selection_tokens(&rule, (size_t)c->len[b]);
            x.wrong += (size_t)tokens[row] >
                       kvd_selection_most(&rule, (size_t)f.map.group, (size_t)c->len[b]);
            check_choice(&f, b, g, &by, &h, chosen + row * f.most, tokens[row], &x);
            check_output(&f, b, g, &h, o, &x);
            if (recalls)
                x.wrong += check_recent(&f, by.recent, by.history, b, g, NULL) +
                           check_recent(&f, after, by.history, b, g, h.read);
        }
    const int ok = !bounds && !x.wrong && x.worst < 1e-2 &&
                   (double)x.equal >= 0.99 * (double)x.sets && 200 * x.other <= x.codes;
    printf("%s selection %s, %d heads, %d of K and V, %d and %d dimensions: %zu of %zu tokens "
           "read, %zu of %zu sets are the CPU's, %zu wrong, %zu wrong bounds, %zu of %zu codes not "
           "the CPU's, outputs off by %.2g\n",
           ok ? "ok" : "not ok", c->method, c->n_heads, c->n_kv_heads, c->d_k, c->d_v, x.read,
           x.cached, x.equal, x.sets, x.wrong, bounds, x.other, x.codes, x.worst);
    failures += !ok;
    if (calibrated)
        kvd_activations_close(&by.calibration);
    kvd_tokens_close(by.method, by.self);
    end_case();
}

/* usage: gpu_selection [quick]; quick: fewer cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("selection", 1))
        return 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!quick || i < 3 || i == 10 || i == 14 || i == 20)
            run_case(&cases[i]);
    return failures ? 1 : 0;
}
