/* Tests the CUDA engine against the CPU. The cache stores low-rank latents instead of K and V. */
#include <math.h>

#include "common/linalg.h"
#include "dims_fixture.h"
#include "engine_schedule.h"
#include "methods/bits/levels.h"
#include "methods/dims/cuda/latents.h"
#include "methods/points.h"

typedef struct {
    double worst, held_off, restore;
    size_t rows, other;
} outcome;

/* expected bytes of the cache: `token` for each cached token, `slot` once for each request */
typedef struct {
    double token, slot;
} bytes;

typedef struct {
    const load *l;
    bytes each;
    double tokens[MOST];
    double window; /* sliding window of all layers, in tokens; 0: none */
    outcome *o;
    float *got;
} watched;

static int watch(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                 const kvd_phase_times *t, kvd_err *err)
{
    watched *const w = ctx;
    outcome *const o = w->o;
    double held = 0;
    o->restore += t->part[KVD_PHASE_RESTORE];
    for (size_t i = 0; i < it->n_slices; i++)
        w->tokens[it->slice[i].slot] = (double)it->slice[i].before + (double)it->slice[i].n;
    for (size_t i = 0; i < MOST; i++)
        held += w->tokens[i] > 0 ? (w->window > 0 ? fmin(w->tokens[i], w->window) : w->tokens[i]) *
                                           w->each.token +
                                       w->each.slot
                                 : 0;
    if (e->held)
        o->held_off = worse(o->held_off, fabs(held - e->held(e)));
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const c = &it->slice[i];
        if (c->last)
            w->tokens[c->slot] = 0;
        if (!c->emits)
            continue;
        if (e->logits(e, i, w->got, err))
            return -1;
        const double off =
            distance(w->got, w->l->want + token_row(w->l, c) * w->l->vocab, w->l->vocab);
        o->worst = worse(o->worst, off);
        o->other += token[i] != largest(w->got, w->l->vocab);
        o->rows++;
    }
    return 0;
}

/* Compares the engine's logits with l->want, and its cache bytes with `each`, the expected bytes
 * per token and per request. fused: decode steps must use the kernel palu_decode. */
static void test(const kvd_checkpoint *c, const char *name, const load *l, const kvd_plan *plan,
                 bytes each, bool fused, const setting *set)
{
    kvd_err err = {""};
    char title[200], text[256];
    outcome o = {0};
    watched w = {.l = l,
                 .each = each,
                 .window = (double)kvd_config_window(kvd_checkpoint_config(c), 0),
                 .o = &o,
                 .got = need(l->vocab * sizeof *w.got)};
    const serving_order by = order_of(set);
    const kvd_engine_spec spec = spec_of(set, l->max_len, MOST * l->max_len);
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, &err);
    const int status = !e || serve(e, l, &by, watch, &w, &err);
    free(w.got);
    const bool is_fused = e && strstr(e->facts.what, "palu_decode");
    (void)snprintf(title, sizeof title, "%s, %s%s", name, set->name, is_fused ? ", fused" : "");
    (void)snprintf(
        text, sizeof text,
        "%zu rows, off by %.2g of %.2g, %zu other tokens, held bytes off by %.3g, restore %.2g s",
        o.rows, o.worst, l->bar, o.other, o.held_off, o.restore);
    test_result(!status && o.worst <= l->bar && o.other == 0 && o.rows == l->outputs &&
                    o.held_off < 0.5 && is_fused == fused,
                title, "%s", status ? err.msg : text);
    engine_free(e);
}

/* Fills *d with random projections to latent vectors. Each latent vector serves `heads` KV heads,
 * and has rank[side] dimensions minus 0, 1 or 2 times `less`. */
static int make_latents(kvd_dims *d, const kvd_config *c, int heads, const int *rank, int less,
                        kvd_err *err)
{
    const size_t wide = (size_t)heads * (size_t)c->d_head, dim = (size_t)c->d_head;
    double *const x = need((3 * wide * wide + wide) * sizeof *x), *const R = x + 2 * wide * wide;
    kvd_rng rng;
    int status = 0, number = 0;
    kvd_rng_seed(&rng, 5, 0);
    *d = (kvd_dims){.method = "palu",
                    .n_layers = c->n_layers,
                    .n_kv_heads = c->n_kv_heads,
                    .d_head = c->d_head,
                    .rebuild = true,
                    .heads = heads,
                    .head = need((size_t)(c->n_layers * c->n_kv_heads) * sizeof *d->head)};
    for (int g = 0; g < c->n_layers * c->n_kv_heads && !status; g += heads, number++)
        for (int side = 0; side < 2 && !status; side++) {
            const size_t r = (size_t)(rank[side] - less * (number % 3));
            for (size_t i = 0; i < 2 * wide * wide; i++)
                x[i] = kvd_rng_normal(&rng);
            status = kvd_svd_right(x, 2 * wide, wide, R + wide * wide, R, err);
            for (int h = 0; h < heads; h++) {
                kvd_dims_head *const to = &d->head[g + h];
                float *const a = need(wide * r * sizeof *a), *const b = need(r * dim * sizeof *b);
                for (size_t i = 0; i < wide; i++)
                    for (size_t j = 0; j < r; j++) {
                        a[i * r + j] = (float)R[i * wide + j];
                        if (i / dim == (size_t)h)
                            b[j * dim + i % dim] = a[i * r + j];
                    }
                *(side ? &to->d_v : &to->d_qk) = (int)r;
                *(side ? &to->a_v : &to->a_k) = a;
                *(side ? &to->b_v : &to->b_k) = b;
            }
        }
    free(x);
    return status;
}

