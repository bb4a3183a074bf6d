/* Attention by bf16 kernels that read K and V from pages. */
#include "model/pass/cuda/paged.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/append.h"
#include "kernels/cuda/prefill_plan.h"
#include "model/pass/cuda/dense_lists.h"

enum { RUN_SEQUENCES_MIN = 16, CTAS_MAX = 1024 };

static const char what[] = "attention";

struct kvd_gpu_paged {
    int hopper, n_sms;
    size_t d, q_bytes;
    kvd_device_memory memory;
    void *q, *pool, *o, *plan;
    /* buffer for queries that are never read: kvd_append always writes queries, even if it is
     * launched only for keys; NULL before the first such launch */
    void *q_unused;
    int32_t *table, *next;
    kvd_prefill_tile *tile;
    kvd_dense_lists lists;
    /* sequences for which the arguments of the attention kernels are prepared, or NULL */
    const kvd_dense_run *prepared;
    kvd_prefill_args args;
};

int kvd_gpu_paged_map(const kvd_config *c, const kvd_gpu_share *share, const int *d_qk,
                      const int *d_v, kvd_attn_map *map)
{
    kvd_attn_heads heads = {
        .n_heads = share->n_heads, .n_kv_heads = share->n_kv_heads, .d_head = c->d_head};
    const kvd_scores scores = kvd_config_scores(c);
    if (share->n_heads > KVD_HEADS_MAX || c->d_head % KVD_WIDTH_STEP || scores.softcap > 0)
        return -1;
    for (int g = 0; g < share->n_kv_heads; g++) {
        heads.d_qk[g] = d_qk ? d_qk[g] : c->d_head;
        heads.d_v[g] = d_v ? d_v[g] : c->d_head;
    }
    if (kvd_attn_map_make(&heads, map))
        return -1;
    if (c->score_scale > 0)
        map->scale = scores.scale;
    return 0;
}

typedef struct {
    size_t run_sequences, q, pool, o, table, tile, plan, lists;
} sizes;

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Returns buffer sizes for heads of the sizes in `map`; they also suffice for heads that
 * projections make narrower. */
static sizes sizes_of(const kvd_attn_map *map, size_t max_tokens, size_t max_len)
{
    const size_t pages = max_tokens / KVD_PAGE_TOKENS;
    size_t n = pages > RUN_SEQUENCES_MIN ? pages : RUN_SEQUENCES_MIN;
    n = n < max_tokens ? n : max_tokens;
    const size_t rows = ceil_div(max_tokens + 7 * n, 8) * 8;
    const kvd_attn_batch most = {.batch = (int)n};
    return (sizes){.run_sequences = n,
                   .q = rows * (size_t)map->q_pitch * 2,
                   .pool = (pages + n) * (size_t)map->page_elements * 2,
                   .o = rows * (size_t)map->o_pitch * 2,
                   .table = n * ceil_div(max_len, KVD_PAGE_TOKENS) * sizeof(int32_t),
                   .tile = (max_tokens / 64 + n) * (size_t)map->n_heads * sizeof(kvd_prefill_tile),
                   .plan = kvd_prefill_plan_bytes(map, &most, CTAS_MAX),
                   .lists = kvd_dense_lists_bytes(max_tokens)};
}

size_t kvd_gpu_paged_bytes(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                           size_t max_len)
{
    kvd_attn_map map;
    if (kvd_gpu_paged_map(c, share, NULL, NULL, &map))
        return 0;
    const sizes s = sizes_of(&map, max_tokens, max_len);
    return s.q + s.pool + s.o + s.table + s.tile + s.plan + s.lists + sizeof(int32_t);
}

static int ask_device(kvd_gpu_paged *p, kvd_err *err)
{
    int device = 0, major = 0;
    if (kvd_cuda_check(cudaGetDevice(&device), what, err) ||
        kvd_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                       what, err) ||
        kvd_cuda_check(cudaDeviceGetAttribute(&p->n_sms, cudaDevAttrMultiProcessorCount, device),
                       what, err))
        return -1;
    p->hopper = major == 9;
    return 0;
}

