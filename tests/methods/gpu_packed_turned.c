/* Tests kernels of the methods turboquant and xquant against the CPU. A number nearly halfway
 * between two levels may be rounded to either. */
#include <math.h>
#include <string.h>

#include "common/quantise.h"
#include "common/rng.h"
#include "gpu_case.h"
#include "methods/bits/cuda/packed.h"
#include "methods/bits/cuda/xquant.h"
#include "methods/bits/levels.h"
#include "methods/dims/cuda/latents.h"
#include "methods/method.h"
#include "worst.h"

enum { N_KV = 3, N = 6, CTAS = 5 };

typedef struct {
    const char *method;
    int d, group, length[N], steps;
} test_case;

typedef struct {
    const test_case *t;
    kvd_config config;
    kvd_plan plan;
    kvd_packed_args a;
    kvd_turboquant_tables tables;
    int most, max_pages, heads;
    float *x[2];  /* bf16 [N requests][most tokens][N_KV][d] */
    uint16_t *q;  /* queries [N requests][heads][d] */
    double *y[2]; /* K and V decoded from the device's codes, [N][most][N_KV][d] */
    size_t n_pages;
    /* rows: number of compared vectors. other: number of vectors whose dequantised numbers differ
     * from the CPU's. */
    size_t rows, other;
    double worst, attention;
    void *device[24];
    int n_device;
    int32_t page[N][32], slot[N];
} bench;

static uint16_t bits_of(float x)
{
    uint16_t h;
    kvd_from_f32(KVD_BF16, &x, &h, 1);
    return h;
}

static float number(uint16_t h)
{
    float x;
    kvd_to_f32(KVD_BF16, &h, &x, 1);
    return x;
}

static float half_number(uint16_t h)
{
    float x;
    kvd_to_f32(KVD_F16, &h, &x, 1);
    return x;
}

static size_t at(const bench *w, int b, int t, int g)
{
    return (((size_t)b * (size_t)w->most + (size_t)t) * N_KV + (size_t)g) * (size_t)w->t->d;
}

static size_t place(const bench *w, int side, int g, int t, int i)
{
    const size_t d = (size_t)w->t->d;
    return (size_t)w->a.map.kv_offset[g] + (side ? KVD_PAGE_TOKENS * d : 0) +
           kvd_blocked_index((size_t)t % KVD_PAGE_TOKENS, (size_t)i, d);
}

static void *kept(bench *w, const void *from, size_t bytes)
{
    return w->device[w->n_device++] = on_device(from, bytes);
}

static void *kept_zeros(bench *w, size_t bytes)
{
    void *const host = need(bytes), *const p = kept(w, host, bytes);
    free(host);
    return p;
}

