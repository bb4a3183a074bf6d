#include "kernels/timing/impl.h"

#include <stdio.h>
#include <string.h>

#include "common/device.h"

#ifdef KVD_CUDA
#include <cuda_runtime_api.h>

#include "kernels/cuda/prefill_plan.h"

_Static_assert((int)KVD_BY_NONE == (int)KVD_SCHEDULE_NONE &&
                   (int)KVD_BY_PAPERS == (int)KVD_SCHEDULE_PAPERS &&
                   (int)KVD_BY_OURS == (int)KVD_SCHEDULE_OURS,
               "the two enums are one");
#endif

const char *const kvd_scheduler_name[KVD_N_SCHEDULERS] = {"none", "papers", "ours", "-"};
const char *const kvd_width_use_name[KVD_N_RUNS] = {"own", "padded", "dense", "latent"};

static const kvd_impl *const all[] = {
    &kvd_impl_ref,          &kvd_impl_cpu,
#ifdef KVD_CUDA
    &kvd_impl_cuda,         &kvd_impl_cuda_mma,      &kvd_impl_cuda_dense, &kvd_impl_cudnn,
    &kvd_impl_cudnn_padded, &kvd_impl_cudnn_grouped, &kvd_impl_palu,
#endif
};
enum { N = sizeof all / sizeof *all };

int kvd_impl_count(void)
{
    return N;
}

const kvd_impl *kvd_impl_at(int i)
{
    return all[i];
}

const kvd_impl *kvd_impl_find(const char *name, kvd_err *err)
{
    char names[512] = "";
    for (int i = 0; i < N; i++) {
        const size_t used = strlen(names);
        if (!strcmp(all[i]->name, name))
            return all[i];
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", all[i]->name);
    }
#ifndef KVD_CUDA
    if (!strncmp(name, "cuda", 4) || !strncmp(name, "cudnn", 5) || !strncmp(name, "palu", 4)) {
        kvd_fail(err, "--impl: '%s' needs CUDA, which " KVD_LEFT_OUT "; there are %s", name, names);
        return NULL;
    }
#endif
    kvd_fail(err, "--impl: '%s' is none of %s", name, names);
    return NULL;
}

int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why)
{
    if (!(impl->phases & 1u << p->phase))
        return kvd_fail(why, "no %s", kvd_attn_phase_name[p->phase]);
    if (!(impl->dtypes & 1u << p->dtype))
        return kvd_fail(why, "does not take %s", kvd_dtype_name(p->dtype));
    return impl->can ? impl->can(p, why) : 0;
}

kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p)
{
    return impl->stored                        ? impl->stored(p)
           : impl->runs == KVD_WIDTH_USE_DENSE ? kvd_heads_dense(&p->heads)
                                               : p->heads;
}

void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f)
{
    const kvd_attn_heads heads = kvd_impl_heads(impl, p);
    if (impl->count)
        impl->count(p, f);
    else
        kvd_floors_count(p, &heads, f);
}

int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err)
{
    const kvd_attn_heads heads = impl->answer ? impl->answer(p) : kvd_impl_heads(impl, p);
    return kvd_row_check_make(check, p, &heads,
                              impl->make_rows ? impl->make_rows : kvd_problem_rows, mode, err);
}
