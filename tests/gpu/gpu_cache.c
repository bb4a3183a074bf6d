/* Compares the compressed KV cache on the GPU with that on the CPU. Both must count equal bytes;
 * attention outputs may differ by rounding. */
#include <math.h>

#include "dims_fixture.h"
#include "methods/cuda/cache.h"
#include "methods/cuda/cache_rows.h"

#include "gpu_case.h"

enum { LAYERS = 2, LAYER = 1 };

static const kvd_cublas *lib;
static cublasHandle_t blas;

typedef struct {
    const char *name;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype pass, store;
    const kvd_dims_method *method;
    /* each KV head keeps a multiple of this number of dimensions; 0: all heads keep d_head */
    int step;
    /* heads that keep fewer dimensions; 0: all, 1: only Q and K of head 0, 2: only V of head 0 */
    int only;
    int window;
    int short_ones; /* 1: sequence lengths are no multiples of 8 */
    int prompt;
    int latents; /* KV heads that share a latent; 0: no latents */
    /* number of bits per quantised element of K and V; 0: no quantisation */
    int bits;
    double limit;
    const char *engine; /* part of the engine's name; NULL: cuBLAS */
} scenario;

typedef struct {
    kvd_config config;
    kvd_spectrum spectrum;
    kvd_dims dims;
    kvd_plan plan;
    fixture_qkv x;
    float *k_pre;
    size_t n_out;
} bench;

static int widths_for(const scenario *c, kvd_widths *w)
{
    kvd_err err;
    if (kvd_widths_alloc(w, LAYERS, c->n_kv_heads, c->d_head, &err))
        return -1;
    const int steps = c->step ? c->d_head / c->step : 1;
    for (int i = 0; i < LAYERS * c->n_kv_heads; i++)
        for (int side = 0; side < 2; side++)
            w->kept[side][i] = c->step ? c->step * (1 + (i * 5 + 3 * side + 1) % steps) : c->d_head;
    return 0;
}

static float *random_numbers(kvd_rng *r, size_t n, double scale)
{
    float *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * kvd_rng_normal(r));
    return x;
}

/* Makes random projections to latents that several KV heads share. Ranks differ between latents. */
static void latents_make(kvd_dims *dims, const scenario *c)
{
    kvd_rng r;
    kvd_rng_seed(&r, 17, 0);
    const size_t d = (size_t)c->d_head, wide = d * (size_t)c->latents;
    *dims = (kvd_dims){.n_layers = LAYERS,
                       .n_kv_heads = c->n_kv_heads,
                       .d_head = c->d_head,
                       .rebuild = true,
                       .heads = c->latents,
                       .head = need((size_t)(LAYERS * c->n_kv_heads) * sizeof *dims->head)};
    for (int i = 0; i < LAYERS * c->n_kv_heads; i++) {
        const int group = i / c->latents;
        const size_t rank[] = {wide - (size_t)(5 * group) % (wide / 2),
                               1 + (size_t)(7 * group + 3) % wide};
        kvd_dims_head *const h = &dims->head[i], *const first = &dims->head[group * c->latents];
        *h = (kvd_dims_head){.d_qk = (int)rank[0], .d_v = (int)rank[1]};
        h->a_k = random_numbers(&r, wide * rank[0], 1 / sqrt((double)wide));
        h->a_v = random_numbers(&r, wide * rank[1], 1 / sqrt((double)wide));
        h->b_k = random_numbers(&r, rank[0] * d, 1 / sqrt((double)rank[0]));
        h->b_v = random_numbers(&r, rank[1] * d, 1 / sqrt((double)rank[1]));
        if (h != first) {
            memcpy(h->a_k, first->a_k, wide * rank[0] * sizeof *h->a_k);
            memcpy(h->a_v, first->a_v, wide * rank[1] * sizeof *h->a_v);
        }
    }
}

