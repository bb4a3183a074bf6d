/* Compares X^T X computed on the GPU with the CPU's, and times the GPU for Llama 3.1 8B. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "collect/cuda/moments.h"
#include "common/linalg.h"
#include "gpu_case.h"

typedef struct {
    const char *name;
    kvd_dtype type;
    /* The heads, of d dimensions, are divided among `count` GPUs. The tested GPU is number
     * `index`. */
    int n_heads, n_kv_heads, d, index, count;
    bool pre;
    size_t batch[4]; /* tokens of each batch; 0 ends the list */
} test_case;

static const test_case cases[] = {
    {"GQA, bf16", KVD_BF16, 8, 2, 128, 0, 1, false, {257, 1, 1000}},
    {"GQA, float32, before RoPE too", KVD_F32, 8, 2, 128, 0, 1, true, {300, 7}},
    {"d_head 16", KVD_F32, 3, 3, 16, 0, 1, false, {33}},
    {"d_head 64", KVD_BF16, 5, 1, 64, 0, 1, true, {999, 2}},
    {"d_head 80", KVD_BF16, 4, 4, 80, 0, 1, false, {511, 16}},
    {"d_head 96", KVD_F32, 6, 3, 96, 0, 1, false, {129}},
    {"d_head 8", KVD_F32, 4, 2, 8, 0, 1, true, {50, 60}},
    {"d_head 100", KVD_F32, 2, 1, 100, 0, 1, false, {77}},
    {"d_head 256", KVD_BF16, 4, 2, 256, 0, 1, false, {70, 35}},
    {"second of two shares", KVD_BF16, 8, 4, 64, 1, 2, true, {401}},
    {"one head", KVD_F32, 1, 1, 128, 0, 1, false, {5000}},
    {"many heads", KVD_BF16, 96, 96, 64, 0, 1, false, {130}},
};

/* LAYERS: layers of the test model. FIRST_LAYER: first of the two layers whose second moments, such
 * as K^T K, are summed. WIDTH: d_model. */
enum { LAYERS = 3, FIRST_LAYER = 1, WIDTH = 96 };

static kvd_err err;

static uint64_t seed = 7;

/* Returns a random number in -1 .. 1 or, about once in 97 calls, in -40 .. 40. */
static float value(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const float x = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    return (seed >> 20) % 97 ? x : 40 * x;
}

static void fail(const test_case *c, const char *what, double got, double most)
{
    printf("not ok moments, %s: %s %g, at most %g\n", c->name, what, got, most);
    failures++;
}

/* array in the tested type on the device, and as float32 on the host */
typedef struct {
    float *host;
    void *device;
} array;

static array make_array(kvd_dtype type, size_t rows, size_t ld, size_t end)
{
    const size_t n = (rows + 1) * ld; /* one row of NaN follows the rows */
    array a = {need(n * sizeof(float)), NULL};
    void *bits = need(n * 4);
    for (size_t i = 0; i < n; i++)
        a.host[i] = i / ld == rows || i % ld >= end ? NAN : value();
    kvd_from_f32(type, a.host, bits, n);
    kvd_to_f32(type, bits, a.host, n);
    a.device = on_device(bits, n * kvd_dtype_bytes(type));
    free(bits);
    return a;
}

static void drop_array(array *a)
{
    free(a->host);
    check(cudaFree(a->device), "cudaFree");
}

static kvd_gpu_share share_of(const test_case *c)
{
    const int heads = c->n_heads / c->count, kv_heads = c->n_kv_heads / c->count;
    return (kvd_gpu_share){.index = c->index,
                           .count = c->count,
                           .first_head = c->index * heads,
                           .n_heads = heads,
                           .first_kv_head = c->index * kv_heads,
                           .n_kv_heads = kv_heads};
}

static kvd_moments shape_of(const test_case *c)
{
    return (kvd_moments){.model = {.n_layers = LAYERS + 1,
                                   .n_heads = c->n_heads,
                                   .n_kv_heads = c->n_kv_heads,
                                   .d_head = c->d,
                                   .d_model = WIDTH},
                         .n_layers = LAYERS - 1,
                         .first_layer = FIRST_LAYER,
                         .has_pre = c->pre};
}

/* matrices with one row per token: `qkv` holds Q, K and V, `pre` holds Q and K before RoPE */
typedef struct {
    array qkv, pre;
    kvd_gpu_attention_in in;
} layer;

