/* Computes the routed experts of a mixture-of-experts layer on the GPU. Repeating a batch gives
 * exactly the same bits. */
#include "model/pass/cuda/layer.h"

static int score(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    kvd_gpu_expert_buffers *const e = &w->experts;
    e->routes.n = n;
    e->routes.bias = l->bias_router;
    e->routes.bias_choice = l->bias_choice;
    return kvd_gpu_product(w, e->normed, l->router, KVD_F32, n, (size_t)w->config.d_model,
                           e->routes.n_experts, e->routes.logit, KVD_F32, 0, KVD_GPU_GATE_UP, err);
}

static int route(kvd_gpu_worker *w, kvd_err *err)
{
    kvd_gpu_expert_buffers *const e = &w->experts;
    if (kvd_gpu_launched(w, kvd_gpu_route(&e->routes, w->stream), KVD_GPU_GATE_UP, err) ||
        kvd_queue_get(e->count, e->routes.count, e->routes.n_experts * sizeof *e->count, w->stream,
                      "routed experts", err))
        return -1;
    return w->sum ? kvd_gpu_sum_wait(w->sum, w->weights.share.index, w->stream, err)
                  : kvd_cuda_check(cudaStreamSynchronize(w->stream), "routed experts", err);
}

/* Computes the output of expert x for the n tokens in `in`, which is in device memory. */
static int run_expert(kvd_gpu_worker *w, const kvd_gpu_expert *x, const void *in, size_t n,
                      size_t width, int clamped, kvd_err *err)
{
    const kvd_config *const c = &w->config;
    const kvd_dtype type = w->weights.type;
    const size_t d = (size_t)c->d_model;
    if (kvd_gpu_product(w, in, x->gate_up, type, n, d, 2 * width, w->wide, type, 0, KVD_GPU_GATE_UP,
                        err))
        return -1;
    const cudaError_t e = clamped
                              ? kvd_gpu_swiglu_clamped(type, w->wide, x->bias_gate_up, n, width,
                                                       (float)c->expert_alpha,
                                                       (float)c->expert_limit, w->narrow, w->stream)
                              : kvd_gpu_activate(c->activation, type, w->wide, x->bias_gate_up, n,
                                                 width, w->narrow, w->stream);
    return kvd_status(kvd_gpu_launched(w, e, KVD_GPU_ACTIVATION, err) ||
                      kvd_gpu_product(w, w->narrow, x->down, type, n, width, d, w->experts.out,
                                      KVD_F32, 0, KVD_GPU_DOWN, err));
}

static int add_routed(kvd_gpu_worker *w, const kvd_gpu_layer *l, kvd_err *err)
{
    const kvd_gpu_expert_buffers *const e = &w->experts;
    const size_t d = (size_t)w->config.d_model;
    kvd_gpu_expert_stream *const streamed = w->weights.streamed;
    for (size_t i = 0, first = 0; i < e->routes.n_experts; first += e->count[i], i++) {
        const size_t n = e->count[i];
        kvd_gpu_expert here = l->expert[i];
        const kvd_gpu_expert *const x = &here;
        if (n == 0)
            continue;
        if (streamed && kvd_gpu_expert_fetch(streamed, (int)(l - w->weights.layer), (int)i,
                                             w->stream, &here, err))
            return -1;
        /* Bias of the expert. Only the first GPU adds it, because the outputs of all GPUs are
         * summed. */
        const float *const bias = w->weights.share.index == 0 ? here.bias_down : NULL;
        if (kvd_gpu_launched(w,
                             kvd_gpu_gather(w->weights.type, w->normed, e->routes.row + first, n, d,
                                            e->in, w->stream),
                             KVD_GPU_GATE_UP, err) ||
            run_expert(w, x, e->in, n, (size_t)w->weights.share.n_expert,
                       w->config.expert_limit > 0, err) ||
            kvd_gpu_launched(w,
                             kvd_gpu_scatter(e->out, bias, e->routes.row + first,
                                             e->routes.weight + first, n, d, w->x, w->stream),
                             KVD_GPU_DOWN, err) ||
            (streamed && kvd_gpu_expert_used(streamed, w->stream, err)))
            return -1;
    }
    return 0;
}