/* Returns the number of cache bytes that each token needs. Ranks are padded to multiples of 16. */
static bytes latent_bytes(const kvd_dims *d)
{
    bytes b = {0, 0};
    for (int g = 0; g < d->n_layers * d->n_kv_heads; g += d->heads)
        b.token += 2 * 16 * ((d->head[g].d_qk + 15) / 16 + (d->head[g].d_v + 15) / 16);
    return b;
}

static const setting whole = {.name = "whole prompts", .max_batch = 5};
static const setting replayed = {
    .name = "graphs, phases", .max_batch = 5, .graphs = true, .phases = true};
static const setting pieces = {.name = "pieces of 48", .max_batch = 4, .chunk = 48, .graphs = true};
static const setting many = {.name = "batch of 12, graphs", .max_batch = 12, .graphs = true};
static const setting many_pieces = {
    .name = "batch of 12, pieces of 100, phases", .max_batch = 12, .chunk = 100, .phases = true};
static const setting papers = {.name = "the papers' sharing of work",
                               .max_batch = 5,
                               .graphs = true,
                               .attention = KVD_ATTENTION_PAPERS};
static const setting papers_pieces = {.name = "the papers' sharing of work, pieces of 100",
                                      .max_batch = 12,
                                      .chunk = 100,
                                      .attention = KVD_ATTENTION_PAPERS};
static const setting stock = {
    .name = "stock attention", .max_batch = 5, .graphs = true, .attention = KVD_ATTENTION_STOCK};
static const setting stock_pieces = {.name = "stock attention, pieces of 100",
                                     .max_batch = 12,
                                     .chunk = 100,
                                     .attention = KVD_ATTENTION_STOCK};

static const request long_ones[] = {{70, 9},  {1, 30},  {300, 3}, {64, 12}, {13, 70}, {129, 1},
                                    {200, 8}, {63, 20}, {40, 40}, {5, 64},  {1, 1},   {448, 33}};
static const request short_ones[] = {{17, 9}, {1, 20}, {30, 3}, {8, 12}, {13, 11}, {25, 1}};

static void test_palu(const char *path, const char *model, const request *r, size_t n, int heads,
                      int rank_k, int rank_v, int less, bool fused, const setting *const *set)
{
    const int rank[] = {rank_k, rank_v};
    kvd_err err = {""};
    char name[128];
    kvd_checkpoint *const c = checkpoint_or_end(path);
    load l = load_make(c, r, n, 31);
    kvd_dims d = {0};
    const kvd_plan plan = {.type = KVD_BF16, .dims = &d, .maker = &kvd_dims_palu};
    (void)snprintf(name, sizeof name, "palu, %s, %d heads, ranks %d and %d%s", model, heads, rank_k,
                   rank_v, less ? ", unequal" : "");
    if (make_latents(&d, kvd_checkpoint_config(c), heads, rank, less, &err) ||
        expect(&l, c, &plan, &err))
        test_result(0, name, "%s", err.msg);
    else
        for (size_t i = 0; set[i]; i++)
            test(c, name, &l, &plan, latent_bytes(&d), fused && on_hopper(), set[i]);
    kvd_dims_release(&d);
    load_release(&l);
    kvd_checkpoint_close(c);
}

static double padded_bytes(const kvd_plan *plan, const kvd_config *c)
{
    double sum = 0;
    for (int i = 0; i < c->n_layers * c->n_kv_heads; i++) {
        const kvd_dims_head *const h = plan->widths ? &plan->widths->head[i] : NULL;
        const size_t both =
            plan->widths ? 0 : plan->channels->width(&plan->channels_values, (size_t)c->d_head);
        sum += 2 * 16 *
               (double)(((h ? (size_t)h->d_qk : both) + 15) / 16 +
                        ((h ? (size_t)h->d_v : both) + 15) / 16);
    }
    return sum;
}

/* Tests the method strawman. All prompts have `prompt` tokens, because the reference supports only
 * equal lengths. */
