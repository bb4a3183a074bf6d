/* Tensor-parallel engine: each GPU computes a part of the heads and of the hidden units of a layer
 * (Megatron-LM, Shoeybi et al. 2019). */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "engine/cuda/engine_parts.h"

static const char what[] = "serving engine";

typedef struct {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    kvd_gpu_sum *sum;
    kvd_cuda_engine *gpu[KVD_GPUS_MAX];
    kvd_gpu_threads *gpu_threads;
    size_t pages;
    const kvd_iteration *it;
    const uint32_t *id;
} parallel;

static int run(void *ctx, int gpu, kvd_err *err)
{
    const parallel *const p = ctx;
    return kvd_cuda_engine_run(p->gpu[gpu], p->it, p->id, err);
}

/* Returns the place of the first NaN or infinity in the activations of any GPU. If there is none,
 * all bits of the result are 1. */
static kvd_gpu_bad bad_of(const parallel *p)
{
    kvd_gpu_bad bad = ~0ULL;
    for (int g = 0; g < p->n; g++)
        bad = *p->gpu[g]->host_bad < bad ? *p->gpu[g]->host_bad : bad;
    return bad;
}

static int iterate(parallel *p, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                   kvd_err *err)
{
    p->it = it;
    p->id = id;
    if (kvd_gpu_threads_run(p->gpu_threads, run, p, err))
        return -1;
    const kvd_gpu_bad bad = bad_of(p);
    for (int g = 0; g < p->n; g++)
        if (kvd_cuda_engine_conclude(p->gpu[g], it, bad, g ? NULL : next, err))
            return -1;
    return 0;
}

static int step(kvd_engine *self, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err)
{
    parallel *const p = (parallel *)self;
    const double start = kvd_clock_s();
    if (p->failed)
        return kvd_fail(err, "the engine has failed before");
    if (iterate(p, it, id, next, err)) {
        p->failed = 1;
        return -1;
    }
    if (times)
        kvd_clock_read(&p->gpu[0]->clock, kvd_clock_s() - start, times);
    return 0;
}

static int logits(kvd_engine *self, size_t i, float *to, kvd_err *err)
{
    return kvd_cuda_engine_logits((kvd_engine *)((parallel *)self)->gpu[0], i, to, err);
}

static double held(const kvd_engine *self)
{
    const parallel *const p = (const parallel *)self;
    double bytes = 0;
    for (int g = 0; g < p->n; g++)
        bytes += kvd_cuda_engine_held((kvd_engine *)p->gpu[g]);
    return bytes;
}

static void drop(kvd_engine *self, size_t slot)
{
    parallel *const p = (parallel *)self;
    for (int g = 0; g < p->n; g++)
        kvd_cuda_engine_drop((kvd_engine *)p->gpu[g], slot);
}

static int ready(void *ctx, int gpu, kvd_err *err)
{
    const parallel *const p = ctx;
    return kvd_cuda_engine_ready(p->gpu[gpu], p->pages, err);
}

static void describe(parallel *p)
{
    kvd_engine_facts *const f = &p->engine.facts;
    *f = p->gpu[0]->engine.facts;
    for (int g = 1; g < p->n; g++) {
        const kvd_engine_facts *const other = &p->gpu[g]->engine.facts;
        f->cache_bytes += other->cache_bytes;
        f->bytes_per_token += other->bytes_per_token;
        f->weight_bytes += other->weight_bytes;
        f->peak_bytes += other->peak_bytes;
    }
    (void)snprintf(f->what, sizeof f->what, "%d x %.200s, %.32s", p->n,
                   p->gpu[0]->engine.facts.what, kvd_gpu_sum_engine(p->sum));
}

/* Opens the engine on all GPUs. Weights are loaded for one GPU after another. */
static int open_all(parallel *p, const kvd_checkpoint *c, const kvd_plan *plan,
                    const kvd_engine_spec *s, kvd_err *err)
{
    size_t pages;
    kvd_gpu_share share;
    if (kvd_cuda_engine_check_several(plan, s, err) ||
        kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, 0, s->n_gpus, &share, err))
        return -1;
    for (; p->n < s->n_gpus; p->n++)
        if (!(p->gpu[p->n] = kvd_cuda_engine_new(s, p->n, err)))
            return -1;
    if (!(p->sum = kvd_gpu_sum_new(s->first_gpu, s->n_gpus, err)) ||
        !(p->gpu_threads = kvd_gpu_threads_new(s->first_gpu, s->n_gpus, p->sum, err)))
        return -1;
    p->pages = (size_t)-1;
    for (int g = 0; g < p->n; g++) {
        if (kvd_cuda_engine_load(p->gpu[g], c, plan, p->sum, &pages, err))
            return -1;
        p->pages = pages < p->pages ? pages : p->pages;
    }
    if (kvd_gpu_threads_run(p->gpu_threads, ready, p, err))
        return -1;
    describe(p);
    return 0;
}

static void free_parallel(kvd_engine *self)
{
    parallel *const p = (parallel *)self;
    kvd_gpu_threads_free(p->gpu_threads);
    /* Destroys the CUDA graphs before kvd_gpu_sum_free, because they use the NCCL communicators
     * that it frees. */
    for (int g = 0; g < p->n; g++)
        if (!cudaSetDevice(p->gpu[g]->device))
            kvd_cuda_graphs_destroy(p->gpu[g]);
    kvd_gpu_sum_free(p->sum);
    for (int g = p->n - 1; g >= 0; g--)
        kvd_cuda_engine_free((kvd_engine *)p->gpu[g]);
    free(p);
}

kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err)
{
    parallel *const p = kvd_new(1, sizeof *p, what, err);
    if (!p)
        return NULL;
    p->engine = (kvd_engine){.step = step, .drop = drop, .logits = logits, .free = free_parallel};
    if (open_all(p, c, plan, s, err)) {
        free_parallel(&p->engine);
        return NULL;
    }
    p->engine.held = kvd_cuda_engine_counts_held(p->gpu[0]) ? held : NULL;
    return &p->engine;
}
