/* Compares dense attention on the GPU with the CPU. Memory that the kernels must not read or write
 * is filled with NaN. */
#include <math.h>

#include "kernels/attention_ref.h"
#include "model/pass/cuda/attention.h"

#include "gpu_case.h"

enum { BATCHES = 8, SEQUENCES = 64, GUARD = 512, POISON = 0xff };

static int small;
static kvd_rng rng;
static const kvd_cublas *lib;
static cublasHandle_t blas;
static cudaStream_t stream;

/* Q, K and V of several sequences, on host and device. Rows of tokens are ld elements apart, which
 * may be more than a token has. */
typedef struct {
    size_t n_sequences, offset[SEQUENCES + 1], n, ld, longest;
    float *x;
    char *dev, *out; /* [n tokens + guard elements][heads * d] */
    size_t out_elements;
} batch;

typedef struct {
    const char *name;
    kvd_dtype type;
    int heads, kv, d, window;
    size_t gap;
    double sharp; /* factor of Q; a large one makes the softmax sharp */
} scenario;

static void batch_make(batch *b, const scenario *c, const size_t *lengths, size_t n_sequences)
{
    const size_t e = kvd_dtype_bytes(c->type), d = (size_t)c->d;
    memset(b, 0, sizeof *b);
    b->n_sequences = n_sequences;
    for (size_t s = 0; s < n_sequences; s++) {
        b->offset[s + 1] = b->offset[s] + lengths[s];
        b->longest = lengths[s] > b->longest ? lengths[s] : b->longest;
    }
    b->n = b->offset[n_sequences];
    b->ld = (size_t)(c->heads + 2 * c->kv) * d + c->gap;
    b->x = need((b->n * b->ld + 1) * sizeof *b->x);
    for (size_t i = 0; i < b->n * b->ld; i++)
        b->x[i] = (float)(kvd_rng_normal(&rng) * (kvd_rng_below(&rng, 100) ? 1 : 5) *
                          (i % b->ld < (size_t)c->heads * d ? c->sharp : 1));
    void *const raw = round_to(c->type, b->x, b->n * b->ld);
    b->dev = on_device(raw, b->n * b->ld * e);
    free(raw);
    b->out_elements = b->n * (size_t)c->heads * d;
    b->out = on_device(NULL, (b->out_elements + GUARD) * e);
    fill_bytes(b->out, POISON, (b->out_elements + GUARD) * e);
}

static void batch_release(batch *b)
{
    free(b->x);
    device_free(b->dev, b->out);
}

static kvd_gpu_attention_in batch_in(const batch *b, const scenario *c, const kvd_config *config,
                                     const kvd_gpu_share *share)
{
    const size_t e = kvd_dtype_bytes(c->type), d = (size_t)c->d;
    const char *k = b->dev + (size_t)c->heads * d * e;
    return (kvd_gpu_attention_in){.config = config,
                                  .share = share,
                                  .n_sequences = b->n_sequences,
                                  .offset = b->offset,
                                  .n_tokens = b->n,
                                  .longest = b->longest,
                                  .type = c->type,
                                  .q = b->dev,
                                  .k = k,
                                  .v = k + (size_t)c->kv * d * e,
                                  .ld = b->ld,
                                  .window = (size_t)c->window,
                                  .stream = stream,
                                  .lib = lib,
                                  .blas = blas};
}

static float *gather(const batch *b, size_t first, size_t n, size_t at, size_t d)
{
    float *m = need((n * d + 1) * sizeof *m);
    for (size_t t = 0; t < n; t++)
        memcpy(m + t * d, b->x + (first + t) * b->ld + at, d * sizeof *m);
    return m;
}

/* Compares every `step`-th attention output of a head with the reference. Adds the squared errors
 * to *error and the squared norms to *norm. got: outputs [tokens][heads * d] of the GPU. */
