#include "serving/cuda/methods/method.h"

#include "serving/cuda/cache.h"
#include "serving/cuda/methods/evict_method.h"
#include "serving/cuda/methods/leankv_method.h"
#include "serving/cuda/methods/packed.h"
#include "serving/cuda/methods/palu.h"
#include "serving/cuda/methods/strawman.h"
#include "serving/cuda/methods/zdc_method.h"

static const char *member_of(const kvd_plan *p)
{
    return p->layers     ? p->layers->name
           : p->tokens   ? p->tokens->name
           : p->maker    ? p->maker->name
           : p->channels ? p->channels->name
           : p->bits     ? p->bits->name
           : p->dims_low ? "widths of a low level"
                         : NULL;
}

int kvd_serving_method_open(const kvd_plan *plan, struct kvd_serving_cache *cache, kvd_serving_method **m,
                            kvd_err *err)
{
    const char *const member = member_of(plan);
    *m = NULL;
    if (plan->type != KVD_BF16)
        return kvd_fail(err, "a cache in %s, the CUDA engine has bf16", kvd_dtype_name(plan->type));
    if (!member)
        return 0;
    if (plan->levels)
        return kvd_fail(err, "the CUDA engine does not run '%s'", plan->levels->name);
    if (cache->share->count > 1 && !kvd_serving_is_zdc(plan))
        return kvd_fail(err, "on several GPUs the engine runs methods of the dims axis alone, not '%s'",
                        member);
    if (plan->maker && plan->dims && plan->dims->rebuild)
        return kvd_serving_palu_open(plan, cache, m, err);
    if (plan->channels && plan->channels->project)
        return kvd_serving_strawman_open(plan, cache, m, err);
    if (kvd_serving_is_leankv(plan))
        return kvd_serving_leankv_open(plan, cache, m, err);
    if (kvd_serving_evicts(plan))
        return kvd_serving_evict_open(plan, cache, m, err);
    if (kvd_serving_is_zdc(plan))
        return kvd_serving_zdc_open(plan, cache, m, err);
    if (kvd_serving_packed_takes(plan))
        return kvd_serving_packed_open(plan, cache, m, err);
    return kvd_fail(err, "the CUDA engine does not run '%s'", member);
}
