/* Tests weights on one or two GPUs against those on the host, bit for bit. */

#include "expected.h"
#include "gpu_case.h"
#include "make_checkpoint.h"
#include "model/checkpoint/cuda/weights.h"
#include "model/checkpoint/shapes.h"
#include "model/checkpoint/weights.h"
#include "temp_folder.h"

static int expert;

/* Returns n rows (or columns) of a weight in float32, from `first` on; n = 0 means all. *size:
 * number of elements, 0 if the model does not have this weight. */
static float *part_of(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int columns,
                      int first, int n, size_t *size)
{
    kvd_err err;
    kvd_weight w;
    or_end(part < KVD_N_PARTS ? kvd_weight_find(c, part, bias, layer, &w, &err)
                              : kvd_weight_find_expert(c, part, bias, layer, expert, &w, &err),
           "weights", err.msg);
    const size_t cols = w.cols, rows = w.n ? w.n / cols : 0;
    float *all = need(w.n * sizeof *all), *some = need(w.n * sizeof *some);
    kvd_weight_read(&w, 0, w.n, all);
    *size = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < cols; j++) {
            const size_t at = columns ? j : r;
            if (n == 0 || (at >= (size_t)first && at < (size_t)(first + n)))
                some[(*size)++] = all[r * cols + j];
        }
    free(all);
    return some;
}

typedef struct {
    const char *name;
    const kvd_checkpoint *c;
    kvd_dtype type;
    size_t arrays, wrong;
} comparison;

typedef struct {
    kvd_part part;
    int columns, first, n;
} slice;

static void compare(comparison *to, const char *what, int layer, bool bias, const slice *s, int n,
                    kvd_dtype type, const void *device)
{
    const char *at = device;
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t size;
        float *want =
            part_of(to->c, s[i].part, bias, layer, s[i].columns, s[i].first, s[i].n, &size);
        const size_t bytes = size * kvd_dtype_bytes(type);
        char *bits = need(bytes), *got = need(bytes);
        kvd_from_f32(type, want, bits, size);
        if (bytes && at)
            to_host(got, at, bytes);
        if ((bytes && !at) || memcmp(bits, got, bytes) != 0) {
            printf("# %s, layer %d, %s: differs\n", to->name, layer, what);
            to->wrong++;
        }
        at = at ? at + bytes : NULL;
        total += size;
        host_free(want, bits, got);
    }
    to->wrong += total == 0 && device != NULL;
    to->arrays += total > 0;
}

static void whole(comparison *to, const char *what, int layer, bool bias, kvd_part part,
                  kvd_dtype type, const void *device)
{
    compare(to, what, layer, bias, &(slice){part, 0, 0, 0}, 1, type, device);
}

/* Compares one expert's weights on the GPU with the checkpoint; `part` names the expert's gate
 * matrix. The GPU has rows first .. first + n - 1 of gate and up, and the same columns of down. */
static void compare_expert(comparison *to, int l, kvd_part part, int first, int n,
                           const kvd_gpu_expert *d)
{
    const kvd_part last = (kvd_part)(part + 2);
    const slice gate_up[] = {{part, 0, first, n}, {(kvd_part)(part + 1), 0, first, n}};
    const slice down = {last, 1, first, n};
    compare(to, "gate and up of an expert", l, false, gate_up, 2, to->type, d->gate_up);
    compare(to, "their bias", l, true, gate_up, 2, KVD_F32, d->bias_gate_up);
    compare(to, "down of an expert", l, false, &down, 1, to->type, d->down);
    whole(to, "its bias", l, true, last, KVD_F32, d->bias_down);
}

static void compare_experts(comparison *to, const kvd_gpu_weights *w, int l)
{
    const kvd_gpu_layer *d = &w->layer[l];
    const kvd_gpu_share *s = &w->share;
    whole(to, "router", l, false, KVD_PART_ROUTER, KVD_F32, d->router);
    whole(to, "bias of the router", l, true, KVD_PART_ROUTER, KVD_F32, d->bias_router);
    whole(to, "bias of the choice", l, false, KVD_PART_ROUTER_BIAS, KVD_F32, d->bias_choice);
    whole(to, "factor of the shared expert", l, false, KVD_PART_SHARED_SCALE, KVD_F32,
          d->shared_scale);
    compare_expert(to, l, KVD_PART_SHARED_GATE, s->first_shared, s->n_shared, &d->shared);
    for (expert = 0; d->expert && expert < w->config.n_experts; expert++)
        compare_expert(to, l, KVD_PART_EXPERT_GATE, s->first_expert, s->n_expert,
                       &d->expert[expert]);
}

