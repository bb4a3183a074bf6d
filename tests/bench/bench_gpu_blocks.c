/* Times GPU kernels of a 7B model's forward pass with 8192 tokens. */
#include <stdbool.h>

#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks.h"

#include "gpu_array.h"

enum { TOKENS = 8192, MODEL = 4096, FFN = 14336, LAUNCHES = 40, WARM_UP = 3 };

static void *scratch[4]; /* four arrays of TOKENS x 2 FFN floats */

static void fill(void *to, kvd_dtype type, size_t n, double scale)
{
    enum { PERIOD = 1 << 20 };
    array a = values(KVD_F32, PERIOD, 0, scale);
    for (size_t i = 0; i < n; i += PERIOD)
        check(kvd_gpu_convert(KVD_F32, a.dev, type, (char *)to + i * kvd_dtype_bytes(type),
                              n - i < PERIOD ? n - i : PERIOD, NULL),
              "fill");
    check(cudaDeviceSynchronize(), "fill");
    array_free(&a);
}

static int rising(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median_ms(void (*run)(void *ctx), void *ctx, cudaStream_t stream)
{
    cudaEvent_t e[LAUNCHES][2];
    float ms[LAUNCHES];
    for (int i = 0; i < WARM_UP; i++)
        run(ctx);
    for (int i = 0; i < LAUNCHES; i++) {
        check(cudaEventCreate(&e[i][0]), "event");
        check(cudaEventCreate(&e[i][1]), "event");
        check(cudaEventRecord(e[i][0], stream), "event");
        run(ctx);
        check(cudaEventRecord(e[i][1], stream), "event");
    }
    check(cudaStreamSynchronize(stream), "wait");
    for (int i = 0; i < LAUNCHES; i++) {
        check(cudaEventElapsedTime(&ms[i], e[i][0], e[i][1]), "event");
        check(cudaEventDestroy(e[i][0]), "event");
        check(cudaEventDestroy(e[i][1]), "event");
    }
    qsort(ms, LAUNCHES, sizeof *ms, rising);
    return (double)ms[LAUNCHES / 2];
}

static kvd_gpu_bad *bad;
static uint32_t *positions, *ids;

static cudaError_t run_copy(kvd_dtype type)
{
    return cudaMemcpyAsync(scratch[1], scratch[0], (size_t)TOKENS * MODEL * kvd_dtype_bytes(type),
                           cudaMemcpyDeviceToDevice, NULL);
}

static cudaError_t run_embed(kvd_dtype type)
{
    return kvd_gpu_embed(type, scratch[0], 0, ids, NULL, NULL, TOKENS, MODEL, scratch[1], NULL);
}

static cudaError_t run_rms(kvd_dtype type)
{
    return kvd_gpu_norm(KVD_NORM_RMS, type, scratch[0], NULL, scratch[2], NULL, 1e-5, TOKENS, MODEL,
                        scratch[1], 1, bad, NULL);
}

static cudaError_t run_layer(kvd_dtype type)
{
    return kvd_gpu_norm(KVD_NORM_LAYER, type, scratch[0], NULL, scratch[2], scratch[2], 1e-5,
                        TOKENS, MODEL, scratch[1], 1, bad, NULL);
}

static cudaError_t run_add(kvd_dtype type)
{
    return kvd_gpu_norm(KVD_NORM_RMS, type, scratch[0], scratch[3], scratch[2], NULL, 1e-5, TOKENS,
                        MODEL, scratch[1], 1, bad, NULL);
}

static cudaError_t run_check(kvd_dtype type)
{
    (void)type;
    return kvd_gpu_check(scratch[0], TOKENS, MODEL, 1, bad, NULL);
}

static kvd_gpu_qkv run_qkv_args(kvd_dtype type)
{
    return (kvd_gpu_qkv){.type = type,
                         .n_heads = 32,
                         .n_kv_heads = 8,
                         .d_head = 128,
                         .eps = 1e-6,
                         .cosine = scratch[2],
                         .sine = scratch[3],
                         .rope_row = positions,
                         .qkv = scratch[0]};
}

static cudaError_t run_qkv(kvd_dtype type)
{
    const kvd_gpu_qkv a = run_qkv_args(type);
    return kvd_gpu_qkv_finish(&a, TOKENS, 1, bad, NULL);
}

static cudaError_t run_qkv_all(kvd_dtype type)
{
    kvd_gpu_qkv a = run_qkv_args(type);
    a.bias = a.gain_q = a.gain_k = scratch[2];
    a.pre = scratch[1];
    return kvd_gpu_qkv_finish(&a, TOKENS, 1, bad, NULL);
}

static cudaError_t run_swiglu(kvd_dtype type)
{
    return kvd_gpu_activate(KVD_SWIGLU, type, scratch[0], NULL, TOKENS, FFN, scratch[1], NULL);
}

static cudaError_t run_gelu(kvd_dtype type)
{
    return kvd_gpu_activate(KVD_GELU, type, scratch[0], scratch[2], TOKENS, FFN, scratch[1], NULL);
}

static cudaError_t run_gelu_tanh(kvd_dtype type)
{
    return kvd_gpu_activate(KVD_GELU_TANH, type, scratch[0], NULL, TOKENS, FFN, scratch[1], NULL);
}

static cudaError_t run_softmax(kvd_dtype type)
{
    return kvd_gpu_softmax(type, scratch[0], 16, 512, 4096, 3584, 4096, 0,
                           &(kvd_gpu_scores){.scale = 0.1F},
                           type == KVD_F32 ? scratch[0] : scratch[1], NULL);
}

static cudaError_t run_softmax_short(kvd_dtype type)
{
    return kvd_gpu_softmax(type, scratch[0], 256, 512, 512, 0, 512, 0,
                           &(kvd_gpu_scores){.scale = 0.1F},
                           type == KVD_F32 ? scratch[0] : scratch[1], NULL);
}

static cudaError_t run_convert(kvd_dtype type)
{
    return kvd_gpu_convert(KVD_F32, scratch[0], type == KVD_F32 ? KVD_F16 : type, scratch[1],
                           (size_t)TOKENS * MODEL, NULL);
}

typedef struct {
    const char *name;
    cudaError_t (*launch)(kvd_dtype type);
    bool wide;          /* the kernel reads float32 even with bf16 activations */
    double n, bytes[2]; /* bytes moved per element in float32 and bf16 */
    kvd_dtype type;
} block;

static void run_block(void *ctx)
{
    const block *b = ctx;
    check(b->launch(b->type), b->name);
}

static void time_blocks(void)
{
    const double model = (double)TOKENS * MODEL, qkv = (double)TOKENS * 48 * 128,
                 ffn = (double)TOKENS * FFN;
    block rows[] = {
        {"copy", run_copy, false, model, {8, 4}, 0},
        {"embedding", run_embed, false, model, {8, 6}, 0},
        {"RMS norm", run_rms, true, model, {8, 6}, 0},
        {"layer norm", run_layer, true, model, {8, 6}, 0},
        {"addition, RMS norm", run_add, true, model, {12, 10}, 0},
        {"check", run_check, true, model, {4, 4}, 0},
        {"RoPE of Q and K, check of V", run_qkv, false, qkv, {8 - 4.0 / 6, 4 - 2.0 / 6}, 0},
        {"the same, bias, norm, copy",
         run_qkv_all,
         false,
         qkv,
         {8 + 4 * 5.0 / 6, 4 + 2 * 5.0 / 6},
         0},
        {"SwiGLU", run_swiglu, false, ffn, {12, 6}, 0},
        {"GELU with bias", run_gelu, false, ffn, {8, 4}, 0},
        {"GELU by tanh", run_gelu_tanh, false, ffn, {8, 4}, 0},
        {"softmax, rows of 4096", run_softmax, true, 16.0 * 512 * 4096, {8, 6}, 0},
        {"softmax, rows of 512, half seen", run_softmax_short, true, 256.0 * 512 * 512, {6, 4}, 0},
        {"float32 to 16 bits", run_convert, true, model, {6, 6}, 0},
    };
    const size_t all = (size_t)TOKENS * 2 * FFN;
    uint32_t *row = need(TOKENS * sizeof *row);
    for (uint32_t i = 0; i < TOKENS; i++)
        row[i] = i % 4096;
    positions = on_device(row, TOKENS * sizeof *row);
    for (uint32_t i = 0; i < TOKENS; i++)
        row[i] = i * 7 % (2 * FFN * TOKENS / MODEL);
    ids = on_device(row, TOKENS * sizeof *row);
    free(row);
    bad = bad_new();
    for (int i = 0; i < 4; i++)
        scratch[i] = on_device(NULL, all * sizeof(float));
    printf("%-34s %-4s | %9s %7s %6s\n", "block", "type", "us", "GB/s", "share");
    for (int t = 0; t < 2; t++) {
        double copy = 0;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            block *b = &rows[i];
            b->type = pass_types[t];
            fill(scratch[0], b->wide ? KVD_F32 : b->type, all, 1);
            fill(scratch[2], KVD_F32, all, 0.1);
            fill(scratch[3], KVD_F32, all, 0.1);
            const double ms = median_ms(run_block, b, NULL), rate = b->n * b->bytes[t] / ms / 1e6;
            copy = i ? copy : rate;
            printf("%-34s %-4s | %9.1f %7.0f %5.0f%%\n", b->name, kvd_dtype_name(b->type), 1e3 * ms,
                   rate, 100 * rate / copy);
        }
    }
    for (int i = 0; i < 4; i++)
        check(cudaFree(scratch[i]), "free");
    device_free(positions, ids, bad);
}

