/* Tests kernels of methods that compress several layers together. One group of kernels merges K and
 * V of two layers; another computes singular vectors of a prompt's keys or values. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/linalg.h"
#include "gpu_case.h"
#include "kernels/layout.h"
#include "methods/dims/cuda/latent_span.h"
#include "methods/dims/cuda/latents.h"
#include "methods/layers/cuda/merged.h"
#include "methods/layers/layers.h"
#include "worst.h"

enum { MOST = 5, MAX_PAGES = 10, PAGES = MOST * MAX_PAGES };

/* Accepted relative error of a merged vector. Its direction, its length and their product are each
 * rounded to bf16. */
#define BOUND 0x3p-9

static kvd_rng rng;

typedef struct {
    int d, kv, n;
    /* number of tokens of each request: its prompt tokens and one token of a decode step */
    int32_t kv_len[MOST];
} layers_case;

static const layers_case cases[] = {{16, 1, 1, {2}},
                                    {64, 2, 3, {1, 65, 200}},
                                    {128, 8, 4, {64, 577, 9, 3}},
                                    {80, 3, 5, {33, 8, 16, 300, 129}},
                                    {256, 2, 2, {100, 70}}};

static const int32_t slot[MOST] = {3, 0, 4, 1, 2};
static int32_t table[PAGES];

static size_t page_elements(const layers_case *c)
{
    return (size_t)(2 * c->kv * KVD_PAGE_TOKENS * c->d);
}

/* Returns the index, in the array of pages, of element i of token t of request b. v is 2 g for K
 * and 2 g + 1 for V of KV head g. */
static size_t at_of(const layers_case *c, int b, int t, int v, int i)
{
    return (size_t)table[b * MAX_PAGES + t / KVD_PAGE_TOKENS] * page_elements(c) +
           (size_t)(v * KVD_PAGE_TOKENS * c->d) +
           kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, (size_t)c->d);
}

static void shuffle_pages(void)
{
    for (int i = 0; i < PAGES; i++)
        table[i] = i;
    for (int i = PAGES - 1; i > 0; i--) {
        const int j = (int)kvd_rng_below(&rng, (uint64_t)i + 1), x = table[i];
        table[i] = table[j];
        table[j] = x;
    }
}

/* Fills two layers with random vectors. The angle between a token's vectors in the two layers grows
 * with the token's index. */
static void make_layers(const layers_case *c, uint16_t *const layer[2])
{
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->kv_len[b]; t++)
            for (int v = 0; v < 2 * c->kv; v++)
                for (int i = 0; i < c->d; i++) {
                    const size_t at = at_of(c, b, t, v, i);
                    const double one = (double)bf16_rounded(kvd_rng_normal(&rng)),
                                 other = kvd_rng_normal(&rng), share = t % 9 / 8.0;
                    layer[0][at] = bf16_of(t == 3 ? 0 : one);
                    layer[1][at] = bf16_of(t == 5   ? -one
                                           : t == 6 ? 2 * one
                                                    : 3 * (share * other + (1 - share) * one));
                }
}

typedef struct {
    kvd_merged_args args;
    uint16_t *stored[2]; /* pages of the two layers */
    int32_t *prompt_len, *kv_len;
    uint32_t *range, *apart;
} on_gpu;

static on_gpu send(const layers_case *c)
{
    const size_t page = PAGES * page_elements(c) * sizeof(uint16_t);
    const uint32_t none[MOST] = {0};
    int32_t prompt[MOST], reversed[PAGES];
    for (int i = 0; i < PAGES; i++)
        reversed[i] = PAGES - 1 - table[i];
    for (int b = 0; b < MOST; b++)
        prompt[b] = c->kv_len[b] - 1;
    on_gpu g = {.stored = {on_device(NULL, page), on_device(NULL, page)},
                .prompt_len = on_device(prompt, sizeof prompt),
                .kv_len = on_device(c->kv_len, sizeof c->kv_len),
                .range = on_device(NULL, 4 * MOST * sizeof *g.range),
                .apart = on_device(none, sizeof none)};
    g.args = (kvd_merged_args){
        .n = c->n,
        .max_pages = MAX_PAGES,
        .n_sms = 5,
        .n_kv_heads = c->kv,
        .d_head = c->d,
        .slot = on_device(slot, sizeof slot),
        .page_table = on_device(table, sizeof table),
        .rows = on_device(NULL, page),
        .rows_table = on_device(reversed, sizeof reversed),
        .first = g.stored[0],
        .second = g.stored[1],
        .length = on_device(NULL, sizeof(uint32_t) * PAGES * KVD_PAGE_TOKENS * 2 * (size_t)c->kv)};
    return g;
}