static int bench_make(bench *b, const scenario *c, kvd_err *err)
{
    static const size_t even[] = {64, 8, 296, 128}, odd[] = {150, 1, 2, 37, 300, 65};
    kvd_widths w;
    memset(b, 0, sizeof *b);
    b->config = fixture_config(LAYERS, c->n_heads, c->n_kv_heads, c->d_head);
    b->config.window = c->window;
    b->config.window_layers[0] = c->window ? 3 : 0;
    fixture_qkv_make(&b->x, &b->config, LAYER, c->short_ones ? odd : even, c->short_ones ? 6 : 4,
                     9);
    b->x.in.window = (size_t)c->window;
    const size_t n = b->x.in.n_tokens, d = (size_t)c->d_head;
    b->n_out = n * (size_t)c->n_heads * d;
    free(round_to(c->pass, b->x.q, b->n_out));
    free(round_to(c->pass, b->x.k, n * (size_t)c->n_kv_heads * d));
    free(round_to(c->pass, b->x.v, n * (size_t)c->n_kv_heads * d));
    kvd_rng r;
    kvd_rng_seed(&r, 23, 0);
    b->k_pre = random_numbers(&r, n * (size_t)c->n_kv_heads * d, 1);
    free(round_to(c->pass, b->k_pre, n * (size_t)c->n_kv_heads * d));
    b->x.in.k_pre = b->k_pre;
    b->plan = (kvd_plan){.type = c->store, .prompt = (size_t)c->prompt};
    if (c->bits) {
        const kvd_method_setup setup = {.config = &b->config};
        b->plan.bits = &kvd_bits_kivi;
        b->plan.bits_values = (kvd_parameter_values){.value = {c->bits, 16, 32}};
        if (kvd_plan_open(&b->plan, &setup, err))
            return -1;
    }
    if (c->latents) {
        latents_make(&b->dims, c);
        b->plan.maker = &kvd_dims_palu;
    }
    if (c->method || c->latents)
        b->plan.dims = &b->dims;
    if (!c->method)
        return 0;
    if (fixture_spectrum(&b->spectrum, &b->config, 7, err) || widths_for(c, &w))
        return -1;
    const int side = c->only - 1;
    const int status = c->only ? kvd_dims_one(&b->dims, c->method, &b->spectrum, LAYER, 0, side,
                                              w.kept[side][LAYER * c->n_kv_heads], err)
                               : kvd_dims_build(&b->dims, c->method, &b->spectrum, &w, err);
    kvd_widths_release(&w);
    return status;
}

static void bench_free(bench *b)
{
    b->plan.maker = NULL;
    kvd_plan_close(&b->plan);
    free(b->k_pre);
    kvd_dims_release(&b->dims);
    kvd_spectrum_release(&b->spectrum);
    fixture_drop(&b->x);
}

static void *rows_on_device(const bench *b, kvd_dtype pass)
{
    const size_t n = b->x.in.n_tokens, q = (size_t)(b->config.n_heads * b->config.d_head),
                 k = (size_t)(b->config.n_kv_heads * b->config.d_head), ld = q + 2 * k;
    float *all = need(n * ld * sizeof *all);
    for (size_t t = 0; t < n; t++) {
        memcpy(all + t * ld, b->x.q + t * q, q * sizeof *all);
        memcpy(all + t * ld + q, b->x.k + t * k, k * sizeof *all);
        memcpy(all + t * ld + q + k, b->x.v + t * k, k * sizeof *all);
    }
    void *const narrow = round_to(pass, all, n * ld), *const to = on_device(
                                                          narrow, n * ld * kvd_dtype_bytes(pass));
    host_free(all, narrow);
    return to;
}

/* Runs attention with the compressed cache twice on the GPU. Outputs are set to NaN before each
 * run, so that an element that is not written shows. */