typedef struct {
    kvd_gpu_attention *hook;
    kvd_gpu_attention_in in;
    void *out;
} attention;

static void run_attention(void *ctx)
{
    const attention *a = ctx;
    kvd_err err;
    end_on(a->hook->run(a->hook, &a->in, a->out, &err), &err);
}

static void time_attention(kvd_dtype type, size_t n, size_t len, int heads, int kv, int d,
                           int window, const kvd_cublas *lib, cublasHandle_t blas,
                           cudaStream_t stream)
{
    enum { SEQUENCES = 16 };
    kvd_err err;
    const kvd_config config = {.n_layers = 1,
                               .n_heads = heads,
                               .n_kv_heads = kv,
                               .d_head = d,
                               .window = window,
                               .window_layers = {window > 0}};
    const kvd_gpu_share share = {.count = 1, .n_heads = heads, .n_kv_heads = kv};
    const size_t e = kvd_dtype_bytes(type), ld = (size_t)((heads + 2 * kv) * d);
    size_t offset[SEQUENCES + 1] = {0};
    for (size_t s = 0; s < n; s++)
        offset[s + 1] = offset[s] + len;
    char *x = on_device(NULL, n * len * ld * e);
    fill(x, type, n * len * ld, 1);
    attention a = {.in = {.config = &config,
                          .share = &share,
                          .n_sequences = n,
                          .offset = offset,
                          .n_tokens = n * len,
                          .longest = len,
                          .type = type,
                          .q = x,
                          .k = x + (size_t)(heads * d) * e,
                          .v = x + (size_t)((heads + kv) * d) * e,
                          .ld = ld,
                          .window = (size_t)window,
                          .stream = stream,
                          .lib = lib,
                          .blas = blas},
                   .out = on_device(NULL, n * len * (size_t)(heads * d) * e)};
    kvd_gpu_dense *dense = kvd_gpu_dense_new(&config, &share, type, n * len, len, &err);
    end_on(!dense, &err);
    a.hook = kvd_gpu_dense_hook(dense);
    const double ms = median_ms(run_attention, &a, stream);
    double seen = 0; /* number of (query, key) pairs that are attended */
    for (size_t t = 0; t < len; t++)
        seen += (double)(window && t + 1 > (size_t)window ? (size_t)window : t + 1);
    char shape[64];
    (void)snprintf(shape, sizeof shape, "%zu x %zu, %d/%d x %d, window %d", n, len, heads, kv, d,
                   window);
    printf("%-36s %-4s | %9.1f %7.0f  %s, %zu MB\n", shape, kvd_dtype_name(type), 1e3 * ms,
           4 * (double)n * seen * heads * d / ms / 1e9, kvd_gpu_dense_engine(dense),
           kvd_gpu_dense_bytes(&config, &share, type, n * len, len) >> 20);
    kvd_gpu_dense_free(dense);
    device_free(x, a.out);
}

