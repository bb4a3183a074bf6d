/* usage: bench_gpu_forward MODEL|shape:NAME [SEQ_LEN [SEQUENCES [GPUS]]]
 * Times the bf16 forward pass and its phases, such as attention. Compares their speed with matrix
 * products of cuBLAS. shape:NAME: a published model's shape with random weights. */

#include "common/clock.h"
#include "common/run.h"
#include "common/stats.h"
#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/device.h"
#include "model/checkpoint/shapes.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/forward.h"

enum { WARM_UP = 2, REPEATS = 7, EVENTS = 8192 };

typedef struct {
    cudaEvent_t event[EVENTS];
    kvd_gpu_phase phase[EVENTS];
    int n;
} marks;

static void mark(void *ctx, kvd_gpu_phase p, cudaStream_t stream)
{
    marks *m = ctx;
    if (m->n < EVENTS) {
        m->phase[m->n] = p;
        check(cudaEventRecord(m->event[m->n++], stream), "cudaEventRecord");
    }
}

/* Returns a phase's floating-point operations per token, or 0 if the phase is no matrix product. */
static double flop_of(const kvd_config *c, kvd_gpu_phase p, double seq_len)
{
    const double d = c->d_model, q = (double)c->n_heads * c->d_head,
                 k = (double)c->n_kv_heads * c->d_head;
    const double ffn = c->d_ffn, layers = c->n_layers, ups = c->activation == KVD_SWIGLU ? 2 : 1;
    const double products = layers * 2 * d * (2 * q + 2 * k + (ups + 1) * ffn);
    switch (p) {
    case KVD_GPU_QKV:
        return layers * 2 * d * (q + 2 * k);
    case KVD_GPU_ATTENTION:
        return kvd_forward_flop_per_token(c, seq_len) - products;
    case KVD_GPU_O:
        return layers * 2 * d * q;
    case KVD_GPU_GATE_UP:
        return layers * 2 * d * ups * ffn;
    case KVD_GPU_DOWN:
        return layers * 2 * d * ffn;
    default:
        return 0;
    }
}

static void print_phases(const marks *m, const kvd_config *c, double tokens, double seq_len,
                         double ceiling)
{
    double ms[KVD_GPU_PHASES] = {0}, total = 0;
    for (int i = 1; i < m->n; i++) {
        float x = 0;
        check(cudaEventElapsedTime(&x, m->event[i - 1], m->event[i]), "cudaEventElapsedTime");
        ms[m->phase[i]] += (double)x;
        total += (double)x;
    }
    for (int p = 0; p < KVD_GPU_PHASES; p++) {
        const double flop = tokens * flop_of(c, (kvd_gpu_phase)p, seq_len),
                     rate = flop / (ms[p] * 1e-3);
        if (ms[p] <= 0)
            continue;
        printf("  %-24s %8.2f ms  %5.1f %%", kvd_gpu_phase_name((kvd_gpu_phase)p), ms[p],
               100 * ms[p] / total);
        if (flop > 0)
            printf("  %6.1f TFLOP/s, %.1f %% of the ceiling", rate / 1e12, 100 * rate / ceiling);
        printf("\n");
    }
    printf("  %-24s %8.2f ms\n", "all, with events", total);
}

static int measure(kvd_gpu_forward *f, const kvd_config *c, const kvd_batch *b, size_t seq_len,
                   int n_gpus, double ceiling, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    float *hidden = on_device(NULL, n * (size_t)c->d_model * sizeof *hidden);
    double seconds[REPEATS];
    static marks m;
    for (int r = -WARM_UP; r < REPEATS; r++) {
        const double start = kvd_clock_s();
        if (kvd_gpu_forward_run(f, b, NULL, -1, hidden, err))
            return -1;
        if (r >= 0)
            seconds[r] = kvd_clock_s() - start;
    }
    kvd_sort(seconds, REPEATS);
    const double t = seconds[REPEATS / 2],
                 flop = (double)n * kvd_forward_flop_per_token(c, (double)seq_len);
    printf(
        "%zu x %zu tokens: %.2f ms (%.2f to %.2f), %.0f tokens/s, %.1f TFLOP/s in products, %.1f %% of "
        "the ceiling\n",
        b->n_sequences, seq_len, 1e3 * t, 1e3 * seconds[0], 1e3 * seconds[REPEATS - 1],
        (double)n / t, flop / t / 1e12, 100 * flop / t / ceiling / n_gpus);
    for (int i = 0; i < EVENTS; i++)
        check(cudaEventCreate(&m.event[i]), "cudaEventCreate");
    kvd_gpu_forward_watch(f, mark, &m);
    m.n = 0;
    mark(&m, KVD_GPU_EMBED, kvd_gpu_forward_stream(f, 0));
    if (kvd_gpu_forward_run(f, b, NULL, -1, hidden, err))
        return -1;
    kvd_gpu_forward_watch(f, NULL, NULL);
    print_phases(&m, c, (double)n / n_gpus, (double)seq_len, ceiling);
    for (int i = 0; i < EVENTS; i++)
        check(cudaEventDestroy(m.event[i]), "cudaEventDestroy");
    check(cudaFree(hidden), "cudaFree");
    return 0;
}

