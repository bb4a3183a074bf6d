/* Token budgets that depend on the scores of all layers, or on the KV heads of all GPUs. */
#include <string.h>

#include "methods/cuda/host_codes.h"
#include "methods/tokens/cuda/uneven.h"

static const char what[] = "eviction with budgets of heads";

size_t kvd_uneven_gpus(const kvd_uneven *e)
{
    return e->joined ? (size_t)e->method.cache->share->count : 1;
}

static kvd_evict_layers statistics_of(const kvd_uneven *e, size_t i)
{
    const kvd_step_batch *const b = e->method.cache->batch;
    const size_t n = (size_t)b->host.q_len[i], slot = (size_t)b->host.slot[i],
                 each = e->late.spreads ? 2 : n;
    const size_t gpus = e->late.spreads ? kvd_uneven_gpus(e) : 1,
                 pairs = e->layers * e->n_slots * 2;
    memset(e->late.x, 0, e->layers * each * sizeof *e->late.x);
    for (size_t j = 0; j < gpus * e->layers * each; j++) {
        const size_t gpu = j / (e->layers * each), l = j / each % e->layers, t = j % each;
        e->late.x[l * each + t] +=
            e->late.spreads ? e->late.pairs[gpu * pairs + (l * e->n_slots + slot) * 2 + t]
                            : (double)e->late.scores[l * b->n_q8 + (size_t)b->host.q_start[i] + t];
    }
    return (kvd_evict_layers){.n = n, .n_layers = (int)e->layers, .x = e->late.x, .each = each};
}

/* Computes the token budgets on the host. A CUDA stream calls this function, so it must not call
 * CUDA. */
static void CUDART_CB divide(void *of_method)
{
    kvd_uneven *const e = of_method;
    const kvd_plan *const p = e->method.plan;
    for (size_t i = e->late.first; i < e->late.end && !*e->late.err.msg; i++) {
        const size_t slot = (size_t)e->method.cache->batch->host.slot[i];
        const kvd_evict_layers s = statistics_of(e, i);
        if (p->tokens->eviction->divide(&p->tokens_values, &s, e->late.of_layer, &e->late.err))
            return;
        for (size_t l = 0; l < e->layers; l++)
            e->budget[l * e->n_slots + slot] = e->late.of_layer[l];
    }
}

static int divide_budgets(kvd_uneven *e, const kvd_paged_rows *r, kvd_err *err)
{
    const size_t pairs = kvd_uneven_gpus(e) * e->layers * e->n_slots * 2,
                 scores = e->layers * e->late.ranks * e->method.cache->batch->n_q8;
    e->late.first = r->steps;
    e->late.end = r->steps + r->prompts;
    const int status = e->late.spreads
                           ? kvd_queue_get(e->late.pairs, e->late.pair,
                                           pairs * sizeof *e->late.pairs, r->stream, what, err)
                           : kvd_queue_get(e->late.scores, e->late.rank,
                                           scores * sizeof *e->late.scores, r->stream, what, err);
    if (status || kvd_cuda_check(cudaLaunchHostFunc(r->stream, divide, e), what, err))
        return -1;
    return kvd_queue_put(e->there, e->budget, e->layers * e->n_slots * sizeof *e->budget, r->stream,
                         what, err);
}

/* Exchanges the entropy and variance of attention in each layer among the GPUs. */
static int exchange_pairs(const kvd_uneven *e, cudaStream_t stream, kvd_err *err)
{
    const kvd_gpu_share *const share = e->method.cache->share;
    const size_t each = e->layers * e->n_slots * 2;
    kvd_gpu_piece in[KVD_GPUS_MAX], out[KVD_GPUS_MAX];
    for (int i = 0; i < share->count; i++) {
        in[i] = (kvd_gpu_piece){i, e->late.pair + (size_t)i * each, each * sizeof *e->late.pair};
        out[i] = in[i];
        out[i].at = e->late.own;
    }
    const size_t n = (size_t)share->count;
    return kvd_gpu_sum_exchange(e->method.cache->worker->sum, share->index, out, n, in, n, stream,
                                err);
}