static void time_all_attention(void)
{
    static const size_t shapes[][2] = {{2, 4096}, {16, 512}};
    kvd_err err;
    const kvd_cublas *lib = kvd_cublas_load(&err);
    cublasHandle_t blas = lib ? kvd_cublas_open("bench_gpu_blocks", &err) : NULL;
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    end_on(!blas || kvd_cublas_check(lib->cublasSetStream_v2(blas, stream), "stream", &err), &err);
    printf("\n%-36s %-4s | %9s %7s\n", "attention", "type", "us", "TFLOP/s");
    for (int i = 0; i < 2; i++) {
        const size_t n = shapes[i][0], len = shapes[i][1];
        time_attention(KVD_BF16, n, len, 32, 8, 128, 0, lib, blas, stream);
        time_attention(KVD_BF16, n, len, 32, 32, 64, 0, lib, blas, stream);
        /* This sliding window hides a single key. Its time shows what support of windows costs. */
        time_attention(KVD_BF16, n, len, 32, 8, 128, (int)len - 1, lib, blas, stream);
        time_attention(KVD_BF16, n, len, 32, 8, 128, 256, lib, blas, stream);
        time_attention(KVD_F32, n, len, 32, 8, 128, 0, lib, blas, stream);
        time_attention(KVD_F32, n, len, 32, 32, 64, 0, lib, blas, stream);
    }
    kvd_cublas_close(blas);
    check(cudaStreamDestroy(stream), "stream");
}

int main(void)
{
    if (!gpu_devices("blocks", 1))
        return 0;
    kvd_rng_seed(&rng, 3, 0);
    time_blocks();
    time_all_attention();
    return failed;
}