static layer make_layer(const test_case *c, const kvd_gpu_share *s, int l, size_t rows)
{
    const size_t d = (size_t)c->d, q = (size_t)s->n_heads * d, kv = (size_t)s->n_kv_heads * d;
    const size_t ld = q + 2 * kv + 3, ld_pre = q + kv + 5, size = kvd_dtype_bytes(c->type);
    layer x = {.qkv = make_array(c->type, rows, ld, q + 2 * kv),
               .pre = make_array(c->type, rows, ld_pre, q + kv)};
    const char *at = x.qkv.device, *pre = x.pre.device;
    x.in = (kvd_gpu_attention_in){.share = s,
                                  .layer = l,
                                  .n_tokens = rows,
                                  .type = c->type,
                                  .q = at,
                                  .k = at + q * size,
                                  .v = at + (q + kv) * size,
                                  .ld = ld,
                                  .q_pre = c->pre ? pre : NULL,
                                  .k_pre = c->pre ? pre + q * size : NULL,
                                  .ld_pre = ld_pre};
    return x;
}

static void drop_layer(layer *x)
{
    drop_array(&x->qkv);
    drop_array(&x->pre);
}

static void add_reference(kvd_moments *sums, const test_case *c, const kvd_gpu_share *s,
                          const layer *x)
{
    const size_t d = (size_t)c->d, q = (size_t)s->n_heads * d, kv = (size_t)s->n_kv_heads * d;
    const float *from[] = {x->qkv.host, x->qkv.host + q, x->qkv.host + q + kv, x->pre.host,
                           x->pre.host + q};
    const int l = x->in.layer - FIRST_LAYER;
    double *scratch = need(kvd_gram_scratch(d) * sizeof *scratch);
    if (l >= 0 && l < sums->n_layers)
        for (int g = KVD_G_Q; g <= (c->pre ? KVD_G_K_PRE : KVD_G_V); g++) {
            const bool query = g == KVD_G_Q || g == KVD_G_Q_PRE;
            const int first = query ? s->first_head : s->first_kv_head,
                      n = query ? s->n_heads : s->n_kv_heads;
            for (int h = 0; h < n; h++)
                or_end(kvd_gram_add(kvd_moments_at(sums, (kvd_g)g, l, first + h), d,
                                    from[g] + (size_t)h * d, x->in.n_tokens,
                                    g <= KVD_G_V ? x->in.ld : x->in.ld_pre, scratch, &err),
                       "reference", err.msg);
        }
    free(scratch);
}

/* Returns the largest |a_ij - b_ij| / sqrt(b_ii b_jj) over all elements of all matrices. */
static double distance(const kvd_moments *a, const kvd_moments *b)
{
    double worst = 0;
    const size_t d = (size_t)a->model.d_head;
    for (int g = 0; g < KVD_N_G; g++)
        for (size_t at = 0; at < kvd_moments_count(a, (kvd_g)g); at += d * d) {
            const double *x = a->gram[g] + at, *y = b->gram[g] + at;
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++) {
                    const double scale = sqrt(y[i * d + i]) * sqrt(y[j * d + j]);
                    const double off = fabs(x[i * d + j] - y[i * d + j]);
                    const double relative = off == 0 ? 0 : off / scale;
                    worst = isfinite(relative) ? fmax(worst, relative) : INFINITY;
                }
        }
    return worst;
}

static bool same_bits(const kvd_moments *a, const kvd_moments *b)
{
    for (int g = 0; g < KVD_N_G; g++)
        if (a->gram[g] &&
            memcmp(a->gram[g], b->gram[g], kvd_moments_count(a, (kvd_g)g) * sizeof(double)) != 0)
            return false;
    return true;
}

/* Adds the second moments of random weights W_O [d_model][heads * d] and W_QKV to `m` (on the GPU)
 * and to the reference `want`. */
static void weights(const test_case *c, const kvd_gpu_share *s, kvd_gpu_moments *m,
                    kvd_moments *want)
{
    const size_t d = (size_t)c->d, q = (size_t)s->n_heads * d, kv = (size_t)s->n_kv_heads * d;
    for (int l = FIRST_LAYER; l < FIRST_LAYER + want->n_layers; l++) {
        array o = make_array(c->type, WIDTH, q, q),
              qkv = make_array(c->type, q + 2 * kv, WIDTH, WIDTH);
        kvd_gpu_layer at[LAYERS + 1] = {0};
        at[l] = (kvd_gpu_layer){.qkv = qkv.device, .o = o.device};
        const kvd_gpu_weights w = {.type = c->type, .share = *s, .layer = at};
        or_end(kvd_gpu_moments_weights(m, &w, l, NULL, &err), c->name, err.msg);
        or_end(kvd_gpu_moments_weights(m, &w, l, NULL, &err), c->name, err.msg);
        check(cudaDeviceSynchronize(), c->name);
        for (int g = KVD_G_W_O; g <= KVD_G_W_V; g++)
            for (int h = 0; h < (g == KVD_G_W_O ? s->n_heads : s->n_kv_heads); h++) {
                double *G = kvd_moments_at(want, (kvd_g)g, l - FIRST_LAYER,
                                           h + (g == KVD_G_W_O ? s->first_head : s->first_kv_head));
                for (size_t t = 0; t < WIDTH; t++)
                    for (size_t i = 0; i < d; i++)
                        for (size_t j = 0; j < d; j++) {
                            const size_t row = q + kv + (size_t)h * d,
                                         column = t * q + (size_t)h * d;
                            G[i * d + j] +=
                                g == KVD_G_W_O
                                    ? (double)o.host[column + i] * (double)o.host[column + j]
                                    : (double)qkv.host[(row + i) * WIDTH + t] *
                                          (double)qkv.host[(row + j) * WIDTH + t];
                        }
            }
        drop_array(&o);
        drop_array(&qkv);
    }
}

