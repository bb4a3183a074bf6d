/* Runs a model's layers on a GPU, except attention, which a callback computes on the CPU. */
#include <math.h>
#include <stdlib.h>

#include "evaluate/generate/generate_path.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/host_hook.h"

static const char what[] = "generation";

typedef struct {
    kvd_generate_pass pass;
    const kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_generator_spec spec;
    const kvd_gpu_weights *weights; /* weights in GPU memory, borrowed */
    kvd_gpu_forward *forward;
    size_t room; /* number of tokens for which `forward` now has memory */
    kvd_device_memory memory;
    /* [max_tokens][d_model] hidden states after the last layer, on the GPU */
    float *hidden;
    /* [sequences][d_model] hidden state of the last token of each sequence, on the GPU */
    float *last;
    float *logits;
} gpu_pass;

static gpu_pass *of(kvd_generate_pass *p)
{
    return (gpu_pass *)(void *)p;
}

static void release(kvd_generate_pass *p)
{
    gpu_pass *const g = of(p);
    kvd_generate_use_gpu(&g->spec);
    kvd_device_release(&g->memory);
    kvd_gpu_forward_free(g->forward);
    free(g);
}

/* Opens the forward pass with memory for `times` * g->spec.max_tokens tokens, unless it already has
 * that much memory. */
static int make_room(gpu_pass *g, size_t times, kvd_err *err)
{
    const size_t most = (size_t)g->config->max_positions, len = times * g->spec.max_len;
    const kvd_gpu_forward_spec spec = {.type = g->spec.compute,
                                       .first_gpu = g->spec.first_gpu,
                                       .n_gpus = 1,
                                       .weights = g->weights,
                                       .max_tokens = times * g->spec.max_tokens,
                                       .max_len = len < most ? len : most};
    if (g->forward && spec.max_tokens <= g->room)
        return 0;
    kvd_gpu_forward_free(g->forward);
    g->forward = kvd_gpu_forward_new(g->checkpoint, &spec, err);
    g->room = spec.max_tokens;
    return g->forward ? 0 : -1;
}

/* Runs a batch. If `hidden` is NULL, stops after the last layer's attention. */
static int run_with(gpu_pass *g, const kvd_batch *b, kvd_attention *inner, float *hidden,
                    kvd_err *err)
{
    kvd_host_hook bridge = {.inner = NULL};
    kvd_gpu_attention *const hook = &bridge.hook;
    const int status =
        kvd_host_hook_init(&bridge, g->config, &kvd_gpu_forward_weights(g->forward, 0)->share,
                           g->spec.compute, b->offset[b->n_sequences], inner, err) ||
        kvd_gpu_forward_run(g->forward, b, &hook, -1, hidden, err);
    kvd_host_hook_release(&bridge);
    return status ? -1 : 0;
}

static int first(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err)
{
    gpu_pass *const g = of(p);
    return make_room(g, twice ? 2 : 1, err) || run_with(g, b, &prompts->hook, NULL, err) ? -1 : 0;
}

static int run(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err)
{
    gpu_pass *const g = of(p);
    const size_t d = (size_t)g->config->d_model;
    if (run_with(g, b, hook, g->hidden, err))
        return -1;
    for (size_t s = 0; s < b->n_sequences; s++)
        if (kvd_queue_copy(g->last + s * d, g->hidden + (b->offset[s + 1] - 1) * d,
                           d * sizeof *g->last, kvd_gpu_forward_stream(g->forward, 0), what, err))
            return -1;
    return 0;
}

static int logits(kvd_generate_pass *p, size_t from, size_t n, float *to, kvd_err *err)
{
    gpu_pass *const g = of(p);
    const size_t d = (size_t)g->config->d_model, vocab = (size_t)g->config->vocab_size;
    const cudaStream_t stream = kvd_gpu_forward_stream(g->forward, 0);
    if (kvd_gpu_forward_logits(g->forward, g->last + from * d, n, g->logits, err) ||
        kvd_queue_get(to, g->logits, n * vocab * sizeof *to, stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), what, err))
        return -1;
    for (size_t i = 0; i < n * vocab; i++)
        if (!isfinite(to[i]))
            return kvd_fail(err, "'%s': logit of token %zu is not finite, in row %zu of the batch",
                            kvd_checkpoint_path(g->checkpoint), i % vocab, from + i / vocab);
    return 0;
}

/* Sets *streamed if experts must be copied to the GPU during each pass, because the model's weights
 * exceed 7/8 of the free GPU memory. */
static int must_stream(const kvd_config *config, kvd_dtype type, const kvd_gpu_share *share,
                       bool *streamed, kvd_err *err)
{
    size_t left = 0, total = 0;
    if (kvd_cuda_check(cudaMemGetInfo(&left, &total), "weights", err))
        return -1;
    *streamed = config->n_experts > 0 &&
                kvd_gpu_weights_bytes(config, type, share, false) > left - left / 8;
    return 0;
}

void kvd_generate_use_gpu(const kvd_generator_spec *s)
{
    /* Ignores a failure, because the next CUDA call reports it. */
    (void)cudaSetDevice(s->first_gpu);
}

kvd_gpu_weights *kvd_generate_weights_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          kvd_err *err)
{
    kvd_gpu_weights *const w = calloc(1, sizeof *w);
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_gpu_share share;
    bool streamed = false;
    if (!w) {
        kvd_no_memory(err, "weights", sizeof *w);
        return NULL;
    }
    kvd_generate_use_gpu(s);
    if (kvd_gpu_share_of(config, KVD_GPU_PASS, 0, 1, &share, err) ||
        must_stream(config, s->compute, &share, &streamed, err) ||
        kvd_gpu_weights_load(w, c, s->compute, &share, streamed, err)) {
        free(w);
        return NULL;
    }
    return w;
}

void kvd_generate_weights_free(kvd_gpu_weights *w, const kvd_generator_spec *s)
{
    if (!w)
        return;
    kvd_generate_use_gpu(s);
    kvd_gpu_weights_release(w);
    free(w);
}

kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          const kvd_gpu_weights *weights, size_t piece,
                                          kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t row = (size_t)config->d_model * sizeof(float);
    gpu_pass *const g = kvd_new(1, sizeof *g, what, err);
    if (!g)
        return NULL;
    *g = (gpu_pass){.pass = {.first = first, .run = run, .logits = logits, .free = release},
                    .checkpoint = c,
                    .config = config,
                    .spec = *s,
                    .weights = weights};
    if (!make_room(g, 1, err) &&
        (g->hidden = kvd_device_new(&g->memory, s->max_tokens * row, what, err)) &&
        (g->last = kvd_device_new(&g->memory, s->max_tokens * row, what, err)) &&
        (g->logits = kvd_device_new(
             &g->memory, piece * (size_t)config->vocab_size * sizeof *g->logits, "logits", err)))
        return &g->pass;
    release(&g->pass);
    return NULL;
}