static void compare_latent(comparison *to, const kvd_gpu_latent *d, int l)
{
    whole(to, "Q's factor", l, false, KVD_PART_Q_DOWN, to->type, d->q_down);
    whole(to, "its norm", l, false, KVD_PART_NORM_Q_DOWN, KVD_F32, d->norm_q_down);
    whole(to, "Q", l, false, KVD_PART_Q, to->type, d->q);
    whole(to, "projection to the latent", l, false, KVD_PART_LATENT, to->type, d->down);
    whole(to, "norm of the latent", l, false, KVD_PART_NORM_LATENT, KVD_F32, d->norm);
    whole(to, "projection from the latent", l, false, KVD_PART_LATENT_UP, to->type, d->up);
}

static void compare_layer(comparison *to, const kvd_gpu_weights *w, int l)
{
    const kvd_gpu_layer *d = &w->layer[l];
    const kvd_gpu_share *s = &w->share;
    const int head = w->config.d_head, head_o = w->config.latent ? w->config.d_value : head;
    const slice qkv[] = {{KVD_PART_Q, 0, s->first_head * head, s->n_heads * head},
                         {KVD_PART_K, 0, s->first_kv_head * head, s->n_kv_heads * head},
                         {KVD_PART_V, 0, s->first_kv_head * head, s->n_kv_heads * head}};
    const slice gate_up[] = {{KVD_PART_GATE, 0, s->first_ffn, s->n_ffn},
                             {KVD_PART_UP, 0, s->first_ffn, s->n_ffn}};
    const slice o = {KVD_PART_O, 1, s->first_head * head_o, s->n_heads * head_o};
    const slice down = {KVD_PART_DOWN, 1, s->first_ffn, s->n_ffn};
    static const kvd_part norm[] = {KVD_PART_NORM_ATTENTION, KVD_PART_NORM_FFN},
                          branch[] = {KVD_PART_NORM_O, KVD_PART_NORM_DOWN};
    const slice sinks = {KVD_PART_SINKS, 0, s->first_head, s->n_heads};
    if (w->config.latent) {
        compare_latent(to, &d->latent, l);
    } else {
        compare(to, "Q, K, V", l, false, qkv, 3, to->type, d->qkv);
        compare(to, "bias of Q, K, V", l, true, qkv, 3, KVD_F32, d->bias_qkv);
    }
    compare(to, "O", l, false, &o, 1, to->type, d->o);
    whole(to, "bias of O", l, true, KVD_PART_O, KVD_F32, d->bias_o);
    compare(to, "gate and up", l, false, gate_up, 2, to->type, d->gate_up);
    compare(to, "bias of gate and up", l, true, gate_up, 2, KVD_F32, d->bias_gate_up);
    compare(to, "down", l, false, &down, 1, to->type, d->down);
    whole(to, "bias of down", l, true, KVD_PART_DOWN, KVD_F32, d->bias_down);
    whole(to, "norm of Q", l, false, KVD_PART_NORM_Q, KVD_F32, d->norm_q);
    whole(to, "norm of K", l, false, KVD_PART_NORM_K, KVD_F32, d->norm_k);
    compare(to, "sinks", l, false, &sinks, 1, KVD_F32, d->sinks);
    for (int i = 0; i < 2; i++) {
        whole(to, "a norm", l, false, norm[i], KVD_F32, d->norm[i]);
        whole(to, "bias of a norm", l, true, norm[i], KVD_F32, d->norm_bias[i]);
        whole(to, "norm of a branch", l, false, branch[i], KVD_F32, d->branch[i]);
        whole(to, "its bias", l, true, branch[i], KVD_F32, d->branch_bias[i]);
    }
}

static void compare_rest(comparison *to, const kvd_gpu_weights *w)
{
    const kvd_config *c = &w->config;
    const kvd_part head = c->tied_head ? KVD_PART_EMBEDDING : KVD_PART_HEAD;
    whole(to, "embedding", 0, false, KVD_PART_EMBEDDING, to->type, w->embedding);
    whole(to, "positions", 0, false, KVD_PART_POSITIONS, KVD_F32, w->positions);
    whole(to, "projection in", 0, false, KVD_PART_PROJECT_IN, to->type, w->project_in);
    whole(to, "final norm", 0, false, KVD_PART_NORM_FINAL, KVD_F32, w->norm_final);
    whole(to, "bias of the final norm", 0, true, KVD_PART_NORM_FINAL, KVD_F32, w->norm_final_bias);
    if (w->share.index == 0) {
        whole(to, "projection out", 0, false, KVD_PART_PROJECT_OUT, to->type, w->project_out);
        whole(to, "head", 0, false, head, to->type, w->head);
    } else {
        to->wrong += w->head != NULL || w->project_out != NULL;
    }
}