static void release(on_gpu *g)
{
    device_free(g->stored[0], g->stored[1], g->prompt_len, g->kv_len, g->range, g->apart,
                g->args.rows, g->args.rows_table, g->args.length, g->args.slot, g->args.page_table);
}

static void copy_pages(uint16_t *to, const uint16_t *from, const layers_case *c)
{
    check(cudaDeviceSynchronize(), "the kernels");
    check(cudaMemcpy(to, from, PAGES * page_elements(c) * sizeof *to, cudaMemcpyDefault), "copy");
}

/* Copies all pages between two arrays and reverses their order, because the GPU's pages are in
 * reverse order. */
static void copy_rows(uint16_t *to, const uint16_t *from, const layers_case *c)
{
    const size_t page = page_elements(c);
    check(cudaDeviceSynchronize(), "the kernels");
    for (size_t p = 0; p < PAGES; p++)
        check(cudaMemcpy(to + (PAGES - 1 - p) * page, from + p * page, page * sizeof *to,
                         cudaMemcpyDefault),
              "copy");
}

/* Merges K and V of all prompts in two layers on the GPU. Returns the number of vector pairs that
 * stay unmerged. */
static double merge(on_gpu *g, const layers_case *c, uint16_t *const layer[2], double t,
                    double gamma)
{
    uint32_t apart[MOST];
    double sum = 0;
    g->args.kv_len = g->prompt_len;
    copy_rows(g->args.rows, layer[0], c);
    check(kvd_pair_keep(&g->args, NULL), "keep");
    copy_rows(g->args.rows, layer[1], c);
    check(kvd_pair_measure(&g->args, g->range, NULL), "measure");
    check(kvd_pair_merge(&g->args, g->range, t, gamma, g->apart, NULL), "merge");
    check(cudaDeviceSynchronize(), "merge");
    check(cudaMemcpy(apart, g->apart, sizeof apart, cudaMemcpyDeviceToHost), "copy");
    for (int i = 0; i < MOST; i++)
        sum += apart[i];
    return sum;
}

/* Writes the newest tokens' K and V to layer l's pages on the GPU. Then restores K and V of all
 * tokens in layer l from vectors that two layers share, and copies them to `got`. */
static void restore(on_gpu *g, const layers_case *c, int l, const uint16_t *layer, uint16_t *got)
{
    copy_pages(got, g->stored[l], c);
    for (int b = 0; b < c->n; b++)
        for (int v = 0; v < 2 * c->kv; v++)
            for (int i = 0; i < c->d; i++) {
                const size_t at = at_of(c, b, c->kv_len[b] - 1, v, i);
                got[at] = layer[at];
            }
    copy_pages(g->stored[l], got, c);
    fill_bytes(g->args.rows, 0xff, PAGES * page_elements(c) * sizeof *got);
    g->args.kv_len = g->kv_len;
    check(kvd_pair_restore(&g->args, l > 0, NULL), "restore");
    copy_rows(got, g->args.rows, c);
}

/* Restores K and V of the prompts in layer l from vectors that two layers share, and copies them to
 * `got`. */
static void restore_prompts(on_gpu *g, const layers_case *c, int l, uint16_t *got)
{
    fill_bytes(g->args.rows, 0xff, PAGES * page_elements(c) * sizeof *got);
    g->args.kv_len = g->prompt_len;
    g->args.prompts = true;
    check(kvd_pair_restore(&g->args, l > 0, NULL), "restore of prompts");
    g->args.prompts = false;
    copy_rows(got, g->args.rows, c);
}

/* Returns how many elements of the prompts' K and V differ between the pages x and y. */
static size_t other_prompts(const layers_case *c, const uint16_t *x, const uint16_t *y)
{
    size_t other = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->kv_len[b] - 1; t++)
            for (int i = 0; i < 2 * c->kv * c->d; i++) {
                const size_t at = at_of(c, b, t, i / c->d, i % c->d);
                other += x[at] != y[at];
            }
    return other;
}

typedef struct {
    double off, apart, vectors;
    bool rest; /* newest tokens and the zeros after them are right */
} comparison;

static double vector_off(const layers_case *c, const uint16_t *got, const float *want, int b, int t,
                         int v)
{
    double square = 0, off = 0;
    for (int i = 0; i < c->d; i++) {
        const double w = (double)want[i], e = (double)bf16_wide(got[at_of(c, b, t, v, i)]) - w;
        square += w * w;
        off += e * e;
    }
    return sqrt(off / (square > 0 ? square : 1));
}