static int bench(const char *model, size_t seq_len, size_t n_sequences, int n_gpus, kvd_err *err)
{
    kvd_ceiling before, after;
    kvd_device_info card;
    const int shaped = strncmp(model, "shape:", 6) == 0;
    const kvd_shape *shape = shaped ? kvd_shape_find(model + 6, err) : NULL;
    kvd_checkpoint *c = !shaped ? kvd_checkpoint_open(model, err)
                        : shape ? kvd_checkpoint_of_shape(shape, 1, err)
                                : NULL;
    if (!c)
        return -1;
    const kvd_config *config = kvd_checkpoint_config(c);
    const size_t n = n_sequences * seq_len;
    const kvd_gpu_forward_spec spec = {
        .type = KVD_BF16, .n_gpus = n_gpus, .max_tokens = n, .max_len = seq_len};
    if (kvd_ceiling_gemm(0, &before, err))
        return -1;
    const double start = kvd_clock_s();
    kvd_gpu_forward *f = kvd_gpu_forward_new(c, &spec, err);
    if (!f)
        return -1;
    if (kvd_device_read(0, &card, err))
        return -1;
    printf("kvdim %s, driver %s\n", kvd_git_revision(), card.driver);
    printf("%s: %s\n%.2f GB on each GPU, ready after %.2f s\n", model, kvd_gpu_forward_engine(f),
           (double)kvd_gpu_forward_bytes(config, &spec) / 1e9, kvd_clock_s() - start);
    uint32_t *id = need(n * sizeof *id);
    size_t *offset = need((n_sequences + 1) * sizeof *offset);
    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)((i * 2654435761u) % (size_t)config->vocab_size);
    for (size_t s = 0; s <= n_sequences; s++)
        offset[s] = s * seq_len;
    printf("ceiling: %.1f TFLOP/s at %.0f MHz\n", before.rate / 1e12, before.sm_clock_mhz);
    for (size_t s = n_sequences < 4 ? n_sequences : 1; s <= n_sequences; s *= 2) {
        const kvd_batch b = {.n_sequences = s, .offset = offset, .id = id};
        if (measure(f, config, &b, seq_len, n_gpus, before.rate, err))
            return -1;
    }
    if (kvd_ceiling_gemm(0, &after, err))
        return -1;
    printf("ceiling afterwards: %.1f TFLOP/s at %.0f MHz\n", after.rate / 1e12, after.sm_clock_mhz);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
    free(id);
    free(offset);
    return 0;
}

int main(int argc, char **argv)
{
    kvd_err err = {""};
    const size_t seq_len = argc > 2 ? strtoul(argv[2], NULL, 10) : 4096;
    const size_t n_sequences = argc > 3 ? strtoul(argv[3], NULL, 10) : 8;
    const int n_gpus = argc > 4 ? atoi(argv[4]) : 1;
    if (argc < 2 || argc > 5 || seq_len == 0 || n_sequences == 0) {
        fprintf(stderr, "usage: bench_gpu_forward MODEL|shape:NAME [SEQ_LEN [SEQUENCES [GPUS]]]\n");
        return 2;
    }
    if (!gpu_devices("forward pass on the GPU", 1))
        return 0;
    if (bench(argv[1], seq_len, n_sequences, n_gpus, &err)) {
        fprintf(stderr, "bench_gpu_forward: %s\n", err.msg);
        return 1;
    }
    return 0;
}
