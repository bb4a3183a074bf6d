/* Compression method zdc with layers=N, on GPUs that divide a prompt's tokens. The first of N
 * layers chooses important tokens. The other layers use them, and send K and V of unimportant
 * tokens with fewer dimensions, which the receiving GPU pads with zeros. */

#include "engine/cuda/sequence.h"
#include "methods/tokens/cuda/zdc_method.h"

static const char what[] = "two widths of tokens";

static int together(const kvd_sequence_rank *r)
{
    return r->sets.in ? kvd_gpu_zdc_together(r->own.method) : 0;
}

bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer)
{
    return together(r) && layer % together(r);
}

static int exchange_sums(void *ctx, float *sum, size_t rows, kvd_err *err)
{
    kvd_sequence_rank *const r = ctx;
    for (int g = 0; g < r->all->n; g++)
        if (g != r->gpu) {
            kvd_sequence_piece(r->out, &r->n_out, g, sum + (size_t)r->gpu * rows,
                               rows * sizeof *sum);
            kvd_sequence_piece(r->in, &r->n_in, g, sum + (size_t)g * rows, rows * sizeof *sum);
        }
    return kvd_sequence_exchange(r, 0, r->slice->w.stream, err);
}

/* Returns the position of the first token of a GPU's part of the prompt, but at most the position
 * of the prompt's last token. */
static size_t edge(const kvd_sequence *q, int gpu)
{
    return kvd_smaller(kvd_sequence_first(q, gpu), q->len - 1);
}

int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err)
{
    if (!together(r))
        return 0;
    const kvd_zdc_sets sets = kvd_gpu_zdc_sets(r->own.method);
    r->sets.fetched = false;
    for (int g = 0; g <= r->all->n; g++) {
        const size_t t = edge(r->all, g);
        if (kvd_queue_get(r->sets.place + g, sets.place + t, sizeof *sets.place, s, what, err) ||
            kvd_queue_get(r->sets.level + g, sets.level + t, sizeof *sets.level, s, what, err))
            return -1;
    }
    return 0;
}

static int fetch(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    if (r->sets.fetched)
        return 0;
    if (kvd_gpu_sum_wait(q->sum, r->gpu, s, err))
        return -1;
    for (int g = 0; g <= q->n; g++) {
        const int32_t t = (int32_t)edge(q, g), place = r->sets.place[g];
        const bool high = (r->sets.level[g] & KVD_ZDC_USED) != 0,
                   behind = kvd_sequence_first(q, g) >= q->len;
        r->sets.before[g][KVD_ZDC_HIGH] = (high ? place : t - place) + (behind && high);
        r->sets.before[g][KVD_ZDC_LOW] = (high ? t - place : place) + (behind && !high);
    }
    r->sets.fetched = true;
    return 0;
}

/* Returns the arguments of the kernels that pack and unpack K and V when one GPU sends them to
 * another. `slice`: GPU that has the tokens. `heads`: GPU that computes the KV heads. */
static kvd_zdc_rows_args rows_of(const kvd_sequence_rank *r, int layer, int slice, int heads,
                                 void *rows)
{
    const kvd_sequence *const q = r->all;
    const kvd_paged_cache *const theirs = &q->rank[heads].own;
    const kvd_attn_map *const low = kvd_gpu_zdc_low_map(theirs->method, layer);
    const kvd_zdc_sets sets = kvd_gpu_zdc_sets(r->own.method);
    const int32_t(*const before)[2] = (const int32_t(*)[2])r->sets.before + slice;
    kvd_zdc_rows_args a = {.n_kv_heads = theirs->share->n_kv_heads,
                           .first = (int32_t)kvd_sequence_first(q, slice),
                           .n = (int32_t)kvd_sequence_tokens(q, slice),
                           .level = sets.level,
                           .place = sets.place,
                           .rows = rows};
    for (int k = 0; k < KVD_ZDC_STORES; k++) {
        a.before[k] = before[0][k];
        a.count[k] = before[1][k] - before[0][k];
    }
    a.entry[KVD_ZDC_HIGH] = theirs->layer[layer].map.page_elements / KVD_PAGE_TOKENS;
    for (int g = 0; g < a.n_kv_heads; g++)
        a.entry[KVD_ZDC_LOW] += low->d_qk[g] + low->d_v[g];
    return a;
}