static void compare(const layers_case *c, int b, int side, const kvd_parameter_values *v,
                    uint16_t *const layer[2], uint16_t *const got[2], comparison *sum)
{
    const int kv = c->kv, d = c->d, n = c->kv_len[b] - 1, row = kv * d;
    float *const x = need((size_t)(2 * n * row) * sizeof *x), *const rows[2] = {x, x + n * row};
    const kvd_layers_block block = {(kvd_side)side, 0, 2, (size_t)n, (size_t)kv, (size_t)d, rows};
    kvd_layers_count count = {0, 0};
    kvd_err err = {""};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < n * row; i++)
            rows[l][i] = bf16_wide(layer[l][at_of(c, b, i / row, 2 * (i % row / d) + side, i % d)]);
    or_end(n && kvd_layers_minicache.merge(v, &block, &count, &err), "layers", err.msg);
    sum->vectors += n * kv;
    sum->apart += n ? (count.numbers - n * kv * (d + 2)) / (d - 2) : 0;
    for (int l = 0; l < 2; l++)
        for (int t = 0; t < (n + 8) / 8 * 8; t++)
            for (int g = 0; g < kv; g++) {
                if (t < n)
                    sum->off = worse(sum->off, vector_off(c, got[l], rows[l] + t * row + g * d, b,
                                                          t, 2 * g + side));
                for (int i = 0; t >= n && i < d; i++) {
                    const size_t at = at_of(c, b, t, 2 * g + side, i);
                    sum->rest = sum->rest && got[l][at] == (t == n ? layer[l][at] : 0);
                }
            }
    free(x);
}

static void test(const layers_case *c, double t, double gamma)
{
    const size_t n = PAGES * page_elements(c);
    const kvd_parameter_values v = {.value = {0, t, gamma}};
    uint16_t *const layer[2] = {need(n * sizeof **layer), need(n * sizeof **layer)},
                    *const got[2] = {need(n * sizeof **got), need(n * sizeof **got)},
                    *const whole = need(n * sizeof *whole);
    size_t other = 0;
    comparison sum = {.rest = true};
    char name[128];
    make_layers(c, layer);
    on_gpu g = send(c);
    const double apart = merge(&g, c, layer, t, gamma);
    for (int l = 0; l < 2; l++) {
        restore_prompts(&g, c, l, whole);
        restore(&g, c, l, layer[l], got[l]);
        other += other_prompts(c, whole, got[l]);
    }
    for (int i = 0; i < 2 * c->n; i++)
        compare(c, i / 2, i % 2, &v, layer, got, &sum);
    (void)snprintf(name, sizeof name, "d=%d, %d KV heads, %d requests, t=%g, gamma=%g", c->d, c->kv,
                   c->n, t, gamma);
    test_result(sum.off < BOUND && sum.rest && !other && fabs(apart - sum.apart) < 0.5, name,
                "off by %.3g of %.3g, %g and %g of %g pairs of vectors apart, other rows %s, %zu "
                "numbers differ if prompts alone are restored",
                sum.off, BOUND, apart, sum.apart, sum.vectors, sum.rest ? "equal" : "not equal",
                other);
    release(&g);
    free(whole);
    for (int l = 0; l < 2; l++) {
        free(layer[l]);
        free(got[l]);
    }
}

static void test_later(const layers_case *c)
{
    const size_t n = PAGES * page_elements(c);
    uint16_t *const layer[2] = {need(n * sizeof **layer), need(n * sizeof **layer)},
                    *const got = need(n * sizeof *got);
    int32_t of_slot[MOST];
    size_t wrong = 0;
    char name[128];
    make_layers(c, layer);
    on_gpu g = send(c);
    for (int s = 0; s < MOST; s++)
        of_slot[s] = 0;
    for (int b = 0; b < c->n; b++)
        of_slot[slot[b]] = c->kv_len[b] * b / c->n;
    int32_t *const device = on_device(of_slot, sizeof of_slot), *const from = g.prompt_len;
    copy_pages(g.stored[0], layer[0], c);
    check(kvd_merged_of_slots(device, g.args.slot, c->n, from, NULL), "slots");
    g.args.kv_len = g.kv_len;
    check(kvd_merged_copy_later(&g.args, from, NULL), "copy");
    copy_rows(got, g.args.rows, c);
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < (c->kv_len[b] + 7) / 8 * 8; t++)
            for (int i = 0; i < 2 * c->kv * c->d; i++) {
                const size_t at = at_of(c, b, t, i / c->d, i % c->d);
                wrong += got[at] != (t < of_slot[slot[b]] ? 0xffff
                                     : t < c->kv_len[b]   ? layer[0][at]
                                                          : 0);
            }
    (void)snprintf(name, sizeof name, "d=%d, %d KV heads, %d requests", c->d, c->kv, c->n);
    test_result(!wrong, name, "%zu numbers of later tokens differ", wrong);
    check(cudaFree(device), "cudaFree");
    release(&g);
    free(layer[0]);
    free(layer[1]);
    free(got);
}