static void test_strawman(const char *path, const char *model, size_t prompt, size_t n,
                          const char *text, const setting *const *set)
{
    kvd_err err = {""};
    char name[128];
    request r[MOST];
    for (size_t i = 0; i < n; i++)
        r[i] = (request){prompt, 2 + 5 * i % 17};
    kvd_checkpoint *const c = checkpoint_or_end(path);
    const kvd_config *const config = kvd_checkpoint_config(c);
    load l = load_make(c, r, n, 37);
    kvd_method m;
    kvd_spectrum s = {0};
    kvd_point *point = NULL;
    size_t n_points = 0;
    const kvd_method_setup setup = {.config = config, .checkpoint = c};
    (void)snprintf(name, sizeof name, "%s, %s, prompts of %zu", text, model, prompt);
    if (kvd_method_parse(text, &m, &err) || fixture_spectrum(&s, config, 7, &err)) {
        test_result(0, name, "%s", err.msg);
        return;
    }
    m.spectrum = m.dims ? &s : NULL;
    m.spectrum_path = "fixture";
    if (kvd_points_make(&m, &point, &n_points, &err)) {
        test_result(0, name, "%s", err.msg);
        return;
    }
    kvd_plan plan = kvd_point_plan(point);
    plan.type = KVD_BF16;
    plan.prompt = prompt;
    const double all = padded_bytes(&plan, config);
    const bytes each = {all, plan.channels->shared ? 0 : all * config->d_head};
    if (kvd_plan_open(&plan, &setup, &err) || expect(&l, c, &plan, &err))
        test_result(0, name, "%s", err.msg);
    else
        for (size_t i = 0; set[i]; i++)
            test(c, name, &l, &plan, each, false, set[i]);
    kvd_plan_close(&plan);
    kvd_points_free(point, n_points);
    kvd_spectrum_release(&s);
    load_release(&l);
    kvd_checkpoint_close(c);
}

static void test_attention(const char *path, const char *model, const setting *const *set)
{
    kvd_err err = {""};
    char name[128];
    kvd_checkpoint *const c = checkpoint_or_end(path);
    const kvd_config *const config = kvd_checkpoint_config(c);
    load l = load_make(c, long_ones, 12, 41);
    kvd_dims d = {0};
    kvd_spectrum s = {0};
    const kvd_plan plan = {.type = KVD_BF16, .dims = &d};
    const int status = fixture_spectrum(&s, config, 7, &err) ||
                       fixture_dims(&d, &s, config, &kvd_dims_zack, fixture_uneven, &err) ||
                       expect(&l, c, &plan, &err);
    (void)snprintf(name, sizeof name, "zack, %s", model);
    if (status)
        test_result(0, name, "%s", err.msg);
    else
        for (size_t i = 0; set[i]; i++)
            test(c, name, &l, &plan, (bytes){0, 0}, false, set[i]);
    kvd_dims_release(&d);
    kvd_spectrum_release(&s);
    load_release(&l);
    kvd_checkpoint_close(c);
}

static void refused(const kvd_checkpoint *c, const char *text, const setting *set, const char *why)
{
    kvd_err err = {""};
    kvd_method m;
    const kvd_method_setup setup = {.config = kvd_checkpoint_config(c), .drawn = true, .seed = 3};
    const kvd_engine_spec spec = spec_of(set, 100, MOST * 100);
    kvd_engine *e = NULL;
    if (!kvd_method_parse(text, &m, &err)) {
        kvd_plan plan = m.plan;
        plan.type = KVD_BF16;
        plan.prompt = 10;
        if (!kvd_plan_open(&plan, &setup, &err))
            e = kvd_engine_open_cuda(c, &plan, &spec, &err);
        kvd_plan_close(&plan);
    }
    test_result(!e && strstr(err.msg, why), text, "%s", e ? "runs" : err.msg);
    engine_free(e);
}

static void test_context(const char *text)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = checkpoint_or_end("data/models/kvdim-6m");
    const setting set = {.max_batch = 3, .graphs = true};
    const kvd_engine_spec spec = spec_of(&set, 1000, MOST * 1000);
    const kvd_method_setup setup = {.config = kvd_checkpoint_config(c), .drawn = true, .seed = 3};
    kvd_method m;
    const int status = kvd_method_parse(text, &m, &err);
    kvd_plan plan = m.plan;
    plan.type = KVD_BF16;
    plan.prompt = 10;
    kvd_engine *const e = status || kvd_plan_open(&plan, &setup, &err)
                              ? NULL
                              : kvd_engine_open_cuda(c, &plan, &spec, &err);
    test_uncomputed(e, text, &err);
    engine_free(e);
    kvd_plan_close(&plan);
    kvd_checkpoint_close(c);
}

