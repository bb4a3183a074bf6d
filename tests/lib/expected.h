/* Reads activations of small test models that Hugging Face Transformers computed. Records the same
 * activations in kvdim's forward pass on the CPU. */
#ifndef KVD_TESTS_EXPECTED_H
#define KVD_TESTS_EXPECTED_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "model/checkpoint/safetensors.h"
#include "model/pass/forward.h"

enum { Q_PRE, Q, K_PRE, K, V, O, LOGITS, N_KINDS };
static const char *const kind_name[N_KINDS] = {"q_pre", "q", "k_pre", "k", "v", "o", "logits"};

/* Lists test models for which kvdim computes gradients on the CPU and on GPUs. */
#define GPU_FAMILIES(X)                                                                            \
    X("llama-biases"), X("mistral-window"), X("mistral-full"), X("qwen2-gqa"), X("qwen2-window"),  \
        X("qwen3-gqa"), X("qwen3-mqa"), X("phi3-short"), X("phi3-long"), X("phi3-window"),         \
        X("opt-before"), X("opt-after"), X("opt-nobias"), X("falcon-7b"), X("falcon-40b"),         \
        X("falcon-11b"), X("falcon-mha"), X("starcoder2-window"), X("starcoder2-nobias"),          \
        X("starcoder2-mha"), X("qwen3-yarn"), X("llama-yarn"), X("ministral"), X("seed-oss"),      \
        X("ernie"), X("internlm3"), X("mistral3"), X("arcee"), X("internlm2")
/* Lists test models for which kvdim computes gradients on the CPU, but not on GPUs. */
#define CPU_FAMILIES(X)                                                                            \
    X("gemma-mha"), X("gemma-mqa"), X("gemma2-caps"), X("gemma2-mqa"), X("gemma2-wide"),           \
        X("gemma3-text"), X("gemma3-vision"), X("gemma3-mqa"), X("olmo2-gqa"), X("olmo2-mha"),     \
        X("olmo2-mqa"), X("olmo3-yarn"), X("glm4-half"), X("glm4-part"), X("glm4-mha"),            \
        X("glm-half"), X("phi3-partial"), X("phi3-partial-short"), X("phi3-partial-window"),       \
        X("smollm3"), X("exaone4"), X("granite"), X("minicpm"), X("cohere"), X("cohere2"),         \
        X("gpt-neox"), X("gpt-neox-serial"), X("stablelm"), X("stablelm-parallel"), X("nemotron")
/* Lists models without routed experts. */
#define FAMILIES(X) GPU_FAMILIES(X), CPU_FAMILIES(X)

/* Lists test models with routed experts. kvdim does not compute their gradients on GPUs. */
#define ROUTED(X)                                                                                  \
    X("mixtral-full"), X("mixtral-window"), X("mixtral-mha"), X("qwen3-moe-norm"),                 \
        X("qwen3-moe-plain"), X("qwen3-moe-mqa"), X("qwen2-moe"), X("qwen2-moe-nobias"),           \
        X("gpt-oss"), X("gpt-oss-mxfp4"), X("gpt-oss-mha"), X("glm4-moe"), X("olmoe"), X("dots1"), \
        X("solar-open"), X("minimax-m2")

/* Lists models with latent attention, whose gradients kvdim does not compute. */
#define LATENT(X)                                                                                  \
    X("deepseek-v2"), X("deepseek-v2-lite"), X("deepseek-v2-odd"), X("deepseek-v3"),               \
        X("deepseek-v3-plain"), X("deepseek-v3-odd"), X("glm4-moe-lite"), X("youtu")

static inline size_t width_of(const kvd_config *c, int kind)
{
    switch (kind) {
    case LOGITS:
        return (size_t)c->vocab_size;
    case Q_PRE:
    case Q:
    case O:
        return (size_t)c->n_heads * (size_t)c->d_head;
    default:
        return (size_t)c->n_kv_heads * (size_t)c->d_head;
    }
}

/* activations of one sequence, computed by Transformers and read from a file by expected_read; the
 * caller must set all fields to 0 before that */
typedef struct {
    size_t n, n_rows, n_layers;
    uint32_t *id; /* token ids, [n] */
    /* indices of the tokens [n_rows] and of the layers [n_layers] whose activations the file has,
     * as float32 */
    float *row, *layer;
    /* per kind of activation: values [n_layers][n_rows][width], or logits [n_rows][vocab] */
    float *want[N_KINDS];
} expectation;

static inline void expected_release(expectation *e)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        free(e->want[kind]);
    free(e->id);
    free(e->row);
    free(e->layer);
    memset(e, 0, sizeof *e);
}

static inline float *expected_array(const kvd_safetensors *s, const char *name, size_t *n,
                                    kvd_err *err)
{
    kvd_tensor t;
    if (kvd_safetensors_find(s, name, &t, err))
        return NULL;
    float *x = malloc((t.n ? t.n : 1) * sizeof *x);
    if (!x) {
        kvd_no_memory(err, name, t.n * sizeof *x);
        return NULL;
    }
    kvd_to_f32(t.dtype, t.data, x, t.n);
    *n = t.n;
    return x;
}

