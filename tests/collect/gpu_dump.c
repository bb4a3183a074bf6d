/* Tests recording of Q, K and V on the GPU: the file must equal the CPU's byte for byte. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "collect/cuda/dump.h"
#include "collect/dump.h"
#include "common/run.h"
#include "gpu_case.h"
#include "model/model_info.h"

typedef struct {
    const char *name;
    kvd_dtype type, to;
    int n_heads, n_kv_heads, d, shares;
    bool pre;
    size_t batch[3]; /* tokens of each batch; 0 ends the list */
} test_case;

static const test_case cases[] = {
    {"bf16 to bf16", KVD_BF16, KVD_BF16, 8, 2, 128, 1, true, {100, 1, 33}},
    {"bf16 to f16", KVD_BF16, KVD_F16, 8, 2, 64, 1, false, {100, 28}},
    {"bf16 to f32", KVD_BF16, KVD_F32, 4, 4, 80, 1, false, {77}},
    {"f32 to f32", KVD_F32, KVD_F32, 6, 3, 96, 1, true, {50, 3}},
    {"f32 to f16", KVD_F32, KVD_F16, 3, 1, 16, 1, true, {129, 1}},
    {"f32 to bf16", KVD_F32, KVD_BF16, 2, 2, 20, 1, false, {13}},
    {"two shares", KVD_F32, KVD_BF16, 8, 4, 32, 2, true, {65, 64}},
    {"several pieces", KVD_BF16, KVD_F32, 32, 8, 128, 1, false, {7001}},
};

/* The model has LAYERS + 1 layers. The file has Q, K and V of HELD layers, beginning with layer
 * FIRST_LAYER. */
enum { LAYERS = 3, FIRST_LAYER = 1, HELD = 2 };

static kvd_err err;
static kvd_run program_run;
static char folder[256];

static uint64_t seed = 3;

static float value(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) * 0x1p-29f;
}

static void make_file(kvd_activations *a, const test_case *c, const char *name)
{
    const kvd_config config = {.n_layers = LAYERS + 1,
                               .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .d_head = c->d,
                               .d_model = 1,
                               .vocab_size = 1,
                               .max_positions = 1 << 20,
                               .rope_theta = 1};
    char path[300];
    memset(a, 0, sizeof *a);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    kvd_model_info_set(&a->model, &config, "made up", "xxh3:0", "f32");
    for (int b = 0; b < 3; b++)
        a->n_tokens += c->batch[b];
    a->n_sequences = 1;
    a->seq_len = a->n_tokens;
    a->first_layer = FIRST_LAYER;
    a->n_layers = HELD;
    a->dtype = c->to;
    a->has_pre = c->pre;
    or_end(kvd_activations_create(a, path, &program_run, false, &err), c->name, err.msg);
}

/* tensor such as Q or K on the host, [token][head][dimension] */
typedef struct {
    float *host;
    int heads;
} tensor;

static void make_tensors(const test_case *c, size_t rows, tensor x[KVD_N_X])
{
    for (int t = 0; t < KVD_N_X; t++) {
        x[t].heads = t == KVD_X_Q || t == KVD_X_Q_PRE ? c->n_heads : c->n_kv_heads;
        const size_t n = rows * (size_t)x[t].heads * (size_t)c->d;
        x[t].host = need(n * sizeof(float));
        uint16_t *bits = need(n * sizeof *bits);
        for (size_t i = 0; i < n; i++)
            x[t].host[i] = value();
        if (c->type == KVD_BF16) {
            kvd_from_f32(KVD_BF16, x[t].host, bits, n);
            kvd_to_f32(KVD_BF16, bits, x[t].host, n);
        }
        free(bits);
    }
}

static kvd_gpu_share share_of(const test_case *c, int index)
{
    const int heads = c->n_heads / c->shares, kv_heads = c->n_kv_heads / c->shares;
    return (kvd_gpu_share){.index = index,
                           .count = c->shares,
                           .first_head = index * heads,
                           .n_heads = heads,
                           .first_kv_head = index * kv_heads,
                           .n_kv_heads = kv_heads};
}

/* Copies n tensors to the GPU, side by side in each row of a matrix, with NaN before and after
 * every row. */
