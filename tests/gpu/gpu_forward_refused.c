/* Tests that the forward pass on a GPU fails with the same error messages as on the CPU. */
#include <math.h>

#include "gpu_forward_case.h"
#include "make_checkpoint.h"

static const kvd_dtype types[] = {KVD_F32, KVD_BF16};

static void expect_message(const char *what, int status, const char *got, const char *want)
{
    test_result(status && strstr(got, want), what, "message: %s", got);
}

static void test_bad_batches(void)
{
    enum { ROOM = 50, LONGEST = 20 };
    kvd_err cpu_err = {""}, err = {""};
    kvd_checkpoint *c = family_or_end("qwen3-gqa");
    const kvd_gpu_forward_spec spec = {
        .type = KVD_F32, .n_gpus = 1, .max_tokens = ROOM, .max_len = LONGEST};
    kvd_gpu_forward *f = kvd_gpu_forward_new(c, &spec, &err);
    kvd_forward *cpu = kvd_forward_new(c, ROOM, LONGEST, &err);
    uint32_t id[80] = {0};
    const struct {
        const char *what;
        size_t n_sequences, offset[4];
        uint32_t id17;
        int last;
    } bad[] = {
        {"no sequence", 0, {0}, 0, -1},
        {"too many tokens", 3, {0, 20, 40, 51}, 0, -1},
        {"a sequence too long", 2, {0, 10, 31}, 0, -1},
        {"an empty sequence", 3, {0, 10, 10, 12}, 0, -1},
        {"falling offsets", 3, {0, 10, 5, 12}, 0, -1},
        {"an id beyond the vocabulary", 2, {0, 12, 30}, 80, -1},
        {"the largest id", 2, {0, 12, 30}, UINT32_MAX, -1},
        {"a layer too many", 2, {0, 12, 30}, 0, 2},
    };
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    for (size_t i = 0; f && cpu && i < sizeof bad / sizeof *bad; i++) {
        const kvd_batch b = {.n_sequences = bad[i].n_sequences,
                             .offset = bad[i].offset,
                             .first_sequence = 40,
                             .id = id};
        id[17] = bad[i].id17;
        const int status = kvd_gpu_forward_run(f, &b, NULL, bad[i].last, NULL, &err);
        (void)kvd_forward_run(cpu, &b, &dense.hook, bad[i].last, NULL, &cpu_err);
        expect_message(bad[i].what, status, err.msg, cpu_err.msg);
    }
    kvd_gpu_forward_free(f);
    kvd_forward_free(cpu);

    const kvd_gpu_forward_spec wrong[] = {
        {.type = KVD_F32, .n_gpus = 1, .max_tokens = 0, .max_len = 1},
        {.type = KVD_F32, .n_gpus = 1, .max_tokens = 9999, .max_len = 9999},
        {.type = KVD_F16, .n_gpus = 1, .max_tokens = 9, .max_len = 9},
        {.type = KVD_F32, .first_gpu = 99, .n_gpus = 1, .max_tokens = 9, .max_len = 9},
        {.type = KVD_F32, .n_gpus = 0, .max_tokens = 9, .max_len = 9},
        {.type = KVD_BF16, .n_gpus = 1, .max_tokens = INT32_MAX, .max_len = 9},
    };
    static const char *const part[] = {"a batch of 0 tokens is outside 1 .. 2147483647",
                                       "sequences of 9999 tokens, but the model was made for 1 .. ",
                                       "a forward pass in f16, on a GPU it runs in f32 or bf16",
                                       "1 GPUs from number 99 on were asked for, there are ",
                                       "0 GPUs from number 0 on were asked for, there are ",
                                       " in bf16 with batches of 2147483647 tokens takes "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (kvd_err){""};
        f = kvd_gpu_forward_new(c, &wrong[i], &err);
        test_result(!f && strstr(err.msg, part[i]), "a specification", "message: %s", err.msg);
    }
    kvd_checkpoint_close(c);
}

static void test_refusal(const char *name, kvd_gpu_use use, int count, const char *part)
{
    kvd_err err = {""};
    kvd_gpu_share share;
    kvd_checkpoint *c = family_or_end(name);
    const int status = kvd_gpu_share_of(kvd_checkpoint_config(c), use, 0, count, &share, &err);
    const int ok = status && strstr(err.msg, part);
    test_result(ok, name, "message: %s", err.msg);
    kvd_checkpoint_close(c);
}