static int open_bench(bench *w, const test_case *t, kvd_err *err)
{
    kvd_method m;
    *w = (bench){.t = t, .heads = N_KV * t->group};
    w->config = (kvd_config){.n_layers = 1,
                             .n_heads = w->heads,
                             .n_kv_heads = N_KV,
                             .d_head = t->d,
                             .d_model = w->heads * t->d,
                             .max_positions = 4096};
    const kvd_method_setup setup = {.config = &w->config, .drawn = true};
    if (kvd_method_parse(t->method, &m, err))
        return -1;
    w->plan = m.plan;
    w->plan.type = KVD_BF16;
    w->plan.prompt = 1;
    w->plan.seed = 5;
    if (kvd_plan_open(&w->plan, &setup, err) ||
        kvd_turboquant_tables_of(w->plan.bits_self, (size_t)t->d, &w->tables, err))
        return -1;
    kvd_attn_heads heads = {.n_heads = w->heads, .n_kv_heads = N_KV, .d_head = t->d};
    kvd_attn_map map;
    for (int g = 0; g < N_KV; g++)
        heads.d_qk[g] = heads.d_v[g] = t->d;
    if (kvd_attn_map_make(&heads, &map))
        return kvd_fail(err, "map");
    kvd_gpu_packed_describe(&w->plan, &w->config, &map, NULL, 0, &w->a);
    for (int b = 0; b < N; b++)
        w->most = t->length[b] + t->steps > w->most ? t->length[b] + t->steps : w->most;
    w->max_pages = (w->most + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    kvd_rng r;
    kvd_rng_seed(&r, 31, 0);
    const size_t n = at(w, N, 0, 0), n_q = (size_t)(N * w->heads * t->d);
    for (int side = 0; side < 2; side++) {
        w->x[side] = need(n * sizeof(float));
        w->y[side] = need(n * sizeof(double));
        for (size_t i = 0; i < n; i++)
            w->x[side][i] = number(bits_of((float)(kvd_rng_normal(&r) + (double)(i % 7 == 0))));
    }
    memset(w->x[0] + at(w, 2, 3, 1), 0, (size_t)t->d * sizeof(float));
    w->q = need(n_q * sizeof *w->q);
    for (size_t i = 0; i < n_q; i++)
        w->q[i] = bits_of((float)kvd_rng_normal(&r));
    return 0;
}

static int make_device(bench *w, kvd_err *err)
{
    kvd_packed_args *const a = &w->a;
    const size_t row = (size_t)a->map.page_elements / KVD_PAGE_TOKENS * 2, slots = 2 * N;
    int32_t next = 2, table[N * 32] = {0};
    w->n_pages = (size_t)(N * w->max_pages * 2 + 1);
    for (int b = 0; b < N; b++) {
        w->slot[b] = (b * 5 + 1) % (2 * N);
        for (int p = 0; p < w->max_pages; p++, next = (next + 2) % (int32_t)w->n_pages)
            table[b * w->max_pages + p] = w->page[b][p] = next;
    }
    a->codes = kept_zeros(w, w->n_pages * a->page_bytes);
    a->ring = kept_zeros(w, slots * (size_t)a->ring_pages * KVD_PAGE_TOKENS * row);
    a->rows = kept(w, NULL, w->n_pages * (size_t)a->map.page_elements * 2);
    a->page_table = kept(w, table, (size_t)(N * w->max_pages) * sizeof *table);
    a->slot = kept(w, w->slot, sizeof w->slot);
    a->kv_len = kept_zeros(w, N * sizeof(int32_t));
    a->max_pages = w->max_pages;
    a->n = N;
    kvd_packed_turned host;
    if (kvd_gpu_packed_turned_make(&w->plan, a, &host, err))
        return -1;
    a->level = kept(w, host.level, host.n_level * sizeof(float));
    a->range = kept(w, host.range, host.n_range * sizeof(float));
    a->turn_rows = kept(w, host.turn_rows, host.n_matrix * sizeof(float));
    a->turn_outputs = kept(w, host.turn_outputs, host.n_matrix * sizeof(float));
    if (host.sketch_rows) {
        a->sketch_rows = kept(w, host.sketch_rows, host.n_matrix * sizeof(float));
        a->sketch_back = kept(w, host.sketch_back, host.n_matrix * sizeof(float));
    }
    kvd_gpu_packed_turned_free(&host);
    return 0;
}

static void close_bench(bench *w)
{
    for (int i = 0; i < w->n_device; i++)
        check(cudaFree(w->device[i]), "cudaFree");
    kvd_plan_close(&w->plan);
    for (int side = 0; side < 2; side++) {
        free(w->x[side]);
        free(w->y[side]);
    }
    free(w->q);
}

static void upload_lengths(bench *w, int step)
{
    int32_t len[N];
    for (int b = 0; b < N; b++)
        len[b] = w->t->length[b] + step;
    check(cudaMemcpy((void *)w->a.kv_len, len, sizeof len, cudaMemcpyHostToDevice), "lengths");
}

static void read_token(const bench *w, const char *codes, int b, int t, int g)
{
    const int d = w->t->d, bits = w->a.form.bits, in_page = t % KVD_PAGE_TOKENS;
    const kvd_packed_parts parts = kvd_packed_parts_of(&w->a.form, d, d);
    const char *const head =
        codes + (size_t)w->page[b][t / KVD_PAGE_TOKENS] * w->a.page_bytes + w->a.head_at[g];
    for (int side = 0; side < 2; side++) {
        const uint32_t *const words = (const uint32_t *)(const void *)(head + (side ? parts.v : 0));
        const uint16_t *const norms =
            (const uint16_t *)(const void *)(head + (side ? parts.v_side : parts.k_norm));
        const double norm =
            KVD_PACKED_NORM *
            (double)half_number(
                norms[side ? 32 * (in_page / 16) + kvd_packed_scale(in_page) : in_page]);
        const bool sketched = w->a.form.sketch && !side;
        const double rest =
            sketched
                ? norm * (double)half_number(norms[KVD_PAGE_TOKENS + in_page]) * sqrt(acos(0)) / d
                : 0;
        double *const y = w->y[side] + at(w, b, t, g), *const z = need((size_t)d * sizeof *z);
        memset(y, 0, (size_t)d * sizeof *y);
        for (int i = 0; i < d; i++) {
            const int lane = side ? kvd_packed_value_lane(in_page, i)
                                  : kvd_packed_key_lane(in_page, i),
                      n = side ? kvd_packed_value_number(in_page, i)
                               : kvd_packed_key_number(in_page, i);
            const uint32_t code =
                kvd_packed_get(words + kvd_packed_words(bits, i / 16, lane), true, bits, n);
            const uint32_t index = sketched ? code & ((1u << (bits - 1)) - 1) : code;
            z[i] += norm * (double)(side ? w->tables.level : w->tables.key_level)[index];
            for (int j = 0; sketched && j < d; j++)
                z[j] += (code >> (bits - 1) ? rest : -rest) * (double)w->tables.sketch[i * d + j];
        }
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                y[j] += z[i] * (double)w->tables.rotation[i * d + j];
        free(z);
    }
}

/* Quantises the vector at w->x[side] + from on the CPU, and writes the dequantised vector to want
 * [d]. */
static void code_on_host(const bench *w, int side, int t, int g, size_t from, float *want)
{
    const uint8_t level = KVD_LEVEL_HIGH;
    const uint32_t position = (uint32_t)t;
    const kvd_bits_block block = {.side = (kvd_side)side,
                                  .kv_head = g,
                                  .n = 1,
                                  .d = (size_t)w->t->d,
                                  .x = w->x[side] + from,
                                  .level = &level,
                                  .position = &position};
    kvd_bits_count count;
    kvd_err err = {""};
    or_end(w->plan.bits->code(w->plan.bits_self, &block, want, &count, &err), "packed turned",
           err.msg);
}

static void compare_token(bench *w, int b, int t, int g)
{
    const size_t d = (size_t)w->t->d, from = at(w, b, t, g);
    float *const want = need(d * sizeof *want);
    for (int side = 0; side < 2; side++) {
        double error = 0, square = 0;
        code_on_host(w, side, t, g, from, want);
        for (size_t i = 0; i < d; i++) {
            const double e = w->y[side][from + i] - (double)want[i];
            error += e * e;
            square += (double)want[i] * (double)want[i];
        }
        const double off = square > 0 ? sqrt(error / square) : sqrt(error);
        /* Counts vectors with a relative error of at least 2e-4. A single wrong quantised number
         * gives 1e-3 or more, rounding less. */
        w->rows++;
        w->other += !(off < 2e-4);
        w->worst = worse(w->worst, off);
    }
    free(want);
}

static void compare_codes(bench *w, int step)
{
    char *const codes = need(w->n_pages * w->a.page_bytes);
    check(cudaMemcpy(codes, w->a.codes, w->n_pages * w->a.page_bytes, cudaMemcpyDeviceToHost),
          "codes");
    for (int b = 0; b < N; b++)
        for (int t = step ? w->t->length[b] + step - 1 : 0; t < w->t->length[b] + step; t++)
            for (int g = 0; g < N_KV; g++) {
                read_token(w, codes, b, t, g);
                compare_token(w, b, t, g);
            }
    free(codes);
}

/* Compares the GPU's attention outputs with a reference. The reference uses bf16 K and V of the
 * newest token, and quantised K and V of all earlier tokens. */
static void compare_attention(bench *w, int step, const uint16_t *o)
{
    const int d = w->t->d;
    double *const p = need((size_t)w->most * sizeof *p);
    for (int b = 0; b < N; b++)
        for (int h = 0; h < w->heads; h++) {
            const int g = h / w->t->group, m = w->t->length[b] + step;
            const size_t row = (size_t)(b * w->heads + h) * (size_t)d;
            double top = -INFINITY, sum = 0, error = 0, square = 0;
            for (int t = 0; t < m; t++) {
                const size_t from = at(w, b, t, g);
                p[t] = 0;
                for (int i = 0; i < d; i++)
                    p[t] +=
                        (double)number(w->q[row + (size_t)i]) / sqrt(d) *
                        (t < m - 1 ? w->y[0][from + (size_t)i] : (double)w->x[0][from + (size_t)i]);
                top = fmax(top, p[t]);
            }
            for (int t = 0; t < m; t++)
                sum += p[t] = exp(p[t] - top);
            for (int i = 0; i < d; i++) {
                double want = 0;
                for (int t = 0; t < m; t++) {
                    const size_t from = at(w, b, t, g) + (size_t)i;
                    want += p[t] / sum * (t < m - 1 ? w->y[1][from] : (double)w->x[1][from]);
                }
                const double e = (double)number(o[row + (size_t)i]) - want;
                error += e * e;
                square += want * want;
            }
            w->attention = worse(w->attention, sqrt(error / square));
        }
    free(p);
}

static void run_prompts(bench *w)
{
    const size_t elements = (size_t)w->a.map.page_elements;
    uint16_t *const pages = need(w->n_pages * elements * 2);
    memset(pages, 0xff, w->n_pages * elements * 2);
    for (int b = 0; b < N; b++)
        for (int t = 0; t < w->t->length[b]; t++)
            for (int side = 0; side < 2; side++)
                for (int g = 0; g < N_KV; g++)
                    for (int i = 0; i < w->t->d; i++)
                        pages[(size_t)w->page[b][t / KVD_PAGE_TOKENS] * elements +
                              place(w, side, g, t, i)] =
                            bits_of(w->x[side][at(w, b, t, g) + (size_t)i]);
    check(cudaMemcpy(w->a.rows, pages, w->n_pages * elements * 2, cudaMemcpyHostToDevice), "rows");
    free(pages);
    upload_lengths(w, 0);
    kvd_packed_args a = w->a;
    a.pages_side_by_side = 2;
    a.q_len = a.kv_len;
    check(kvd_packed_code(&a, NULL), "prompts");
}

static void append_step(bench *w, int step)
{
    const size_t d = (size_t)w->t->d, elements = (size_t)w->a.map.page_elements;
    uint16_t *const row = need(d * 2);
    for (int b = 0; b < N; b++) {
        const int t = w->t->length[b] + step - 1;
        uint16_t *const page = w->a.ring + (size_t)w->slot[b] * (size_t)w->a.ring_pages * elements;
        for (int side = 0; side < 2; side++)
            for (int g = 0; g < N_KV; g++) {
                for (size_t i = 0; i < d; i++)
                    row[i] = bits_of(w->x[side][at(w, b, t, g) + i]);
                check(cudaMemcpy2D(page + place(w, side, g, t, 0), 128, row, 16, 16, d / 8,
                                   cudaMemcpyHostToDevice),
                      "row");
            }
    }
    free(row);
    upload_lengths(w, step);
}

static void run_step(bench *w, int step, void *q, const kvd_packed_decode_args *d, uint16_t *o)
{
    const size_t bytes = (size_t)(N * w->heads * w->t->d) * 2;
    append_step(w, step);
    check(cudaMemcpy(q, w->q, bytes, cudaMemcpyHostToDevice), "queries");
    fill_bytes(d->o, 0xff, bytes);
    check(kvd_packed_turn_steps(&w->a, q, (void *)(uintptr_t)d->sketched, NULL), "steps");
    check(kvd_packed_decode_plan(&w->a, d, NULL), "plan");
    check(kvd_packed_decode(&w->a, d, NULL), "attention");
    check(kvd_packed_turn_outputs(&w->a, d->o, NULL), "outputs");
    check(cudaMemcpy(o, d->o, bytes, cudaMemcpyDeviceToHost), "outputs");
    compare_attention(w, step, o);
    compare_codes(w, step);
}

static void test(const test_case *t)
{
    kvd_err err = {""};
    bench w;
    char name[128];
    (void)snprintf(name, sizeof name, "%s, heads of %d, %d to a KV head", t->method, t->d,
                   t->group);
    if (open_bench(&w, t, &err) || make_device(&w, &err)) {
        test_result(0, name, "%s", err.msg);
        return;
    }
    const size_t bytes = (size_t)(N * w.heads * t->d) * 2;
    void *const q = kept(&w, NULL, bytes);
    uint16_t *const o = need(bytes);
    const kvd_packed_decode_args d = {.q = q,
                                      .sketched = kept(&w, NULL, bytes),
                                      .o = kept(&w, NULL, bytes),
                                      .pages_before = kept_zeros(&w, (N + 1) * sizeof(int32_t)),
                                      .partial = kept(&w, NULL, kvd_packed_decode_bytes(CTAS)),
                                      .n_ctas = CTAS};
    if (!kvd_packed_decodes(&w.a)) {
        test_result(0, name, "no kernel attends to these codes");
    } else {
        run_prompts(&w);
        compare_codes(&w, 0);
        for (int s = 1; s <= t->steps; s++)
            run_step(&w, s, q, &d, o);
        test_result((double)w.other <= 2e-3 * (double)w.rows + 1 && w.attention <= 1e-2, name,
                    "%zu of %zu rows have other codes, rows off by %.2g at most; attention off by "
                    "%.2g",
                    w.other, w.rows, w.worst, w.attention);
    }
    free(o);
    close_bench(&w);
}

/* Compares the dequantised K and V in cache pages with the expected ones. Adds the number of wrong
 * vectors of earlier tokens to w->other. Returns the number of wrong vectors of the newest token
 * and of padding, which must be 0. */
static size_t compare_restored(bench *w, int step)
{
    const size_t d = (size_t)w->t->d, elements = (size_t)w->a.map.page_elements;
    uint16_t *const pages = need(w->n_pages * elements * 2);
    float *const want = need(d * sizeof *want);
    size_t wrong = 0;
    check(cudaMemcpy(pages, w->a.rows, w->n_pages * elements * 2, cudaMemcpyDeviceToHost), "rows");
    for (int i = 0; i < N * N_KV * 2; i++) {
        const int side = i % 2, g = i / 2 % N_KV, b = i / 2 / N_KV, m = w->t->length[b] + step;
        for (int t = 0; t < (m + 7) / 8 * 8; t++) {
            const uint16_t *const page = pages + (size_t)w->page[b][t / KVD_PAGE_TOKENS] * elements;
            double error = 0, square = 0;
            if (t < m - 1)
                code_on_host(w, side, t, g, at(w, b, t, g), want);
            for (size_t j = 0; j < d; j++) {
                const float x = number(page[place(w, side, g, t, (int)j)]),
                            y = t < m - 1 ? want[j]
                                : t < m   ? w->x[side][at(w, b, t, g) + j]
                                          : 0;
                error += ((double)x - (double)y) * ((double)x - (double)y);
                square += (double)y * (double)y;
            }
            const double off = square > 0 ? sqrt(error / square) : sqrt(error);
            w->rows += t < m - 1;
            w->other += t < m - 1 && !(off < 4e-3);
            w->worst = worse(w->worst, off);
            wrong += t >= m - 1 && error > 0;
        }
    }
    free(want);
    free(pages);
    return wrong;
}

static void test_restored(const test_case *t)
{
    kvd_err err = {""};
    bench w;
    char name[128];
    size_t wrong = 0;
    (void)snprintf(name, sizeof name, "%s, heads of %d, restored", t->method, t->d);
    if (open_bench(&w, t, &err) || make_device(&w, &err)) {
        test_result(0, name, "%s", err.msg);
        return;
    }
    run_prompts(&w);
    for (int s = 1; s <= t->steps; s++) {
        kvd_packed_args a = w.a;
        append_step(&w, s);
        fill_bytes(a.rows, 0xff, w.n_pages * (size_t)a.map.page_elements * 2);
        a.pages_side_by_side = 1 + s % 3;
        check(kvd_packed_restore(&a, NULL), "restore");
        wrong += compare_restored(&w, s);
        check(kvd_packed_code(&a, NULL), "code");
        check(cudaDeviceSynchronize(), "code");
    }
    test_result((double)w.other <= 4e-3 * (double)w.rows + 2 && !wrong, name,
                "%zu of %zu rows have other codes, rows off by %.2g at most; %zu other rows are "
                "wrong",
                w.other, w.rows, w.worst, wrong);
    close_bench(&w);
}

typedef struct {
    int rank, bits, group, channels, prompt, steps;
} vector_case;

/* Layer inputs of one request, before (x) and after quantisation (want). Each array is
 * [tokens][pitch]. */
typedef struct {
    const vector_case *c;
    int pitch, tokens, pages;
    float *x, *want;
    int32_t *table;
    kvd_xquant_args a;
    int32_t *kv_len; /* on the device */
} vectors;

static size_t vector_at(const vectors *v, size_t page, int t, int i)
{
    return page * (size_t)(KVD_PAGE_TOKENS * v->pitch) +
           (size_t)(i / 8 * 512 + t % KVD_PAGE_TOKENS / 8 * 64 + t % 8 * 8 + i % 8);
}

static void decode_vectors(const vectors *v, int m)
{
    const vector_case *const c = v->c;
    const size_t pitch = (size_t)v->pitch, rank = (size_t)c->rank, group = (size_t)c->group,
                 first = c->channels ? rank : 0, n = (size_t)m;
    memcpy(v->want, v->x, n * pitch * sizeof *v->want);
    for (size_t i = 0; i < first; i++)
        for (size_t t = 0; t + group <= n - 1; t += group)
            (void)kvd_quantise_group(v->x + t * pitch + i, group, pitch, c->bits,
                                     v->want + t * pitch + i);
    for (size_t t = 0; t + 1 < n; t++)
        for (size_t i = 0; i < rank; i += group) {
            const size_t at = t * pitch + first + i, left = rank - i;
            (void)kvd_quantise_group(v->x + at, left < group ? left : group, 1, c->bits,
                                     v->want + at);
        }
}

/* Writes token m - 1 to the ring buffer of slot 1, where a decode step expects the newest token. */
static void put_newest(const vectors *v, int m)
{
    const int pages = v->a.form.ring_pages, t = m - 1;
    for (int i = 0; i < v->pitch; i++) {
        const uint16_t x = bits_of(v->x[(size_t)t * (size_t)v->pitch + (size_t)i]);
        check(cudaMemcpy(v->a.ring +
                             vector_at(v, (size_t)(pages + t / KVD_PAGE_TOKENS % pages), t, i),
                         &x, sizeof x, cudaMemcpyHostToDevice),
              "ring");
    }
}

static size_t wrong_vectors(const vectors *v, int m)
{
    const size_t n = (size_t)(v->pages * KVD_PAGE_TOKENS * v->pitch);
    uint16_t *const got = need(n * sizeof *got);
    size_t wrong = 0;
    decode_vectors(v, m);
    check(cudaMemcpy(got, v->a.pages, n * sizeof *got, cudaMemcpyDeviceToHost), "restored vectors");
    for (int t = 0; t < m; t++)
        for (int i = 0; i < v->pitch; i++)
            wrong += got[vector_at(v, (size_t)v->table[t / KVD_PAGE_TOKENS], t, i)] !=
                     bits_of(v->want[(size_t)t * (size_t)v->pitch + (size_t)i]);
    free(got);
    return wrong;
}

static void make_vectors(vectors *v, const vector_case *c, kvd_rng *r)
{
    const int pitch = c->channels ? 2 * c->rank : c->rank, m = c->prompt + c->steps,
              pages = (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    const size_t n = (size_t)m * (size_t)pitch,
                 page = (size_t)(KVD_PAGE_TOKENS * pitch) * sizeof(uint16_t);
    const int32_t zero = 0, one = 1;
    *v = (vectors){.c = c, .pitch = pitch, .tokens = m, .pages = pages};
    v->x = bf16_numbers(r, n, 2);
    v->want = need(n * sizeof *v->want);
    v->table = need((size_t)pages * sizeof *v->table);
    for (int i = 0; i < pages; i++)
        v->table[i] = pages - 1 - i;
    v->a = (kvd_xquant_args){
        .form = {c->rank, c->bits, c->group, c->channels,
                 c->channels && c->group > KVD_PAGE_TOKENS ? c->group / KVD_PAGE_TOKENS : 1},
        .n = 1,
        .max_pages = pages,
        .longest = m,
        .n_sms = 3};
    v->a.page = kvd_xquant_page_of(&v->a.form);
    v->a.codes = on_device(NULL, (size_t)pages * (size_t)v->a.page.words * sizeof(uint32_t));
    v->a.ring = on_device(NULL, 2 * (size_t)v->a.form.ring_pages * page);
    v->a.pages = on_device(NULL, (size_t)pages * page);
    v->a.rows = on_device_bf16(v->x, n);
    v->a.slot = on_device(&one, sizeof one);
    v->a.start = on_device(&zero, sizeof zero);
    v->a.page_table = on_device(v->table, (size_t)pages * sizeof *v->table);
    v->a.kv_len = v->kv_len = on_device(&c->prompt, sizeof c->prompt);
}

static void test_vectors(const vector_case *c)
{
    kvd_rng r;
    vectors v;
    char name[128];
    size_t wrong = 0;
    kvd_rng_seed(&r, 7, 0);
    make_vectors(&v, c, &r);
    check(kvd_xquant_code(&v.a, NULL), "code");
    const void *const start = v.a.start;
    v.a.start = NULL;
    for (int m = c->prompt + 1; m <= v.tokens; m++) {
        check(cudaMemcpy(v.kv_len, &m, sizeof m, cudaMemcpyHostToDevice), "length");
        put_newest(&v, m);
        check(kvd_xquant_restore(&v.a, NULL), "restore");
        check(cudaDeviceSynchronize(), "restore");
        wrong += wrong_vectors(&v, m);
        check(kvd_xquant_code(&v.a, NULL), "code");
    }
    check(cudaDeviceSynchronize(), "code");
    (void)snprintf(name, sizeof name, "xquant, rank %d, %d bits, groups of %d%s", c->rank, c->bits,
                   c->group, c->channels ? "" : ", inputs");
    test_result(!wrong, name, "%zu numbers are wrong", wrong);
    device_free(v.a.codes, v.a.ring, v.a.pages, (void *)(uintptr_t)v.a.rows,
                (void *)(uintptr_t)v.a.slot, (void *)(uintptr_t)start,
                (void *)(uintptr_t)v.a.page_table, v.kv_len);
    free(v.x);
    free(v.want);
    free(v.table);
}

typedef struct {
    vector_case v;
    int heads, kv, parts, sinks;
} attend_case;

enum { DIMS = 128 };

/* Returns the largest error of attention outputs o [heads][rank], divided by the largest absolute
 * element of V. */
static double attend_error(const attend_case *c, const vectors *v, int m, const float *q,
                           const float *k, const float *sinks, double scale, const uint16_t *o)
{
    const int rank = c->v.rank;
    double worst = 0, most = 0, *const p = need((size_t)m * sizeof *p);
    decode_vectors(v, m);
    for (int t = 0; t < m; t++)
        for (int i = 0; i < rank; i++)
            most = fmax(most, fabs((double)v->want[t * v->pitch + rank + i]));
    for (int h = 0; h < c->heads; h++) {
        double all = sinks ? exp((double)sinks[h]) : 0;
        for (int t = 0; t < m; t++) {
            const float *const key = k + (t * c->kv + h / (c->heads / c->kv)) * DIMS;
            double sum = 0;
            for (int i = 0; i < DIMS; i++)
                sum += (double)q[h * DIMS + i] * (double)key[i];
            p[t] = exp(sum * scale);
            all += p[t];
        }
        for (int i = 0; i < rank; i++) {
            double y = 0;
            for (int t = 0; t < m; t++)
                y += p[t] / all * (double)v->want[t * v->pitch + rank + i];
            worst = worse(worst, fabs(y - (double)number(o[h * rank + i])));
        }
    }
    free(p);
    return worst / most;
}

/* Copies keys k [tokens][kv][DIMS] to cache pages on the device. All other elements of the pages
 * are NaN. */
static uint16_t *key_pages(const vectors *v, int kv, const float *k)
{
    const size_t page = (size_t)(kv * 2 * KVD_PAGE_TOKENS * DIMS), n = (size_t)v->pages * page;
    uint16_t *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = 0x7fc0;
    for (int t = 0; t < v->tokens; t++)
        for (int i = 0; i < kv * DIMS; i++)
            x[(size_t)v->table[t / KVD_PAGE_TOKENS] * page +
              (size_t)(i / DIMS * 2 * KVD_PAGE_TOKENS * DIMS) +
              kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)(i % DIMS), DIMS)] =
                bits_of(k[t * kv * DIMS + i]);
    uint16_t *const device = on_device(x, n * sizeof *x);
    free(x);
    return device;
}