/* Compares A A^T of projections A that the GPU and the CPU compute from n vectors. */
static void test_complete(size_t d, size_t n, size_t w)
{
    const size_t square = d * d;
    double *const gram = need(3 * square * sizeof *gram), *const R = gram + square,
                  *const sigma = R + square, worst = 0;
    float *const x = need(n * d * sizeof *x), *const a = need(2 * d * w * sizeof *a),
                 *const vector = need(2 * square * sizeof *vector),
                 *const value = need(2 * d * sizeof *value);
    const kvd_latent_basis basis[2] = {{.width = (int32_t)w}, {.width = (int32_t)w}};
    const kvd_latent_rows rows = {(int32_t)n, (int32_t)n};
    kvd_err err = {""};
    kvd_rng rng;
    int status = 0;
    kvd_rng_seed(&rng, 3, 0);
    for (size_t side = 0; side < 2; side++) {
        for (size_t i = 0; i < n * d; i++)
            x[i] = (float)(kvd_rng_normal(&rng) * (1 + (double)(i % d)));
        memcpy(x + (n - 1) * d, x + (side ? 0 : (n - 1) * d), d * sizeof *x);
        const kvd_channels_rows in = {.n = n, .d = d, .x = x};
        memset(gram, 0, square * sizeof *gram);
        for (size_t i = 0; i < n * square; i++)
            gram[i % square] +=
                (double)x[i / square * d + i % square / d] * (double)x[i / square * d + i % d];
        status = status || kvd_channels_strawman.project(&in, w, a + side * d * w, &err) ||
                 kvd_gram_svd(gram, d, sigma, R, &err);
        for (size_t i = 0; i < square; i++)
            vector[side * square + i] = (float)R[i % d * d + d - 1 - i / d];
        for (size_t i = 0; i < d; i++)
            value[side * d + i] = (float)(sigma[d - 1 - i] * sigma[d - 1 - i]);
    }
    float *const on = on_device(vector, 2 * square * sizeof *vector), *const values = on_device(
                                                                          value,
                                                                          2 * d * sizeof *value);
    kvd_latent_basis *const widths = on_device(basis, sizeof basis);
    check(kvd_latent_complete(on, values, widths, 2, (int32_t)d, rows, NULL), "directions");
    to_host(vector, on, 2 * square * sizeof *vector);
    for (size_t i = 0; i < 2 * square; i++) {
        const size_t side = i / square, row = i % square / d, column = i % d;
        double off = 0;
        for (size_t j = 0; j < w; j++) {
            const float *const v = vector + side * square + (d - 1 - j) * d, *const want =
                                                                                 a + side * d * w +
                                                                                 j;
            off += (double)v[row] * (double)v[column] -
                   (double)want[row * w] * (double)want[column * w];
        }
        worst = worse(worst, fabs(off));
    }
    test_result(!status && worst < 1e-4, "directions of short prompts",
                "%zu rows, %zu of %zu dims: A A^T off by %.2g%s", n, w, d, worst,
                status ? err.msg : "");
    device_free(on, values, widths);
    host_free(gram, x, a, vector, value);
}

enum { CODES = 40, CODE_PAGES = 5, CODE_PAGE = CODES * KVD_PAGE_TOKENS, SINK = 3, SLOTS = 4 };

/* Makes random quantisation tables for the elements of a latent, with 0 to 8 bits per element.
 * Returns the sum of these bits. */
static int32_t make_codes(kvd_rng *rng, kvd_latent_code *code)
{
    int32_t bit = 0;
    for (int j = 0; j < CODES; j++) {
        const int r = j < 24 ? j : j - 24;
        code[j] =
            (kvd_latent_code){.place = (j < 24 ? 0 : 24 * KVD_PAGE_TOKENS) + r / 8 * 512 + r % 8,
                              .bit = bit,
                              .bits = j * 5 % 9,
                              .side = j >= 24,
                              .mean = (float)kvd_rng_normal(rng),
                              .deviation = j == 7 ? 0 : 1 + (float)(j % 3)};
        bit += code[j].bits;
    }
    return bit;
}

static float decoded(const kvd_latent_code *c, const float *level, double x)
{
    const float *const of = level + (c->side * 9 + c->bits) * 256;
    double best = 0;
    for (int k = 0; k < 1 << c->bits; k++)
        if (k == 0 || fabs((x - (double)c->mean) / (double)c->deviation - (double)of[k]) <
                          fabs((x - (double)c->mean) / (double)c->deviation - best))
            best = (double)of[k];
    return bf16_rounded(c->bits && c->deviation > 0 ? (double)c->mean + (double)c->deviation * best
                                                    : (double)c->mean);
}

