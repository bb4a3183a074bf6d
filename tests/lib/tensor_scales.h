/* Made-up scales of K and V for fp8 and nvfp4. */
#ifndef TENSOR_SCALES_H
#define TENSOR_SCALES_H

#include <stdlib.h>
#include <string.h>

#include "methods/bits/bits.h"
#include "methods/plan.h"

/* Opens the plan of the quantisation method fp8 or nvfp4 with made-up scales, per layer (scale=1)
 * or per head (scale=2). */
static inline int open_with_scales(kvd_plan *plan, const kvd_method_setup *setup, kvd_err *err)
{
    const size_t heads = (size_t)setup->config->n_kv_heads,
                 n = (size_t)setup->config->n_layers * heads * KVD_N_SIDES;
    /* Smallest of the made-up scales. With it, fp8 represents numbers up to 448 * 0.031 = 14, and
     * nvfp4 numbers up to 6 * 448 * 0.0031 = 8. */
    const float first = plan->bits == &kvd_bits_nvfp4 ? 0.0031f : 0.031f;
    double of = 0;
    for (size_t i = 0; plan->bits && plan->bits->info.parameter[i].key; i++)
        if (!strcmp(plan->bits->info.parameter[i].key, "scale")) {
            of = plan->bits_values.value[i];
            plan->bits_values.value[i] = 0;
        }
    if (kvd_plan_open(plan, setup, err))
        return -1;
    if (!(of > 0))
        return 0;
    kvd_scales *const s = plan->bits_self;
    if (!(s->scale = malloc(n * sizeof *s->scale)))
        return kvd_no_memory(err, "scales", n * sizeof *s->scale);
    s->n_kv_heads = heads;
    for (size_t i = 0; i < n; i++) {
        const size_t layer = i / KVD_N_SIDES / heads, head = of > 1 ? i / KVD_N_SIDES % heads : 0;
        s->scale[i] = first * (float)(1 + layer % 3) * (float)(1 + i % KVD_N_SIDES) *
                      (1 + 0.37f * (float)head);
    }
    return 0;
}

#endif