static void run(const test_case *c)
{
    const kvd_gpu_share share = share_of(c);
    const int before = failures;
    kvd_moments got = shape_of(c), again = got, want = got;
    or_end(kvd_moments_alloc(&got, &err) || kvd_moments_alloc(&again, &err) ||
               kvd_moments_alloc(&want, &err),
           c->name, err.msg);
    /* Unlike `one`, `two` copies its second moments to the host and back between batches. */
    kvd_gpu_moments *one = kvd_gpu_moments_new(&got, &share, &err);
    kvd_gpu_moments *two = one ? kvd_gpu_moments_new(&got, &share, &err) : NULL;
    or_end(!two, c->name, err.msg);
    weights(c, &share, one, &want);
    or_end(kvd_gpu_moments_get(one, &again, NULL, &err), c->name, err.msg);
    or_end(kvd_gpu_moments_set(two, &again, NULL, &err), c->name, err.msg);
    for (int b = 0; b < 4 && c->batch[b]; b++) {
        for (int l = 0; l <= LAYERS; l++) {
            layer x = make_layer(c, &share, l, c->batch[b]);
            or_end(kvd_gpu_moments_add(one, &x.in, &err) || kvd_gpu_moments_add(two, &x.in, &err),
                   c->name, err.msg);
            check(cudaDeviceSynchronize(), c->name);
            add_reference(&want, c, &share, &x);
            drop_layer(&x);
        }
        kvd_gpu_moments *next = kvd_gpu_moments_new(&got, &share, &err);
        or_end(!next || kvd_gpu_moments_get(two, &again, NULL, &err) ||
                   kvd_gpu_moments_set(next, &again, NULL, &err),
               c->name, err.msg);
        kvd_gpu_moments_free(two);
        two = next;
    }
    or_end(kvd_gpu_moments_get(one, &got, NULL, &err) ||
               kvd_gpu_moments_get(two, &again, NULL, &err),
           c->name, err.msg);
    const double off = distance(&got, &want);
    if (!(off <= 1e-12))
        fail(c, "distance from the reference", off, 1e-12);
    if (!same_bits(&got, &again))
        fail(c, "another way gives other bits", 1, 0);
    if (failures == before)
        printf("ok moments, %s: %.1e from the reference\n", c->name, off);
    kvd_gpu_moments_free(one);
    kvd_gpu_moments_free(two);
    kvd_moments_release(&got);
    kvd_moments_release(&again);
    kvd_moments_release(&want);
}

static void not_finite(void)
{
    const test_case c = {"not finite", KVD_BF16, 4, 2, 32, 1, 2, false, {40}};
    const kvd_gpu_share share = share_of(&c);
    kvd_moments sums = shape_of(&c);
    or_end(kvd_moments_alloc(&sums, &err), c.name, err.msg);
    kvd_gpu_moments *m = kvd_gpu_moments_new(&sums, &share, &err);
    or_end(!m, c.name, err.msg);
    layer x = make_layer(&c, &share, 2, 40);
    const uint16_t nan = 0x7fc0;
    char *const k = (char *)x.qkv.device + (17 * x.in.ld + 2 * 32 + 5) * 2;
    check(cudaMemcpy(k, &nan, 2, cudaMemcpyHostToDevice), c.name);
    or_end(kvd_gpu_moments_add(m, &x.in, &err), c.name, err.msg);
    if (!kvd_gpu_moments_get(m, &sums, NULL, &err))
        fail(&c, "passes", 1, 0);
    else if (strcmp(err.msg, "layer 2 head 1: k: dim 5 is not finite") != 0) {
        printf("not ok moments, not finite: '%s'\n", err.msg);
        failures++;
    } else
        printf("ok moments, not finite: %s\n", err.msg);
    drop_layer(&x);
    kvd_gpu_moments_free(m);
    kvd_moments_release(&sums);
    sums = (kvd_moments){.model = {.n_heads = 1, .n_kv_heads = 1, .d_head = 300}, .n_layers = 1};
    if (!kvd_gpu_moments_new(&sums, &share, &err) && strstr(err.msg, "300"))
        printf("ok moments, too wide: %s\n", err.msg);
    else
        fail(&c, "d_head 300 passes", 1, 0);
}