static void test_codes(void)
{
    static const int32_t kv_len[2] = {130, 64}, one[2] = {1, 1}, slot[2] = {2, 0},
                         table[2][3] = {{4, 0, 2}, {1, 3, 3}};
    static float level[2 * 9 * 256];
    kvd_latent_code code[CODES];
    kvd_rng rng;
    kvd_rng_seed(&rng, 9, 0);
    const int32_t words = make_codes(&rng, code) / 32 + 1;
    for (int i = 0; i < 2 * 9 * 256; i++)
        level[i] = (float)((i % 256 + 0.5) * 6 / (1 << i / 256 % 9) - 3);
    const size_t n = (size_t)CODE_PAGES * CODE_PAGE,
                 stored = (size_t)CODE_PAGES * 64 * (size_t)words;
    float *const x = bf16_numbers(&rng, n, 3), *const y = need(n * sizeof *y);
    uint16_t *const back = need(n * sizeof *back);
    void *const pool = on_device_bf16(x, n);
    kvd_latent_code_args a = {.s = {.n = 2, .max_pages = 3, .most = 200},
                              .n_codes = CODES,
                              .words = words,
                              .page_words = (size_t)(KVD_PAGE_TOKENS * words),
                              .n_sink = SINK,
                              .pool = pool,
                              .page_elements = CODE_PAGE};
    a.s.start = a.s.q_len = a.s.kv_len = on_device(kv_len, sizeof kv_len);
    a.s.page_table = on_device(table, sizeof table);
    a.slot = on_device(slot, sizeof slot);
    a.code = on_device(code, sizeof code);
    a.level = a.decoded = on_device(level, sizeof level);
    a.store = on_device(NULL, stored * sizeof *a.store);
    a.exact = on_device(NULL, (size_t)SLOTS * SINK * CODES * sizeof *a.exact);
    check(kvd_latent_code_put(&a, NULL), "codes");
    const int32_t *const steps = on_device(one, sizeof one);
    a.s.q_len = steps;
    a.s.most = 1;
    /* The second run has a sliding window, which hides the first page of the first request. */
    for (a.window = 0; a.window <= 50; a.window += 50) {
        fill_bytes(pool, 0xff, n * sizeof *back);
        check(kvd_latent_code_restore(&a, 4, NULL), "decoding");
        to_host(back, pool, n * sizeof *back);
        kvd_to_f32(KVD_BF16, back, y, n);
        size_t wrong = 0, tokens = 0;
        for (int b = 0; b < 2; b++)
            for (int t = 0; t < kv_len[b]; t++, tokens++)
                for (int j = 0; j < CODES; j++) {
                    const size_t at = (size_t)table[b][t / 64] * CODE_PAGE + (size_t)code[j].place +
                                      (size_t)(t % 64 * 8);
                    const float want = t < SINK ? x[at] : decoded(&code[j], level, (double)x[at]);
                    const bool none = t + 1 == kv_len[b] || (a.window && !b && t < 64);
                    wrong += (size_t)(none ? !isnan(y[at]) : fabsf(y[at] - want) > 0);
                }
        test_result(wrong == 0, a.window ? "codes of latents in a window" : "codes of latents",
                    "%zu tokens of %d bits: %zu of %zu numbers are wrong", tokens,
                    code[CODES - 1].bit + code[CODES - 1].bits, wrong, tokens * CODES);
    }
    device_free(pool, a.s.start, a.s.page_table, a.slot, a.code, a.level, a.store, a.exact, steps);
    host_free(x, y, back);
}

enum { GROUPS = 2, RANKS = 80, RANKS_PAGE = RANKS * KVD_PAGE_TOKENS, BITS = 3, TOKENS = 130 };

/* Latents of two groups of KV heads, quantised by the method kvquant. CPU and GPU each keep a
 * copy. */
typedef struct {
    kvd_method method;
    void *self;
    kvd_latent_code code[RANKS];
    kvd_latent_vector vector[GROUPS];
    float level[2 * 9 * 256], decoded[2 * 9 * 256];
    int32_t words, page_words, room, n_sink;
} quantised;

/* Prepares the method kvquant with ranges that differ between channels, and fills the tables of its
 * kernels from these ranges. */