static void test_attend(const attend_case *c)
{
    kvd_rng r;
    vectors v;
    double worst = 0;
    const size_t rows = (size_t)(c->heads * c->v.rank), heads = (size_t)c->heads,
                 parts = (size_t)c->parts;
    kvd_rng_seed(&r, 11, 0);
    make_vectors(&v, &c->v, &r);
    float *const q = bf16_numbers(&r, heads * DIMS, 1),
                 *const k = bf16_numbers(&r, (size_t)(v.tokens * c->kv * DIMS), 1),
                 *const sinks = bf16_numbers(&r, heads, 1);
    kvd_xquant_attend_args a = {.n_heads = c->heads,
                                .n_kv_heads = c->kv,
                                .scale = 0.2F,
                                .q = on_device_bf16(q, heads * DIMS),
                                .pool = key_pages(&v, c->kv, k),
                                .page_elements = (size_t)(c->kv * 2 * KVD_PAGE_TOKENS * DIMS),
                                .parts = c->parts,
                                .sums = on_device(NULL, parts * rows * sizeof *a.sums),
                                .ends = on_device(NULL, parts * heads * sizeof *a.ends),
                                .newest = on_device(NULL, heads * sizeof *a.newest),
                                .o = on_device(NULL, rows * sizeof(uint16_t))};
    float *const device_sinks = on_device(sinks, heads * sizeof *sinks);
    a.sinks = c->sinks ? device_sinks : NULL;
    check(kvd_xquant_code(&v.a, NULL), "code");
    const void *const start = v.a.start;
    v.a.start = NULL;
    for (int m = c->v.prompt + 1; m <= v.tokens; m++) {
        check(cudaMemcpy(v.kv_len, &m, sizeof m, cudaMemcpyHostToDevice), "length");
        put_newest(&v, m);
        a.x = v.a;
        check(kvd_xquant_attend(&a, NULL), "attend");
        check(cudaDeviceSynchronize(), "attend");
        uint16_t *const o = from_device(a.o, rows * sizeof *o);
        worst =
            worse(worst, attend_error(c, &v, m, q, k, c->sinks ? sinks : NULL, (double)a.scale, o));
        free(o);
        check(kvd_xquant_code(&v.a, NULL), "code");
    }
    test_result(worst < 0x1p-7, "xquant, attention",
                "rank %d, %d bits, groups of %d, %d heads on %d, %d parts: off by %.2g of %.2g",
                c->v.rank, c->v.bits, c->v.group, c->heads, c->kv, c->parts, worst, 0x1p-7);
    device_free((void *)(uintptr_t)a.q, (void *)(uintptr_t)a.pool, a.sums, a.ends, a.newest, a.o,
                device_sinks, v.a.codes, v.a.ring, v.a.pages, (void *)(uintptr_t)v.a.rows,
                (void *)(uintptr_t)v.a.slot, (void *)(uintptr_t)start,
                (void *)(uintptr_t)v.a.page_table, v.kv_len);
    host_free(q, k, sinks, v.x, v.want, v.table);
}