static void head_error(const batch *b, const scenario *c, size_t s, int head, size_t step,
                       const float *got, double *error, double *norm)
{
    const size_t d = (size_t)c->d, first = b->offset[s], n = b->offset[s + 1] - first,
                 pitch = (size_t)c->heads * d;
    const size_t kv = (size_t)(head / (c->heads / c->kv)), window = (size_t)c->window;
    const kvd_attn_heads one = {
        .n_heads = 1, .n_kv_heads = 1, .d_head = c->d, .d_qk = {c->d}, .d_v = {c->d}};
    float *q = gather(b, first, n, (size_t)head * d, d),
          *k = gather(b, first, n, pitch + kv * d, d),
          *v = gather(b, first, n, pitch + ((size_t)c->kv + kv) * d, d);
    double e = 0, m = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : e, m)
    for (size_t t = 0; t < n; t++) {
        if (t % step && t != n - 1)
            continue;
        const size_t seen = window && t + 1 > window ? window : t + 1, from = t + 1 - seen;
        const int32_t q_len = 1, kv_len = (int32_t)seen;
        const kvd_attn_batch request = {1, &q_len, &kv_len};
        double want[1024];
        kvd_err err = {""};
        or_end(kvd_attention_ref_row(&one, &request, 0, 0, 0, q + t * d, k + from * d, v + from * d,
                                     want, &err),
               "reference", err.msg);
        for (size_t i = 0; i < d; i++) {
            const double x = (double)got[(first + t) * pitch + (size_t)head * d + i];
            e += (x - want[i]) * (x - want[i]);
            m += want[i] * want[i];
        }
    }
    *error += e;
    *norm += m;
    host_free(q, k, v);
}

static double batch_error(const batch *b, const scenario *c, size_t step, size_t skip)
{
    const size_t e = kvd_dtype_bytes(c->type), all = b->out_elements + GUARD;
    float *got = need((b->out_elements + 1) * sizeof *got);
    char *raw = from_device(b->out, all * e);
    kvd_to_f32(c->type, raw, got, b->out_elements);
    double worst = 0;
    for (size_t i = b->out_elements * e; i < all * e; i++)
        if ((unsigned char)raw[i] != POISON)
            worst = (double)NAN;
    for (int h = 0; h < c->heads; h++) {
        double error = 0, norm = 0;
        for (size_t s = 0; s < b->n_sequences; s++)
            if (s != skip)
                head_error(b, c, s, h, step, got, &error, &norm);
        const double r = norm > 0 ? sqrt(error / norm) : error;
        worst = r <= worst ? worst : r;
        if (isnan(r))
            worst = r;
        if (isnan(worst))
            break;
    }
    free(raw);
    free(got);
    return worst;
}

static double bound_of(kvd_dtype type)
{
    return type == KVD_F32 ? 1e-5 : 4e-3;
}

static kvd_config config_of(const scenario *c)
{
    return (kvd_config){.n_layers = 2,
                        .n_heads = c->heads,
                        .n_kv_heads = c->kv,
                        .d_head = c->d,
                        .window = c->window,
                        .window_layers = {2}};
}

static kvd_gpu_share share_of(const scenario *c)
{
    return (kvd_gpu_share){.count = 1, .n_heads = c->heads, .n_kv_heads = c->kv};
}

static void make_lengths(int which, size_t *lengths, size_t *n)
{
    static const size_t lists[BATCHES][9] = {{1},
                                             {8, 16, 64},
                                             {5, 69, 1, 200, 63, 64, 65},
                                             {256, 256, 128, 3},
                                             {700},
                                             {0, 3, 0, 0, 17, 0},
                                             {1, 1, 1, 600},
                                             {0}};
    static const size_t counts[BATCHES] = {1, 3, 7, 4, 1, 6, 4, 40};
    *n = counts[which];
    for (size_t i = 0; i < *n; i++)
        lengths[i] = which == BATCHES - 1 ? 1 + kvd_rng_below(&rng, 24) : lists[which][i];
}