/* rule by which singular values of a test matrix fall with their index */
typedef enum { FLAT, ROOT, INVERSE, FLOOR, OUTLIERS } spectrum;

static double value_of(spectrum s, size_t i, size_t most)
{
    const double x = (double)(i + 1);
    return s == ROOT      ? 1 / sqrt(x)
           : s == INVERSE ? 1 / x
           : s == FLOOR   ? exp(-20 * x / (double)most) + 1e-3
                          : (i < 4 ? 30 : 1) / sqrt(x);
}

typedef struct {
    const char *name;
    spectrum spectrum;
    size_t n, wide, width, batch;
} span_case;

/* Fills x with random numbers or, for given singular values, with a diagonal matrix between two
 * reflections, which keep its singular values. */
static void fill_span(const span_case *c, uint16_t *x)
{
    const size_t n = c->n, wide = c->wide, most = n < wide ? n : wide;
    double *const u = need(n * sizeof *u), *const v = need(wide * sizeof *v);
    double uu = 0, vv = 0, uv = 0;
    for (size_t i = 0; i < n; i++) {
        u[i] = kvd_rng_normal(&rng);
        uu += u[i] * u[i];
    }
    for (size_t i = 0; i < wide; i++) {
        v[i] = kvd_rng_normal(&rng);
        vv += v[i] * v[i];
    }
    for (size_t i = 0; i < most; i++)
        uv += value_of(c->spectrum, i, most) * u[i] * v[i];
    /* S is a diagonal matrix with the wanted singular values. x = (I - 2 u u^T / |u|^2) S (I - 2 v
     * v^T / |v|^2) has the same singular values. */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < wide; j++) {
            const double a = i < most ? value_of(c->spectrum, i, most) : 0,
                         av = i < most ? a * v[i] : 0,
                         ub = j < most ? value_of(c->spectrum, j, most) * u[j] : 0;
            x[i * wide + j] = bf16_of(c->spectrum == FLAT ? kvd_rng_normal(&rng)
                                                          : (i == j ? a : 0) - 2 * u[i] * ub / uu -
                                                                2 * av * v[j] / vv +
                                                                4 * u[i] * uv * v[j] / (uu * vv));
        }
    host_free(u, v);
}

/* Returns the squared norm of the part of x [n][wide] outside the span of b's columns. *all
 * receives the squared norm of x. */
static double outside(const uint16_t *x, const span_case *c, const uint16_t *b, size_t rank,
                      double *all)
{
    const size_t wide = c->wide, width = c->width;
    double *const row = need(2 * wide * sizeof *row), *const left = row + wide,
                  *const basis = need(width * wide * sizeof *basis);
    double rest = 0;
    *all = 0;
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j < width; j++)
            basis[j * wide + i] = (double)bf16_wide(b[i * rank + j]);
    for (size_t t = 0; t < c->n; t++) {
        for (size_t i = 0; i < wide; i++) {
            left[i] = row[i] = (double)bf16_wide(x[t * wide + i]);
            *all += row[i] * row[i];
        }
        for (size_t j = 0; j < width; j++) {
            double dot = 0;
            for (size_t i = 0; i < wide; i++)
                dot += row[i] * basis[j * wide + i];
            for (size_t i = 0; i < wide; i++)
                left[i] -= dot * basis[j * wide + i];
        }
        for (size_t i = 0; i < wide; i++)
            rest += left[i] * left[i];
    }
    host_free(row, basis);
    return rest;
}

/* Returns the squared norm that x loses in its best projection to c->width dimensions, computed by
 * LAPACK. */
static double least_outside(const uint16_t *x, const span_case *c)
{
    const size_t wide = c->wide;
    double *const gram = need((2 * wide * wide + wide + kvd_gram_scratch(wide)) * sizeof *gram),
                  *const vectors = gram + wide * wide, *const sigma = vectors + wide * wide;
    float *const wider = need(c->n * wide * sizeof *wider);
    double rest = 0;
    kvd_err err;
    kvd_to_f32(KVD_BF16, x, wider, c->n * wide);
    or_end(kvd_gram_add(gram, wide, wider, c->n, wide, sigma + wide, &err) ||
               kvd_gram_svd(gram, wide, sigma, vectors, &err),
           c->name, err.msg);
    for (size_t i = c->width; i < wide; i++)
        rest += sigma[i] * sigma[i];
    host_free(gram, wider);
    return rest;
}

