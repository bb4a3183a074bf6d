/* Projects K and V to latent vectors that KV heads share, and rebuilds K and V from the latent
 * vectors, in float32. */
#include <stdlib.h>
#include <string.h>

#include "methods/cuda/cache_parts.h"
#include "methods/cuda/cache_rows.h"
#include "model/pass/batch.h"

static const char what[] = "latents of a cache";

static int make_tables(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                       size_t max_len, kvd_err *err)
{
    const size_t n = kvd_batch_rope_rows(c, max_len) * (size_t)c->d_head / 2,
                 bytes = n * sizeof(float);
    if (n == 0)
        return 0;
    float *const host = malloc(2 * bytes);
    if (!host)
        return kvd_no_memory(err, what, 2 * bytes);
    kvd_batch_rope(c, max_len, host, host + n);
    l->cosine = kvd_device_new(memory, 2 * bytes, what, err);
    l->sine = l->cosine ? l->cosine + n : NULL;
    const int status = l->cosine ? kvd_device_put(l->cosine, host, 2 * bytes, what, err) : -1;
    free(host);
    return status;
}

int kvd_cache_latents_init(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                           const kvd_gpu_share *share, size_t max_tokens, size_t max_len,
                           kvd_err *err)
{
    const size_t width = (size_t)share->n_kv_heads * (size_t)c->d_head,
                 rows = max_tokens * sizeof *l->host_row;
    if (l->read)
        return 0;
    if (!l->host_row && !(l->host_row = malloc(rows)))
        return kvd_no_memory(err, what, rows);
    if (make_tables(l, memory, c, max_len, err))
        return -1;
    l->rope_row = kvd_device_new(memory, rows, what, err);
    l->bad = kvd_device_new(memory, sizeof *l->bad, what, err);
    l->read = kvd_device_new(memory, max_tokens * 2 * width * sizeof *l->read, what, err);
    return memory->status;
}

/* Fills l->rope_row with each token's index in the RoPE tables. */
static int resolve_rows(kvd_cache_latents *l, const kvd_gpu_attention_in *in, size_t max_len,
                        kvd_err *err)
{
    bool same = l->n_rows == in->n_tokens;
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t first = in->offset[s], n = in->offset[s + 1] - first;
        const size_t row = kvd_batch_rope_first(in->config, max_len, n);
        for (size_t t = 0; t < n; t++) {
            same = same && l->host_row[first + t] == row + t;
            l->host_row[first + t] = (uint32_t)(row + t);
        }
    }
    if (same)
        return 0;
    l->n_rows = in->n_tokens;
    /* The source is pageable memory, so host_row may be overwritten once this call returns. */
    return kvd_queue_put(l->rope_row, l->host_row, in->n_tokens * sizeof *l->host_row, in->stream,
                         what, err);
}

static int through_latents(const kvd_gpu_attention_in *in, const kvd_cache_layer *layer,
                           kvd_head_rows x, const float *down, const float *up, kvd_dtype type,
                           float *cut, float *read, kvd_err *err)
{
    const size_t d = (size_t)in->config->d_head, heads = (size_t)layer->heads, wide = heads * d;
    const size_t width = (size_t)in->share->n_kv_heads * d;
    const int groups = in->share->n_kv_heads / layer->heads;
    kvd_heads_product p = {.x = x.x,
                           .ldx = x.ld,
                           .stride_x = wide,
                           .k = (int)wide,
                           .matrix = down,
                           .stride_matrix = wide * wide,
                           .y = cut,
                           .ldy = width,
                           .stride_y = wide,
                           .m = (int)wide,
                           .batch = groups};
    if (kvd_cache_product(in, &p, err))
        return -1;
    if (type != KVD_F32 && kvd_cuda_check(kvd_cache_round(KVD_F32, cut, width, type, in->n_tokens,
                                                          width, cut, in->stream),
                                          what, err))
        return -1;
    for (size_t j = 0; j < heads; j++) {
        p = (kvd_heads_product){.x = cut,
                                .ldx = width,
                                .stride_x = wide,
                                .k = (int)wide,
                                .matrix = up + j * wide * d,
                                .stride_matrix = heads * wide * d,
                                .y = read + j * d,
                                .ldy = 2 * width,
                                .stride_y = wide,
                                .m = (int)d,
                                .batch = groups};
        if (kvd_cache_product(in, &p, err))
            return -1;
    }
    return 0;
}

int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err)
{
    kvd_cache_latents *const l = &p->latents;
    const size_t width = (size_t)in->share->n_kv_heads * (size_t)in->config->d_head;
    if (through_latents(in, layer, *k, layer->a_k, layer->b_k, type, p->k_cut, l->read, err) ||
        through_latents(in, layer, *v, layer->a_v, layer->b_v, type, p->v_cut, l->read + width,
                        err))
        return -1;
    *k = (kvd_head_rows){l->read, 2 * width};
    *v = (kvd_head_rows){l->read + width, 2 * width};
    if (!l->cosine)
        return 0;
    const size_t tables =
        kvd_batch_rope_layer(in->config, p->max_len, in->layer) * ((size_t)in->config->d_head / 2);
    const kvd_gpu_qkv turn = {.type = KVD_F32,
                              .n_kv_heads = in->share->n_kv_heads,
                              .d_head = in->config->d_head,
                              .cosine = l->cosine + tables,
                              .sine = l->sine + tables,
                              .rope_row = l->rope_row,
                              .layout = in->config->rope_layout,
                              .rope_dims = in->config->rope_dims,
                              .qkv = l->read};
    return kvd_status(
        resolve_rows(l, in, p->max_len, err) ||
        kvd_cuda_check(kvd_gpu_qkv_finish(&turn, in->n_tokens, 0, l->bad, in->stream), what, err));
}