static int on_gpu(const bench *b, const scenario *c, size_t max_len, float *out,
                  kvd_cache_account *account, char *engine, kvd_err *err)
{
    const size_t d = (size_t)c->d_head, bytes = kvd_dtype_bytes(c->pass), n = b->x.in.n_tokens;
    const kvd_gpu_share share = {.count = 1, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads};
    char *const rows = rows_on_device(b, c->pass);
    const size_t width_k = (size_t)c->n_kv_heads * d;
    void *const narrow = need(n * width_k * sizeof(float));
    kvd_from_f32(c->pass, b->k_pre, narrow, n * width_k);
    void *const pre = on_device(narrow, n * width_k * bytes);
    free(narrow);
    void *const to = on_device(NULL, b->n_out * bytes), *const back = need(b->n_out * 4);
    kvd_gpu_caches *const all = kvd_gpu_caches_new(&b->config, &share, c->pass, n, max_len, err);
    kvd_gpu_cache *const cache = all ? kvd_gpu_cache_new(all, &b->plan, err) : NULL;
    kvd_gpu_attention_in in = {.config = &b->config,
                               .share = &share,
                               .layer = LAYER,
                               .n_sequences = b->x.in.n_sequences,
                               .offset = b->x.offset,
                               .first_sequence = 40,
                               .n_tokens = n,
                               .type = c->pass,
                               .q = rows,
                               .k = rows + (size_t)c->n_heads * d * bytes,
                               .v = rows + (size_t)(c->n_heads + c->n_kv_heads) * d * bytes,
                               .ld = (size_t)(c->n_heads + 2 * c->n_kv_heads) * d,
                               .k_pre = pre,
                               .q_pre = rows,
                               .ld_pre = width_k,
                               .window = (size_t)c->window,
                               .lib = lib,
                               .blas = blas};
    int status = cache ? 0 : -1;
    for (size_t s = 0; s < in.n_sequences; s++)
        if (in.offset[s + 1] - in.offset[s] > in.longest)
            in.longest = in.offset[s + 1] - in.offset[s];
    for (int i = 0; i < 2 && !status; i++) {
        fill_bytes(to, 0xff, b->n_out * bytes);
        kvd_gpu_attention *const hook = kvd_gpu_cache_hook(cache);
        status = hook->run(hook, &in, to, err);
        check(cudaDeviceSynchronize(), c->name);
    }
    to_host(back, to, b->n_out * bytes);
    kvd_to_f32(c->pass, back, out, b->n_out);
    if (!status) {
        memset(account, 0, sizeof *account);
        kvd_gpu_cache_take_account(cache, account);
        strcpy(engine, kvd_gpu_cache_engine(cache));
    }
    kvd_gpu_cache_free(cache);
    kvd_gpu_caches_free(all);
    device_free(rows, pre, to);
    free(back);
    return status;
}

static int on_cpu(const bench *b, size_t max_len, float *out, kvd_cache_account *account,
                  kvd_err *err)
{
    kvd_cache cache;
    kvd_attention_in in = b->x.in;
    in.first_sequence = 40;
    if (kvd_cache_init(&cache, &b->config, &b->plan, max_len, err))
        return -1;
    int status = 0;
    for (int i = 0; i < 2 && !status; i++)
        status = cache.hook.run(&cache.hook, &in, out, err);
    *account = cache.account;
    kvd_cache_release(&cache);
    return status;
}

static double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / norm);
}

static void run(const scenario *c)
{
    bench b;
    kvd_err err = {""};
    kvd_cache_account want = {0}, got = {0};
    char engine[128] = "";
    if (bench_make(&b, c, &err)) {
        test_result(0, c->name, "%s", err.msg);
        return;
    }
    float *cpu = need(b.n_out * sizeof *cpu), *gpu = need(b.n_out * sizeof *gpu);
    if (on_cpu(&b, 300, cpu, &want, &err) || on_gpu(&b, c, 300, gpu, &got, engine, &err)) {
        test_result(0, c->name, "%s", err.msg);
    } else {
        const double off = distance(gpu, cpu, b.n_out);
        const int same =
            got.calls == want.calls && got.tokens == want.tokens &&
            got.elements_kept == want.elements_kept && got.elements_dense == want.elements_dense &&
            got.bytes_stored == want.bytes_stored && got.steps.rows == want.steps.rows &&
            got.steps.dense == want.steps.dense && got.steps.payload == want.steps.payload;
        test_result(off <= c->limit && same && strstr(engine, c->engine ? c->engine : "cuBLAS"),
                    c->name, "off by %.2g, limit %.0e; account %s; engine '%s'", off, c->limit,
                    same ? "equal" : "differs", engine);
    }
    host_free(cpu, gpu);
    bench_free(&b);
}

static void refusal(const scenario *c)
{
    bench b;
    kvd_err err = {""}, want = {"nothing"}, got = {"nothing"};
    kvd_cache_account a;
    char engine[128];
    if (bench_make(&b, c, &err)) {
        test_result(0, "refusal", "%s", err.msg);
        return;
    }
    float *out = need(b.n_out * sizeof *out);
    const int cpu = on_cpu(&b, 200, out, &a, &want),
              gpu = on_gpu(&b, c, 200, out, &a, engine, &got);
    test_result(cpu == -1 && gpu == -1 && !strcmp(want.msg, got.msg), "refusal", "'%s', '%s'",
                got.msg, want.msg);
    free(out);
    bench_free(&b);
}