static int make_memory(kvd_gpu_paged *p, const sizes *s, kvd_err *err)
{
    kvd_device_memory *m = &p->memory;
    p->q_bytes = s->q;
    return (p->q = kvd_device_new(m, s->q, "queries of attention", err)) &&
                   (p->pool = kvd_device_new(m, s->pool, "pages of attention", err)) &&
                   (p->o = kvd_device_new(m, s->o, "rows of attention", err)) &&
                   (p->table = kvd_device_new(m, s->table, "page table of attention", err)) &&
                   (p->tile = kvd_device_new(m, s->tile, "tiles of attention", err)) &&
                   (p->plan = kvd_device_new(m, s->plan, "plan of attention", err)) &&
                   (p->next = kvd_device_new(m, sizeof *p->next, "plan of attention", err))
               ? 0
               : -1;
}

kvd_gpu_paged *kvd_gpu_paged_new(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                                 size_t max_len, kvd_err *err)
{
    kvd_attn_map map;
    if (max_tokens < 1 || max_tokens > INT_MAX / 8 || max_len < 1 || max_len > max_tokens ||
        kvd_gpu_paged_map(c, share, NULL, NULL, &map)) {
        kvd_fail(err, "attention of %zu tokens in sequences of up to %zu, %d heads of %d",
                 max_tokens, max_len, share->n_heads, c->d_head);
        return NULL;
    }
    kvd_gpu_paged *const p = kvd_new(1, sizeof *p, what, err);
    if (!p)
        return NULL;
    p->d = (size_t)c->d_head;
    const sizes s = sizes_of(&map, max_tokens, max_len);
    if (ask_device(p, err) || make_memory(p, &s, err) ||
        kvd_dense_lists_init(&p->lists, max_tokens, s.run_sequences, err)) {
        kvd_gpu_paged_free(p);
        return NULL;
    }
    return p;
}

void kvd_gpu_paged_free(kvd_gpu_paged *p)
{
    if (!p)
        return;
    kvd_dense_lists_release(&p->lists);
    kvd_device_release(&p->memory);
    free(p);
}

const char *kvd_gpu_paged_engine(const kvd_gpu_paged *p)
{
    return p->hopper ? "sm_90a kernel" : "mma.sync kernel";
}

int kvd_gpu_paged_reads(const kvd_gpu_attention_in *in)
{
    const size_t d = (size_t)in->config->d_head;
    const size_t q = (size_t)in->share->n_heads * d, k = (size_t)in->share->n_kv_heads * d;
    return in->type == KVD_BF16 && in->ld == q + 2 * k && (const uint16_t *)in->q + q == in->k &&
           (const uint16_t *)in->k + k == in->v && (uintptr_t)in->q % 16 == 0;
}

/* Fills the page table and the list of tiles, unless they are filled for these sequences
 * already. */
static int prepare(kvd_gpu_paged *p, const kvd_attn_map *map, const kvd_dense_run *r,
                   cudaStream_t stream, kvd_err *err)
{
    const kvd_dense_columns *dev = &p->lists.device, *host = &p->lists.host;
    if (p->prepared == r && !memcmp(&p->args.map, map, sizeof *map))
        return kvd_cuda_check(cudaMemsetAsync(p->next, 0, sizeof *p->next, stream), what, err);
    p->prepared = NULL;
    p->args = (kvd_prefill_args){.dtype = KVD_BF16,
                                 .batch = (int32_t)r->n,
                                 .max_pages = (int32_t)r->max_pages,
                                 .n_q8 = (int32_t)r->n_q8,
                                 .q_start = dev->q_start + r->first,
                                 .q_len = dev->len + r->first,
                                 .kv_len = dev->len + r->first,
                                 .page_table = p->table,
                                 .q = p->q,
                                 .pool = p->pool,
                                 .work = {.n_ctas = p->n_sms}};
    memcpy(&p->args.map, map, sizeof *map);
    const kvd_attn_batch batch = {(int)r->n, host->len + r->first, host->len + r->first};
    const kvd_prefill_cost *cost = p->hopper ? &kvd_prefill_cost_sm90 : &kvd_prefill_cost_mma;
    if (kvd_cuda_check(kvd_dense_page_table(dev->first_page + r->first, (int32_t)r->n,
                                            (int32_t)r->max_pages, p->table, stream),
                       what, err) ||
        kvd_cuda_check(kvd_prefill_plan(&p->args, &batch, KVD_SCHEDULE_OURS, cost, p->tile, NULL,
                                        p->next, p->plan, stream),
                       what, err))
        return -1;
    p->prepared = r;
    return 0;
}

