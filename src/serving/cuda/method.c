#include "serving/cuda/method.h"

#include "serving/cuda/leankv_method.h"

static const char *axis_of(const kvd_plan *p)
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
    const char *const axis = axis_of(plan);
    *m = NULL;
    if (plan->type != KVD_BF16)
        return kvd_fail(err, "a cache in %s, the CUDA engine has bf16", kvd_dtype_name(plan->type));
    if (kvd_serving_is_leankv(plan))
        return kvd_serving_leankv_open(plan, cache, m, err);
    if (axis)
        return kvd_fail(err, "the CUDA engine does not run '%s' yet", axis);
    return plan->dims && plan->dims->rebuild
               ? kvd_fail(err, "the CUDA engine does not rebuild keys yet: '%s'", plan->dims->method)
               : 0;
}