/* Quantises K or V of n tokens in `rows` [tokens][2 d] on the CPU, and replaces them by the
 * dequantised values. */
static void code_on_cpu(const kvd_bits_method *m, const void *self, uint16_t *rows, size_t d,
                        size_t first, size_t n, int side)
{
    float *const x = need((2 * n + 1) * d * sizeof *x);
    kvd_bits_count count = {0, 0};
    kvd_err err = {""};
    uint16_t *const from = rows + (2 * first + (size_t)side) * d;
    const kvd_bits_block b = {.side = (kvd_side)side, .n = n, .d = d, .x = x, .prompt = true};
    for (size_t i = 0; i < n; i++)
        kvd_to_f32(KVD_BF16, from + i * 2 * d, x + i * d, d);
    or_end(n && m->code(self, &b, x + n * d, &count, &err), "codes on the CPU", err.msg);
    for (size_t i = 0; i < n; i++)
        kvd_from_f32(KVD_BF16, x + (n + i) * d, from + i * 2 * d, d);
    free(x);
}

static void test_codes(const kvd_bits_method *m, kvd_parameter_values v, size_t d,
                       const kvd_packed_form *form)
{
    enum { ROWS = 150, GROUP = 1 /* of kivi's parameters */ };
    /* one entry per head, each field as {K, V}: first token to quantise, number of tokens, scale */
    static const kvd_cache_codes list[] = {{{3, 5}, {64, 61}, {1, 1}},
                                           {{0, 0}, {0, 0}, {1, 1}},
                                           {{70, 0}, {33, 0}, {1, 1}},
                                           {{0, 110}, {0, 40}, {1, 1}}};
    enum { HEADS = sizeof list / sizeof *list };
    const size_t n = ROWS * 2 * d, bytes = n * sizeof(uint16_t);
    const int group = (int)v.value[GROUP];
    uint16_t *const rows = need(bytes), *const got = need(bytes);
    const kvd_method_setup setup = {.drawn = true};
    size_t wrong = 0, changed = 0;
    void *self;
    kvd_err err = {""};
    kvd_rng r;
    kvd_rng_seed(&r, 31, d);
    or_end(kvd_bits_open(m, &v, &setup, &self, &err), m->info.name, err.msg);
    for (size_t i = 0; i < n; i++)
        rows[i] = bf16_of(kvd_rng_normal(&r) * (i % 17 ? 1 : 9) + 0.3);
    uint16_t *const on = on_device(rows, bytes);
    kvd_cache_codes *const heads = on_device(list, sizeof list);
    memcpy(got, rows, bytes);
    for (size_t h = 0; h < HEADS; h++)
        for (int side = 0; side < 2; side++)
            code_on_cpu(m, self, rows, d, (size_t)list[h].first[side], (size_t)list[h].n[side],
                        side);
    for (size_t i = 0; i < n; i++)
        changed += rows[i] != got[i];
    check(kvd_cache_code(on, (int)d, heads, HEADS, form, group, NULL), "codes");
    to_host(got, on, bytes);
    for (size_t i = 0; i < n; i++)
        wrong += rows[i] != got[i];
    /* Quantisation must change many numbers, unless each group holds a single number. */
    test_result(!wrong && (changed > n / 8 || group == 1), "codes of rows",
                "%zu of %zu numbers are not those of the CPU: %s, %zu dimensions", wrong, n,
                m->info.name, d);
    device_free(on, heads);
    host_free(rows, got);
    kvd_bits_close(m, self);
}

static void test_all_codes(void)
{
    const kvd_packed_form bits[] = {{.bits = 4}, {.bits = 2}, {.bits = 8}, {.bits = 3}},
                          e4m3 = {.bits = 8, .exponent = 4}, e5m2 = {.bits = 8, .exponent = 5},
                          mx = {.bits = 4, .exponent = 2, .block = 32},
                          nv = {.bits = 4, .exponent = 2, .block = 16};
    test_codes(&kvd_bits_kivi, (kvd_parameter_values){.value = {4, 32, 128}}, 128, &bits[0]);
    test_codes(&kvd_bits_kivi, (kvd_parameter_values){.value = {2, 20, 40}}, 72, &bits[1]);
    test_codes(&kvd_bits_kivi, (kvd_parameter_values){.value = {8, 200, 0}}, 64, &bits[2]);
    test_codes(&kvd_bits_kivi, (kvd_parameter_values){.value = {3, 1, 0}}, 16, &bits[3]);
    test_codes(&kvd_bits_fp8, (kvd_parameter_values){.value = {3}}, 128, &e4m3);
    test_codes(&kvd_bits_fp8, (kvd_parameter_values){.value = {2}}, 40, &e5m2);
    test_codes(&kvd_bits_mxfp4, (kvd_parameter_values){.value = {0}}, 128, &mx);
    test_codes(&kvd_bits_mxfp4, (kvd_parameter_values){.value = {0}}, 72, &mx);
    test_codes(&kvd_bits_nvfp4, (kvd_parameter_values){.value = {0}}, 72, &nv);
}