static int make_quantised(quantised *q, const char *text, int room, kvd_err *err)
{
    static const int rank[GROUPS][2] = {{24, 24}, {16, 16}},
                     width[GROUPS][2] = {{21, 23}, {16, 13}};
    static const kvd_config config = {.n_layers = 1,
                                      .n_heads = 4,
                                      .n_kv_heads = 4,
                                      .d_head = 16,
                                      .positions = KVD_POSITIONS_ROPE};
    static kvd_dims dims = {.method = "palu",
                            .n_layers = 1,
                            .n_kv_heads = 4,
                            .d_head = 16,
                            .rebuild = true,
                            .heads = 2};
    const kvd_method_setup setup = {.config = &config, .dims = &dims, .drawn = true};
    kvd_kvquant_tables t;
    if (kvd_method_parse(text, &q->method, err) ||
        kvd_bits_kvquant.open(&q->method.plan.bits_values, &setup, &q->self, err))
        return -1;
    kvd_kvquant_tables_of(q->self, &t);
    float *const range = (float *)(uintptr_t)t.range;
    for (size_t i = 0; i < 4 * t.range_width; i++) {
        range[2 * i] = 0.1F * (float)(i % 5) - 0.2F;
        range[2 * i + 1] *= i == 7 ? 0 : 1 + 0.2F * (float)(i % 3);
    }
    int32_t bit = 0, place = 0;
    kvd_latent_code *to = q->code;
    for (int g = 0; g < GROUPS; g++)
        for (int side = 0; side < 2; side++) {
            q->vector[g].first[side] = (int32_t)(to - q->code);
            q->vector[g].n[side] = width[g][side];
            for (int r = 0; r < rank[g][side]; r++, to++) {
                *to = (kvd_latent_code){.place = place + r / 8 * 512 + r % 8,
                                        .bit = bit,
                                        .bits = r < width[g][side] ? BITS : 0,
                                        .side = side,
                                        .group = g};
                if (!side && to->bits) {
                    to->mean = range[2 * ((size_t)g * 2 * t.range_width + (size_t)r)];
                    to->deviation = range[2 * ((size_t)g * 2 * t.range_width + (size_t)r) + 1];
                }
                bit += to->bits;
            }
            place += KVD_PAGE_TOKENS * rank[g][side];
        }
    q->words = bit / 32 + 1;
    q->room = room;
    for (int g = 0; g < GROUPS; g++) {
        q->vector[g].v_apart =
            (int32_t)kvd_kvquant_apart(&q->method.plan.bits_values, (size_t)width[g][1]);
        q->vector[g].v_at = q->words;
        q->words += 1 + 2 * q->vector[g].v_apart;
    }
    for (int g = 0; g < GROUPS; g++)
        q->vector[g].k_at = KVD_PAGE_TOKENS * q->words + g * (1 + room);
    q->page_words = KVD_PAGE_TOKENS * q->words + GROUPS * (1 + room);
    for (size_t side = 0; side < 2; side++)
        for (size_t i = 0; i < 1 << BITS; i++) {
            q->level[(side * 9 + BITS) * 256 + i] = t.levels[(side * 2) * (1 << BITS) + i];
            q->decoded[(side * 9 + BITS) * 256 + i] = t.levels[(side * 2 + 1) * (1 << BITS) + i];
        }
    return 0;
}

/* Quantises and restores latents x [TOKENS][RANKS] of n tokens on the CPU. Returns how many
 * outliers of K are stored apart. */
static size_t quantise(const quantised *q, float *x, size_t n)
{
    static float block[TOKENS * 24], back[TOKENS * 24];
    uint32_t position[TOKENS];
    size_t apart = 0;
    kvd_err err;
    for (size_t t = 0; t < n; t++)
        position[t] = (uint32_t)t;
    for (int g = 0; g < GROUPS; g++)
        for (int side = 0; side < 2; side++) {
            const size_t d = (size_t)q->vector[g].n[side], first = (size_t)q->vector[g].first[side];
            const kvd_bits_block b = {.side = (kvd_side)side,
                                      .kv_head = 2 * g,
                                      .n = n,
                                      .d = d,
                                      .x = block,
                                      .position = position};
            kvd_bits_count count;
            for (size_t i = 0; i < n * d; i++)
                block[i] = x[i / d * RANKS + first + i % d];
            if (kvd_bits_kvquant.code(q->self, &b, back, &count, &err))
                return SIZE_MAX;
            apart += side ? 0 : (size_t)count.side / 32;
            for (size_t i = 0; i < n * d; i++)
                x[i / d * RANKS + first + i % d] = bf16_rounded((double)back[i]);
            for (size_t t = 0; t < n; t++)
                for (size_t r = d; r < (d + 7) / 8 * 8; r++)
                    x[t * RANKS + first + r] = t < (size_t)q->n_sink ? x[t * RANKS + first + r] : 0;
        }
    return apart;
}

/* Quantises latents of two prompts, then of a decode step, on the GPU and the CPU, and compares the
 * results. */