static int add_shared(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_gpu_expert_buffers *const e = &w->experts;
    const size_t d = (size_t)w->config.d_model;
    if (l->shared_scale &&
        kvd_gpu_launched(w, kvd_gpu_gate(e->normed, l->shared_scale, n, d, e->shared, w->stream),
                         KVD_GPU_GATE_UP, err))
        return -1;
    return run_expert(w, &l->shared, w->normed, n, (size_t)w->weights.share.n_shared, 0, err) ||
                   kvd_gpu_launched(w,
                                    kvd_gpu_scatter(e->out, NULL, NULL,
                                                    l->shared_scale ? e->shared : NULL, n, d, w->x,
                                                    w->stream),
                                    KVD_GPU_DOWN, err)
               ? -1
               : 0;
}

bool kvd_gpu_experts_stay(const kvd_gpu_worker *w, size_t n)
{
    const kvd_gpu_expert_buffers *const e = &w->experts;
    return w->config.n_experts == 0 ||
           (!w->weights.streamed && e->most_few && (n <= e->most_few || e->many));
}

/* Adds the outputs of the routed experts for n tokens to w->x, and also the vector `add` unless it
 * is NULL. A kernel launch takes at most e->most_few tokens. */
static int add_few(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, const float *add,
                   kvd_err *err)
{
    const kvd_gpu_expert_buffers *const e = &w->experts;
    const size_t experts = e->routes.n_experts, d = (size_t)w->config.d_model;
    kvd_gpu_few_experts few = e->few;
    few.expert = e->table + (size_t)(l - w->weights.layer) * experts;
    few.first = w->weights.share.index == 0;
    few.add = add;
    for (size_t first = 0; first < n; first += e->most_few) {
        few.routes = e->routes;
        few.routes.n = n - first < e->most_few ? n - first : e->most_few;
        few.routes.logit += first * experts;
        few.x = (const uint16_t *)w->normed + first * d;
        few.y = w->x + first * d;
        if (kvd_gpu_launched(w, kvd_gpu_few_experts_add(&few, w->stream), KVD_GPU_DOWN, err))
            return -1;
    }
    return 0;
}

static int add_experts(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const size_t size = n * (size_t)w->config.d_model;
    if (w->weights.type != KVD_F32 &&
        kvd_cuda_check(kvd_gpu_convert(KVD_F32, w->experts.normed, w->weights.type, w->normed, size,
                                       w->stream),
                       "routed experts", err))
        return -1;
    /* Only the first GPU includes the residual stream, because the results of all GPUs are summed.
     * Other GPUs start with zeros. */
    if (w->weights.share.index > 0 &&
        kvd_cuda_check(cudaMemsetAsync(w->x, 0, size * sizeof *w->x, w->stream), "routed experts",
                       err))
        return -1;
    if (score(w, l, n, err) ||
        (kvd_gpu_experts_stay(w, n) ? add_few(w, l, n, NULL, err)
                                    : route(w, err) || add_routed(w, l, err)))
        return -1;
    return l->shared.gate_up ? add_shared(w, l, n, err) : 0;
}

bool kvd_gpu_experts_norm(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n)
{
    return w->experts.most_few && kvd_gpu_experts_stay(w, n) && w->config.norm == KVD_NORM_RMS &&
           !l->shared.gate_up && kvd_gpu_norm_route_takes(n, (size_t)w->config.d_model);
}

static int norm_and_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    kvd_gpu_routes *const r = &w->experts.routes;
    const size_t d = (size_t)w->config.d_model;
    const float *const add = w->pending;
    const kvd_gpu_norm_route a = {.n = n,
                                  .d = d,
                                  .n_experts = r->n_experts,
                                  .x = w->x,
                                  .add = add,
                                  .gain = l->norm[1],
                                  .eps = w->config.norm_eps,
                                  .router = l->router,
                                  .overlaps = w->experts.few.overlaps,
                                  .normed = w->normed,
                                  .logit = r->logit,
                                  .stage = w->stage,
                                  .bad = w->bad};
    r->n = n;
    r->bias = l->bias_router;
    r->bias_choice = l->bias_choice;
    w->pending = NULL;
    return kvd_gpu_launched(w, kvd_gpu_norm_route_run(&a, w->stream), KVD_GPU_GATE_UP, err) ||
                   add_few(w, l, n, w->weights.share.index == 0 ? add : NULL, err)
               ? -1
               : 0;
}

int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_gpu_queued queued = w->queued;
    if (w->experts.one_phase)
        w->queued = NULL;
    const int status =
        kvd_gpu_experts_norm(w, l, n) ? norm_and_add(w, l, n, err) : add_experts(w, l, n, err);
    w->queued = queued;
    return kvd_status(
        status || (w->experts.one_phase && kvd_gpu_launched(w, cudaSuccess, KVD_GPU_DOWN, err)));
}