enum { REQUESTS = 3, PAGES = 3, POOL = REQUESTS * PAGES, BLOCK = 20, NEWEST = 23 };

/* Host copies of the arrays of kvd_cache_receive, a kernel that sums the attention probabilities
 * each token receives from queries. */
typedef struct {
    kvd_cache_received a; /* with addresses of the copies */
    uint16_t *q, *pool;
    float *lse;
    size_t n_sum;
} received;

static double read_bf16(const uint16_t *x)
{
    float y;
    kvd_to_f32(KVD_BF16, x, &y, 1);
    return (double)y;
}

/* Returns the probability with which query q of a head attends to token t of request b. */
static double probability(const received *x, int b, int head, int q, int t)
{
    const kvd_attn_map *const map = &x->a.map;
    const int g = head / map->group;
    const size_t d = (size_t)map->d_qk[g], row = x->a.prompts ? (size_t)(x->a.q_start[b] + q) : 0,
                 page = (size_t)x->a.page_table[b * PAGES + t / KVD_PAGE_TOKENS];
    const uint16_t *const k = x->pool + page * (size_t)map->page_elements + map->kv_offset[g];
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += read_bf16(x->q + (x->a.prompts
                                     ? (size_t)map->q_offset[head] * (size_t)x->a.n_q8 +
                                           kvd_blocked_index(row, i, d)
                                     : (size_t)(b * map->q_pitch + map->q_offset[head]) + i)) *
               read_bf16(k + kvd_blocked_index((size_t)t % KVD_PAGE_TOKENS, i, d));
    return exp(sum * (double)map->scale -
               (double)x->lse[x->a.prompts ? (size_t)head * (size_t)x->a.n_q8 + row
                                           : (size_t)(b * map->n_heads + head)]);
}

/* Fills want [n_sum] with the sum of attention probabilities that each token receives, and with -1
 * where the kernel must not write. */
static void receive_on_cpu(const received *x, float *want)
{
    const kvd_attn_map *const map = &x->a.map;
    for (size_t i = 0; i < x->n_sum; i++)
        want[i] = -1;
    for (int b = 0; b < REQUESTS; b++)
        for (int g = 0; g < map->n_kv_heads; g++) {
            const int m = x->a.kv_len[b], window = map->window ? map->window : m,
                      seen = m > window ? m - window : 0, recent = m > NEWEST ? m - NEWEST : 0,
                      from = x->a.prompts    ? seen / BLOCK * BLOCK
                             : seen > recent ? seen
                                             : recent;
            for (int t = from; t < m; t++) {
                double sum = 0;
                for (int q = x->a.prompts ? t : m - 1; q < m && q - t < window; q++)
                    for (int h = g * map->group; h < (g + 1) * map->group; h++)
                        sum += probability(x, b, h, q, t);
                want[x->a.prompts ? g * x->a.n_q8 + x->a.q_start[b] + t
                                  : (b * map->n_kv_heads + g) * NEWEST + t % NEWEST] = (float)sum;
            }
        }
}

static uint16_t *random_bf16(kvd_rng *r, size_t n)
{
    uint16_t *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_of(kvd_rng_normal(r));
    return x;
}