/* Projects Q, K and V of new tokens by the layer's compression matrices, and stores the results. If
 * Q and K have different matrices, launches a second kernel for K. */
static int append(kvd_gpu_paged *p, const kvd_paged_layer *layer, const kvd_append_args *args,
                  cudaStream_t stream, kvd_err *err)
{
    kvd_append_args a = *args;
    a.r_qk = layer->a_q;
    a.r_v = layer->a_v;
    a.q = p->q;
    if (kvd_cuda_check(kvd_append(&a, stream), what, err))
        return -1;
    if (layer->a_k == layer->a_q)
        return 0;
    if (!p->q_unused &&
        !(p->q_unused = kvd_device_new(&p->memory, p->q_bytes, "queries of attention", err)))
        return -1;
    a.r_qk = layer->a_k;
    a.q = p->q_unused;
    return kvd_cuda_check(kvd_append(&a, stream), what, err);
}

static int run_kernels(kvd_gpu_paged *p, const kvd_paged_layer *layer, const kvd_dense_run *r,
                       const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    const kvd_dense_columns *dev = &p->lists.device;
    const size_t row = (size_t)layer->map.o_pitch * sizeof(uint16_t);
    char *const to = (char *)out + r->row * row;
    const kvd_append_args args = {.dtype = KVD_BF16,
                                  .map = layer->map,
                                  .d_head = (int32_t)p->d,
                                  .batch = (int32_t)r->n,
                                  .n_tokens = (int32_t)r->n_tokens,
                                  .token_start = dev->start + r->first,
                                  .q_len = dev->len + r->first,
                                  .kv_len = dev->len + r->first,
                                  .q_start = dev->q_start + r->first,
                                  .n_q8 = (int32_t)r->n_q8,
                                  .page_table = p->table,
                                  .max_pages = (int32_t)r->max_pages,
                                  .x = (const uint16_t *)in->q + r->row * in->ld,
                                  .pool = p->pool};
    if (prepare(p, &layer->map, r, in->stream, err) || append(p, layer, &args, in->stream, err))
        return -1;
    p->args.o = r->no_gaps ? to : p->o;
    p->args.sinks = in->sinks;
    if (kvd_cuda_check(p->hopper ? kvd_prefill_sm90(&p->args, in->stream)
                                 : kvd_prefill_mma(&p->args, in->stream),
                       what, err))
        return -1;
    return r->no_gaps
               ? 0
               : kvd_cuda_check(kvd_dense_rows_back(p->o, args.token_start, args.q_start,
                                                    args.batch, r->n_tokens, row, to, in->stream),
                                what, err);
}

int kvd_gpu_paged_run(kvd_gpu_paged *p, const kvd_paged_layer *layer,
                      const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    int changed = 0;
    if (kvd_dense_lists_upload(&p->lists, in->offset, in->n_sequences, in->stream, &changed, err))
        return -1;
    if (changed)
        p->prepared = NULL;
    for (size_t r = 0; r < p->lists.n_runs; r++)
        if (run_kernels(p, layer, &p->lists.run[r], in, out, err))
            return -1;
    return 0;
}