static void *on_gpu(const test_case *c, const kvd_gpu_share *s, const tensor *x, int first, int n,
                    size_t rows, size_t *ld, const void **at)
{
    const size_t d = (size_t)c->d, size = kvd_dtype_bytes(c->type);
    size_t column[KVD_N_X];
    *ld = 3;
    for (int t = first; t < first + n; t++) {
        column[t] = *ld;
        *ld += (size_t)(x[t].heads == c->n_heads && (t == KVD_X_Q || t == KVD_X_Q_PRE)
                            ? s->n_heads
                            : s->n_kv_heads) *
               d;
    }
    float *all = need((rows + 1) * *ld * sizeof *all);
    void *bits = need((rows + 1) * *ld * 4);
    for (size_t i = 0; i < (rows + 1) * *ld; i++)
        all[i] = NAN;
    for (int t = first; t < first + n; t++) {
        const bool query = t == KVD_X_Q || t == KVD_X_Q_PRE;
        const size_t width = (size_t)(query ? s->n_heads : s->n_kv_heads) * d,
                     from = (size_t)(query ? s->first_head : s->first_kv_head) * d;
        for (size_t r = 0; r < rows; r++)
            memcpy(all + r * *ld + column[t], x[t].host + r * (size_t)x[t].heads * d + from,
                   width * sizeof(float));
    }
    kvd_from_f32(c->type, all, bits, (rows + 1) * *ld);
    char *device = on_device(bits, (rows + 1) * *ld * size);
    for (int t = first; t < first + n; t++)
        at[t] = device + column[t] * size;
    free(all);
    free(bits);
    return device;
}

/* Writes a layer's Q, K and V twice: from CPU memory to file `plain`, and from GPU memory to the
 * file of *dump. If a write fails, fills *plain_err (CPU) or *gpu_err (GPU) and returns -1. */
static int record(const test_case *c, kvd_dump *plain, kvd_gpu_dump **dump, int layer, size_t first,
                  size_t rows, float poison, kvd_err *plain_err, kvd_err *gpu_err)
{
    tensor x[KVD_N_X];
    make_tensors(c, rows, x);
    if (poison != 0)
        x[KVD_X_K].host[((rows - 1) * (size_t)c->n_kv_heads + 1) * (size_t)c->d + 5] = poison;
    const kvd_attention_in in = {.layer = layer,
                                 .n_tokens = rows,
                                 .q = x[0].host,
                                 .k = x[1].host,
                                 .v = x[2].host,
                                 .q_pre = x[3].host,
                                 .k_pre = x[4].host};
    plain->first_token = first;
    int status = kvd_dump_record(plain, &in, plain_err);
    for (int g = 0; g < c->shares; g++) {
        const kvd_gpu_share share = share_of(c, g);
        const void *at[KVD_N_X] = {NULL};
        size_t ld, ld_pre;
        void *qkv = on_gpu(c, &share, x, 0, 3, rows, &ld, at),
             *pre = on_gpu(c, &share, x, 3, 2, rows, &ld_pre, at);
        const kvd_gpu_attention_in on = {.share = &share,
                                         .layer = layer,
                                         .n_tokens = rows,
                                         .type = c->type,
                                         .q = at[0],
                                         .k = at[1],
                                         .v = at[2],
                                         .ld = ld,
                                         .q_pre = at[3],
                                         .k_pre = at[4],
                                         .ld_pre = ld_pre};
        if (kvd_gpu_dump_add(dump[g], &on, first, gpu_err))
            status = -1;
        check(cudaDeviceSynchronize(), c->name);
        fill_bytes(qkv, 0xff, rows * ld * kvd_dtype_bytes(c->type));
        check(cudaDeviceSynchronize(), c->name);
        check(cudaFree(qkv), c->name);
        check(cudaFree(pre), c->name);
    }
    for (int t = 0; t < KVD_N_X; t++)
        free(x[t].host);
    return status;
}

static bool same_bytes(const kvd_activations *a, const kvd_activations *b)
{
    bool same = kvd_activations_checksum(a) == kvd_activations_checksum(b);
    for (int x = 0; x < (a->has_pre ? KVD_N_X : KVD_X_Q_PRE); x++) {
        const size_t n = (size_t)HELD * (size_t)kvd_activations_heads(a, (kvd_x)x) * a->n_tokens *
                         (size_t)a->model.d_head * kvd_dtype_bytes(a->dtype);
        char *one = need(n), *two = need(n);
        same = same && pread(a->fd, one, n, (off_t)a->at[x]) == (ssize_t)n &&
               pread(b->fd, two, n, (off_t)b->at[x]) == (ssize_t)n && !memcmp(one, two, n);
        free(one);
        free(two);
    }
    return same;
}