static inline int expected_read(const char *path, const kvd_config *c, expectation *e, kvd_err *err)
{
    kvd_safetensors *s = kvd_safetensors_open(path, err);
    int status = -1;
    float *id = NULL;
    if (!s || !(id = expected_array(s, "id", &e->n, err)) ||
        !(e->row = expected_array(s, "row", &e->n_rows, err)) ||
        !(e->layer = expected_array(s, "layer", &e->n_layers, err)))
        goto done;
    e->id = malloc(e->n * sizeof *e->id);
    if (!e->id) {
        kvd_no_memory(err, "ids", e->n * sizeof *e->id);
        goto done;
    }
    for (size_t i = 0; i < e->n; i++)
        e->id[i] = (uint32_t)id[i];
    for (int kind = 0; kind < N_KINDS; kind++) {
        size_t size = 0;
        const size_t layers = kind == LOGITS ? 1 : e->n_layers;
        if (!(e->want[kind] = expected_array(s, kind_name[kind], &size, err)))
            goto done;
        if (size != layers * e->n_rows * width_of(c, kind)) {
            kvd_fail(err, "'%s': '%s' has %zu elements", path, kind_name[kind], size);
            goto done;
        }
    }
    status = 0;
done:
    free(id);
    kvd_safetensors_close(s);
    return status;
}

static inline size_t expected_layers(const expectation *e, int kind)
{
    return kind == LOGITS ? 1 : e->n_layers;
}

/* Returns the relative error of one layer's activations. x [layers][n][width]: computed
 * activations. *e: expected activations from a file. l: index of the layer among the layers in the
 * file. */
static inline double expected_error(const expectation *e, const kvd_config *c, int kind, size_t l,
                                    const float *x)
{
    const size_t width = width_of(c, kind), layer = kind == LOGITS ? 0 : (size_t)e->layer[l];
    double error = 0, square = 0;
    for (size_t r = 0; r < e->n_rows; r++)
        for (size_t j = 0; j < width; j++) {
            const double want = (double)e->want[kind][(l * e->n_rows + r) * width + j];
            const double got = (double)x[(layer * e->n + (size_t)e->row[r]) * width + j];
            error += (want - got) * (want - got);
            square += want * want;
        }
    const double relative = sqrt(error / square);
    return square > 0 && isfinite(relative) ? relative : INFINITY;
}

/* activations of n tokens: x[kind] is [n_layers][n][width_of(kind)], 0 in layers that did not
 * run */
typedef struct {
    const kvd_config *c;
    size_t n;
    int layers; /* layers that ran (on the first GPU) */
    float *x[N_KINDS];
} recording;

static inline void recording_init(recording *to, const kvd_config *c, size_t n)
{
    *to = (recording){.c = c, .n = n};
    for (int kind = 0; kind < N_KINDS; kind++) {
        const size_t layers = kind == LOGITS ? 1 : (size_t)c->n_layers;
        to->x[kind] = calloc(layers * n * width_of(c, kind), sizeof *to->x[kind]);
        if (!to->x[kind])
            abort();
    }
}

static inline void recording_release(recording *to)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        free(to->x[kind]);
}

static inline void recording_keep(recording *to, int kind, int layer, const float *x)
{
    const size_t size = to->n * width_of(to->c, kind);
    memcpy(to->x[kind] + (size_t)layer * size, x, size * sizeof *x);
}

static inline int record_cpu(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    recording *const to = ctx;
    if (in->layer != to->layers++)
        return kvd_fail(err, "layer %d ran instead of %d", in->layer, to->layers - 1);
    recording_keep(to, Q_PRE, in->layer, in->q_pre);
    recording_keep(to, K_PRE, in->layer, in->k_pre);
    recording_keep(to, Q, in->layer, in->q);
    recording_keep(to, K, in->layer, in->k);
    recording_keep(to, V, in->layer, in->v);
    return 0;
}

static inline int output_cpu(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err)
{
    (void)err;
    recording_keep(ctx, O, in->layer, out);
    return 0;
}

/* Runs the CPU's forward pass up to layer last_layer and records activations in *to. If last_layer
 * < 0, runs all layers and computes logits. The caller must release *to with recording_release. */
static inline int run_cpu(const kvd_checkpoint *checkpoint, const kvd_batch *b, int last_layer,
                          recording *to, kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const size_t n = b->offset[b->n_sequences], most = (size_t)c->max_positions;
    kvd_dense_attention dense;
    kvd_capture capture;
    kvd_forward *const f = kvd_forward_new(checkpoint, n, n < most ? n : most, err);
    float *const hidden = calloc(n * (size_t)c->d_model, sizeof *hidden);
    if (!hidden)
        abort();
    recording_init(to, c, n);
    kvd_dense_attention_init(&dense);
    kvd_capture_init(&capture, &dense.hook);
    capture.hook.wants_pre = 1;
    capture.record = record_cpu;
    capture.output = output_cpu;
    capture.ctx = to;
    int status =
        !f || kvd_forward_run(f, b, &capture.hook, last_layer, last_layer < 0 ? hidden : NULL, err);
    if (!status && last_layer < 0)
        status = kvd_forward_logits(f, hidden, n, to->x[LOGITS], err);
    kvd_dense_attention_release(&dense);
    kvd_forward_free(f);
    free(hidden);
    return status ? -1 : 0;
}

static inline uint32_t *some_ids(size_t n, size_t vocab, uint64_t seed)
{
    uint32_t *const id = malloc(n * sizeof *id);
    kvd_rng rng;
    if (!id)
        abort();
    kvd_rng_seed(&rng, seed, 0);
    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)kvd_rng_below(&rng, vocab);
    return id;
}

#endif