/* Checks that projecting x on the columns of `basis` loses hardly more of its squared norm than the
 * best projection. `captured`: fraction of the squared norm that remains, computed by the GPU. */
static void check_span(const span_case *c, const uint16_t *x, const uint16_t *basis, size_t rank,
                       float captured)
{
    uint16_t *const b = need(c->wide * rank * sizeof *b);
    check(cudaMemcpy(b, basis, c->wide * rank * sizeof *b, cudaMemcpyDeviceToHost), "copy");
    double all;
    kvd_err err;
    const double got = outside(x, c, b, rank, &all), least = least_outside(x, c);
    size_t unpadded = 0;
    for (size_t j = 0; j < c->wide * rank; j++)
        unpadded += j % rank >= c->width && b[j];
    test_result(
        got <= 1.005 * least + 3e-4 * all && !unpadded &&
            fabs((double)captured - 1 + got / all) < 8e-3 && !kvd_latent_span_check(captured, &err),
        c->name, "%.4g of the squares outside %zu vectors of %zu, at least %.4g; %.4g inside",
        got / all, c->width, c->wide, least / all, (double)captured);
    free(b);
}

static void test_span(const span_case *c)
{
    const size_t elements = c->n * c->wide, rank = (c->width + 15) / 16 * 16;
    kvd_device_memory memory = {0};
    kvd_latent_span s = {0};
    kvd_err err = {""};
    kvd_gpu_worker *const w = need(sizeof *w);
    uint16_t *const x = need(c->batch * elements * sizeof *x);
    kvd_latent_span_rows r = {.ld = c->wide,
                              .n = c->n,
                              .wide = c->wide,
                              .batch = c->batch,
                              .width = c->width,
                              .rank = rank,
                              .captured = need(KVD_LATENT_SPAN_BATCH * sizeof *r.captured)};
    for (size_t i = 0; i < c->batch; i++) {
        fill_span(c, x + i * elements);
        r.basis[i] = on_device(NULL, c->wide * rank * sizeof *x);
    }
    r.x = on_device(x, c->batch * elements * sizeof *x);
    or_end(!(w->lib = kvd_cublas_load(&err)) || !(w->blas = kvd_cublas_open("spans", &err)) ||
               kvd_latent_span_make(&s, w, c->batch * c->n, c->wide, c->width, &memory, &err) ||
               kvd_latent_span_run(&s, &r, NULL, &err),
           c->name, err.msg);
    check(cudaStreamSynchronize(NULL), "spans");
    for (size_t i = 0; i < c->batch; i++) {
        check_span(c, x + i * elements, r.basis[i], rank, r.captured[i]);
        device_free(r.basis[i]);
    }
    device_free(r.x);
    kvd_cublas_close(w->blas);
    kvd_device_release(&memory);
    host_free(w, x, r.captured);
}

static const span_case spans[] = {
    {"span of all rows", ROOT, 33, 128, 33, 4},
    {"span of all dimensions", FLAT, 200, 128, 128, 1},
    {"span of equal variances", FLAT, 300, 256, 40, 2},
    {"span of few rows", ROOT, 100, 256, 41, 3},
    {"span of a slow spectrum", ROOT, 512, 384, 48, 1},
    {"span of a fast spectrum", INVERSE, 512, 512, 64, 2},
    {"span of a spectrum with a floor", FLOOR, 512, 512, 64, 1},
    {"span of outliers", OUTLIERS, 512, 512, 64, 1},
    {"span of many vectors", ROOT, 1024, 1024, 192, 2},
    {"span of outliers in few rows", OUTLIERS, 700, 1024, 136, 1},
};

/* usage: gpu_layers [quick]; quick: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("layers", 1))
        return 0;
    kvd_rng_seed(&rng, 9, 0);
    shuffle_pages();
    for (size_t i = 0; i < (quick ? 2 : sizeof cases / sizeof *cases); i++) {
        test(&cases[i], 0.6, 0.05);
        test(&cases[i], 0.3, 0);
        test_later(&cases[i]);
    }
    for (size_t i = 0; i < (quick ? 1 : sizeof spans / sizeof *spans); i++)
        test_span(&spans[i]);
    return failures ? 1 : 0;
}