typedef struct {
    kvd_activations plain_file, file;
    kvd_dump plain;
    kvd_gpu_dump *dump[2];
} both;

static void open_both(both *b, const test_case *c)
{
    size_t most = 1;
    for (int i = 0; i < 3; i++)
        most = c->batch[i] > most ? c->batch[i] : most;
    make_file(&b->plain_file, c, "plain.h5");
    make_file(&b->file, c, "gpu.h5");
    or_end(kvd_dump_init(&b->plain, &b->plain_file, &err), c->name, err.msg);
    for (int g = 0; g < c->shares; g++) {
        const kvd_gpu_share share = share_of(c, g);
        b->dump[g] = kvd_gpu_dump_new(&b->file, &share, most, &err);
        or_end(!b->dump[g], c->name, err.msg);
    }
}

static void close_both(both *b, const test_case *c)
{
    for (int g = 0; g < c->shares; g++)
        kvd_gpu_dump_free(b->dump[g]);
    kvd_dump_release(&b->plain);
    kvd_activations_abandon(&b->plain_file, false);
    kvd_activations_abandon(&b->file, false);
}

static void run(const test_case *c)
{
    both b;
    size_t first = 0;
    open_both(&b, c);
    for (int i = 0; i < 3 && c->batch[i]; first += c->batch[i++])
        for (int l = 0; l <= LAYERS; l++)
            or_end(record(c, &b.plain, b.dump, l, first, c->batch[i], 0, &err, &err), c->name,
                   err.msg);
    for (int g = 0; g < c->shares; g++)
        or_end(kvd_gpu_dump_flush(b.dump[g], &err), c->name, err.msg);
    if (same_bytes(&b.plain_file, &b.file))
        printf("ok dump, %s\n", c->name);
    else {
        printf("not ok dump, %s: the bytes differ\n", c->name);
        failures++;
    }
    close_both(&b, c);
}

static void refused(const char *name, kvd_dtype type, kvd_dtype to, float poison)
{
    const test_case c = {name, type, to, 4, 2, 32, 1, false, {40, 60}};
    kvd_err plain_err = {""}, gpu_err = {""};
    both b;
    open_both(&b, &c);
    or_end(record(&c, &b.plain, b.dump, 1, 0, 40, 0, &err, &err), name, err.msg);
    (void)record(&c, &b.plain, b.dump, 2, 40, 60, poison, &plain_err, &gpu_err);
    const int resolved = kvd_gpu_dump_flush(b.dump[0], &gpu_err);
    if (resolved && !strcmp(plain_err.msg, gpu_err.msg) && *gpu_err.msg)
        printf("ok dump, %s: %s\n", name, gpu_err.msg);
    else {
        printf("not ok dump, %s: '%s', should be '%s'\n", name, gpu_err.msg, plain_err.msg);
        failures++;
    }
    if (!kvd_gpu_dump_flush(b.dump[0], &gpu_err)) {
        printf("not ok dump, %s: forgotten\n", name);
        failures++;
    }
    close_both(&b, &c);
}

int main(int argc, char **argv)
{
    kvd_common_options options = {.seed = 1};
    const char *tmp = getenv("TMPDIR");
    if (!gpu_devices("dump", 1))
        return 0;
    snprintf(folder, sizeof folder, "%s/gpu-dump.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        printf("not ok dump: no folder '%s'\n", folder);
        return 1;
    }
    or_end(kvd_run_start(&program_run, "gpu_dump", argc, argv, &options, &err), "run", err.msg);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(&cases[i]);
    refused("too large for f16", KVD_F32, KVD_F16, -70000);
    refused("too large for f16, bf16", KVD_BF16, KVD_F16, 65536);
    refused("too large for bf16", KVD_F32, KVD_BF16, 3.4e38f);
    refused("not a number", KVD_BF16, KVD_BF16, NAN);
    refused("infinite", KVD_F32, KVD_F32, -INFINITY);
    kvd_run_release(&program_run);
    if (rmdir(folder)) {
        printf("not ok dump: something is left in '%s'\n", folder);
        failures++;
    }
    return failures != 0;
}