static size_t bytes_of(const kvd_zdc_rows_args *a)
{
    size_t n = 0;
    for (int k = 0; k < KVD_ZDC_STORES; k++)
        n += (size_t)a->count[k] * (size_t)a->entry[k];
    return n * sizeof(uint16_t);
}

int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    const kvd_paged_cache *const c = &r->slice->cache;
    char *out = r->out_pages, *in = r->sets.in;
    if (fetch(r, s, err))
        return -1;
    for (int g = 0; g < q->n; g++) {
        kvd_zdc_rows_args a = rows_of(r, layer, r->gpu, g, out);
        const kvd_zdc_rows_args b = rows_of(r, layer, g, r->gpu, in);
        a.head = kvd_gpu_zdc_heads(c->method, layer) + q->rank[g].own.share->first_kv_head;
        a.pages = c->pool;
        a.table = r->slice_pages.device;
        a.page = (size_t)c->layer[layer].map.page_elements;
        /* K and V of the heads that this GPU itself computes are packed directly into the buffer
         * for received K and V. */
        a.rows = g == r->gpu ? in : out;
        if (a.n && kvd_cuda_check(kvd_zdc_pack(&a, s), what, err))
            return -1;
        if (g != r->gpu) {
            kvd_sequence_piece(r->out, &r->n_out, g, out, bytes_of(&a));
            kvd_sequence_piece(r->in, &r->n_in, g, in, bytes_of(&b));
            out += bytes_of(&a);
        }
        in += bytes_of(&b);
    }
    return 0;
}

int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err)
{
    char *in = r->sets.in;
    for (int g = 0; g < r->all->n; g++) {
        kvd_zdc_rows_args a = rows_of(r, layer, g, r->gpu, in);
        a.head = kvd_gpu_zdc_heads(r->own.method, layer);
        a.pages = kvd_paged_cache_pool(&r->own, layer);
        a.table = r->own_pages.device;
        a.page = (size_t)r->own.layer[layer].map.page_elements;
        if (a.n && kvd_cuda_check(kvd_zdc_unpack(&a, s), what, err))
            return -1;
        in += bytes_of(&a);
    }
    return 0;
}

int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err)
{
    const size_t n = (size_t)r->all->n, tokens = r->batch.max_tokens;
    kvd_device_memory *const m = &r->slice->memory;
    size_t entry = 0;
    if (!r->own.method)
        return 0;
    /* On several GPUs, method zdc removes dimensions before it sends K and V, not when they enter
     * the cache. */
    r->slice->cache.method->appended = NULL;
    for (int l = 0; l < r->own.config->n_layers; l++)
        entry = kvd_larger(entry, (size_t)r->own.layer[l].map.page_elements / KVD_PAGE_TOKENS);
    r->sets.before = kvd_device_host(m, (n + 1) * sizeof *r->sets.before, what, err);
    r->sets.sum = kvd_device_new(m, n * (tokens + 8) * sizeof *r->sets.sum, what, err);
    r->sets.place = kvd_device_pinned(m, (n + 1) * sizeof *r->sets.place, what, err);
    r->sets.level = kvd_device_pinned(m, (n + 1) * sizeof *r->sets.level, what, err);
    r->sets.in = kvd_device_new(m, tokens * entry * sizeof(uint16_t), what, err);
    if (m->status)
        return -1;
    const kvd_zdc_parts parts = {r->all->n, r->gpu, r->sets.sum, exchange_sums, r};
    kvd_gpu_zdc_share(r->own.method, &parts);
    return 0;
}
