#include "methods/cuda/gpu_method.h"

#include <math.h>

#include "methods/cuda/paged_cache.h"

static const char *member_of(const kvd_plan *p)
{
    return p->layers     ? p->layers->info.name
           : p->tokens   ? p->tokens->info.name
           : p->maker    ? p->maker->info.name
           : p->channels ? p->channels->info.name
           : p->bits     ? p->bits->info.name
           : p->dims_low ? "widths of a low level"
                         : NULL;
}

const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *p)
{
    const kvd_method_info *const member[] = {
        p->maker ? &p->maker->info : NULL, p->channels ? &p->channels->info : NULL,
        p->tokens ? &p->tokens->info : NULL, p->bits ? &p->bits->info : NULL};
    for (size_t i = 0; i < sizeof member / sizeof *member; i++) {
        const kvd_gpu_kind *const kind = member[i] ? member[i]->gpu : NULL;
        if (kind && (!kind->runs || kind->runs(p)))
            return kind;
    }
    return NULL;
}

const char *kvd_gpu_method_beside_tokens(const kvd_plan *p)
{
    return p->layers     ? p->layers->info.name
           : p->maker    ? p->maker->info.name
           : p->channels ? p->channels->info.name
           : p->dims     ? "a method of the dims axis"
           : p->bits     ? p->bits->info.name
           : p->dims_low ? "widths of a low level"
                         : NULL;
}

const char *kvd_gpu_method_lacks(const kvd_plan *p, const kvd_config *c)
{
    const float scale = kvd_config_scores(c).scale * sqrtf((float)c->d_head);
    const bool rebuilds = p->dims && p->dims->rebuild,
               partial = c->rope_dims && c->rope_dims < c->d_head &&
                         c->rope_layout != KVD_ROPE_INTERLEAVED;
    return c->sinks                              ? "attention sinks"
           : fabsf(scale - 1) > 1e-6f            ? "a scale of scores of its own"
           : rebuilds && c->rope_local_theta > 0 ? "two RoPE bases"
           : rebuilds && partial                 ? "partial RoPE"
                                                 : NULL;
}

int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err)
{
    const char *const member = member_of(plan);
    *m = NULL;
    if (plan->type != KVD_BF16)
        return kvd_fail(err, "a cache in %s, the CUDA engine has bf16", kvd_dtype_name(plan->type));
    if (plan->keep_first + plan->keep_last > 0)
        return kvd_fail(err, "the CUDA engine does not run 'keep_layers'");
    if (!member)
        return 0;
    if (plan->levels)
        return kvd_fail(err, "the CUDA engine does not run '%s'", plan->levels->info.name);
    if (cache->config->d_head > KVD_WIDTH_NARROW)
        return kvd_fail(err,
                        "heads of %d: the CUDA engine's kernels of '%s' take heads of up to %d "
                        "dimensions, without this method the engine takes up to %d",
                        cache->config->d_head, member, KVD_WIDTH_NARROW, KVD_WIDTH_MAX);
    if (cache->window)
        return kvd_fail(err,
                        "the model has layers with a window of %zu tokens, requests have up to "
                        "%zu: the CUDA engine's kernels of '%s' know no window",
                        cache->window, cache->max_len, member);
    const char *const missing = kvd_gpu_method_lacks(plan, cache->config);
    if (missing)
        return kvd_fail(err,
                        "a %s model has %s, which the CUDA engine's kernels of '%s' do not compute",
                        cache->config->family, missing, member);
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of(plan);
    if (cache->share->count > 1 &&
        !(kind && (kind->shares_prompts || (kind->by_head && kind->by_head(plan)))))
        return kvd_fail(
            err, "on several GPUs the engine runs methods that keep each head by itself, not '%s'",
            member);
    return kind ? kind->open(plan, cache, m, err)
                : kvd_fail(err, "the CUDA engine does not run '%s'", member);
}