static double milliseconds(int (*work)(void *), void *ctx)
{
    enum { SAMPLES = 15 };
    cudaEvent_t e[2];
    float t[SAMPLES], swap;
    check(cudaEventCreate(&e[0]), "event");
    check(cudaEventCreate(&e[1]), "event");
    for (int i = -3; i < SAMPLES; i++) {
        check(cudaEventRecord(e[0], NULL), "event");
        or_end(work(ctx), "time", err.msg);
        check(cudaEventRecord(e[1], NULL), "event");
        check(cudaEventSynchronize(e[1]), "event");
        if (i >= 0)
            check(cudaEventElapsedTime(&t[i], e[0], e[1]), "event");
    }
    for (int i = 0; i < SAMPLES; i++)
        for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
            swap = t[j];
            t[j] = t[j - 1];
            t[j - 1] = swap;
        }
    check(cudaEventDestroy(e[0]), "event");
    check(cudaEventDestroy(e[1]), "event");
    return (double)t[SAMPLES / 2];
}

typedef struct {
    kvd_gpu_moments *m;
    layer x;
    const kvd_cublas *lib;
    cublasHandle_t blas;
    double *from, *to; /* input vectors [heads][rows][d], their moments [heads][d][d] */
    int heads, d, rows;
} timed;

static int ours(void *ctx)
{
    timed *t = ctx;
    return kvd_gpu_moments_add(t->m, &t->x.in, &err);
}

static int rival(void *ctx)
{
    const timed *t = ctx;
    const double one = 1;
    const long long in = (long long)t->rows * t->d, out = (long long)t->d * t->d;
    return kvd_cublas_check(t->lib->cublasDgemmStridedBatched(t->blas, CUBLAS_OP_N, CUBLAS_OP_T,
                                                              t->d, t->d, t->rows, &one, t->from,
                                                              t->d, in, t->from, t->d, in, &one,
                                                              t->to, t->d, out, t->heads),
                            "cuBLAS", &err);
}

static void time_8b(kvd_dtype type, size_t rows)
{
    const test_case c = {"Llama 3.1 8B", type, 32, 8, 128, 0, 1, false, {rows}};
    const kvd_gpu_share share = share_of(&c);
    kvd_moments shape = shape_of(&c);
    timed t = {
        .m = kvd_gpu_moments_new(&shape, &share, &err), .heads = 48, .d = 128, .rows = (int)rows};
    or_end(!t.m, c.name, err.msg);
    t.x = make_layer(&c, &share, FIRST_LAYER, rows);
    t.lib = kvd_cublas_load(&err);
    t.blas = t.lib ? kvd_cublas_open("cuBLAS", &err) : NULL;
    const double layers = 32, n = (double)rows, ms = milliseconds(ours, &t);
    /* floating-point operations: 2 per token for each element of the lower triangles of 48 matrices
     * [128][128] */
    const double flop = 48.0 * 128 * 129 * n;
    printf(
        "%s, %s, %zu rows: %.3f ms a layer, %.2f us a token of 32 layers, %.1f TFLOP/s on the triangle",
        c.name, kvd_dtype_name(type), rows, ms, 1e3 * ms * layers / n, 1e-9 * flop / ms);
    if (t.blas) {
        t.from = on_device(NULL, 48 * rows * 128 * 8);
        t.to = on_device(NULL, (size_t)48 * 128 * 128 * 8);
        fill_bytes(t.from, 0x3f, 48 * rows * 128 * 8);
        fill_bytes(t.to, 0, (size_t)48 * 128 * 128 * 8);
        const double theirs = milliseconds(rival, &t);
        printf("; cublasDgemmStridedBatched of values that are float64 already %.3f ms", theirs);
        device_free(t.from, t.to);
        kvd_cublas_close(t.blas);
    } else
        printf("; %s", err.msg);
    printf("\n");
    drop_layer(&t.x);
    kvd_gpu_moments_free(t.m);
}

int main(int argc, char **argv)
{
    if (!gpu_devices("moments", 1))
        return 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(&cases[i]);
    not_finite();
    if (argc > 1 && !strcmp(argv[1], "time"))
        for (kvd_dtype t = KVD_F32; t <= KVD_BF16; t += 2) {
            time_8b(t, 2048);
            time_8b(t, 4096);
            time_8b(t, 16384);
        }
    return failures != 0;
}