static void test_receive(int n_heads, int n_kv_heads, int d, int window, bool prompts)
{
    static const int32_t length[REQUESTS] = {70, 9, 3 * KVD_PAGE_TOKENS}, start[] = {0, 72, 88},
                         table[POOL] = {5, 1, 8, 0, 2, 7, 3, 6, 4};
    enum { ROWS = 88 + 3 * KVD_PAGE_TOKENS };
    kvd_attn_heads heads = {
        .n_heads = n_heads, .n_kv_heads = n_kv_heads, .d_head = d, .window = window};
    for (int g = 0; g < n_kv_heads; g++)
        heads.d_qk[g] = heads.d_v[g] = d;
    received x = {.a = {.prompts = prompts,
                        .n = REQUESTS,
                        .max_pages = PAGES,
                        .kv_len = length,
                        .page_table = table,
                        .q_start = start,
                        .n_q8 = ROWS,
                        .block = BLOCK,
                        .newest = NEWEST}};
    or_end(kvd_attn_map_make(&heads, &x.a.map), "layout of heads", "outside its limits");
    const size_t queries = (size_t)n_heads * (prompts ? ROWS : REQUESTS), n_q = queries * (size_t)d,
                 n_pool = POOL * (size_t)x.a.map.page_elements;
    kvd_rng r;
    kvd_rng_seed(&r, 37, (uint64_t)(d + window));
    x.q = random_bf16(&r, n_q);
    x.pool = random_bf16(&r, n_pool);
    x.lse = need(queries * sizeof *x.lse);
    for (size_t i = 0; i < queries; i++)
        x.lse[i] = (float)(3 + 0.2 * kvd_rng_normal(&r));
    x.n_sum = (size_t)n_kv_heads * (prompts ? ROWS : REQUESTS * NEWEST);
    float *const want = need(x.n_sum * sizeof *want), *const got = need(x.n_sum * sizeof *got);
    double worst = 0;
    receive_on_cpu(&x, want);
    for (size_t i = 0; i < x.n_sum; i++)
        got[i] = -1;
    kvd_cache_received on = x.a;
    int32_t *const lists[] = {on_device(length, sizeof length), on_device(start, sizeof start),
                              on_device(table, sizeof table)};
    uint16_t *const q = on_device(x.q, n_q * sizeof *q), *const pool = on_device(
                                                             x.pool, n_pool * sizeof *pool);
    float *const lse = on_device(x.lse, queries * sizeof *lse);
    on.kv_len = lists[0];
    on.q_start = lists[1];
    on.page_table = lists[2];
    on.q = q;
    on.pool = pool;
    on.lse = lse;
    on.sum = on_device(got, x.n_sum * sizeof *got);
    check(kvd_cache_receive(&on, NULL), "received probabilities");
    to_host(got, on.sum, x.n_sum * sizeof *got);
    for (size_t i = 0; i < x.n_sum; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]) / (1 + fabs((double)want[i])));
    test_result(worst < 1e-4, "received probabilities",
                "off by %.2g: %s, %d heads of %d, %d KV heads, window %d", worst,
                prompts ? "prompts" : "decode steps", n_heads, d, n_kv_heads, window);
    device_free(lists[0], lists[1], lists[2], q, pool, lse, on.sum);
    host_free(x.q, x.pool, x.lse, want, got);
}

static void test_all_received(void)
{
    for (int prompts = 0; prompts < 2; prompts++) {
        test_receive(4, 2, 64, 0, prompts);
        test_receive(4, 2, 64, 40, prompts);
        test_receive(3, 3, 256, 100, prompts);
        test_receive(8, 1, 80, 21, prompts);
    }
}

static bool all_are(const uint8_t *x, size_t n, int byte)
{
    size_t i = 0;
    while (i < n && x[i] == byte)
        i++;
    return i == n;
}

/* Tests that arrays do not overlap: allocates many arrays and fills each with its own number. */
static void test_memory(void)
{
    enum { ARRAYS = 400, BYTES = 3000 };
    kvd_device_memory m = {0};
    kvd_err err = {""}, again = {""};
    uint8_t *device[ARRAYS], *pinned[ARRAYS], got[BYTES];
    size_t right = 0;
    for (int i = 0; i < ARRAYS; i++) {
        device[i] = kvd_device_filled(&m, BYTES, i % 251, "an array", &err);
        pinned[i] = kvd_device_pinned(&m, BYTES, "an array", &err);
        or_end(m.status, "lists of arrays", err.msg);
        memset(pinned[i], i % 241, BYTES);
    }
    for (int i = 0; i < ARRAYS; i++) {
        to_host(got, device[i], BYTES);
        right += all_are(got, BYTES, i % 251) && all_are(pinned[i], BYTES, i % 241);
    }
    test_result(right == ARRAYS && m.n == ARRAYS && m.n_pinned == ARRAYS, "lists of arrays",
                "%zu of %d arrays are whole", right, ARRAYS);
    kvd_device_release(&m);
    check(cudaGetLastError(), "free");
    test_result(!m.array && !m.n && !m.pinned && !m.n_pinned, "a released list", "is empty");
    const bool refused = !kvd_device_new(&m, (size_t)1 << 60, "a large array", &err),
               later = !kvd_device_new(&m, 1, "an array", &again);
    test_result(refused && later && strstr(err.msg, "a large array: 1152921504606846976 bytes") &&
                    !strcmp(err.msg, again.msg),
                "an array without memory", "%s", again.msg);
    kvd_device_release(&m);
    test_result(kvd_device_new(&m, 1, "an array", &err) != NULL, "a list after a failure",
                "is empty and usable");
    kvd_device_release(&m);
}

