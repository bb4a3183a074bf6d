/* Tests the forward pass on two and four GPUs against one GPU. */
#include <math.h>

#include "gpu_forward_case.h"

/* Accepted relative distance of activations from those on one GPU. Several GPUs sum in another
 * order, which may change how a sum is rounded to bf16. */
static const double bar[] = {[KVD_F32] = 5e-6, [KVD_BF16] = 1e-2};
static const kvd_dtype types[] = {KVD_F32, KVD_BF16};
static int compared;

/* N_FEW, N_MANY: number of tokens in the small and in the large batch. SEQUENCES: number of
 * sequences in the large batch. */
enum { N_FEW = 9 + 50 + 25, N_MANY = 2150, SEQUENCES = 43 };
static const size_t few_offset[] = {0, 9, 59, N_FEW};
static size_t many_offset[SEQUENCES + 1];

static kvd_batch batch_of(int many, const uint32_t *id)
{
    return (kvd_batch){.n_sequences = many ? SEQUENCES : 3,
                       .offset = many ? many_offset : few_offset,
                       .first_sequence = 4,
                       .id = id};
}

static void report(int ok, const char *name, int n_gpus, kvd_dtype type, const char *detail)
{
    printf("%s forward on %d GPUs, %s, %s: %s\n", ok ? "ok" : "not ok", n_gpus, name,
           kvd_dtype_name(type), detail);
    failures += !ok;
}

static int two_parts(kvd_gpu_forward *f, const kvd_batch *b, kvd_err *err)
{
    const kvd_config *config = &kvd_gpu_forward_weights(f, 0)->config;
    const size_t size = b->offset[b->n_sequences] * (size_t)config->d_model * sizeof(float);
    float *whole = on_device(NULL, size), *parts = on_device(NULL, size),
          *residual = on_device(NULL, size);
    char *a = need(size), *z = need(size);
    int status = kvd_gpu_forward_run(f, b, NULL, -1, whole, err), same = 1;
    to_host(a, whole, size);
    for (int layer = 0; layer < config->n_layers && !status; layer++) {
        status = kvd_gpu_forward_residual(f, b, NULL, layer, residual, err) ||
                 kvd_gpu_forward_run_from(f, b, NULL, layer, residual, parts, err);
        to_host(z, parts, size);
        same = same && !memcmp(a, z, size);
    }
    device_free(whole, parts, residual);
    free(a);
    free(z);
    if (!status && !same)
        return kvd_fail(err, "other bits in two parts");
    return status;
}

static void compare(const char *name, kvd_dtype type, int n_gpus, int many)
{
    const size_t n = many ? N_MANY : N_FEW;
    kvd_err err = {""};
    kvd_gpu_share share;
    char text[400];
    const char *where = "";
    kvd_checkpoint *c = family_or_end(name);
    if (kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_PASS, 0, n_gpus, &share, &err)) {
        kvd_checkpoint_close(c);
        return;
    }
    uint32_t *id = some_ids(n, (size_t)kvd_checkpoint_config(c)->vocab_size, 3);
    const kvd_batch b = batch_of(many, id);
    recording one, several;
    const bool routed = kvd_checkpoint_config(c)->n_experts && type == KVD_BF16;
    const double limit = routed ? 0.25 : bar[type];
    kvd_gpu_forward *f = open_pass(c, type, n_gpus, n);
    const int status = run_gpu(c, type, &b, -1, &one, &err) ||
                       run_on(f, &b, n_gpus, -1, &several, &err) || two_parts(f, &b, &err);
    const double worst = status ? INFINITY : worst_distance(&several, 0, &one, &where);
    (void)snprintf(text, sizeof text, "%zu rows, %s off by %.2g of %.0e (%s)", n, where, worst,
                   limit, kvd_gpu_forward_engine(f));
    report(worst <= limit, name, n_gpus, type, status ? err.msg : text);
    compared++;
    kvd_gpu_forward_free(f);
    recording_release(&one);
    recording_release(&several);
    free(id);
    kvd_checkpoint_close(c);
}

typedef struct {
    /* Must be the first member, because the code casts a pointer to `hook` to a pointer to the
     * struct that contains it. */
    kvd_gpu_attention hook;
    kvd_gpu_attention *dense;
    int layer; /* first layer at which the hook fails */
} refusing;

static int refuse(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    const refusing *const r = (const refusing *)(const void *)self;
    return in->layer < r->layer
               ? r->dense->run(r->dense, in, out, err)
               : kvd_fail(err, "share %d of layer %d is refused", in->share->index, in->layer);
}