static void test_hook(const scenario *c)
{
    enum { TOKENS = 1000, LONGEST = 700 };
    kvd_err err = {""};
    const kvd_config config = config_of(c);
    const kvd_gpu_share share = share_of(c);
    kvd_gpu_dense *dense = kvd_gpu_dense_new(&config, &share, c->type, TOKENS, LONGEST, &err);
    or_end(!dense, c->name, err.msg);
    kvd_gpu_attention *hook = kvd_gpu_dense_hook(dense);
    batch b[BATCHES];
    const int n_batches = small ? 3 : BATCHES;
    double worst = 0;
    for (int i = 0; i < n_batches; i++) {
        size_t lengths[SEQUENCES], n;
        make_lengths(i, lengths, &n);
        batch_make(&b[i], c, lengths, n);
    }
    check(cudaDeviceSynchronize(), "wait");
    /* Queues every run twice in a row, to test that runs do not overwrite each other's scratch
     * memory. */
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < n_batches; i++) {
            const kvd_gpu_attention_in in = batch_in(&b[i], c, &config, &share);
            or_end(hook->run(hook, &in, b[i].out, &err) || hook->run(hook, &in, b[i].out, &err),
                   c->name, err.msg);
        }
    check(cudaStreamSynchronize(stream), c->name);
    for (int i = 0; i < n_batches; i++) {
        const double e = batch_error(&b[i], c, 1, SIZE_MAX);
        worst = e <= worst ? worst : e;
        batch_release(&b[i]);
    }
    const char *engine = c->gap ? "products" : kvd_gpu_dense_engine(dense);
    test_result(worst <= bound_of(c->type), c->name,
                "%s, %d/%d heads of %d, window %d: %s, error %.2g", kvd_dtype_name(c->type),
                c->heads, c->kv, c->d, c->window, engine, worst);

    kvd_gpu_attention_in in = {
        .n_tokens = TOKENS + 1, .longest = 1, .share = &share, .config = &config};
    test_result(hook->run(hook, &in, NULL, &err), c->name,
                "more tokens than it has room for: refused");
    kvd_gpu_dense_free(dense);
}

static void test_neighbours(const scenario *c)
{
    static const size_t lengths[] = {70, 9, 130, 64, 3};
    kvd_err err = {""};
    const kvd_config config = config_of(c);
    const kvd_gpu_share share = share_of(c);
    kvd_gpu_dense *dense = kvd_gpu_dense_new(&config, &share, c->type, 276, 130, &err);
    or_end(!dense, "neighbours", err.msg);
    batch b;
    batch_make(&b, c, lengths, 5);
    const size_t e = kvd_dtype_bytes(c->type);
    fill_bytes(b.dev + b.offset[1] * b.ld * e, POISON, 9 * b.ld * e);
    check(cudaDeviceSynchronize(), "wait");
    const kvd_gpu_attention_in in = batch_in(&b, c, &config, &share);
    kvd_gpu_attention *hook = kvd_gpu_dense_hook(dense);
    or_end(hook->run(hook, &in, b.out, &err), "neighbours", err.msg);
    check(cudaStreamSynchronize(stream), "neighbours");
    const double error = batch_error(&b, c, 1, 1);
    test_result(error <= bound_of(c->type), c->name, "neighbours of NaN: %s, error %.2g",
                kvd_gpu_dense_engine(dense), error);
    batch_release(&b);
    kvd_gpu_dense_free(dense);
}

/* Tests attention over so many tokens that the matrix of scores does not fit into the scratch
 * memory at once. */