/* usage: gpu_packed_turned [quick]; quick: one small case, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"turboquant,bits=3,qjl=0", 64, 4, {1, 2, 63, 64, 65, 80}, 3},
        {"turboquant,bits=4,qjl=0", 128, 4, {1, 16, 17, 63, 64, 200}, 3},
        {"turboquant,bits=2,qjl=0", 128, 1, {1, 62, 63, 64, 65, 300}, 4},
        {"turboquant,bits=3,qjl=0", 128, 8, {1, 15, 16, 127, 128, 129}, 2},
        {"turboquant,bits=4,qjl=0", 64, 7, {1, 33, 63, 64, 191, 193}, 3},
        {"turboquant,bits=4", 128, 4, {1, 16, 17, 63, 64, 200}, 3},
        {"turboquant,bits=3", 128, 8, {1, 15, 16, 127, 128, 129}, 2},
        {"turboquant,bits=2", 64, 3, {1, 62, 63, 64, 65, 300}, 4},
    };
    static const test_case restored[] = {
        {"turboquant,bits=3", 64, 4, {1, 2, 63, 64, 65, 80}, 3},
        {"turboquant,bits=4", 128, 4, {1, 16, 17, 63, 64, 200}, 3},
        {"turboquant,bits=1", 32, 2, {1, 8, 9, 63, 64, 100}, 3},
        {"turboquant,bits=2", 96, 16, {1, 15, 16, 17, 129, 130}, 2},
        {"turboquant,bits=5,qjl=0", 128, 16, {1, 31, 33, 64, 65, 127}, 2},
    };
    static const vector_case of_vectors[] = {
        {48, 4, 16, 1, 70, 5},     {32, 8, 8, 0, 33, 3},       {80, 3, 64, 1, 130, 70},
        {144, 2, 128, 1, 300, 85}, {256, 4, 128, 0, 65, 3},    {48, 16, 32, 0, 10, 2},
        {272, 5, 1, 1, 5, 3},      {1024, 4, 128, 1, 500, 13}, {16, 7, 2, 1, 67, 4},
        {112, 1, 32, 1, 63, 70},   {96, 11, 4, 0, 129, 2},     {160, 6, 192, 1, 190, 5}};
    static const attend_case attended[] = {
        {{64, 4, 128, 1, 68, 3}, 4, 1, 2, 0},   {{1024, 4, 128, 1, 300, 3}, 32, 8, 3, 0},
        {{128, 3, 8, 1, 62, 4}, 8, 4, 3, 1},    {{192, 8, 64, 1, 128, 2}, 6, 2, 2, 1},
        {{576, 1, 64, 1, 1, 2}, 24, 3, 2, 0},   {{64, 5, 16, 1, 500, 2}, 8, 1, 64, 1},
        {{320, 7, 192, 1, 200, 2}, 32, 8, 1, 0}};
    const size_t n = argc > 1 && strcmp(argv[1], "quick") == 0 ? 1 : sizeof cases / sizeof *cases;
    if (!gpu_devices("packed turned", 1))
        return 0;
    for (size_t i = 0; i < n; i++)
        test(&cases[i]);
    for (size_t i = 0; i < (n > 1 ? sizeof restored / sizeof *restored : 1); i++)
        test_restored(&restored[i]);
    for (size_t i = 0; i < (n > 1 ? sizeof of_vectors / sizeof *of_vectors : 2); i++)
        test_vectors(&of_vectors[i]);
    for (size_t i = 0;
         kvd_latent_joins(2, DIMS) && i < (n > 1 ? sizeof attended / sizeof *attended : 1); i++)
        test_attend(&attended[i]);
    return failures ? 1 : 0;
}