/* Lets attention fail on one GPU. Tests that this run and all later runs then fail on all GPUs. */
static void test_failure(const char *family, int n_gpus, int many)
{
    kvd_err err = {""}, again = {""};
    kvd_checkpoint *c = family_or_end(family);
    const uint32_t id[N_MANY] = {0};
    const kvd_batch b = batch_of(many, id);
    kvd_gpu_forward *f = open_pass(c, KVD_BF16, n_gpus, many ? N_MANY : N_FEW);
    refusing bad = {.hook = {.run = refuse}, .dense = kvd_gpu_forward_dense(f, 1), .layer = many};
    kvd_gpu_attention *hook[KVD_GPUS_MAX];
    for (int g = 0; g < n_gpus; g++)
        hook[g] = g == 1 ? &bad.hook : kvd_gpu_forward_dense(f, g);
    int status = kvd_gpu_forward_run(f, &b, hook, -1, NULL, &err);
    report(status && !strcmp(err.msg, many ? "share 1 of layer 1 is refused"
                                           : "share 1 of layer 0 is refused"),
           "a hook that fails", n_gpus, KVD_BF16, err.msg);
    status = kvd_gpu_forward_run(f, &b, NULL, -1, NULL, &again);
    report(status && !strcmp(again.msg, "sum over GPUs: ended by an error on one of them"),
           "a run after that", n_gpus, KVD_BF16, again.msg);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

typedef struct {
    /* Must be the first member, because the code casts a pointer to `hook` to a pointer to the
     * struct that contains it. */
    kvd_gpu_attention hook;
    size_t row;
} spoiling;

static int spoil(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    const size_t width =
        (size_t)in->share->n_heads * (size_t)in->config->d_head * kvd_dtype_bytes(in->type);
    char *const row = (char *)out + ((const spoiling *)(const void *)self)->row * width;
    return kvd_cuda_check(cudaMemsetAsync(out, 0, in->n_tokens * width, in->stream), "spoil",
                          err) ||
                   (in->share->index == 1 &&
                    kvd_cuda_check(cudaMemsetAsync(row, 0xff, width, in->stream), "spoil", err))
               ? -1
               : 0;
}

static void test_nonfinite(const char *family, int n_gpus, int last_layer, int many, size_t row,
                           const char *want)
{
    kvd_err err = {""};
    kvd_checkpoint *c = family_or_end(family);
    const uint32_t id[N_MANY] = {0};
    const kvd_batch b = batch_of(many, id);
    kvd_gpu_forward *f = open_pass(c, KVD_F32, n_gpus, many ? N_MANY : N_FEW);
    spoiling bad = {.hook = {.run = spoil}, .row = row};
    kvd_gpu_attention *hook[KVD_GPUS_MAX];
    for (int g = 0; g < n_gpus; g++)
        hook[g] = &bad.hook;
    const int status = kvd_gpu_forward_run(f, &b, hook, last_layer, NULL, &err);
    report(status && strstr(err.msg, want), "not finite on one", n_gpus, KVD_F32, err.msg);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

static void test_errors(void)
{
    static const char row_11[] =
        "layer 0, row 11 (sequence 5, position 2): activation is not finite",
                      row_11_of_many[] =
                          "layer 0, row 11 (sequence 4, position 11): activation is not finite",
                      row_1511[] =
                          "layer 0, row 1511 (sequence 34, position 11): activation is not finite";
    test_nonfinite("falcon-40b", 2, 0, 0, 11, row_11);
    test_nonfinite("falcon-40b", 2, 1, 0, 11, row_11);
    test_nonfinite("llama-biases", 2, 1, 1, 11, row_11_of_many);
    test_nonfinite("llama-biases", 2, 1, 1, 1511, row_1511);
    test_failure("falcon-40b", 2, 0);
    test_failure("llama-biases", 2, 1);
}

/* usage: gpu_forward_several [errors]; errors: only tests of failing GPUs */
int main(int argc, char **argv)
{
    static const char *const family[] = {
        "llama-biases", "mistral-window", "phi3-long", "opt-before",   "falcon-40b", "falcon-11b",
        "falcon-mha",   "gemma2-caps",    "glm4-half", "mixtral-full", "gpt-oss"};
    const int errors = argc > 1 && !strcmp(argv[1], "errors");
    for (size_t i = 0; i <= SEQUENCES; i++)
        many_offset[i] = 50 * i;
    const int devices = gpu_devices("forward on several GPUs", 2);
    if (!devices)
        return 0;
    for (int n_gpus = 2; n_gpus <= 4 && n_gpus <= devices && !errors; n_gpus += 2)
        for (size_t t = 0; t < 2; t++)
            for (size_t i = 0; i < sizeof family / sizeof *family; i++)
                for (int many = 0; many < 2; many++)
                    compare(family[i], types[t], n_gpus, many);
    printf("# %d compared\n", compared);
    test_errors();
    return failures || !(compared || errors) ? 1 : 0;
}
