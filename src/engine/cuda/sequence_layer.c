/* Computes a layer on GPUs that divide the tokens of a prompt: each GPU's part of the tokens, and
 * the exchange of Q, K, V and attention outputs. */
#include "engine/cuda/sequence.h"

static const char what[] = "exchange between GPUs";

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu)
{
    return kvd_pages_of(q->len) * (size_t)gpu / (size_t)q->n;
}

size_t kvd_sequence_first(const kvd_sequence *q, int gpu)
{
    return kvd_smaller(kvd_sequence_first_page(q, gpu) * KVD_PAGE_TOKENS, q->len);
}

size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu)
{
    return kvd_sequence_first(q, gpu + 1) - kvd_sequence_first(q, gpu);
}

static size_t pages_of(const kvd_sequence *q, int gpu)
{
    return kvd_sequence_first_page(q, gpu + 1) - kvd_sequence_first_page(q, gpu);
}

size_t kvd_sequence_rows(size_t tokens)
{
    return kvd_rounded_up(tokens, 8);
}

kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q)
{
    int g = q->n - 1;
    while (g > 0 && kvd_sequence_tokens(q, g) == 0)
        g--;
    return &q->rank[g];
}

static const kvd_gpu_share *share_of(const kvd_sequence *q, int gpu)
{
    return &q->rank[gpu].of_share.weights.share;
}

void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes)
{
    if (bytes)
        list[(*n)++] = (kvd_gpu_piece){gpu, at, bytes};
}

int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err)
{
    for (size_t i = 0; i < r->n_out; i++)
        r->sent[kind] += r->out[i].gpu != r->gpu ? (double)r->out[i].bytes : 0;
    const int status =
        kvd_gpu_sum_exchange(r->all->sum, r->gpu, r->out, r->n_out, r->in, r->n_in, s, err);
    r->n_out = r->n_in = 0;
    return status ? -1 : kvd_clock_end(&r->slice->clock, KVD_PHASE_COMM, s, err);
}

/* Copies K and V from this GPU's cache pages to `to`, for the heads that GPU number `gpu`
 * computes. */
static int gather_pages(kvd_sequence_rank *r, int layer, int gpu, void *to, cudaStream_t s,
                        kvd_err *err)
{
    const kvd_attn_map *const all = &r->slice->cache.layer[layer].map;
    const kvd_gpu_share *const share = share_of(r->all, gpu);
    const size_t width =
        (size_t)r->all->rank[gpu].own.layer[layer].map.page_elements * sizeof(uint16_t);
    const uint16_t *const from =
        (const uint16_t *)r->slice->cache.pool + all->kv_offset[share->first_kv_head];
    return kvd_cuda_check(cudaMemcpy2DAsync(to, width, from,
                                            (size_t)all->page_elements * sizeof *from, width,
                                            pages_of(r->all, r->gpu), cudaMemcpyDeviceToDevice, s),
                          what, err);
}

static int spread_rows(kvd_sequence_rank *r, int layer, int gpu, const uint16_t *from,
                       cudaStream_t s, kvd_err *err)
{
    const kvd_attn_map *const own = &r->own.layer[layer].map;
    const size_t rows = kvd_sequence_rows(kvd_sequence_tokens(r->all, gpu)),
                 all_rows = kvd_sequence_rows(r->all->len);
    uint16_t *const to = r->own.q_prompts;
    for (int g = 0; g < own->n_kv_heads && rows; g++) {
        const size_t width = (size_t)own->d_qk[g], at = (size_t)own->q_offset[g * own->group];
        const size_t bytes = rows * width * sizeof *to;
        if (kvd_cuda_check(
                cudaMemcpy2DAsync(to + at * all_rows + kvd_sequence_first(r->all, gpu) * width,
                                  all_rows * width * sizeof *to, from + at * rows, bytes, bytes,
                                  (size_t)own->group, cudaMemcpyDeviceToDevice, s),
                what, err))
            return -1;
    }
    return 0;
}

static int send_pages(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    const size_t own = (size_t)r->own.layer[layer].map.page_elements * sizeof(uint16_t);
    char *const pool = kvd_paged_cache_pool(&r->own, layer), *pages = r->out_pages;
    for (int g = 0; g < q->n; g++) {
        const size_t bytes = pages_of(q, r->gpu) *
                             (size_t)q->rank[g].own.layer[layer].map.page_elements *
                             sizeof(uint16_t);
        char *const at = pool + kvd_sequence_first_page(q, g) * own;
        if (r->n && gather_pages(r, layer, g, g == r->gpu ? at : pages, s, err))
            return -1;
        if (g == r->gpu)
            continue;
        kvd_sequence_piece(r->out, &r->n_out, g, pages, bytes);
        kvd_sequence_piece(r->in, &r->n_in, g, at, pages_of(q, g) * own);
        pages += bytes;
    }
    return 0;
}