static void test_large(const scenario *c, size_t n)
{
    kvd_err err = {""};
    const kvd_config config = config_of(c);
    const kvd_gpu_share share = share_of(c);
    batch b;
    batch_make(&b, c, &n, 1);
    void *scratch = on_device(NULL, kvd_gpu_attend_scratch(c->type, n, c->heads));
    check(cudaDeviceSynchronize(), "wait");
    const kvd_gpu_attention_in in = batch_in(&b, c, &config, &share);
    or_end(kvd_gpu_attend(&in, c->type, in.q, in.ld, in.k, in.ld, in.v, in.ld, b.out,
                          (size_t)(c->heads * c->d), scratch, &err),
           c->name, err.msg);
    check(cudaStreamSynchronize(stream), c->name);
    const double error = batch_error(&b, c, n / 5, SIZE_MAX);
    test_result(error <= bound_of(c->type), c->name, "%s, %zu tokens: error %.2g, scratch %zu MB",
                kvd_dtype_name(c->type), n, error,
                kvd_gpu_attend_scratch(c->type, n, c->heads) >> 20);
    check(cudaFree(scratch), "free");
    batch_release(&b);
}

static void test_apart(kvd_dtype type)
{
    enum { HEADS = 6, KV = 2, D = 24, N = 150, LDO = HEADS * D + 7 };
    const scenario c = {"apart", type, HEADS, KV, D, 0, 5, 1};
    kvd_err err = {""};
    const kvd_config config = config_of(&c);
    const kvd_gpu_share share = share_of(&c);
    const size_t n = N, e = kvd_dtype_bytes(type);
    batch b;
    batch_make(&b, &c, &n, 1);
    void *scratch = on_device(NULL, kvd_gpu_attend_scratch(type, N, HEADS)),
         *q = on_device(NULL, N * HEADS * D * e), *k = on_device(NULL, N * (KV * D + 1) * e),
         *out = on_device(NULL, N * LDO * e);
    kvd_gpu_attention_in in = batch_in(&b, &c, &config, &share);
    check(
        cudaMemcpy2D(q, HEADS * D * e, in.q, b.ld * e, HEADS * D * e, N, cudaMemcpyDeviceToDevice),
        "copy");
    check(
        cudaMemcpy2D(k, (KV * D + 1) * e, in.k, b.ld * e, KV * D * e, N, cudaMemcpyDeviceToDevice),
        "copy");
    check(cudaDeviceSynchronize(), "wait");
    or_end(
        kvd_gpu_attend(&in, type, q, HEADS * D, k, KV * D + 1, in.v, b.ld, out, LDO, scratch, &err),
        c.name, err.msg);
    check(cudaStreamSynchronize(stream), c.name);
    check(cudaMemcpy2D(b.out, HEADS * D * e, out, LDO * e, HEADS * D * e, N,
                       cudaMemcpyDeviceToDevice),
          "copy");
    const double error = batch_error(&b, &c, 1, SIZE_MAX);
    test_result(error <= bound_of(type), c.name, "%s, error %.2g", kvd_dtype_name(type), error);
    device_free(scratch, q, k, out);
    batch_release(&b);
}

static int note(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err)
{
    int *calls = ctx;
    (void)in;
    return calls[0]++ == 2 ? kvd_fail(err, "enough") : 0;
}

static int note_out(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err)
{
    int *calls = ctx;
    (void)in;
    (void)out;
    (void)err;
    return calls[1] += 1, 0;
}

static int inner_run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out,
                     kvd_err *err)
{
    (void)self;
    (void)in;
    (void)out;
    (void)err;
    return 0;
}

static void test_capture(void)
{
    kvd_gpu_attention inner = {.run = inner_run, .wants_pre = 1};
    kvd_gpu_capture capture;
    kvd_err err = {""};
    int calls[2] = {0, 0};
    kvd_gpu_capture_init(&capture, &inner);
    capture.record = note;
    capture.output = note_out;
    capture.ctx = calls;
    test_result(capture.hook.wants_pre == 1 &&
                    capture.hook.run(&capture.hook, NULL, NULL, &err) == 0 &&
                    capture.hook.run(&capture.hook, NULL, NULL, &err) == 0 &&
                    capture.hook.run(&capture.hook, NULL, NULL, &err) == -1 && calls[0] == 3 &&
                    calls[1] == 2 && strcmp(err.msg, "enough") == 0,
                "capture", "%s", err.msg);
}