static void test_share(const char *name, const kvd_checkpoint *c, kvd_dtype type, int index,
                       int count)
{
    kvd_err err = {""};
    kvd_gpu_share share;
    kvd_gpu_weights w;
    comparison to = {.name = name, .c = c, .type = type};
    if (kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_PASS, index, count, &share, &err))
        return;
    if (kvd_gpu_weights_load(&w, c, type, &share, false, &err)) {
        test_result(0, name, "%s: %s", kvd_dtype_name(type), err.msg);
        return;
    }
    for (int l = 0; l < w.config.n_layers; l++) {
        compare_layer(&to, &w, l);
        compare_experts(&to, &w, l);
    }
    compare_rest(&to, &w);
    test_result(to.wrong == 0 && to.arrays > 0, name,
                "%s, share %d of %d: %zu of %zu arrays differ", kvd_dtype_name(type), index, count,
                to.wrong, to.arrays);
    kvd_gpu_weights_release(&w);
}

static void test_checkpoint(const char *name, kvd_checkpoint *c, const kvd_err *err)
{
    if (!c) {
        test_result(0, name, "%s", err->msg);
        return;
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        test_share(name, c, bf16 ? KVD_BF16 : KVD_F32, 0, 1);
        test_share(name, c, bf16 ? KVD_BF16 : KVD_F32, 0, 2);
        test_share(name, c, bf16 ? KVD_BF16 : KVD_F32, 1, 2);
    }
    kvd_checkpoint_close(c);
}

static const kvd_shape grouped = {
    "small", "small", "made up",
    "{\"architectures\":[\"FalconForCausalLM\"],\"model_type\":\"falcon\",\"alibi\":false,\"bias\":true,"
    "\"new_decoder_architecture\":true,\"num_kv_heads\":2,\"num_attention_heads\":6,\"hidden_size\":96,"
    "\"ffn_hidden_size\":100,\"num_hidden_layers\":2,\"layer_norm_epsilon\":1e-05,\"vocab_size\":80}"};

static void test_large(void)
{
    kvd_err err = {""};
    char path[64];
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 1;
    s.d_model = 512;
    s.ffn = 17000;
    s.dtype = KVD_BF16;
    (void)snprintf(path, sizeof path, "%s/m", temp_folder());
    test_checkpoint("large",
                    make_checkpoint(path, &s, &err) ? NULL : kvd_checkpoint_open(path, &err), &err);
}

static void test_refusals(void)
{
    kvd_err err = {""};
    kvd_gpu_share share;
    const kvd_config c = {.n_heads = 6, .n_kv_heads = 3, .d_ffn = 40};
    const int heads = kvd_gpu_share_of(&c, KVD_GPU_PASS, 0, 2, &share, &err) &&
                      !strcmp(err.msg, "3 KV heads do not divide by 2 GPUs");
    const int ffn = kvd_gpu_share_of(&c, KVD_GPU_PASS, 0, 3, &share, &err) &&
                    !strcmp(err.msg, "a feed-forward block of width 40 does not divide by 3 GPUs");
    test_result(heads && ffn, "shares that do not divide", "%s", err.msg);
}

/* usage: gpu_weights [NAME]; NAME: part of a case's name */
int main(int argc, char **argv)
{
#define NAME(name) "tests/data/families/" name
    static const char *const path[] = {FAMILIES(NAME),
                                       ROUTED(NAME),
                                       LATENT(NAME),
                                       "tests/data/gguf/falcon-40b.gguf",
                                       "tests/data/gguf/gqa.gguf",
                                       "tests/data/gguf/phi3-long.gguf",
                                       "tests/data/gguf/llama-f16.gguf",
                                       "tests/data/gguf/llama-q8_0.gguf",
                                       "tests/data/gguf/llama-q4_0.gguf"};
    if (!gpu_devices("weights on the device", 1))
        return 0;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        kvd_err err = {""};
        if (argc < 2 || strstr(path[i], argv[1]))
            test_checkpoint(path[i] + strlen("tests/data/"), kvd_checkpoint_open(path[i], &err),
                            &err);
    }
    kvd_err err = {""};
    test_checkpoint("random", kvd_checkpoint_of_shape(&grouped, 3, &err), &err);
    test_large();
    test_refusals();
    return failures ? 1 : 0;
}