int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    const kvd_attn_map *const all = &r->slice->cache.layer[layer].map;
    const kvd_attn_map *const own = &r->own.layer[layer].map;
    const size_t rows = kvd_sequence_rows(r->n);
    const bool known = kvd_sequence_sets_known(r, layer);
    uint16_t *const queries = r->slice->cache.q_prompts;
    const uint16_t *from[KVD_GPUS_MAX];
    char *next = r->in_rows;
    for (int g = 0; g < q->n; g++) {
        uint16_t *const mine = queries + (size_t)all->q_offset[share_of(q, g)->first_head] * rows;
        const size_t in =
            kvd_sequence_rows(kvd_sequence_tokens(q, g)) * (size_t)own->q_pitch * sizeof *mine;
        from[g] = g == r->gpu ? mine : (uint16_t *)(void *)next;
        if (g == r->gpu)
            continue;
        kvd_sequence_piece(r->out, &r->n_out, g, mine,
                           rows * (size_t)q->rank[g].own.layer[layer].map.q_pitch * sizeof *mine);
        kvd_sequence_piece(r->in, &r->n_in, g, next, in);
        next += in;
    }
    if ((known ? kvd_sequence_sets_send(r, layer, s, err) : send_pages(r, layer, s, err)) ||
        kvd_sequence_exchange(r, 0, s, err) || (known && kvd_sequence_sets_take(r, layer, s, err)))
        return -1;
    for (int g = 0; g < q->n; g++)
        if (spread_rows(r, layer, g, from[g], s, err))
            return -1;
    return kvd_clock_end(&r->slice->clock, KVD_PHASE_COMM, s, err);
}

int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t s, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    const kvd_attn_map *const all = &r->slice->cache.layer[layer].map;
    const size_t own_row = (size_t)r->own.layer[layer].map.o_pitch * sizeof(uint16_t);
    char *const rows = r->own.o;
    char *in[KVD_GPUS_MAX], *next = r->in_rows;
    for (int g = 0; g < q->n; g++) {
        in[g] = g == r->gpu ? rows + r->first * own_row : next;
        if (g == r->gpu)
            continue;
        const size_t bytes =
            r->n * (size_t)q->rank[g].own.layer[layer].map.o_pitch * sizeof(uint16_t);
        kvd_sequence_piece(r->out, &r->n_out, g, rows + kvd_sequence_first(q, g) * own_row,
                           kvd_sequence_tokens(q, g) * own_row);
        kvd_sequence_piece(r->in, &r->n_in, g, in[g], bytes);
        next += bytes;
    }
    if (kvd_sequence_exchange(r, 1, s, err))
        return -1;
    for (int g = 0; g < q->n && r->n; g++) {
        const size_t width = (size_t)q->rank[g].own.layer[layer].map.o_pitch * sizeof(uint16_t);
        uint16_t *const to = (uint16_t *)out + all->o_offset[share_of(q, g)->first_head];
        if (kvd_cuda_check(cudaMemcpy2DAsync(to, (size_t)all->o_pitch * sizeof *to, in[g], width,
                                             width, r->n, cudaMemcpyDeviceToDevice, s),
                           what, err))
            return -1;
    }
    return kvd_clock_end(&r->slice->clock, KVD_PHASE_COMM, s, err);
}

int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err)
{
    const cudaStream_t s = r->slice->w.stream;
    const kvd_paged_rows slice = {.layer = layer,
                                  .x = in ? in->q : NULL,
                                  .ld = in ? in->ld : 0,
                                  .prompts = 1,
                                  .stream = s},
                         whole = {.layer = layer, .prompts = 1, .stream = s};
    kvd_phase unused;
    return kvd_status((in && kvd_paged_cache_put(&r->slice->cache, &slice, err)) ||
                      kvd_sequence_to_heads(r, layer, s, err) ||
                      kvd_paged_cache_attend(&r->own, &whole, r->own.o, &unused, err) ||
                      (!kvd_sequence_sets_known(r, layer) && kvd_sequence_sets_formed(r, s, err)) ||
                      kvd_sequence_to_tokens(r, layer, out, s, err));
}

int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err)
{
    const cudaStream_t s = r->slice->w.stream;
    for (int g = 0; g < r->all->n; g++) {
        kvd_sequence_piece(r->out, &r->n_out, g, r->out_pages + 16 * g, 16);
        kvd_sequence_piece(r->in, &r->n_in, g, r->in_rows + 16 * g, 16);
    }
    return kvd_status(kvd_sequence_exchange(r, 0, s, err) ||
                      kvd_gpu_sum_wait(r->all->sum, r->gpu, s, err));
}