static void test_refusals(void)
{
    test_refusal("deepseek-v2", KVD_GPU_GRADIENTS, 1,
                 "has latent attention, which the backward pass on GPUs does not compute: use "
                 "--device cpu");
    test_refusal("deepseek-v3", KVD_GPU_PASS, 2,
                 "the latent of a deepseek_v3 model cannot be divided by 2 GPUs: use --gpus 1");
    test_refusal("mixtral-full", KVD_GPU_GRADIENTS, 1,
                 "has routed experts, which the backward pass on GPUs does not compute");
    test_refusal("gemma2-caps", KVD_GPU_SERVING, 1,
                 "has capped scores, which the serving engine on GPUs does not compute");
    test_refusal("gemma2-caps", KVD_GPU_GRADIENTS, 1,
                 "has capped scores or logits, which the backward pass on GPUs does not compute");
    test_refusal("gemma-mha", KVD_GPU_GRADIENTS, 1,
                 "has a scaled embedding, which the backward pass on GPUs does not compute");
    test_refusal(
        "olmo2-gqa", KVD_GPU_PASS, 2,
        "norms over all heads of Q and K of an olmo2 model cannot be divided by 2 GPUs: use "
        "--gpus 1");
}

static void test_nonfinite(kvd_dtype type, int last_layer)
{
    static const struct {
        const char *tensor;
        size_t i;
        float value;
    } bad[] = {
        {"model.layers.1.mlp.down_proj.weight", 5, NAN},
        {"model.layers.0.self_attn.k_proj.weight", 64, INFINITY},
        {"model.layers.0.self_attn.v_proj.weight", 3, NAN},
        {"model.layers.1.self_attn.o_proj.weight", 64, -INFINITY},
        {"model.layers.2.post_attention_layernorm.weight", 1, -INFINITY},
        {"model.layers.2.input_layernorm.weight", 1, NAN},
        {"model.embed_tokens.weight", 17 * 64 + 3, NAN},
        {"model.norm.weight", 0, NAN},
    };
    char path[128], file[160];
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 3;
    s.tied = false;
    uint32_t id[30];
    for (uint32_t i = 0; i < 30; i++)
        id[i] = i;
    const size_t offset[] = {0, 12, 30};
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .first_sequence = 3, .id = id};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvd_err cpu_err = {"nothing"}, err = {"nothing"};
        recording cpu, gpu;
        made_or_end("m", &s, path);
        (void)snprintf(file, sizeof file, "%s/model.safetensors", path);
        or_end(made_poke(file, bad[i].tensor, bad[i].i, bad[i].value, &err), file, err.msg);
        kvd_checkpoint *c = checkpoint_or_end(path);
        const int expected_status = run_cpu(c, &b, last_layer, &cpu, &cpu_err);
        const int status = run_gpu(c, type, &b, last_layer, &gpu, &err);
        test_result(!status == !expected_status && !strcmp(err.msg, cpu_err.msg), bad[i].tensor,
                    "%s: %s", kvd_dtype_name(type), err.msg);
        recording_release(&cpu);
        recording_release(&gpu);
        kvd_checkpoint_close(c);
    }
}

/* Attention hook whose outputs are 0, except for NaN in row 7, so that the forward pass must
 * fail. */
static int spoil(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    (void)self;
    const size_t width =
        (size_t)in->share->n_heads * (size_t)in->config->d_head * kvd_dtype_bytes(in->type);
    return kvd_cuda_check(cudaMemsetAsync(out, 0, in->n_tokens * width, in->stream), "spoil",
                          err) ||
                   kvd_cuda_check(cudaMemsetAsync((char *)out + 7 * width + 8, 0xff, 8, in->stream),
                                  "spoil", err)
               ? -1
               : 0;
}

static int refuse(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    (void)self, (void)out;
    return kvd_fail(err, "layer %d is refused", in->layer);
}

static void test_hooks(kvd_dtype type)
{
    kvd_err err = {""};
    kvd_checkpoint *c = family_or_end("mistral-window");
    uint32_t id[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const size_t offset[] = {0, 5, 12};
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .id = id};
    kvd_gpu_forward *f = open_pass(c, type, 1, 12);
    kvd_gpu_attention bad = {.run = spoil},
                      worse = {.run = refuse}, *const hook[] = {&bad}, *const other[] = {&worse};
    int status = kvd_gpu_forward_run(f, &b, hook, 1, NULL, &err);
    expect_message("attention output that is not finite", status, err.msg,
                   "layer 0, row 7 (sequence 1, position 2): activation is not finite");
    status = kvd_gpu_forward_run(f, &b, hook, 0, NULL, &err);
    expect_message("attention output of the last layer", status, err.msg,
                   "layer 0, row 7 (sequence 1, position 2): activation is not finite");
    status = kvd_gpu_forward_run(f, &b, other, -1, NULL, &err);
    expect_message("a hook that fails", status, err.msg, "layer 0 is refused");
    status = kvd_gpu_forward_run(f, &b, NULL, -1, NULL, &err);
    test_result(!status, "after that", "a run: %s", status ? err.msg : kvd_gpu_forward_engine(f));
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

int main(void)
{
    if (!gpu_devices("forward", 1))
        return 0;
    test_bad_batches();
    test_refusals();
    for (size_t t = 0; t < 2; t++) {
        test_nonfinite(types[t], -1);
        test_nonfinite(types[t], 2);
        test_hooks(types[t]);
    }
    return failures ? 1 : 0;
}