int main(int argc, char **argv)
{
    kvd_err err = {""};
    if (!gpu_devices("gpu_attention", 1))
        return 0;
    if (!(lib = kvd_cublas_load(&err))) {
        printf("skip gpu_attention: %s\n", err.msg);
        return 0;
    }
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    blas = kvd_cublas_open("gpu_attention", &err);
    or_end(!blas, "cuBLAS", err.msg);
    or_end(kvd_cublas_check(lib->cublasSetStream_v2(blas, stream), "stream", &err), "cuBLAS",
           err.msg);
    kvd_rng_seed(&rng, 9, 0);
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    static const scenario cases[] = {
        {"group", KVD_BF16, 8, 2, 128, 0, 0, 1},
        {"group of 3", KVD_BF16, 12, 4, 64, 0, 0, 3},
        {"one KV head", KVD_BF16, 6, 1, 80, 0, 0, 1},
        {"no group", KVD_BF16, 4, 4, 96, 0, 0, 6},
        {"narrow", KVD_BF16, 5, 5, 16, 0, 0, 1},
        {"narrow 48", KVD_BF16, 6, 6, 48, 0, 0, 1},
        {"wider", KVD_BF16, 4, 2, 160, 0, 0, 1},
        {"width 256", KVD_BF16, 8, 2, 256, 0, 0, 1},
        {"width 256, one KV head", KVD_BF16, 4, 1, 256, 0, 0, 3},
        {"width 256, window", KVD_BF16, 8, 2, 256, 100, 0, 1},
        {"width 272", KVD_BF16, 4, 2, 272, 0, 0, 1},
        {"odd width", KVD_BF16, 4, 2, 20, 0, 0, 1},
        {"width 8", KVD_BF16, 4, 2, 8, 0, 0, 1},
        {"gap", KVD_BF16, 8, 2, 64, 0, 16, 1},
        {"wide window", KVD_BF16, 8, 2, 64, 5000, 0, 1},
        {"window", KVD_BF16, 8, 2, 64, 100, 0, 2},
        {"window of 1", KVD_BF16, 4, 4, 80, 1, 0, 1},
        {"many heads", KVD_BF16, 132, 1, 16, 0, 0, 1},
        {"group", KVD_F32, 8, 2, 128, 0, 0, 1},
        {"group of 3", KVD_F32, 12, 4, 64, 0, 0, 3},
        {"one KV head", KVD_F32, 6, 1, 80, 0, 0, 1},
        {"no group", KVD_F32, 4, 4, 96, 0, 0, 6},
        {"width 8", KVD_F32, 4, 2, 8, 0, 0, 1},
        {"odd width", KVD_F32, 3, 3, 5, 0, 3, 1},
        {"window", KVD_F32, 8, 2, 64, 100, 0, 2},
        {"window of 5", KVD_F32, 3, 3, 12, 5, 0, 1},
        {"wider", KVD_F32, 2, 1, 256, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_hook(&cases[i]);
        test_neighbours(&cases[i]);
    }
    for (int t = 0; t < 2; t++)
        test_apart(t ? KVD_BF16 : KVD_F32);
    if (!small) {
        test_large(&(scenario){"heads cut", KVD_F32, 48, 48, 16, 0, 0, 2}, 4100);
        test_large(&(scenario){"heads cut", KVD_BF16, 40, 8, 64, 0, 0, 2}, 4100);
        test_large(&(scenario){"rows cut", KVD_F32, 2, 1, 64, 0, 0, 2}, 131100);
        test_large(&(scenario){"rows cut", KVD_BF16, 2, 1, 64, 50000, 0, 2}, 131100);
    }
    test_capture();
    kvd_cublas_close(blas);
    check(cudaStreamDestroy(stream), "stream");
    return failures != 0;
}