int main(void)
{
    /* Columns: name, query heads, KV heads, d_head, types of activations and of the cache, then the
     * other fields of `scenario`. */
    static const scenario cases[] = {
        {"none", 6, 2, 16, KVD_F32, KVD_F32, NULL, 0, 0, 0, 1, 0, 0, 0, 1e-5, NULL},
        {"none_f16", 6, 2, 16, KVD_F32, KVD_F16, NULL, 0, 0, 0, 1, 0, 0, 0, 1e-4, NULL},
        {"full", 6, 2, 16, KVD_F32, KVD_F32, &kvd_dims_zack, 0, 0, 0, 1, 0, 0, 0, 1e-5, NULL},
        {"full_balanced", 8, 8, 64, KVD_F32, KVD_F32, &kvd_dims_balanced, 0, 0, 0, 0, 0, 0, 0, 1e-5,
         NULL},
        {"orthogonal", 6, 2, 16, KVD_F32, KVD_F32, &kvd_dims_zack, 1, 0, 0, 1, 0, 0, 0, 1e-5, NULL},
        {"biorthogonal", 8, 4, 64, KVD_F32, KVD_F32, &kvd_dims_balanced, 3, 0, 0, 1, 0, 0, 0, 1e-5,
         NULL},
        {"wide_heads", 4, 2, 192, KVD_F32, KVD_F32, &kvd_dims_zack, 7, 0, 0, 0, 0, 0, 0, 1e-5,
         NULL},
        {"store_f16", 8, 4, 64, KVD_F32, KVD_F16, &kvd_dims_zack, 5, 0, 0, 0, 0, 0, 0, 1e-4, NULL},
        {"store_bf16", 8, 4, 64, KVD_F32, KVD_BF16, &kvd_dims_balanced, 5, 0, 0, 1, 0, 0, 0, 1e-3,
         NULL},
        {"only_qk", 8, 4, 64, KVD_F32, KVD_F32, &kvd_dims_balanced, 8, 1, 0, 0, 0, 0, 0, 1e-5,
         NULL},
        {"only_v", 8, 4, 64, KVD_F32, KVD_F32, &kvd_dims_zack, 8, 2, 0, 1, 0, 0, 0, 1e-5, NULL},
        {"window", 6, 2, 16, KVD_F32, KVD_BF16, &kvd_dims_zack, 1, 0, 30, 1, 0, 0, 0, 1e-3, NULL},
        {"prompt", 6, 2, 16, KVD_F32, KVD_F16, &kvd_dims_zack, 1, 0, 0, 1, 20, 0, 0, 1e-4, NULL},
        {"prompt_window", 8, 4, 64, KVD_F32, KVD_F32, &kvd_dims_balanced, 5, 0, 30, 0, 50, 0, 0,
         1e-5, NULL},
        {"prompt_none", 6, 2, 16, KVD_F32, KVD_F32, NULL, 0, 0, 0, 1, 20, 0, 0, 1e-5, NULL},
        {"prompt_store", 6, 2, 16, KVD_F32, KVD_BF16, NULL, 0, 0, 0, 1, 40, 0, 0, 1e-4, NULL},
        {"latents_1", 6, 2, 16, KVD_F32, KVD_F32, NULL, 0, 0, 0, 1, 0, 1, 0, 1e-5, NULL},
        {"latents_2", 8, 4, 64, KVD_F32, KVD_F32, NULL, 0, 0, 0, 0, 0, 2, 0, 1e-5, NULL},
        {"latents_4", 8, 4, 64, KVD_F32, KVD_F16, NULL, 0, 0, 0, 1, 0, 4, 0, 1e-4, NULL},
        {"latents_prompt", 8, 4, 32, KVD_F32, KVD_F32, NULL, 0, 0, 20, 1, 33, 2, 0, 1e-5, NULL},
        {"rows", 6, 2, 16, KVD_F32, KVD_F16, NULL, 0, 0, 0, 1, 20, 0, 8, 0, "row by row"},
        {"bf16_rows", 6, 2, 16, KVD_BF16, KVD_F32, NULL, 0, 0, 0, 0, 20, 0, 8, 4e-3, "row by row"},
        {"bf16_prompt", 8, 4, 64, KVD_BF16, KVD_BF16, &kvd_dims_zack, 16, 0, 0, 1, 40, 0, 0, 4e-3,
         NULL},
        {"bf16_prompt_none", 8, 4, 64, KVD_BF16, KVD_BF16, NULL, 0, 0, 0, 1, 40, 0, 0, 1e-2,
         "kernel"},
        {"bf16_latents", 8, 4, 64, KVD_BF16, KVD_BF16, NULL, 0, 0, 0, 1, 0, 2, 0, 4e-3, NULL},
        {"bf16_latents_prompt", 8, 2, 128, KVD_BF16, KVD_F16, NULL, 0, 0, 0, 0, 40, 2, 0, 4e-3,
         NULL},
        {"bf16_none", 8, 4, 64, KVD_BF16, KVD_BF16, NULL, 0, 0, 0, 1, 0, 0, 0, 1e-2, "kernel"},
        {"bf16_full", 8, 2, 128, KVD_BF16, KVD_BF16, &kvd_dims_zack, 0, 0, 0, 0, 0, 0, 0, 1e-2,
         "kernel"},
        {"bf16_orthogonal", 8, 4, 128, KVD_BF16, KVD_BF16, &kvd_dims_zack, 16, 0, 0, 1, 0, 0, 0,
         1e-2, "kernel"},
        {"bf16_biorthogonal", 9, 3, 64, KVD_BF16, KVD_BF16, &kvd_dims_balanced, 16, 0, 0, 1, 0, 0,
         0, 1e-2, "kernel"},
        {"bf16_even", 8, 8, 96, KVD_BF16, KVD_BF16, &kvd_dims_fdc, 16, 0, 0, 0, 0, 0, 0, 1e-2,
         "kernel"},
        {"bf16_only_qk", 8, 4, 64, KVD_BF16, KVD_BF16, &kvd_dims_balanced, 16, 1, 0, 0, 0, 0, 0,
         1e-2, "kernel"},
        {"bf16_only_v", 8, 4, 64, KVD_BF16, KVD_BF16, &kvd_dims_zack, 16, 2, 0, 1, 0, 0, 0, 1e-2,
         "kernel"},
        {"bf16_odd_widths", 8, 4, 64, KVD_BF16, KVD_BF16, &kvd_dims_zack, 3, 0, 0, 0, 0, 0, 0, 1e-2,
         "kernel"},
        {"bf16_odd_balanced", 8, 8, 128, KVD_BF16, KVD_BF16, &kvd_dims_balanced, 9, 0, 0, 1, 0, 0,
         0, 1e-2, "kernel"},
        {"bf16_d_head_24", 6, 2, 24, KVD_BF16, KVD_BF16, &kvd_dims_zack, 5, 0, 0, 1, 0, 0, 0, 4e-3,
         NULL},
        {"bf16_store_f32", 8, 4, 64, KVD_BF16, KVD_F32, &kvd_dims_balanced, 16, 0, 0, 1, 0, 0, 0,
         4e-3, NULL},
        {"bf16_store_f16", 8, 4, 64, KVD_BF16, KVD_F16, NULL, 0, 0, 0, 1, 0, 0, 0, 4e-3, NULL},
        {"bf16_window", 8, 4, 64, KVD_BF16, KVD_BF16, &kvd_dims_zack, 16, 0, 50, 0, 0, 0, 0, 4e-3,
         NULL},
    };
    kvd_err err = {""};
    if (!gpu_devices("cache", 1))
        return 0;
    or_end(!(lib = kvd_cublas_load(&err)) ||
               kvd_cublas_check(lib->cublasCreate_v2(&blas), "cuBLAS", &err),
           "cache", err.msg);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(&cases[i]);
    refusal(&cases[0]);
    refusal(&cases[sizeof cases / sizeof *cases - 5]);
    test_memory();
    test_all_codes();
    test_all_received();
    return failures != 0;
}