static void test_quantised(const char *text, int n_sink, int room)
{
    static const int32_t prompt[2] = {128, 63}, step[2] = {129, 64}, next[2] = {130, 65},
                         one[2] = {1, 1}, slot[2] = {2, 0}, table[2][3] = {{4, 0, 2}, {1, 3, 3}};
    enum { NUMBERS = CODE_PAGES * RANKS_PAGE };
    static quantised q;
    static float want[2][TOKENS * RANKS];
    uint32_t counts[SLOTS + 1];
    kvd_err err = {""};
    kvd_rng rng;
    kvd_rng_seed(&rng, 11, 0);
    q.n_sink = n_sink;
    if (make_quantised(&q, text, room, &err)) {
        test_result(0, text, "%s", err.msg);
        return;
    }
    float *const x = bf16_numbers(&rng, NUMBERS, 1), *const y = need(NUMBERS * sizeof *y);
    uint16_t *const back = need(NUMBERS * sizeof *back);
    void *const pool = on_device_bf16(x, NUMBERS);
    const size_t stored = (size_t)CODE_PAGES * (size_t)q.page_words * sizeof(uint32_t);
    int32_t *const lens = on_device(NULL, 2 * sizeof *lens);
    uint32_t *const apart = on_device(NULL, sizeof counts);
    kvd_latent_code_args a = {.s = {.n = 2, .max_pages = 3, .most = 128},
                              .n_codes = RANKS,
                              .words = q.words,
                              .page_words = (size_t)q.page_words,
                              .n_sink = n_sink,
                              .pool = pool,
                              .page_elements = RANKS_PAGE,
                              .n_groups = GROUPS,
                              .room = room,
                              .idle = SLOTS - 1,
                              .prompts = true,
                              .recounts = true,
                              .apart = apart,
                              .beyond = apart + SLOTS};
    a.s.start = a.s.q_len = a.s.kv_len = lens;
    a.s.page_table = on_device(table, sizeof table);
    a.slot = on_device(slot, sizeof slot);
    a.code = on_device(q.code, sizeof q.code);
    a.vector = on_device(q.vector, sizeof q.vector);
    a.level = on_device(q.level, sizeof q.level);
    a.decoded = on_device(q.decoded, sizeof q.decoded);
    a.store = on_device(NULL, stored);
    a.exact = on_device(NULL, (size_t)(SLOTS * n_sink + 1) * RANKS * sizeof *a.exact);
    fill_bytes(a.store, 0xff, stored);
    fill_bytes(apart, room ? 0xff : 0, SLOTS * sizeof *apart);
    fill_bytes(apart + SLOTS, 0, sizeof *apart);
    check(cudaMemcpy(lens, prompt, sizeof prompt, cudaMemcpyHostToDevice), "lengths");
    check(kvd_latent_code_put(&a, NULL), "codes of prompts");
    const int32_t *const steps = on_device(one, sizeof one);
    a.s.q_len = steps;
    a.s.most = 1;
    a.prompts = a.recounts = false;
    check(cudaMemcpy(lens, step, sizeof step, cudaMemcpyHostToDevice), "lengths");
    check(kvd_latent_code_put(&a, NULL), "codes of steps");
    fill_bytes(pool, 0xff, NUMBERS * sizeof *back);
    check(cudaMemcpy(lens, next, sizeof next, cudaMemcpyHostToDevice), "lengths");
    check(kvd_latent_code_restore(&a, 4, NULL), "decoding");
    to_host(back, pool, NUMBERS * sizeof *back);
    to_host(counts, apart, sizeof counts);
    kvd_to_f32(KVD_BF16, back, y, NUMBERS);
    size_t wrong = 0, other = 0, expected = 0;
    for (int b = 0; b < 2; b++) {
        const size_t n = (size_t)step[b];
        for (size_t i = 0; i < n * RANKS; i++)
            want[b][i] = x[(size_t)table[b][i / RANKS / 64] * RANKS_PAGE +
                           (size_t)q.code[i % RANKS].place + i / RANKS % 64 * 8];
        const size_t all = quantise(&q, want[b], n);
        expected += all;
        other += counts[slot[b]] != all;
        for (size_t i = 0; i < n * RANKS; i++) {
            const float got = y[(size_t)table[b][i / RANKS / 64] * RANKS_PAGE +
                                (size_t)q.code[i % RANKS].place + i / RANKS % 64 * 8];
            wrong += !(fabsf(got - want[b][i]) <= 0x1p-7F * fabsf(want[b][i]) + 1e-6F);
        }
    }
    test_result(room > 100 || !expected ? !wrong && !other && !counts[SLOTS] : counts[SLOTS] > 0,
                text,
                "room for %d: %zu numbers are wrong, %zu of K apart, %zu other counts, %u beyond",
                room, wrong, expected, other, counts[SLOTS]);
    kvd_bits_kvquant.close(q.self);
    device_free(pool, lens, apart, a.s.page_table, a.slot, a.code, a.vector, a.level, a.decoded,
                a.store, a.exact, steps);
    host_free(x, y, back);
}

