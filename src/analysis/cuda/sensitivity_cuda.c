/* Sums x x^T over tokens on a GPU. The vectors x are queries q, head outputs o, and gradients of
 * the loss with respect to q and o. */
#include <stdlib.h>

#include "analysis/sensitivity.h"
#include "common/cuda/gram.h"
#include "model/pass/cuda/backward.h"

enum { KINDS = KVD_SENSITIVITY_KINDS };

static const char what[] = "sums of gradients";

typedef struct {
    kvd_sensitivity_engine hook; /* must be the first field */
    kvd_sensitivity_spec spec;
    kvd_gpu_backward *pass;
    size_t n_layers, n_kv_heads, group, d;
    kvd_device_memory memory;
    /* [n_layers][KINDS][n_kv_heads][d][d] sums over tokens of x x^T, lower triangles only. Kinds of
     * x: queries q, gradients dL/dq of the loss L, head outputs o, gradients dL/do. */
    double *sum;
    double *scratch;
} engine;

static engine *self_of(kvd_sensitivity_engine *e)
{
    return (engine *)(void *)e;
}

static size_t layer_count(const engine *s)
{
    return KINDS * s->n_kv_heads * s->d * s->d;
}

static int allocate(engine *s, kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(s->spec.checkpoint);
    if (c->d_head > KVD_GRAM_MAX_D)
        return kvd_fail(err, "%s on the GPU: heads of %d dimensions, %d at most; use --device cpu",
                        what, c->d_head, (int)KVD_GRAM_MAX_D);
    s->n_layers = (size_t)c->n_layers;
    s->n_kv_heads = (size_t)c->n_kv_heads;
    s->group = (size_t)kvd_config_group(c);
    s->d = (size_t)c->d_head;
    const size_t bytes = s->n_layers * layer_count(s) * sizeof *s->sum;
    return kvd_status(
        !(s->sum = kvd_device_new(&s->memory, bytes, what, err)) ||
        !(s->scratch = kvd_device_new(
              &s->memory, kvd_gram_scratch_bytes(2 * c->n_kv_heads, c->d_head), what, err)) ||
        kvd_device_zero(s->sum, bytes, what, err));
}

/* Queues two sums of x x^T over vectors x: one sum over queries, and one over head outputs. If
 * `kind` is 1, x is instead the gradient of the loss with respect to the query or head output. */
static int add_two(const engine *s, const kvd_gpu_gradients *g, size_t member, int kind, bool bf16,
                   const void *const x[2], const size_t ld[2], kvd_err *err)
{
    const size_t matrices = s->n_kv_heads * s->d * s->d, bytes = bf16 ? 2 : 4;
    double *const to = s->sum + (size_t)g->layer * layer_count(s);
    kvd_gram_args a = {
        .bf16 = bf16, .d = (int)s->d, .n_rows = g->n_tokens, .n_parts = 2, .scratch = s->scratch};
    for (int i = 0; i < 2; i++)
        a.part[i] = (kvd_gram_part){.x = (const char *)x[i] + member * s->d * bytes,
                                    .head_stride = s->group * s->d,
                                    .row_stride = ld[i],
                                    .dim_stride = 1,
                                    .n_heads = (int)s->n_kv_heads,
                                    .G = to + (size_t)(kind + 2 * i) * matrices};
    return kvd_cuda_check(kvd_gram_add_rows(&a, g->stream), what, err);
}

static int take(void *ctx, const kvd_gpu_gradients *g, kvd_err *err)
{
    const engine *const s = ctx;
    const size_t width = s->n_kv_heads * s->group * s->d, of_rows[] = {g->ld, width},
                 of_gradients[] = {g->ld_d, width};
    const void *const rows[] = {g->q, g->o}, *const gradients[] = {g->dq, g->d_o};
    for (size_t member = 0; member < s->group; member++)
        if (add_two(s, g, member, 0, g->type == KVD_BF16, rows, of_rows, err) ||
            add_two(s, g, member, 1, false, gradients, of_gradients, err))
            return -1;
    return 0;
}

static int give_up(void *ctx, kvd_err *err)
{
    const engine *const e = ctx;
    return e->spec.give_up(err);
}

static int run(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err)
{
    const kvd_gpu_gradient_sink sink = {take, give_up, e};
    return kvd_gpu_backward_run(self_of(e)->pass, b, 0, &sink, &e->loss, &e->n_predicted, err);
}

static int flush(kvd_sensitivity_engine *e, kvd_err *err)
{
    engine *const s = self_of(e);
    const size_t n = s->n_layers * KINDS * s->n_kv_heads;
    const cudaStream_t stream = kvd_gpu_backward_stream(s->pass);
    double *const sums = kvd_sensitivity_sums(s->spec.sums);
    return kvd_status(
        kvd_cuda_check(kvd_gram_mirror(s->sum, n, (int)s->d, stream), what, err) ||
        kvd_queue_get(sums, s->sum, n * s->d * s->d * sizeof *sums, stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), what, err));
}

static const char *describe(const kvd_sensitivity_engine *e)
{
    return kvd_gpu_backward_engine(((const engine *)(const void *)e)->pass);
}

static void release(kvd_sensitivity_engine *e)
{
    kvd_device_release(&self_of(e)->memory);
    kvd_gpu_backward_free(self_of(e)->pass);
    free(self_of(e));
}

kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err)
{
    engine *const e = kvd_new(1, sizeof *e, "the backward pass", err);
    if (!e)
        return NULL;
    e->hook =
        (kvd_sensitivity_engine){.run = run, .flush = flush, .describe = describe, .free = release};
    e->spec = *s;
    if (!(e->pass =
              kvd_gpu_backward_new(s->checkpoint, s->compute, 0, s->max_tokens, s->max_len, err)) ||
        allocate(e, err)) {
        release(&e->hook);
        return NULL;
    }
    kvd_gpu_backward_draw(e->pass, s->seed);
    return &e->hook;
}
