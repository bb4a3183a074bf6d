/* Exact attention on the GPU, by attention kernels or by products of cuBLAS. */
#include <limits.h>
#include <stdlib.h>

#include "model/pass/cuda/paged.h"

static const char what[] = "attention";

struct kvd_gpu_dense {
    kvd_gpu_attention hook;
    size_t d, max_tokens, max_len;
    /* attention kernels; NULL if they do not support the model's heads, so that cuBLAS computes
     * attention */
    kvd_gpu_paged *paged;
    kvd_paged_layer layer;
    kvd_device_memory memory;
    size_t scratch_bytes;
    void *scratch;
};

static int kernels_take(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                        kvd_attn_map *map)
{
    return type == KVD_BF16 && !kvd_gpu_paged_map(c, share, NULL, NULL, map);
}

size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                           size_t max_tokens, size_t max_len)
{
    kvd_attn_map map;
    return kernels_take(c, share, type, &map)
               ? kvd_gpu_paged_bytes(c, share, max_tokens, max_len)
               : kvd_gpu_attend_scratch(type, max_len, share->n_heads);
}

static int need_scratch(kvd_gpu_dense *d, kvd_err *err)
{
    if (!d->scratch)
        d->scratch = kvd_device_new(&d->memory, d->scratch_bytes, "scores of attention", err);
    return d->scratch ? 0 : -1;
}

static int run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    kvd_gpu_dense *d = (kvd_gpu_dense *)self;
    if (in->n_tokens > d->max_tokens || in->longest > d->max_len)
        return kvd_fail(err,
                        "attention: %zu tokens, the longest sequence of %zu; room for %zu, of %zu",
                        in->n_tokens, in->longest, d->max_tokens, d->max_len);
    if (d->paged && kvd_gpu_paged_reads(in)) {
        d->layer.map.window = in->window < d->max_len ? (int32_t)in->window : 0;
        return kvd_gpu_paged_run(d->paged, &d->layer, in, out, err);
    }
    return need_scratch(d, err)
               ? -1
               : kvd_gpu_attend(in, in->type, in->q, in->ld, in->k, in->ld, in->v, in->ld, out,
                                (size_t)in->share->n_heads * d->d, d->scratch, err);
}

kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err)
{
    if (max_tokens < 1 || max_tokens > INT_MAX / 8 || max_len < 1) {
        kvd_fail(err, "attention of %zu tokens in sequences of up to %zu", max_tokens, max_len);
        return NULL;
    }
    kvd_gpu_dense *d = kvd_new(1, sizeof *d, what, err);
    if (!d)
        return NULL;
    d->hook.run = run;
    d->d = (size_t)c->d_head;
    d->max_tokens = max_tokens;
    d->max_len = max_len;
    d->scratch_bytes = kvd_gpu_attend_scratch(type, max_len, share->n_heads);
    const int kernels = kernels_take(c, share, type, &d->layer.map);
    if ((kernels && !(d->paged = kvd_gpu_paged_new(c, share, max_tokens, max_len, err))) ||
        (!kernels && need_scratch(d, err))) {
        kvd_gpu_dense_free(d);
        return NULL;
    }
    return d;
}

void kvd_gpu_dense_free(kvd_gpu_dense *d)
{
    if (!d)
        return;
    kvd_gpu_paged_free(d->paged);
    kvd_device_release(&d->memory);
    free(d);
}

kvd_gpu_attention *kvd_gpu_dense_hook(kvd_gpu_dense *d)
{
    return &d->hook;
}

const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d)
{
    return d->paged ? kvd_gpu_paged_engine(d->paged) : "cuBLAS products";
}