static int join_late(const kvd_uneven *e, cudaStream_t stream, kvd_err *err)
{
    const size_t n = e->layers * e->late.ranks * e->method.cache->batch->n_q8;
    return !e->joined        ? 0
           : e->late.spreads ? exchange_pairs(e, stream, err)
                             : kvd_gpu_method_add_up(&e->method, e->late.rank, n, stream, err);
}

int kvd_uneven_after_layers(kvd_uneven *e, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_uneven_prompts_args first =
        kvd_uneven_prompts_of(e, r, kvd_paged_full_layer(e->method.cache, 0));
    if (join_late(e, r->stream, err))
        return -1;
    if (e->late.shared
            ? kvd_cuda_check(kvd_uneven_threshold(&first, (int32_t)e->layers, r->stream), what, err)
            : divide_budgets(e, r, err))
        return -1;
    for (size_t l = 0; l < e->layers; l++) {
        kvd_uneven_prompts_args a =
            kvd_uneven_prompts_of(e, r, kvd_paged_full_layer(e->method.cache, l));
        a.stored = 1;
        a.decided = e->late.shared;
        a.first_head = e->late.shared ? (int32_t)(l * e->all) : 0;
        if (kvd_cuda_check(kvd_uneven_choose(&a, r->stream), what, err) ||
            kvd_host_entries_note(e->method.kept, a.prompt.layer, e->kept, r->stream, err))
            return -1;
    }
    return 0;
}

int kvd_uneven_choose_joined(const kvd_uneven *e, const kvd_uneven_prompts_args *a,
                             cudaStream_t stream, kvd_err *err)
{
    const size_t n = e->all * (size_t)a->prompt.n_q8,
                 vectors =
                     e->whole ? (size_t)a->prompt.batch * e->all * (size_t)a->prompt.map.d_v[0] : 0;
    return kvd_status(
        kvd_cuda_check(cudaMemsetAsync(e->rank, 0, n * sizeof *e->rank, stream), what, err) ||
        kvd_cuda_check(cudaMemsetAsync(e->vector, 0, vectors * sizeof *e->vector, stream), what,
                       err) ||
        kvd_cuda_check(kvd_uneven_rank(a, stream), what, err) ||
        kvd_cuda_check(kvd_uneven_vectors(a, stream), what, err) ||
        kvd_gpu_method_add_up(&e->method, e->rank, n, stream, err) ||
        (vectors && kvd_gpu_method_add_up(&e->method, e->vector, vectors, stream, err)) ||
        kvd_cuda_check(kvd_uneven_choose(a, stream), what, err));
}

int kvd_uneven_clear(const kvd_uneven *e, cudaStream_t stream, kvd_err *err)
{
    const size_t n = e->layers * e->late.ranks * e->method.cache->batch->n_q8;
    return kvd_cuda_check(cudaMemsetAsync(e->late.rank, 0, n * sizeof *e->late.rank, stream), what,
                          err);
}

int kvd_uneven_make_late(kvd_uneven *e, size_t rows, size_t slices, kvd_err *err)
{
    static const char scores[] = "scores of the prompts in all layers";
    const size_t n = e->layers * e->late.ranks * rows, each = e->late.spreads ? 2 : e->max_len,
                 heads = (size_t)e->method.cache->share->n_heads,
                 pages = rows / KVD_PAGE_TOKENS + slices;
    kvd_device_memory *const m = &e->memory;
    e->late.rank = kvd_device_new(m, n * sizeof *e->late.rank, scores, err);
    if (e->late.shared) { /* each prompt is followed by a copy of itself */
        e->prompts = kvd_device_new(m, slices * sizeof *e->prompts, scores, err);
        e->prompt = kvd_device_pinned(m, slices * sizeof *e->prompt, scores, err);
        return m->status;
    }
    e->late.x = kvd_device_host(m, e->layers * each * sizeof *e->late.x, scores, err);
    e->late.of_layer = kvd_device_host(m, e->layers * sizeof *e->late.of_layer, scores, err);
    if (e->late.spreads)
        e->late.spread = kvd_device_new(m, heads * pages * 2 * sizeof *e->late.spread, scores, err);
    else
        e->late.scores = kvd_device_pinned(m, n * sizeof *e->late.scores, scores, err);
    return m->status;
}