/* usage: gpu_engine_latent [quick]; quick: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    const setting *const two[] = {&replayed, &pieces, NULL};
    const setting *const all[] = {&replayed, &pieces, &whole, &many, &many_pieces, NULL};
    const setting *const other[] = {&papers, &papers_pieces, &stock, &stock_pieces, NULL};
    const setting *const restored[] = {&stock, &stock_pieces, NULL};
    const setting *const some[] = {&replayed, NULL}, *const uncut[] = {&replayed, &whole, &many,
                                                                       NULL};
    if (!gpu_devices("latent", 1))
        return 0;
    char gqa[128], mha[128];
    wide_or_end("gqa", 2, 8, 4, gqa);
    wide_or_end("mha", 2, 8, 8, mha);
    test_codes();
    test_quantised("palu+kvquant,kvquant.bits=3,outliers=0.05,sink=1", 1, 300);
    test_quantised("palu+kvquant,kvquant.bits=3,outliers=0.05,sink=0", 0, 3);
    test_quantised("palu+kvquant,kvquant.bits=3,outliers=0,sink=70,qnorm=1", 70, 0);
    test_complete(32, 17, 24);
    test_complete(128, 40, 96);
    test_complete(64, 80, 48);
    test_complete(256, 40, 48);
    const char *const demo = "data/models/kvdim-6m";
    const size_t n = quick ? 3 : 12, some_n = quick ? 3 : 6;
    const setting *const *const sets = quick ? two : all;
    test_palu(gqa, "d_head 128, GQA", long_ones, n, 4, 256, 256, 0, true, sets);
    test_palu(gqa, "d_head 128, GQA", long_ones, n, 2, 120, 100, 0, false, two);
    test_palu(demo, "kvdim-6m", long_ones, n, 2, 100, 48, 0, false, sets);
    test_strawman(demo, "kvdim-6m", 100, quick ? 3 : 12, "strawman,p=0.5", quick ? some : uncut);
    test_strawman(demo, "kvdim-6m", 100, quick ? 3 : 12, "zack,online=1,p=0.5",
                  quick ? some : uncut);
    test_strawman(demo, "kvdim-6m", 100, quick ? 3 : 12, "zack,explicit=1,p=0.5",
                  quick ? some : uncut);
    const char *const window = "tests/data/families/mistral-window";
    test_strawman(window, "window of 7", 50, 4, "zack,explicit=1,p=0.5", quick ? some : uncut);
    test_strawman(window, "window of 7", 50, 4, "zack,online=1,p=0.5", quick ? some : uncut);
    if (!quick) {
        test_strawman(window, "window of 7", 50, 4, "strawman,p=0.9", uncut);
        test_strawman(gqa, "d_head 128, GQA", 130, 6, "fdc,explicit=1,p=0.6", uncut);
        test_strawman(gqa, "d_head 128, GQA", 130, 6, "zack,online=1,p=0.6", uncut);
        test_strawman(gqa, "d_head 128, GQA", 130, 6, "uniform,online=1,p=0.5", uncut);
        test_strawman("tests/data/families/qwen3-gqa", "qwen3-gqa", 50, 4, "zack,online=1,p=0.4",
                      uncut);
        test_palu(gqa, "d_head 128, GQA, stock", long_ones, n, 4, 256, 256, 0, false, restored);
        test_attention(demo, "kvdim-6m", other);
        test_attention(gqa, "d_head 128, GQA", other);
        test_palu(gqa, "d_head 128, GQA", long_ones, n, 4, 100, 90, 0, true, two);
        test_palu(gqa, "d_head 128, GQA", long_ones, n, 4, 250, 200, 40, true, two);
        test_palu(mha, "d_head 128, MHA", long_ones, n, 4, 250, 200, 40, false, two);
        test_palu(gqa, "d_head 128, GQA", long_ones, n, 4, 300, 280, 0, false, two);
        test_palu(gqa, "d_head 128, GQA", long_ones, n, 1, 70, 60, 9, false, two);
        test_palu(mha, "d_head 128, MHA", long_ones, n, 4, 200, 130, 0, true, two);
        test_palu(demo, "kvdim-6m", long_ones, n, 2, 90, 100, 0, false, two);
        test_palu(demo, "kvdim-6m", long_ones, n, 1, 40, 30, 5, false, two);
        test_palu(demo, "kvdim-6m", long_ones, n, 2, 128, 128, 0, false, two);
        test_palu("tests/data/families/qwen2-gqa", "qwen2-gqa", short_ones, some_n, 2, 40, 40, 0,
                  false, two);
        test_palu("tests/data/families/qwen2-gqa", "qwen2-gqa", short_ones, some_n, 1, 20, 20, 3,
                  false, two);
        test_palu("tests/data/families/qwen3-gqa", "qwen3-gqa", short_ones, some_n, 2, 160, 150, 0,
                  false, two);
        test_palu("tests/data/families/opt-before", "opt-before", short_ones, some_n, 2, 80, 70, 0,
                  false, two);
        test_strawman(demo, "kvdim-6m", 300, 6, "strawman,p=0.25", uncut);
        test_strawman(demo, "kvdim-6m", 130, 6, "strawman,p=0", uncut);
        test_strawman(gqa, "d_head 128, GQA", 300, 6, "strawman,p=0.5", uncut);
        test_strawman("tests/data/families/qwen3-gqa", "qwen3-gqa", 100, 4, "strawman,p=0.4",
                      uncut);
    }
    kvd_checkpoint *const c = checkpoint_or_end(demo);
    refused(c, "strawman", &pieces, "without chunks");
    refused(c, "h2o+palu,heads=2", &whole, "give heads=1");
    kvd_checkpoint_close(c);
    test_context("palu");
    test_context("palu+kvquant,outliers=0.1");
    test_context("strawman");
    return failures ? 1 : 0;
}
